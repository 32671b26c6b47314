"""LoCoDL: local steps of random number, and compressed differences to a model that everybody keeps."""

from math import sqrt

from raybench.algorithms.base import Algorithm, Number, Unbiased, algorithm, theory
from raybench.algorithms.compressed_scaffnew import (
    LOCAL,
    ONE_STEP,
    P,
    local_steps,
    moved,
    of,
    per_iteration,
)


def half(k: theory.Setting) -> float:
    """Return min mu_i/2, 0 where it is unknown: then y has no function of its own, and no theorem."""
    return (k.constants.mu_min or 0.0) / 2


def pull(k: theory.Setting) -> float:
    """Return rho = 1/(1 + omega/n), which leaves most room for eta."""
    return 1 / (1 + k.mean_omega)


def most_eta(k: theory.Setting) -> float:
    """Return (2 rho - rho^2 (1 + omega/n))/(1 + 2 omega)."""
    rho = k.number("rho")
    return (2 * rho - rho**2 * (1 + k.mean_omega)) / (1 + 2 * k.need("omega"))


def exchanges(k: theory.Setting) -> float:
    """Return p at which p^2 eta is 1 - (1 - gamma mu)^2: fewer exchanges would be slower."""
    return min(1.0, sqrt(per_iteration(k, 1)[1] / k.number("eta")))


def strongly_convex(k: theory.Setting) -> float:
    """2/(L + mu), the constants of f_i - lam ||x||^2/2 and lam ||x||^2/2; eta as ``auto`` has it, or less.

    In the norm sum ||x_i||^2 + n ||y||^2 the mean of z = (x_i, y) is half mean x_i and half y. Let d_i = x_i - y:
    ||W z||^2 = sum ||d_i||^2 - (n/2)||mean d_i||^2 >= sum ||d_i||^2/2 of the deviations W z from it. The step of
    (u, v) is unbiased for -W z, of square at most (1 + 2 omega)||W z||^2; that of z for -rho W z, and its noise
    rho^2 (n/2) E||mean noise_i||^2 is at most rho^2 (omega/n)||W z||^2.
    """
    if not 0 < k.number("eta") <= most_eta(k) * (1 + 1e-12):
        raise theory.NoTheory(f"eta is not between 0 and {most_eta(k):.3g}")
    return per_iteration(k, 1)[0]


STEPS = theory.StepSizes(
    pl=theory.Theorem(
        strongly_convex,
        ONE_STEP
        + "eta}, Psi = sum ||x_i - x*||^2 + n ||y - x*||^2 + gamma^2/(p^2 eta) (the same of u_i and v)",
        (*LOCAL, theory.UNBIASED),
        "derived here; method: Condat, Maranjyan, Richtarik 2024",
    )
)


@algorithm(
    "locodl",
    title="LoCoDL",
    up=Unbiased,
    theory=STEPS,
    auto={"lam": half, "rho": pull, "eta": most_eta, "p": exchanges},
    p=P,
    lam=Number(
        "auto", low=0, words=("auto",), per_cell=True, help="convexity that y has of the f_i"
    ),
    rho=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True, help="pull"),
    eta=Number("auto", low=0, open_low=True, words=("auto",), per_cell=True, help="pace of u_i, v"),
)
class LoCoDL(Algorithm):
    """x_i <- x_i - gamma (grad f_i(x_i) - lam x_i - u_i), y <- y - gamma (lam y - v) until a coin falls (p); then

    d_i = Q(x_i - y), d = mean d_i/2; x_i <- (1-rho) x_i + rho (y + d), y <- y + rho d, u_i <- u_i + (p eta/gamma)
    (d - d_i), v <- v + (p eta/gamma) d. All keep y and v; mean u_i + v stays 0. For f = mean (f_i - lam ||x||^2/2) +
    lam ||x||^2/2, f_i strongly convex. A round is one exchange; f is recorded at y. auto: lam = min mu_i/2,
    rho = 1/(1 + omega/n), eta = rho/(1 + 2 omega). Without compression and with p = 1 it is gradient descent
    with gamma/2. Up: one message. Down: d values. Source: Condat, Maranjyan, Richtarik 2024, algorithm 1, from
    memory; the theorem is proved here anew.
    """

    def start(a, net, s, c):
        c.X, c.u, s.v = net.zeros() + s.x[:, None], net.zeros(), net.zero()

    def round(a, net, s, c):
        X, y = c.X, s.x
        for cells in local_steps(net, a.p):
            lam = of(a.lam, cells)
            g = net.grad(X, cells=cells) - lam * of(X, cells)
            X = moved(X, cells, a.gamma, g - of(c.u, cells))
            y = moved(y, cells, a.gamma, lam * of(y, cells) - of(s.v, cells))
        m = a.Q(X - y[:, None], net.stream("up"))
        d = net.model(net.up(m).mean() / 2)
        pace = a.p * a.eta / a.gamma
        c.X = X + a.rho * ((y + d)[:, None] - X)
        c.u = c.u + pace * (d[:, None] - m.decode())
        s.x, s.v = y + a.rho * d, s.v + pace * d

    def disagreement(a, net, s, c):
        return net.oracle_spread(c.X)
