"""Lazy aggregation: clients that would say little stay silent; compressed (CLAG) and plain (LAG)."""

from raybench.algorithms.base import Contractive, Number, algorithm, theory
from raybench.algorithms.three_pc import ThreePC, three_point


def lazy(k: theory.Setting) -> tuple[float, float]:
    """A = theta, B = max(beta, z); LAG, alpha = 1: A = 1, B = z.

    A client that fires is EF21's; the error of one that does not is at most z ||grad f_i(x+) - grad f_i(x)||^2.
    """
    theta, beta = theory.contraction(k.need("alpha"))
    return theta, max(beta, k.number("z"))


STEPS = three_point(lazy).with_rules(released=None)


@algorithm(
    "clag",
    up=Contractive,
    proximal=True,
    robust=True,
    theory=STEPS,
    z=Number(1.0, low=0, per_cell=True, help="how much staler than one step g_i may be"),
)
class CLAG(ThreePC):
    """g_i <- g_i + C(grad f_i(x) - g_i) if ||grad f_i(x) - g_i||^2 > z ||grad f_i(x) - y||^2, else g_i.

    y = grad f_i at the x before. z = 0 is EF21; z large: nobody sends, x moves along g^0. gamma =
    1/(L + L_plus sqrt(max(beta, z)/theta)). Up: a bit, and one message if the client fired. Down: d
    values. Source: Richtarik et al. 2022, 3PC, algorithm CLAG.
    """

    def update(a, wire, s, c, x):
        left, moved = (x - c.g).square().sum(-1), (x - c.y).square().sum(-1)
        wire.charge(1)  # one bit says whether the client sends a message
        return a.add(wire, c, a.C(x - c.g, wire.stream("up")).masked(left > a.z * moved))


@algorithm("lag", own="identity", up=None, proximal=True, theory=STEPS)
class LAG(CLAG):
    """CLAG with the identity: g_i <- grad f_i(x) if the client fires, else g_i.

    z = 0 is gradient descent. gamma = 1/(L + L_plus sqrt(z)). Up: a bit, and d values if the client
    fired. Down: d values. Source: Chen, Giannakis, Sun, Yin 2018, LAG; Richtarik et al. 2022, 3PC.
    """
