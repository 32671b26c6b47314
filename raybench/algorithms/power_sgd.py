"""Messages of low rank: PowerSGD, and Dion, whose momentum is orthonormalised."""

import torch

from raybench.algorithms.base import Choice, Estimator, Flag, Integer, Number, algorithm, where


@algorithm(
    "power_sgd",
    title="PowerSGD",
    version="2",
    up=None,
    theory=None,
    rank=Integer(1, low=1, help="of a message, at most"),
    momentum=Number(0.0, low=0, high=0.999, per_cell=True, help="of the decompressed steps"),
    nesterov=Flag(True, help="with momentum, step along Delta + v as in its code, not along v"),
    dense_rounds=Integer(0, low=0, help="first rounds, sent uncompressed"),
    error=Choice(
        "shared", "own", help="shared: e_i is what the mean message leaves, as in its code"
    ),
)
class PowerSGD(Estimator):
    """For each matrix D_i = G_i + e_i: P = orth(mean D_i Q); Q_i = D_i'P; Delta = P mean(Q_i)'; x <- x - gamma Delta.

    e_i = D_i - Delta, as in the authors' code and torch's hook, or with ``error: own`` D_i - P Q_i': their mean, and so
    x, is the same. Q is warm-started from mean Q_i. Tensors of more than two axes are folded to (first, rest); vectors
    are sent dense. With momentum v <- momentum v + Delta, x <- x - gamma (Delta + v), the paper's algorithm 2 and the
    default of its code; ``nesterov: false`` is heavy ball, x <- x - gamma v. Without momentum mean gradients = steps +
    mean errors, summed over rounds. Up and down: r(a + b) values a matrix, in two exchanges of all of them. Source:
    Vogels, Karimireddy, Jaggi 2019.
    """

    broadcasts_model = False
    unsent_state = ("e",)
    refused_in_loops = {
        "momentum": "the momentum of your optimizer",
        "nesterov": "the momentum of your optimizer",
    }

    def setup(a, wire, s, c):
        c.e, s.v, s.Q = wire.zeros(), wire.zero(), bases(wire, a.rank)

    def estimate(a, wire, s, c, grad):
        c.e += grad  # D, in the memory of what will be left of it
        tensors, g = wire.layout.views(c.e), torch.empty_like(s.v)
        low = [] if wire.t <= a.dense_rounds else [j for j, Q in enumerate(s.Q) if Q is not None]
        M = {j: v.view(*v.shape[:3], -1) for j, v in enumerate(tensors) if j in low}
        with wire.compressing():
            sent = [M[j] @ s.Q[j][:, None] if j in M else v for j, v in enumerate(tensors)]
        means = wire.means(sent)
        with wire.compressing():
            P = {j: orthonormal(means[j]) for j in low}
            Q = {j: M[j].mT @ P[j][:, None] for j in low}
        s.Q = [*s.Q]
        for j, mean in zip(low, wire.means([Q[j] for j in low])):
            s.Q[j] = mean
        for j, (step, left) in enumerate(zip(wire.layout.views(g), tensors)):
            if j in M:
                step.view(len(g), *M[j].shape[2:]).baddbmm_(P[j], s.Q[j].mT, beta=0)
                right = Q[j] if a.error == "own" else s.Q[j][:, None].expand_as(Q[j])
                every = P[j][:, None].expand(-1, right.shape[1], -1, -1).flatten(0, 1)
                M[j].view(len(every), *M[j].shape[2:]).baddbmm_(
                    every, right.flatten(0, 1).mT, alpha=-1
                )
            else:
                step.copy_(means[j])
                left.zero_()
        return g

    def outer_step(a, s, g):
        s.v *= a.momentum
        s.v += g
        if not a.nesterov:
            return s.v
        return where(a.momentum.like(g) > 0, g + s.v, g)


def bases(wire, rank):
    """Return Gaussian matrices (B, b, r) for the tensors that are matrices (a, b), None for the others."""
    out, dtype = [], wire.zero().dtype
    for j, (_, shape) in enumerate(wire.layout):
        b = int(torch.Size(shape[1:]).numel())
        r = min([rank, b, *shape[:1]])
        noise = wire.shared_stream("basis").fold(j).normal(b * r)
        out.append(noise.to(dtype).unflatten(-1, (b, r)) if len(shape) > 1 else None)
    return out


def orthonormal(P: torch.Tensor) -> torch.Tensor:
    """Return an orthonormal basis of the columns of P (.., a, r); QR, so no division by zero."""
    return torch.linalg.qr(P).Q


@algorithm(
    "dion",
    title="Dion",
    version="2",
    up=None,
    theory=None,
    rank=Integer(8, low=1, help="of a matrix's step, at most"),
    momentum=Number(
        0.95, low=0, high=0.9999, help="mu, what a step leaves of the momentum along it"
    ),
    decay=Number(0.0, low=0, per_cell=True, help="decoupled weight decay"),
    rest=Number(1.0, low=0, help="step of vectors, which move by signs, over that of matrices"),
    beta2=Number(0.95, low=0, high=0.9999, help="of the vectors' momentum, which Lion has"),
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class Dion(Estimator):
    """For each matrix (a x b): M_i += g_i; P = orth(mean M_i Q); R = mean M_i'P; M_i -= (1 - mu) P R'.

    Q = R with columns of norm 1; x <- x - gamma sqrt(a/b) P Q'. Q begins as Gaussian. Tensors of more than two axes are
    folded to (first, rest). Vectors are sent dense and move by Lion: m <- beta2 m + (1 - beta2) g after the step rest
    sign(0.9 m + 0.1 g). beta2 is that of the released code, 0.95; Lion's paper has 0.99. Up and down: r (a + b) values
    a matrix, in two exchanges of all of them. No guarantee here. Source: Ahn et al. 2025, Dion, algorithm 2 with the
    mean R removed by every client.
    """

    broadcasts_model = False
    unsent_state = ("M",)
    refused_in_loops = {"decay": "the weight_decay of your optimizer"}

    def setup(a, wire, s, c):
        c.M, s.m, s.Q = wire.zeros(), wire.zero(), bases(wire, a.rank)

    def estimate(a, wire, s, c, grad):
        views = wire.layout.views
        M, low = c.M + grad, [j for j, Q in enumerate(s.Q) if Q is not None]
        left, g, slow = views(M), views(grad), views(s.m)
        matrix = {j: left[j].flatten(3) for j in low}
        with wire.compressing():
            sent = [matrix[j] @ s.Q[j][:, None] if j in matrix else v for j, v in enumerate(g)]
        means = wire.means(sent)
        with wire.compressing():
            P = {j: orthonormal(means[j]) for j in low}
            sent = [matrix[j].mT @ P[j][:, None] for j in low]
        R = dict(zip(low, wire.means(sent)))
        steps = []
        for j, (m, mean) in enumerate(zip(views(s.m), means)):
            if j in matrix:
                out = (1 - a.momentum) * (P[j] @ R[j].mT)[:, None]
                left[j] = (matrix[j] - out).reshape(left[j].shape)
                s.Q[j] = R[j] / (R[j].norm(dim=-2, keepdim=True) + 1e-8)
                scale = (matrix[j].shape[-2] / matrix[j].shape[-1]) ** 0.5
                steps.append((scale * P[j] @ s.Q[j].mT).reshape(m.shape))
            else:
                steps.append(a.rest * torch.sign(0.9 * m + 0.1 * mean))
                left[j], slow[j] = left[j] * 0, a.beta2 * m + (1 - a.beta2) * mean
        c.M, s.m = wire.layout.concat(left), wire.layout.concat(slow)
        return wire.layout.concat(steps)

    def outer_step(a, s, g):
        return g + a.decay * s.x
