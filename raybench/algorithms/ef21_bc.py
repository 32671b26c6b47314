"""EF21 with bidirectional compression."""

from raybench.algorithms.base import Contractive, algorithm, theory
from raybench.algorithms.ef21 import EF21


@algorithm("ef21_bc", up=Contractive, down=Contractive, theory=theory.ef21_bc)
class EF21BC(EF21):
    """EF21 at the clients (its mean is s.w), and again from server to clients: g <- g + D(w - g).

    Every client keeps x and g itself, x <- x - gamma g, so the model is never broadcast. Up: one
    message of C. Down: one of D. Source: Fatkhullin et al. 2021, algorithm 5.
    """

    told = False

    def setup(a, wire, s, c):
        super().setup(wire, s, c)
        s.w = wire.zero()

    def open(a, wire, s, c, grad):
        s.w = super().open(wire, s, c, grad)
        return a.broadcast(wire, s.w)

    def estimate(a, wire, s, c, grad):
        s.w = s.w + a.send(wire, s, c, grad)
        return s.g + a.broadcast(wire, s.w - s.g)
