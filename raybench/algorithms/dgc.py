"""Memories at the clients before messages are chosen: deep gradient compression, DeMo and LoCo."""

import torch

from raybench.algorithms.base import (
    Any_,
    Choice,
    Contractive,
    Dense,
    Estimator,
    Flag,
    Integer,
    List,
    Number,
    algorithm,
    clipped,
    matrices,
    shares,
    where,
    zeros_like,
)


@algorithm(
    "dgc",
    up=Contractive,
    theory=None,
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
    momentum=Number(0.9, low=0, high=0.999, per_cell=True, help="eta, at the clients"),
    nesterov=Flag(help="u <- eta (u + g), v <- v + u + g"),
    masking=Flag(True, help="momentum of what was sent is cleared (factor masking)"),
    clip=Number("off", low=0, open_low=True, words=("off",), help="norm of a tensor, all clients"),
    decay=Number(0.0, low=0, per_cell=True, help="weight decay, added to the gradient"),
    vectors=Choice("compressed", "dense", help="how tensors of one axis (biases) are sent"),
    warmup=List("off", words=("off", "paper", "geometric"), help="first shares, in place of k"),
    warmup_rounds=Integer(10, low=1, help="rounds at each share of the warm-up, often an epoch"),
)
class DGC(Estimator):
    """u_i <- eta u_i + g_i; v_i <- v_i + u_i; m_i = C(v_i); v_i <- v_i - m_i; x <- x - gamma mean m_i.

    g_i: the gradient, each tensor clipped to the norm clip/sqrt(n), plus decay x. With ``masking`` u_i
    becomes 0 where m_i is not; without, all m_i sent + v_i is the sum of all u_i. The paper's C is
    ``dgc``, on every tensor of its own: ``per_tensor`` of it. warmup: shares in place of C's ``k``,
    ``warmup_rounds`` each: a list; ``paper``: 25%, 6.25%, 1.5625%, 0.4%; ``geometric``: (k/d)^(j/6), j
    = 1..5. A share of 100% sends all and masks nothing: momentum SGD. Up: one message. Down: d
    values. Source: Lin et al. 2018, Deep Gradient Compression, algorithm 4.
    """

    unsent_state = ("v",)
    refused_in_loops = {
        "clip": "torch.nn.utils.clip_grad_norm_ before the step, at clip/sqrt(n)",
        "decay": "the weight_decay of your optimizer",
    }

    @classmethod
    def check(cls, params, op, d):
        shares(params["warmup"], op, d)

    def setup(a, wire, s, c):
        c.u, c.v = wire.zeros(), wire.zeros()
        a.split = matrices(wire.layout, a.vectors == "dense")
        layout = a.split.layout
        # None stands for the compressor's own k
        ratios = [*shares(a.warmup, a.C.declared, wire.layout.dim), None]
        a.stages = [a.C.fitted(layout, k) if layout.dim and k != "100%" else None for k in ratios]

    def source(a, net, s, c):
        g = a.gradient(net, s.x)
        if a.clip != "off":
            g = clipped(net.layout, g, a.clip / net.n**0.5)
        return g + a.decay * s.x[:, None]

    def estimate(a, wire, s, c, g):
        c.u = a.momentum * (c.u + g) if a.nesterov else a.momentum * c.u + g
        v = c.v + c.u + g if a.nesterov else c.v + c.u
        C = a.stages[min((wire.t - 1) // a.warmup_rounds, len(a.stages) - 1)]
        if C is None:
            c.v = zeros_like(v)
            return wire.up(Dense(v)).mean()
        wide, narrow = a.split(v)
        m = C(wide, wire.stream("up"))
        sent, mean = m.decode(), wire.up(m).mean()
        if a.split.narrow:
            mean = a.split.join(mean, wire.up(Dense(narrow)).mean())
        c.v = a.split.join(wide - sent, zeros_like(narrow))
        if a.masking:  # only tensors that are sent compressed have their momentum masked
            c.u = where(a.split.join(sent != 0, zeros_like(narrow).bool()), 0.0, c.u)
        return mean


@algorithm(
    "demo",
    title="DeMo",
    up=Contractive,
    averaged=False,  # it may ask who sent what
    theory=None,
    beta=Number(0.999, low=0, high=1, per_cell=True, help="what is kept of the momentum"),
    decay=Number(0.0, low=0, per_cell=True, help="decoupled weight decay"),
    combine=Choice(
        "mean", "senders", help="senders: over those that sent a coefficient, as in its code"
    ),
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class DeMo(Estimator):
    """m_i <- beta m_i + gamma g_i; c_i = C(m_i); m_i <- m_i - c_i; x <- (1 - gamma decay) x - gamma sign(mean c_i).

    C is meant to be ``dct_top_k``: the k largest cosine coefficients of every chunk of 64 x 64. What is sent
    leaves the momentum, the rest accumulates; clients step themselves. ``senders`` divides each coefficient by
    the number of those that sent it. Up: one message. Down: what all sent. No guarantee here. Source: Peng,
    Quesnelle, Kingma 2024, DeMo, algorithm 1.
    """

    broadcasts_model = False
    in_steps = True
    unsent_state = ("m",)
    refused_in_loops = {"decay": "the weight_decay of your optimizer"}

    def setup(a, wire, s, c):
        c.m = wire.zeros()

    def estimate(a, wire, s, c, grad):
        m = a.beta * c.m + a.gamma * grad
        sent = a.C(m, wire.stream("up"))
        c.m = m - sent.decode()
        messages = wire.all_gather(sent)
        return a.gamma * torch.sign(
            messages.mean() if a.combine == "mean" else messages.mean_of_senders()
        )

    def outer_step(a, s, g):
        return g + a.gamma * a.decay * s.x


@algorithm(
    "loco",
    title="LoCo",
    up=Any_,
    theory=None,
    beta=Number(0.8, low=0, high=1, per_cell=True, help="what is kept of the error before"),
    reset=Integer(1024, low=1, help="rounds after which the error is forgotten"),
    levels=Integer(
        127, low=1, words=("off",), help="of the error kept, up to its largest entry; off: exact"
    ),
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class LoCo(Estimator):
    """v_i = g_i + e_i; c_i = C(v_i); e_i <- beta e_i + (1 - beta) (v_i - c_i); x <- x - gamma mean c_i.

    e_i is kept coarsely, every tensor rounded to ``levels`` multiples up to its largest entry (127: one byte an entry),
    and forgotten every ``reset`` rounds. C is meant to be a quantiser to 16 values. beta = 0, exact, is EF14 with a
    memory of gradients. Up: one message. Down: d values. No guarantee here. Source: Xie, Lin, Toh, Zhou 2024, LoCo,
    algorithm 1; defaults as in DeepSpeed's.
    """

    unsent_state = ("e",)

    def setup(a, wire, s, c):
        c.e = wire.zeros()

    def estimate(a, wire, s, c, grad):
        v = grad + c.e
        m = a.C(v, wire.stream("up"))
        e = a.beta * c.e + (1 - a.beta) * (v - m.decode())
        if a.levels != "off":
            e = rounded(e, a.levels, wire.layout)
        c.e = wire.zeros() if wire.t % a.reset == 0 else e
        return wire.up(m).mean()


def rounded(e, levels, layout):
    """Return e (.., d) with every tensor's entries rounded to multiples of its largest/levels."""
    out = []
    for part in layout.views(e):
        flat = part.flatten(e.ndim - 1)
        unit = flat.abs().amax(-1, keepdim=True) / levels
        out.append(torch.round(flat / unit.where(unit > 0, 1.0)) * unit)
    return torch.cat(out, -1)
