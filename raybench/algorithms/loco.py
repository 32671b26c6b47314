"""LoCo: low-bit messages whose errors are remembered as a moving average, coarsely."""

import torch

from raybench.algorithms.base import Any_, Estimator, Integer, Number, algorithm


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

    e_i is kept coarsely, every tensor rounded to ``levels`` multiples up to its largest entry (127: one byte an
    entry), and forgotten every ``reset`` rounds. C is meant to be a quantiser to 16 values. beta = 0, exact, is EF14 with a
    memory of gradients. Up: one message. Down: d values. No guarantee here. Source: Xie, Lin, Toh, Zhou 2024,
    LoCo, algorithm 1; defaults as in DeepSpeed's.
    """

    errors = ("e",)

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
