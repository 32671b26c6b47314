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

    def round(a, net, s, c):
        a.step(net, s, s.g)
        S = net.participants(a.p)
        m = a.C(net.grad(s.x, clients=S) - c.g, net.stream("up")).masked(S)
        m.add_to(c.g)
        s.g += net.up(m).mean()
