"""Three point compressors: what the methods share, and the first variant."""

from raybench.algorithms.base import Contractive, Dense, algorithm, theory
from raybench.algorithms.ef21 import EF21


def three_point(pair: theory.Pair) -> theory.StepSizes:
    """Return the steps of a three point compressor with the constants (A, B): rho = A, B L_+^2.

    G = mean||g_i - grad f_i||^2, and ||grad f_i(x+) - grad f_i(x)||^2 is at most L_+^2 R in the mean. The
    released code takes L_tilde for L_+.
    """

    def with_constant(name: str) -> theory.Formula:
        def recursion(k: theory.Setting) -> theory.Rate:
            rho, drift = pair(k)
            return theory.Rate(rho=rho, B=drift * k.need(name) ** 2)

        recursion.__doc__ = pair.__doc__
        return recursion

    return theory.recursive(
        with_constant("L_plus"),
        "Richtarik, Sokolov, Fatkhullin, Gasanov, Li, Gorbunov 2022, 3PC",
        theory.CONTRACTIVE,
        as_in_paper=True,
        released=theory.Convention(
            with_constant("L_tilde"), "IgorSokoloff/3pc_experiments_source_code"
        ),
    )


class ThreePC(EF21):
    """x <- x - gamma g; g_i <- C_{h,y}(grad f_i(x)) with h = g_i and y = grad f_i at the x before.

    E||C_{h,y}(x) - x||^2 <= (1-A) ||h - y||^2 + B ||x - y||^2 gives the generic rule with rho = A and
    B L_plus^2. The server's g equals mean g_i; clients keep g_i and y. Source: Richtarik, Sokolov,
    Fatkhullin, Gasanov, Li, Gorbunov 2022, 3PC.
    """

    batch = "full"  # y is the gradient at the last x, which a minibatch would not be

    def open(a, wire, s, c, grad):
        c.y = grad
        return super().open(wire, s, c, grad)

    def estimate(a, wire, s, c, grad):
        g = s.g + a.update(wire, s, c, grad)
        c.y = grad
        return g

    def update(a, wire, s, c, x):
        """Take c.g, (B, n_here, d), from h to C_{h,y}(x), y = c.y, by messages; return their mean."""
        raise NotImplementedError

    def add(a, wire, c, m):
        """Send m: g_i <- g_i + m_i; return mean m_i."""
        m.add_to(c.g)
        return wire.up(m).mean()


def v1(k: theory.Setting) -> tuple[float, float]:
    """A = 1, B = 1 - alpha: the error is that of compressing grad f_i(x+) - grad f_i(x), and no older one."""
    return 1.0, 1 - k.need("alpha")


@algorithm(
    "three_pc_v1",
    title="3PCv1",
    up=Contractive,
    broadcast=Contractive,
    proximal=True,
    blocks=True,
    robust=True,
    theory=three_point(v1),
)
class ThreePCv1(ThreePC):
    """g_i <- y + C(grad f_i(x) - y), y = grad f_i at the x before: an idealised method.

    The server would have to know y, so it is sent: dense, beside C's message. To compare others with;
    gradient descent is cheaper. gamma = 1/(L + L_plus sqrt(1 - alpha)). Up: d values and one message.
    Down: d values. Source: Richtarik et al. 2022, 3PC, variant 1.
    """

    def update(a, wire, s, c, x):
        exact = a.add(wire, c, Dense(c.y - c.g))
        return exact + a.add(wire, c, a.C(x - c.y, wire.stream("up")))
