"""DIANA: compressed differences to learned shifts."""

from math import sqrt

from raybench.algorithms.base import Estimator, Number, Unbiased, algorithm, theory
from raybench.algorithms.marina import CODE


def shift_rate(k: theory.Setting) -> float:
    """Return a = 1/(1 + omega), the largest rate at which shifts may learn."""
    return 1 / (1 + k.need("omega"))


def learns(k: theory.Setting) -> float:
    """Return alpha, the rate at which shifts learn; raises NoTheory unless 0 < alpha <= 1/(1 + omega)."""
    a, most = k.number("alpha"), shift_rate(k)
    if not 0 < a <= (1 + 1e-12) * most:
        raise theory.NoTheory(f"DIANA needs 0 < alpha <= 1/(1 + omega) = {most:.3g}")
    return a


def recursion(k: theory.Setting) -> theory.Rate:
    """G = (omega/n) mean||grad f_i - h_i||^2: rho = a/2, B = (omega/n)(2/a) L_tilde^2, a <= 1/(1+omega).

    E||h_i+ - grad f_i||^2 <= (1-a)||h_i - grad f_i||^2, and the gradient's drift takes half of that. With
    a = 1/(1+omega) the step is 1/(L + 2 L_tilde (1+omega) sqrt(omega/n)).
    """
    a = learns(k)
    return theory.Rate(rho=a / 2, B=k.mean_omega * 2 / a * k.need("L_tilde") ** 2)


def convex(k: theory.Setting) -> float:
    """1/((1 + 6 omega/n) L_max), a <= 1/(1+omega), every f_i convex.

    D = f(x) - f(x*) - <grad f(x*), x - x*>, and D' the same with x and x* exchanged. u_i = grad f_i(x) -
    grad f_i(x*) has mean||u_i||^2 <= 2 L_max D', and H = mean||h_i - grad f_i(x*)||^2. Then E||g - grad f(x*)||^2
    <= (1 + 2w) mean||u_i||^2 + 2w H with w = omega/n, and E H+ <= (1-a) H + a mean||u_i||^2. The step, of which the
    prox draws no points apart, gives ||x+ - x*||^2 <= ||x - x*||^2 - 2 gamma (D + D') + gamma^2 ||g - grad f(x*)||^2.
    Added up with weight (4w/a) gamma^2 of H, D' pays for all of mean||u_i||^2:
    E V+ <= ||x - x*||^2 - 2 gamma D + (1 - a/2)(V - ||x - x*||^2); D >= mu/2 ||x - x*||^2 if f is mu-convex.
    """
    learns(k)
    return 1 / ((1 + 6 * k.mean_omega) * k.need("L_max"))


def of_family(k: theory.Setting, L: float, m: float = 1.0) -> float:
    """Return 1/(10 L sqrt(1 + omega/n)(m^(2/3) + omega + 1)), m = 1 without variance reduction."""
    omega = k.need("omega")
    return 1 / (10 * L * sqrt(1 + omega / k.n) * (m ** (2 / 3) + omega + 1))


def learns_fully(k: theory.Setting) -> None:
    """Raise NoTheory unless alpha = 1/(1 + omega)."""
    if abs(k.number("alpha") - shift_rate(k)) > 1e-12:
        raise theory.NoTheory(f"the paper's alpha is 1/(1 + omega) = {shift_rate(k):.3g}")


def paper(k: theory.Setting) -> float:
    """1/(10 L sqrt(1 + omega/n) (2 + omega)), L = max_i L_i: VR-DIANA's with m = 1, less than ``nonconvex``."""
    learns_fully(k)
    return of_family(k, k.need("L_max"))


def released(k: theory.Setting) -> float:
    """1/(10 L sqrt(1 + omega/n) (2 + omega)) with L = max_ij L_ij."""
    return of_family(k, k.need("L_sample_max"))


FAMILY = (theory.PROXIMABLE, theory.UNBIASED, theory.INDEPENDENT)
CONVEX = (
    "(1/T) sum_{t<T} E D^t <= V^0/(2 gamma T); f mu-strongly convex: E V^t <= (1 - min{gamma mu, alpha/2})^t V^0;"
    "  D = f(x) - f(x*) - <grad f(x*), x - x*>, which is f - f* without a nonsmooth part,"
    " V = ||x - x*||^2 + (4 omega/(n alpha)) gamma^2 mean||h_i - grad f_i(x*)||^2"
)
PAPER = "Horvath et al. 2019, Stochastic Distributed Learning with Gradient Quantization, theorem 4"
STEPS = theory.recursive(
    recursion,
    "derived here; method: Mishchenko, Gorbunov, Takac, Richtarik 2019",
    theory.UNBIASED,
    convex=theory.Theorem(
        convex,
        CONVEX,
        (theory.PROXIMABLE, theory.UNBIASED, theory.CONVEX_CLIENTS, theory.CONSTANT_STEP),
        "Gorbunov, Hanzely, Richtarik 2020, A Unified Theory of SGD; derived here",
    ),
    paper=theory.Theorem(paper, theory.NONCONVEX, FAMILY, PAPER),
    released=theory.Convention(released, CODE),
)


@algorithm(
    "diana",
    up=Unbiased,
    proximal=True,
    robust=True,
    theory=STEPS,
    auto={"alpha": shift_rate},
    alpha=Number("auto", low=0, high=1, words=("auto",), per_cell=True, help="shift rate"),
)
class Diana(Estimator):
    """m_i = Q(grad f_i(x) - h_i); x <- x - gamma (h + mean m_i); h_i <- h_i + alpha m_i.

    The server's h equals mean h_i; alpha = auto is 1/(1 + omega); alpha = 0 is DCGD. Nonconvex
    gamma = 1/(L + 2 L_tilde (1 + omega) sqrt(omega/n)); for convex f_i 1/((1 + 6 omega/n) L_max). Up: one message. Down: d values.
    Source: Mishchenko et al. 2019, algorithm 1.
    """

    def setup(a, wire, s, c):
        c.h, s.h = wire.zeros(), wire.server_zeros()

    def estimate(a, wire, s, c, grad):
        m = a.Q(grad - c.h, wire.stream("up"))
        q = wire.up(m).mean()
        g = s.h + q
        c.h += a.alpha * m.decode()
        s.h += a.alpha * q
        return g
