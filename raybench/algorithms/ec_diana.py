"""Error compensation whose floor is removed: by shifts learned or known, and by variance reduction."""

from math import sqrt

from raybench.algorithms.base import (
    Contractive,
    Integer,
    Number,
    Operator,
    Unbiased,
    algorithm,
    theory,
    where,
)
from raybench.algorithms.ef14 import CONVEX, EF14, spread


def rate(k: theory.Setting) -> float:
    """Return 1/(1 + omega) of the second compressor."""
    return 1 / (1 + k.operator("shift").omega)


@algorithm(
    "ec_diana",
    up=Contractive,
    theory=None,
    auto={"alpha": rate},
    operators={"shift": Unbiased},
    shift=Operator("rand_k:k=10%", help="unbiased compressor of the second message"),
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


def strongly_convex(k: theory.Setting) -> float:
    """min{1/(4L), sqrt(s/(48 L L_max))}, s = theta/beta: EF14's proof with D = 0.

    mean||grad f_i(x) - grad f_i(x*)||^2 <= 2 L_max (f(x) - f*), as f_i is convex.
    """
    L = k.need("L")
    return min(1 / (4 * L), sqrt(spread(k) / (48 * L * k.need("L_max"))))


STEPS = theory.StepSizes(
    pl=theory.Theorem(
        strongly_convex,
        "E||x^t - mean e_i^t - x*||^2 + (6 L gamma/theta) mean E||e_i^t||^2 <= (1 - gamma mu/2)^t ||x^0 - x*||^2",
        CONVEX,
        "derived here; method: Gorbunov, Kovalev, Makarenko, Richtarik 2020",
    )
)


@algorithm(
    "ec_gd_star",
    title="EC-GD*",
    up=Contractive,
    minimizer=True,
    theory=STEPS,
)
class ECGDStar(EF14):
    """EF14 on grad f_i(x) - grad f_i(x*): an oracle's method, to see what shifts could do.

    Needs a problem whose minimiser has a closed form. No floor. Up: one message. Down: d values.
    Source: Gorbunov, Kovalev, Makarenko, Richtarik 2020, Linearly Converging Error Compensated SGD.
    """

    def start(a, net, s, c):
        super().start(net, s, c)
        c.h = net.oracle.at_minimizer()

    def shifted(a, wire, s, c, grad):
        return grad - c.h


def refresh(k: theory.Setting) -> float:
    """Return p = 1/m, m the samples of a client."""
    return 1 / k.m


@algorithm(
    "ec_lsvrg",
    up=Contractive,
    robust=True,
    theory=None,
    auto={"p": refresh},
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
    batch=Integer(1, low=1, help="samples per client and round"),
)
class ECLSVRG(EF14):
    """EF14 on g_i = grad f_i(x; J) - grad f_i(w_i; J) + grad f_i(w_i); w_i <- x with probability p.

    Own coin per client; p = auto is 1/m. The gradient noise vanishes, the floor of heterogeneity
    stays. Gradients per round and client: 2 b, and m with probability p. Up: one message. Down: d
    values. Source: Gorbunov et al. 2020, EC-LSVRG.
    """

    def start(a, net, s, c):
        super().start(net, s, c)
        c.full = net.grad(s.x)
        c.w = s.x[:, None].expand_as(c.full)

    def source(a, net, s, c):
        J, coin = net.sample("batch", a.batch), net.coins("refresh", a.p)
        g = net.grad(s.x, J) - net.grad(c.w, J) + c.full
        c.full = where(coin[..., None], net.grad(s.x, clients=coin), c.full)
        c.w = where(coin[..., None], s.x[:, None], c.w)
        return g
