"""EF-BV: error feedback and variance reduction as one method, for biased and unbiased compressors."""

from math import sqrt

from raybench.algorithms.base import Any_, Estimator, Number, algorithm, theory


def shift_rate(k: theory.Setting) -> float:
    """Return the lam that shrinks r most: 1/(1 + omega) of an unbiased compressor, 1 of a contractive one."""
    if k.omega is None:
        k.need("alpha")
        return 1.0
    return 1 / (1 + k.omega)


def mean_rate(k: theory.Setting) -> float:
    """Return the nu that shrinks r_av most: 1/(1 + omega/n) of independent unbiased compressors, else 1."""
    if k.omega is None:
        k.need("alpha")
        return 1.0
    return 1 / (1 + k.mean_omega)


def shrinkage(k: theory.Setting) -> tuple[float, float]:
    """Return r of E||h_i+ - grad f_i||^2 <= r ||h_i - grad f_i||^2, and r_av of the error of g.

    Unbiased: (1 - lam)^2 + lam^2 omega, and with nu and omega/n. Contractive: (1 - lam theta)^2 by Minkowski's
    inequality, also of random compressors, as ||v - lam C(v)|| <= (1 - lam)||v|| + lam ||v - C(v)||.
    Raises NoTheory where the shifts do not learn, r >= 1.
    """
    lam, nu = k.number("lam"), k.number("nu")
    if k.omega is not None:
        r, r_av = (1 - lam) ** 2 + lam**2 * k.omega, (1 - nu) ** 2 + nu**2 * k.mean_omega
    else:
        theta, _ = theory.contraction(k.need("alpha"))
        r, r_av = (1 - lam * theta) ** 2, (1 - nu * theta) ** 2
    if r >= 1:
        raise theory.NoTheory(f"shifts that learn at the rate lam = {lam:.3g} do not come nearer")
    return r, r_av


def recursion(k: theory.Setting) -> theory.Rate:
    """G = r_av mean||grad f_i - h_i||^2: rho = 1 - sqrt(r), B = r_av L_tilde^2/(1 - sqrt(r)).

    r = (1-lam)^2 + lam^2 omega and r_av = (1-nu)^2 + nu^2 omega/n of unbiased compressors, (1 - lam theta)^2 and
    (1 - nu theta)^2 of contractive ones. The drift of the gradient takes 1/sqrt(r) - 1 of what h_i has learned.
    With lam = nu = 1 and a contractive compressor this is EF21's step.
    """
    r, r_av = shrinkage(k)
    rho = (1 - r) / (1 + sqrt(r))
    drift = r_av / rho * k.need("L_tilde") ** 2
    return theory.Rate(rho=rho, B=drift, G=lambda s, c, grad: sqrt(r_av) * (c.h - grad))


def paper(k: theory.Setting) -> float:
    """1/(L + L_tilde sqrt(r_av/r)/s), s = sqrt((1 + r)/(2 r)) - 1: less than ``nonconvex``."""
    r, r_av = shrinkage(k)
    root = sqrt(r_av) / (sqrt((1 + r) / 2) - sqrt(r))
    return 1 / (k.need("L") + k.need("L_tilde") * root)


SOURCE = "Condat, Yi, Richtarik 2022"
CODE = "WilliamYi96/EF-BV, Least_squares_PL-setting/compTRk.py"
STEPS = theory.recursive(
    recursion,
    f"derived here; method: {SOURCE}",
    theory.EITHER,
    paper=theory.Theorem(paper, theory.NONCONVEX, (theory.PROXIMABLE, theory.EITHER), SOURCE),
    released=theory.Convention(paper, CODE),
)


@algorithm(
    "ef_bv",
    up=Any_,
    proximal=True,
    theory=STEPS,
    auto={"lam": shift_rate, "nu": mean_rate},
    lam=Number("auto", low=0, high=1, words=("auto",), per_cell=True, help="rate of the shifts"),
    nu=Number("auto", low=0, high=1, words=("auto",), per_cell=True, help="weight of the messages"),
)
class EFBV(Estimator):
    """d_i = C(grad f_i(x) - h_i); x <- x - gamma (h + nu mean d_i); h_i <- h_i + lam d_i.

    The server's h equals mean h_i. lam = nu = 1 is EF21 that steps after its update, so that its iterates are
    EF21's; lam = 1/(1 + omega), nu = 1 is DIANA. auto: 1/(1 + omega) and 1/(1 + omega/n), or 1 of contractive
    compressors. C is taken as it is, so that Rand-K is the unbiased one; of a compressor with bias and variance
    only its omega or its alpha counts. Up: one message. Down: d values. Source: Condat, Yi, Richtarik 2022,
    algorithm 1.
    """

    def setup(a, wire, s, c):
        c.h, s.h = wire.zeros(), wire.zero()

    def estimate(a, wire, s, c, grad):
        m = a.C(grad - c.h, wire.stream("up"))
        d = wire.up(m).mean()
        g = s.h + a.nu * d
        c.h += a.lam * m.decode()
        s.h += a.lam * d
        return g
