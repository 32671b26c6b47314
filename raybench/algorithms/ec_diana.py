"""EC-SGD-DIANA: error compensation with shifts that are learned."""

from raybench.algorithms.base import (
    Contractive,
    Integer,
    Number,
    Operator,
    Unbiased,
    algorithm,
    theory,
)
from raybench.algorithms.ef14 import EF14


def rate(k: theory.Setting) -> float:
    """Return 1/(1 + omega) of the second operator."""
    return 1 / (1 + k.operator("shift").omega)


@algorithm(
    "ec_diana",
    up=Contractive,
    broadcast=Contractive,
    theory=None,
    stochastic=True,
    auto={"alpha": rate},
    operators={"shift": Unbiased},
    shift=Operator("rand_k:k=10%", help="unbiased operator of the second message"),
    alpha=Number("auto", low=0, high=1, words=("auto",), per_cell=True, help="shift rate"),
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class ECDiana(EF14):
    """EF14 on g_i - h_i + h, and a second message q_i = Q(g_i - h_i): h_i <- h_i + alpha q_i, h = mean h_i.

    alpha = auto is 1/(1 + omega) of ``shift``, Q. With full gradients it has no floor; gamma =
    1/(8 L_max) times the contraction converges, without a theorem here. Up: both messages. Down: d
    values twice, x and h. Source: Gorbunov et al. 2020, EC-SGD-DIANA.
    """

    def setup(a, wire, s, c):
        super().setup(wire, s, c)
        c.h, s.h = wire.zeros(), wire.zero()

    def shifted(a, wire, s, c, grad):
        left = grad - c.h
        v = left + s.h[:, None]
        m = a.shift(left, wire.stream("shift"))
        c.h += a.alpha * m.decode()
        s.h = wire.model(s.h + a.alpha * wire.up(m).mean())
        return v
