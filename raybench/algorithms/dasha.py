"""DASHA: compressed differences of trackers, no synchronisation."""

from math import sqrt

from raybench.algorithms.base import Dense, Estimator, Number, Unbiased, algorithm, theory


def follow_rate(k: theory.Setting) -> float:
    """Return a = 1/(2 omega + 1)."""
    return 1 / (2 * k.need("omega") + 1)


def lag(k: theory.Setting) -> float:
    """Return F of sum_t E||mean_i (g_i - h_i)||^2 <= F sum_t mean_i E||h_i^{t+1} - h_i^t||^2.

    F = 2 w (1 + 2 a omega)/(a (2 - a)), w = omega/n (``mean_omega``), for a <= 1/(2 omega + 1), where it
    is 2 (2 omega + 1) w: the recursions of ``dasha`` summed over t. Raises NoTheory above it.
    """
    a, omega = k.number("alpha"), k.need("omega")
    if not 0 < a <= follow_rate(k) * (1 + 1e-12):
        raise theory.NoTheory(f"it needs 0 < alpha <= 1/(2 omega + 1) = {follow_rate(k):.3g}")
    return 2 * k.mean_omega * (1 + 2 * a * omega) / (a * (2 - a))


def nonconvex(k: theory.Setting) -> float:
    """1/(L + L_tilde sqrt(F)), F = 2 w (1 + 2 a omega)/(a (2 - a)): 2 omega (2 omega + 1)/n for a = 1/(2 omega + 1).

    w = omega/n. With u = h_i+ - h_i - a (g_i - h_i) the errors ||g - grad f||^2 and mean||g_i - h_i||^2 fall by
    (1-a)^2 a round and gain w mean||u||^2 and omega mean||u||^2; ||u||^2 <= 2 ||h_i+ - h_i||^2 +
    2 a^2 ||g_i - h_i||^2. Summed over t.
    """
    return 1 / (k.need("L") + k.need("L_tilde") * sqrt(lag(k)))


def recursion(k: theory.Setting) -> theory.Rate:
    """G = ||g - grad f||^2 + 4 a w mean||g_i - h_i||^2: rho = a/2, B = 2 w (1 + 4 a omega) L_tilde^2, w = omega/n."""
    lag(k)  # raises where a is too large
    a, omega, far = k.number("alpha"), k.need("omega"), k.need("L_tilde")
    return theory.Rate(rho=a / 2, B=2 * k.mean_omega * (1 + 4 * a * omega) * far**2)


def paper(k: theory.Setting) -> float:
    """1/(L + L_tilde sqrt(16 omega (2 omega + 1)/n)): less than ``nonconvex``."""
    omega = k.need("omega")
    return 1 / (k.need("L") + k.need("L_tilde") * sqrt(16 * (2 * omega + 1) * omega / k.n))


def released(k: theory.Setting) -> float:
    """1/(mean l_i + sqrt(mean l_i^2) sqrt(omega (4 omega + 1)/n)), l_i = max_j L_ij of client i."""
    k.need("L_sample_max")
    each, omega = k.constants.L_sample_i, k.need("omega")
    mean, square = (sum(v**q for v in each) / len(each) for q in (1, 2))
    return 1 / (mean + sqrt(square * omega * (4 * omega + 1) / k.n))


BOUND = "(1/T) sum_{t<T} E||grad f(x^t)||^2 <= 2 Delta0/(gamma T)"
ASSUMES = (theory.PROXIMABLE, theory.UNBIASED)
STEPS = theory.recursive(
    recursion, "derived here; method: Tyurin, Richtarik 2022", theory.UNBIASED
).with_rules(
    nonconvex=theory.Theorem(nonconvex, BOUND, ASSUMES, "derived here"),
    paper=theory.Theorem(
        paper, BOUND, (*ASSUMES, theory.INDEPENDENT), "Tyurin, Richtarik 2022", recalled=True
    ),
    released=theory.Convention(released, "mysteryresearcher/dasha, algorithm.py and function.py"),
)


@algorithm(
    "dasha",
    up=Unbiased,
    proximal=True,
    robust=True,
    theory=STEPS,
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
    batch = "full"  # h_i is the gradient at the last x, which a minibatch would not be

    def open(a, wire, s, c, grad):
        c.h, c.g = grad, grad.clone()
        return wire.up(Dense(grad)).mean()

    def estimate(a, wire, s, c, grad):
        m = a.Q(grad - c.h - a.alpha * (c.g - c.h), wire.stream("up"))
        m.add_to(c.g)
        c.h = grad
        return s.g + wire.up(m).mean()
