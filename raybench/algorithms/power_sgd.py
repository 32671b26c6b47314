"""PowerSGD: low-rank all-reduce by one step of subspace iteration, with error feedback."""

import torch

from raybench.algorithms.base import Algorithm, Integer, Number, algorithm, zeros_like


@algorithm(
    "power_sgd",
    up=None,
    theory=None,
    rank=Integer(1, low=1, help="of a message, at most"),
    momentum=Number(0.0, low=0, high=0.999, per_cell=True, help="of the decompressed steps"),
    dense_rounds=Integer(0, low=0, help="first rounds, sent uncompressed"),
)
class PowerSGD(Algorithm):
    """For each matrix D_i = G_i + e_i: P = orth(mean D_i Q); Q_i = D_i'P; x <- x - gamma P mean(Q_i)'.

    e_i = D_i - P Q_i', Q is warm-started from mean Q_i. Tensors of more than two axes are folded to
    (first, rest); vectors are sent dense. With momentum v <- momentum v + P mean(Q_i)', x <- x - gamma v.
    Without it mean gradients = steps + mean errors, summed over rounds.
    Up and down: r(a + b) values a matrix, in two exchanges. Source: Vogels, Karimireddy, Jaggi 2019.
    """

    def start(a, net, s, c):
        c.e, s.v, s.Q, s.t = net.zeros(), zeros_like(s.x), [], 0
        for j, (_, shape) in enumerate(net.layout):
            b = int(torch.Size(shape[1:]).numel())
            r = min([a.rank, b, *shape[:1]])
            noise = net.shared_stream("basis").fold(j).normal(b * r)
            s.Q.append(noise.to(s.x.dtype).unflatten(-1, (b, r)) if len(shape) > 1 else None)

    def round(a, net, s, c):
        D, steps = net.grad(s.x) + c.e, []
        for j, tensor in enumerate(net.layout.views(D)):
            if s.Q[j] is None or s.t < a.dense_rounds:
                out, own = net.mean(tensor.reshape(*tensor.shape[:2], -1)), tensor
            else:
                M = tensor.flatten(3)
                P = orthonormal(net.mean(M @ s.Q[j][:, None]))
                Q = M.mT @ P[:, None]
                s.Q[j] = net.mean(Q)
                out, own = P @ s.Q[j].mT, P[:, None] @ Q.mT
            steps.append((out.reshape(len(out), *tensor.shape[2:]), own.reshape(tensor.shape)))
        s.v = a.momentum * s.v + net.layout.concat([out for out, _ in steps])
        s.x = s.x - a.gamma * s.v
        c.e, s.t = D - net.layout.concat([own for _, own in steps]), s.t + 1


def orthonormal(P: torch.Tensor) -> torch.Tensor:
    """Return an orthonormal basis of the columns of P (.., a, r); QR, so no division by zero."""
    return torch.linalg.qr(P).Q
