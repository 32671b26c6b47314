"""BiCoLoR: local steps of random number, and compressed differences to a common model in both directions."""

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


def third(k: theory.Setting) -> float:
    """Return min mu_i/3, 0 where it is unknown: then there is no theorem."""
    return (k.constants.mu_min or 0.0) / 3


def spread(k: theory.Setting) -> float:
    """Return 3 + 2 omega_down + 2 omega/n."""
    return 3 + 2 * k.need("down_omega") + 2 * k.mean_omega


def pull(k: theory.Setting) -> float:
    """Return rho = 1/(3 + 2 omega_down + 2 omega/n), which leaves most room for eta."""
    return 1 / spread(k)


def most_eta(k: theory.Setting) -> float:
    """Return (2 rho - rho^2 (3 + 2 omega_down + 2 omega/n))/(1 + 2 omega + 2 omega_down)."""
    rho = k.number("rho")
    both = 1 + 2 * k.need("omega") + 2 * k.need("down_omega")
    return (2 * rho - rho**2 * spread(k)) / both


def exchanges(k: theory.Setting) -> float:
    """Return p at which p^2 eta is 1 - (1 - gamma mu)^2: fewer exchanges would be slower."""
    return min(1.0, sqrt(per_iteration(k, 2)[1] / k.number("eta")))


def strongly_convex(k: theory.Setting) -> float:
    """2/(L + mu), the constants of f_i - lam ||x||^2 and lam ||x||^2/2; eta as ``auto`` has it, or less.

    x_i and y are tied to z: let M be that graph's Laplacian in the norm mean||x_i||^2 + ||z||^2 + ||y||^2, with
    eigenvalues 1 and 3, E = <., M .> = mean||x_i - z||^2 + ||z - y||^2, and mean||x_i - y||^2 <= 2 E. (x, z, y)
    moves by -rho M, noise of rho^2 (2 omega_down + 2 omega/n) E; the step of (u, w, v) is unbiased for -M, of
    square at most (1 + 2 omega + 2 omega_down) E in the norm <., M^+ .>, in which Psi measures them.
    """
    if not 0 < k.number("eta") <= most_eta(k) * (1 + 1e-12):
        raise theory.NoTheory(f"eta is not between 0 and {most_eta(k):.3g}")
    return per_iteration(k, 2)[0]


STEPS = theory.StepSizes(
    pl=theory.Theorem(
        strongly_convex,
        ONE_STEP
        + "eta}, Psi = mean||x_i - x*||^2 + ||z - x*||^2 + ||y - x*||^2 + gamma^2/(p^2 eta) <h, M^+ h>, "
        "h = (u_i, w, v) less its value at x*",
        (*LOCAL, theory.UNBIASED),
        "derived here; method: Condat, Maranjyan, Richtarik 2026",
    )
)


@algorithm(
    "bicolor",
    title="BiCoLoR",
    up=Unbiased,
    down=Unbiased,
    theory=STEPS,
    auto={"lam": third, "rho": pull, "eta": most_eta, "p": exchanges},
    p=P,
    lam=Number("auto", low=0, words=("auto",), per_cell=True, help="convexity that z and y have"),
    rho=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True, help="pull"),
    eta=Number(
        "auto", low=0, open_low=True, words=("auto",), per_cell=True, help="pace of u_i, w, v"
    ),
)
class BiCoLoR(Algorithm):
    """Clients step x_i along f_i - lam ||x||^2, the server z and all y along lam ||x||^2/2, until a coin falls (p):

    x_i <- x_i - gamma (grad f_i(x_i) - 2 lam x_i - u_i), z <- z - gamma (lam z - w), y <- y - gamma (lam y - v). Then
    d_i = Q(x_i - y) go up and e = D(z - y) comes down; x_i <- x_i + rho (y + e - x_i), y <- y + rho e,
    z <- z + rho (mean d_i - 2 (z - y)), and with t = p eta/gamma u_i <- u_i + t (e - d_i), v <- v + t e, w <- w +
    t (mean d_i - 2 e); mean u_i + w + v stays 0. A round is one exchange; f is recorded at y. auto: lam = min
    mu_i/3, rho = 1/(3 + 2 omega_down + 2 omega/n), eta = rho/(1 + 2 omega + 2 omega_down). Up, down: one message.
    Source: after Condat, Maranjyan, Richtarik 2026, BiCoLoR, whose listing was out of reach: from descriptions of it
    (the server as a client of its own, a model y that all keep, only differences to y are sent) derived here, as
    are rho and eta, which may differ from the paper's.
    """

    def start(a, net, s, c):
        c.X, c.u = net.zeros() + s.x[:, None], net.zeros()
        s.z, s.w, s.v = s.x, net.zero(), net.zero()

    def round(a, net, s, c):
        X, z, y = c.X, s.z, s.x
        for cells in local_steps(net, a.p):
            lam = of(a.lam, cells)
            g = net.grad(X, cells=cells) - 2 * lam * of(X, cells)
            X = moved(X, cells, a.gamma, g - of(c.u, cells))
            z = moved(z, cells, a.gamma, lam * of(z, cells) - of(s.w, cells))
            y = moved(y, cells, a.gamma, lam * of(y, cells) - of(s.v, cells))
        m = a.Q(X - y[:, None], net.stream("up"))
        d, e = net.up(m).mean(), a.broadcast(net, z - y)
        pace = a.p * a.eta / a.gamma
        c.X = X + a.rho * ((y + e)[:, None] - X)
        c.u = c.u + pace * (e[:, None] - m.decode())
        s.z, s.w = z + a.rho * (d - 2 * (z - y)), s.w + pace * (d - 2 * e)
        s.x, s.v = y + a.rho * e, s.v + pace * e

    def disagreement(a, net, s, c):
        return net.oracle_spread(c.X)
