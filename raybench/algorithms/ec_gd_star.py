"""EC-GD*: error compensation with shifts that are known."""

from math import sqrt

from raybench.algorithms.base import Contractive, algorithm, theory
from raybench.algorithms.ef14 import CONVEX, EF14, spread


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
    broadcast=Contractive,
    minimizer=True,
    blocks=True,
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
