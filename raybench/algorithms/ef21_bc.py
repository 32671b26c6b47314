"""EF21 with bidirectional compression."""

from raybench.algorithms.base import Contractive, algorithm, theory, zeros_like
from raybench.algorithms.ef21 import EF21


@algorithm("ef21_bc", up=Contractive, down=Contractive, theory=theory.ef21_bc)
class EF21BC(EF21):
    """EF21 at the clients (its mean is s.w), and again from server to clients: g <- g + D(w - g).

    Every client keeps x and g itself, x <- x - gamma g, so the model is never broadcast. Up: one
    message of C. Down: one of D. Source: Fatkhullin et al. 2021, algorithm 5.
    """

    def start(a, net, s, c):
        super().start(net, s, c)
        s.w = s.g
        s.g = zeros_like(s.w) + net.down(a.D(s.w, net.server_stream("down")))

    def round(a, net, s, c):
        s.x = s.x - a.gamma * s.g
        s.w += a.send(net, s, c, a.gradient(net, s.x))
        s.g += net.down(a.D(s.w - s.g, net.server_stream("down")))
