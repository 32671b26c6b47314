"""EF21+: the better of a compressed difference and a compressed gradient."""

from raybench.algorithms.base import Contractive, Estimator, algorithm, choose, where
from raybench.algorithms.ef21 import STEPS


@algorithm(
    "ef21_plus",
    up=Contractive,
    averaged=False,  # a flag says which of two meanings a message has
    relay=False,  # some messages replace a g_i, so their sum is not the change of g
    proximal=True,
    theory=STEPS,  # EF21's recursion holds, since the smaller of the two errors is kept
)
class EF21Plus(Estimator):
    """g_i <- g_i + C(grad f_i(x) - g_i) or C(grad f_i(x)), whichever is closer to grad f_i(x).

    A flag bit says which; as the second replaces g_i, the server keeps every g_i (s.G, n d values).
    Step size and rate as EF21. Up: one message and a bit. Down: d values; the sum of
    the messages (``downlink: aggregate``) would not do. Source: Richtarik, Sokolov, Fatkhullin 2021,
    algorithm 3.
    """

    opens = True

    def open(a, wire, s, c, grad):
        m = a.C(grad, wire.stream("up"))
        c.g, s.G = m.decode(), wire.up(m).decode()
        return s.G.mean(1)

    def estimate(a, wire, s, c, grad):
        q = wire.stream("up")
        step, anew = a.C(grad - c.g, q), a.C(grad, q)
        moved, fresh = c.g + step.decode(), anew.decode()
        replace = (fresh - grad).square().sum(-1) < (moved - grad).square().sum(-1)
        c.g = where(replace[..., None], fresh, moved)

        got = wire.up(choose(replace, anew, step))
        s.G = where(got.flags[..., None], got.decode(), s.G + got.decode())
        return s.G.mean(1)
