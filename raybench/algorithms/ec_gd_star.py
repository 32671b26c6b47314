"""EC-GD*: error compensation with shifts that are known."""

from raybench.algorithms.base import Contractive, algorithm
from raybench.algorithms.ef14 import EF14


@algorithm("ec_gd_star", up=Contractive, broadcast=Contractive, minimizer=True, theory=None)
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
