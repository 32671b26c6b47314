"""EF21 with partial participation."""

from raybench.algorithms.base import Contractive, Number, algorithm, theory
from raybench.algorithms.ef21 import EF21, PLAIN
from raybench.algorithms.ef21 import recursion as everyone


def recursion(k: theory.Setting) -> theory.Rate:
    """rho = p theta - (1-p) r, B = (p beta + (1-p)(1 + 1/r)) L_tilde^2, r = p theta/(2(1-p)); p = 1: EF21.

    A participant's error obeys EF21's recursion; an absent one's only drifts, ||grad f_i(x+) - g_i||^2 <=
    (1 + r)||grad f_i(x) - g_i||^2 + (1 + 1/r) L_i^2 ||x+ - x||^2, r > 0 being free.
    """
    theta, beta = theory.contraction(k.need("alpha"))
    p = k.number("p")
    if p == 1:
        return everyone(k)
    r = p * theta / (2 * (1 - p))
    drift = p * beta + (1 - p) * (1 + 1 / r)
    return theory.Rate(rho=p * theta - (1 - p) * r, B=drift * k.need("L_tilde") ** 2)


@algorithm(
    "ef21_pp",
    up=Contractive,
    proximal=True,
    participation="p",
    robust=True,
    theory=theory.recursive(
        recursion,
        "Fatkhullin et al. 2021; r chosen here",
        theory.CONTRACTIVE,
        released=PLAIN,
    ),
    p=Number(0.5, low=0, high=1, open_low=True, per_cell=True, help="chance to take part"),
)
class EF21PP(EF21):
    """EF21 in which each client takes part in a round with probability p; the others send nothing.

    g <- g + (1/n) sum over participants of c_i (n, not their number), so g = mean g_i still holds.
    Up: p messages on average. Down: d values. Source: Fatkhullin et al. 2021, EF21 with Bells &
    Whistles, algorithm 4.
    """

    left_to_loops = {}

    def source(a, net, s, c):
        return net.grad(s.x, clients=net.participants(a.p)) if net.t else net.grad(s.x)

    def estimate(a, wire, s, c, grad):
        m = a.C(grad - c.g, wire.stream("up")).masked(wire.participants(a.p))
        m.add_to(c.g)
        return s.g + wire.up(m).mean()
