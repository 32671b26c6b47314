"""Three point compressors: variants 1, 2, 4 and 5, and lazy aggregation (CLAG, LAG)."""

from raybench.algorithms.base import (
    Contractive,
    Dense,
    Number,
    Operator,
    Unbiased,
    algorithm,
    theory,
)
from raybench.algorithms.ef21 import EF21, errors
from raybench.algorithms.marina import sync_probability


def three_point(pair: theory.Pair) -> theory.StepSizes:
    """Return the steps of a three point compressor with the constants (A, B): rho = A, B L_+^2.

    G = mean||g_i - grad f_i||^2, and ||grad f_i(x+) - grad f_i(x)||^2 is at most L_+^2 R in the mean. The
    released code takes L_tilde for L_+.
    """

    def with_constant(name: str) -> theory.Formula:
        def recursion(k: theory.Setting) -> theory.Rate:
            rho, drift = pair(k)
            return theory.Rate(rho=rho, B=drift * k.need(name) ** 2, G=errors)

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
    proximal=True,
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


def v2(k: theory.Setting) -> tuple[float, float]:
    """A = alpha, B = (1 - alpha) omega, omega of ``first``: C shrinks what Q's message leaves,
    E||b - grad f_i(x+)||^2 = ||g_i - grad f_i(x)||^2 + omega ||grad f_i(x+) - grad f_i(x)||^2.
    """
    alpha = k.need("alpha")
    return alpha, (1 - alpha) * k.compressor("first").omega


def v4(k: theory.Setting) -> tuple[float, float]:
    """EF21's A = theta and B = beta, of alpha = 1 - (1 - alpha_1)(1 - alpha_2), alpha_1 of ``first``."""
    left = (1 - k.compressor("first").alpha) * (1 - k.need("alpha"))
    return theory.contraction(1 - left)


@algorithm(
    "three_pc_v2",
    title="3PCv2",
    up=Contractive,
    proximal=True,
    robust=True,
    theory=three_point(v2),
    operators={"first": Unbiased},
    first=Operator("rand_k:k=10%", help="unbiased compressor of the difference of gradients"),
)
class ThreePCv2(ThreePC):
    """b = g_i + Q(grad f_i(x) - y), y = grad f_i at the x before; g_i <- b + C(grad f_i(x) - b).

    Q is ``first``. gamma = 1/(L + L_plus sqrt((1 - alpha) omega/alpha)). Up: both messages. Down: d
    values. Source: Richtarik et al. 2022, 3PC, variant 2.
    """

    def update(a, wire, s, c, x):
        first = a.add(wire, c, a.first(x - c.y, wire.stream("first")))
        return first + a.add(wire, c, a.C(x - c.g, wire.stream("up")))


@algorithm(
    "three_pc_v4",
    title="3PCv4",
    up=Contractive,
    proximal=True,
    robust=True,
    theory=three_point(v4),
    operators={"first": Contractive},
    first=Operator("top_k:k=10%", help="contractive compressor that acts first"),
)
class ThreePCv4(ThreePC):
    """b = g_i + C_1(grad f_i(x) - g_i); g_i <- b + C(grad f_i(x) - b).

    C_1 is ``first``: EF21 with the compressor ``two_shot``, and its step with L_plus for L_tilde. Up: both
    messages. Down: d values. Source: Richtarik et al. 2022, 3PC, variant 4.
    """

    def update(a, wire, s, c, x):
        first = a.add(wire, c, a.first(x - c.g, wire.stream("first")))
        return first + a.add(wire, c, a.C(x - c.g, wire.stream("up")))


def v5(k: theory.Setting) -> tuple[float, float]:
    """A = 1 - sqrt(1-p), B = (1-p)(1-alpha)/A: EF21's split of the error, for the coin in place of the compressor."""
    theta, beta = theory.contraction(k.number("p"))
    return theta, beta * (1 - k.need("alpha"))


@algorithm(
    "three_pc_v5",
    title="3PCv5",
    up=Contractive,
    proximal=True,
    theory=three_point(v5),
    auto={"p": sync_probability},
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
)
class ThreePCv5(ThreePC):
    """With probability p g_i <- grad f_i(x), else g_i <- g_i + C(grad f_i(x) - y), y at the x before.

    One coin for all clients. p = auto makes dense rounds cost what the others do. The errors of
    biased messages add up between dense rounds, hence the step. With an unbiased compressor that is
    not rescaled it is MARINA, A = p and B = (1-p) omega: see ``marina``, whose clients keep no g_i.
    Up: d values or one message. Down: d values. Source: Richtarik et al. 2022, 3PC, variant 5.
    """

    def update(a, wire, s, c, x):
        coin, q, left, change = wire.coin("sync", a.p), wire.stream("up"), x - c.g, x - c.y
        m = wire.cases(coin, lambda b: Dense(left[b]), lambda b: a.C(change[b], q[b]))
        return a.add(wire, c, m)


def lazy(k: theory.Setting) -> tuple[float, float]:
    """A = theta, B = max(beta, z); LAG, alpha = 1: A = 1, B = z.

    A client that fires is EF21's; the error of one that does not is at most z ||grad f_i(x+) - grad f_i(x)||^2.
    """
    theta, beta = theory.contraction(k.need("alpha"))
    return theta, max(beta, k.number("z"))


LAZY_STEPS = three_point(lazy).with_rules(released=None)


@algorithm(
    "clag",
    up=Contractive,
    proximal=True,
    robust=True,
    theory=LAZY_STEPS,
    z=Number(1.0, low=0, per_cell=True, help="how much staler than one step g_i may be"),
)
class CLAG(ThreePC):
    """g_i <- g_i + C(grad f_i(x) - g_i) if ||grad f_i(x) - g_i||^2 > z ||grad f_i(x) - y||^2, else g_i.

    y = grad f_i at the x before. z = 0 is EF21; z large: nobody sends, x moves along g^0. With a small share of
    Top-K all clients send until z is well above 1, as the error of C exceeds the change of a step. gamma = 1/(L +
    L_plus sqrt(max(beta, z)/theta)). Up: a bit, and one message if the client fired. Down: d values. Source:
    Richtarik et al. 2022, 3PC, algorithm CLAG.
    """

    def update(a, wire, s, c, x):
        left, moved = (x - c.g).square().sum(-1), (x - c.y).square().sum(-1)
        wire.charge(1)  # one bit says whether the client sends a message
        return a.add(wire, c, a.C(x - c.g, wire.stream("up")).masked(left > a.z * moved))


@algorithm("lag", own="identity", up=None, proximal=True, theory=LAZY_STEPS)
class LAG(CLAG):
    """CLAG with the identity: g_i <- grad f_i(x) if the client fires, else g_i.

    z = 0 is gradient descent. gamma = 1/(L + L_plus sqrt(z)). Up: a bit, and d values if the client
    fired. Down: d values. Source: Chen, Giannakis, Sun, Yin 2018, LAG; Richtarik et al. 2022, 3PC.
    """
