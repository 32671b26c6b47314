"""EF21 with partial participation."""

from raybench.algorithms.base import Contractive, Number, algorithm, theory
from raybench.algorithms.ef21 import EF21


@algorithm(
    "ef21_pp",
    up=Contractive,
    broadcast=Contractive,
    proximal=True,
    participation="p",
    theory=theory.ef21_pp,
    p=Number(0.5, low=0, high=1, open_low=True, per_cell=True, help="chance to take part"),
)
class EF21PP(EF21):
    """EF21 in which each client takes part in a round with probability p; the others send nothing.

    g <- g + (1/n) sum over participants of c_i (n, not their number), so g = mean g_i still holds.
    Up: p messages on average. Down: d values. Source: Fatkhullin et al. 2021, EF21 with Bells &
    Whistles, algorithm 4.
    """

    def source(a, net, s, c):
        return net.grad(s.x, clients=net.participants(a.p)) if net.t else net.grad(s.x)

    def estimate(a, wire, s, c, grad):
        m = a.C(grad - c.g, wire.stream("up")).masked(wire.participants(a.p))
        m.add_to(c.g)
        return s.g + wire.up(m).mean()
