"""EF21: error feedback by compressed differences."""

from raybench.algorithms.base import Choice, Contractive, Dense, Estimator, algorithm, theory


def recursion(k: theory.Setting) -> theory.Rate:
    """G = mean ||g_i - grad f_i||^2: rho = theta, B = beta L_tilde^2.

    The compressor shrinks ||grad f_i(x+) - g_i||^2 by 1 - alpha, of which (1 + t)||grad f_i(x) - g_i||^2 +
    (1 + 1/t) L_i^2 ||x+ - x||^2 is a bound; t makes the first factor 1 - theta.
    """
    theta, beta = theory.contraction(k.need("alpha"))
    return theory.Rate(rho=theta, B=beta * k.need("L_tilde") ** 2)


LEAST_WEIGHT = 1e-9  # as a share of the largest L_i: a client whose gradient is constant must not have weight 0


def weighted(k: theory.Setting) -> theory.Rate:
    """G = sum_i ||g_i - grad f_i||^2/(n^2 w_i): rho = theta, B = beta L_AM^2, L_AM = mean L_i.

    w_i = L_i/sum_j L_j. G bounds ||g - grad f||^2 by Jensen with the weights w_i, and every client's error obeys
    EF21's recursion with its own L_i, whatever the weights: the drift of G is sum_i L_i^2/(n^2 w_i) = L_AM^2.
    """
    theta, beta = theory.contraction(k.need("alpha"))
    most = k.need("L_max")
    mean = sum(max(L, LEAST_WEIGHT * most) for L in k.constants.L_i) / len(k.constants.L_i)
    return theory.Rate(rho=theta, B=beta * mean**2)


def released(k: theory.Setting) -> float:
    """min{1/(L + L_tilde sqrt(2 beta/theta)), theta/(2 mu)} where a mu > 0 is known, as in the code for least
    squares; else 1/(L + L_tilde sqrt(beta/theta)), as in that for logistic regression.
    """
    return recursion(k).pl(k) if (k.constants.mu or 0) > 0 else recursion(k).nonconvex(k)


RELEASED = theory.Convention(
    released,
    "IgorSokoloff/ef21_experiments_source_code, ef21_b-w_experiements_source_code: pl_ef21_fg.py, ef21_fg.py",
)
PLAIN = theory.Convention(recursion, "IgorSokoloff/ef21_b-w_experiements_source_code: EF21's step")
STEPS = theory.recursive(
    recursion,
    "Richtarik, Sokolov, Fatkhullin 2021, theorems 1 and 2",
    theory.CONTRACTIVE,
    arithmetic=theory.Theorem(
        weighted,
        theory.NONCONVEX,
        (theory.PROXIMABLE, theory.CONTRACTIVE),
        "Richtarik, Gasanov, Burlachenko 2024, Error Feedback Reloaded, on EF21 as it is; derived here",
    ),
    as_in_paper=True,
    released=RELEASED,
)


@algorithm(
    "ef21",
    up=Contractive,
    proximal=True,
    robust=True,
    theory=STEPS,
    init=Choice("compressed", "full", "zero", help="first message: C(grad), grad, or none"),
)
class EF21(Estimator):
    """x <- x - gamma g; c_i = C(grad f_i(x) - g_i); g_i <- g_i + c_i; g <- g + mean c_i.

    gamma = 1/(L + L_tilde sqrt(beta/theta)), theta = 1 - sqrt(1 - alpha), beta = (1 - alpha)/theta; under the
    rule ``arithmetic`` with L_AM = mean L_i <= L_tilde. The server's g equals mean g_i. On a problem with a nonsmooth part it is ``ef21_prox``. Up: one
    message. Down: d values. Source: Richtarik, Sokolov, Fatkhullin 2021, algorithm 2.
    """

    opens = True

    def setup(a, wire, s, c):
        c.g, s.g = wire.zeros(), wire.server_zeros()

    def estimate(a, wire, s, c, grad):
        return a.send(wire, s, c, grad).add_(s.g)  # the mean is ours: no further (B, d) is made

    def open(a, wire, s, c, grad):
        return s.g if a.init == "zero" else s.g + a.send(wire, s, c, grad, dense=a.init == "full")

    def send(a, wire, s, c, grad, dense=False):
        """g_i <- g_i + C(grad_i - g_i); return the mean of the messages."""
        v = grad - c.g
        m = Dense(v) if dense else a.C(v, wire.stream("up"))
        m.add_to(c.g)
        return wire.up(m).mean()


@algorithm(
    "ef21_prox",
    title="EF21-Prox",
    up=Contractive,
    proximal=True,
    robust=True,
    theory=STEPS.with_rules(released=None),
)
class EF21Prox(EF21):
    """EF21 for f + psi: x <- prox_{gamma psi}(x - gamma g), the step that ``ef21`` takes there too.

    gamma as in EF21; recorded is the gradient mapping. Without psi it is EF21. Up: one message. Down: d
    values. Source: Fatkhullin, Sokolov, Gorbunov, Li, Richtarik 2021, EF21 with Bells & Whistles.
    """
