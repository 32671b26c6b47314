"""DASHA: compressed differences of trackers, no synchronisation."""

from math import sqrt

from raybench.algorithms.base import Contractive, Dense, Estimator, Number, Unbiased, algorithm
from raybench.theory import NoTheory, Rate, Setting


def follow_rate(k: Setting) -> float:
    """Return a = 1/(2 omega + 1)."""
    return 1 / (2 * k.need("omega") + 1)


def lag(k: Setting) -> float:
    """Return F of sum_t E||mean_i (g_i - h_i)||^2 <= F sum_t mean_i E||h_i^{t+1} - h_i^t||^2.

    F = 2 w (1 + 2 a omega)/(a (2 - a)), w = omega/n (``mean_omega``), for a <= 1/(2 omega + 1), where it
    is 2 (2 omega + 1) w: the recursions of ``dasha`` summed over t. Raises NoTheory above it.
    """
    a, omega = float(k.numbers["alpha"]), k.need("omega")
    if not 0 < a <= follow_rate(k) * (1 + 1e-12):
        raise NoTheory(f"it needs 0 < alpha <= 1/(2 omega + 1) = {follow_rate(k):.3g}")
    return 2 * k.mean_omega * (1 + 2 * a * omega) / (a * (2 - a))


def dasha(k: Setting) -> Rate:
    """DASHA: 1/(L + L_tilde sqrt(F)), F = 2 omega (2 omega + 1)/n for a = 1/(2 omega + 1); PL rho = a/2, B below.

    G = ||g - grad f||^2 + 4 a w mean||g_i - h_i||^2, w = omega/n: with u = h_i+ - h_i - a (g_i - h_i)
    the first falls by (1-a)^2 and gains w mean||u||^2, the second by (1-a)^2 and gains
    omega mean||u||^2; ||u||^2 <= 2 ||h_i+ - h_i||^2 + 2 a^2 ||g_i - h_i||^2, and
    B = 2 w (1 + 4 a omega) L_tilde^2. F = 2 w (1 + 2 a omega)/(a (2 - a)). Paper: 16 omega (2 omega + 1)/n under the root.
    """
    a, omega, far = float(k.numbers["alpha"]), k.need("omega"), k.need("L_tilde")
    gain = 2 * k.mean_omega * (1 + 4 * a * omega) * far**2
    own = 1 / (k.need("L") + far * sqrt(lag(k)))
    paper = 1 / (k.need("L") + far * sqrt(16 * (2 * omega + 1) * k.mean_omega))
    return Rate(rho=a / 2, B=gain, nonconvex=own, paper=paper)


@algorithm(
    "dasha",
    up=Unbiased,
    broadcast=Contractive,
    proximal=True,
    theory=dasha,
    auto={"alpha": follow_rate},
    alpha=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
)
class Dasha(Estimator):
    """x <- x - gamma g; m_i = Q(h_i+ - h_i - alpha (g_i - h_i)); g_i <- g_i + m_i; h_i <- h_i+.

    h_i+ = grad f_i(x); the server's g equals mean g_i. alpha = auto is 1/(2 omega + 1). Nothing is
    dense after the start. gamma = 1/(L + L_tilde sqrt(2 omega (2 omega + 1)/n)). Up: one message.
    Down: d values. Source: Tyurin, Richtarik 2022, algorithm 1.
    """

    opens = True

    def open(a, wire, s, c, grad):
        c.h, c.g = grad, grad.clone()
        return wire.up(Dense(grad)).mean()

    def estimate(a, wire, s, c, grad):
        m = a.Q(grad - c.h - a.alpha * (c.g - c.h), wire.stream("up"))
        m.add_to(c.g)
        c.h = grad
        return s.g + wire.up(m).mean()
