"""Local steps of random number: CompressedScaffnew, LoCoDL and BiCoLoR."""

from math import sqrt

from raybench.algorithms.base import (
    Algorithm,
    Integer,
    Number,
    SharedMask,
    Unbiased,
    algorithm,
    theory,
)


def per_iteration(k: theory.Setting, lent: int = 0) -> tuple[float, float]:
    """Return gamma = 2/(L + mu) and 1 - (1 - gamma mu)^2, mu and L being constants of all functions.

    Those of the f_i are min mu_i and max L_i, less lent lam where so many functions lam ||x||^2/2 are taken out.
    """
    low, high = k.need("mu_min"), k.need("L_max")
    if lent:
        lam = k.number("lam")
        if not 0 < lent * lam < low:
            raise theory.NoTheory(f"lam is not between 0 and mu/{lent} = {low / lent:.3g}")
        low, high = min(low - lent * lam, lam), max(high - lent * lam, lam)
    gamma = 2 / (high + low)
    return gamma, 1 - (1 - gamma * low) ** 2


def most_chi(k: theory.Setting) -> float:
    """Return n (s-1)/(s (n-1)), 1 for one client."""
    n, s = k.n, min(int(k.number("senders")), k.n)
    return n * (s - 1) / (s * (n - 1)) if n > 1 else 1.0


def dual_rate(k: theory.Setting) -> float:
    """Return (s-1)/(n-1), by which the mean of an exchange moves the control variates."""
    return (min(k.number("senders"), k.n) - 1) / (k.n - 1) if k.n > 1 else 1.0


def exchanges(k: theory.Setting) -> float:
    """Return p at which p^2 chi (s-1)/(n-1) is 1 - (1 - gamma mu)^2: fewer exchanges would be slower."""
    return min(1.0, sqrt(per_iteration(k)[1] / (most_chi(k) * dual_rate(k))))


def strongly_convex(k: theory.Setting) -> float:
    """2/(L + mu), L = max L_i, mu = min mu_i: the best of all gamma < 2/L, chi <= n (s-1)/(s (n-1)).

    With u_i = x_i - gamma (grad f_i(x_i) - h_i) - x*, W u the deviations from the mean, w = (s-1)/(n-1): a mask has
    E||x_mean - u||^2 = ||u||^2 - p chi_max ||W u||^2, and the change of h is -(p chi/gamma) w W u in the mean, with
    (p chi/gamma)^2 w ||W u||^2 for its square. Psi weighs ||h - h*||^2 so that <h - h*, u> cancels.
    """
    if k.number("chi") > most_chi(k) * (1 + 1e-12):
        raise theory.NoTheory(f"chi is above n (s-1)/(s (n-1)) = {most_chi(k):.3g}")
    return per_iteration(k)[0]


ONE_STEP = (
    "E Psi+ <= tau Psi in every local step, tau = max{(1 - gamma mu)^2, (1 - gamma L)^2, 1 - p^2 "
)
LOCAL = (theory.SMOOTH, theory.STRONGLY_CONVEX_CLIENTS, theory.CONSTANT_STEP)
STEPS = theory.StepSizes(
    pl=theory.Theorem(
        strongly_convex,
        ONE_STEP
        + "chi (s-1)/(n-1)}, Psi = sum ||x_i - x*||^2 + gamma^2 (n-1)/(p^2 chi (s-1)) sum ||h_i - h_i*||^2",
        LOCAL,
        "derived here; method: Condat, Agarsky, Richtarik 2022",
    )
)
P = Number(
    0.2, low=0, high=1, open_low=True, words=("auto",), per_cell=True, help="chance to exchange"
)


def local_steps(net, p):
    """Yield the cells that take one more local step, None for all of them, until every cell's coin has fallen."""
    yield None
    fallen, j = net.coin("exchange", p), 0
    while not bool(fallen.all()):
        yield (~fallen).nonzero().flatten()
        j += 1
        fallen = fallen | net.coin(f"exchange {j}", p)


def moved(z, cells, gamma, g):
    """Return z (B, ..) after steps -gamma g of some cells (None: all), g being theirs."""
    return z - gamma * g if cells is None else z.index_add(0, cells, gamma[cells] * g, alpha=-1)


def of(z, cells):
    """Return the part of z that belongs to some cells (None: all)."""
    return z if cells is None else z[cells]


@algorithm(
    "compressed_scaffnew",
    title="CompressedScaffnew",
    up=None,
    theory=STEPS,
    auto={"p": exchanges, "chi": most_chi},
    senders=Integer(2, low=2, help="clients s that send each coordinate; n where there are fewer"),
    p=P,
    chi=Number(
        "auto", low=0, open_low=True, words=("auto",), per_cell=True, help="pace of the h_i"
    ),
)
class CompressedScaffnew(Algorithm):
    """x_i <- x_i - gamma (grad f_i(x_i) - h_i), again and again until a coin falls (p); then all x_i <- x_mean.

    x_mean = (1/s) sum_i q_i x_i and h_i <- h_i + (p chi/gamma) q_i (x_mean - x_i), the masks q_i such that s
    clients, drawn anew by a seed that all share, send each coordinate. sum h_i stays 0. A round is one exchange,
    of 1/p local steps on average. s = n is Scaffnew (ProxSkip), s = n and p = 1 gradient descent. For strongly
    convex f_i: gamma = 2/(L + mu), chi = auto is n (s-1)/(s (n-1)). Up: d s/n values. Down: d values. Source:
    Condat, Agarsky, Richtarik 2022, algorithm 1, from memory; the theorem is proved here anew.
    """

    def setup(a, wire, s, c):
        a.mask, a.scale = SharedMask(a.senders, wire.n), max(1.0, wire.n / a.senders)
        c.h = wire.zeros()

    def round(a, net, s, c):
        X = s.x[:, None]
        for cells in local_steps(net, a.p):
            g = net.grad(s.x) if cells is None else net.grad(X, cells=cells)
            X = moved(X, cells, a.gamma, g - of(c.h, cells))
        source = net.stream("up")
        with net.compressing():
            m = a.mask.compress(X, source)
        s.x = net.model(net.up(m).mean())
        mean = a.mask.compress(s.x[:, None].expand_as(X), source).decode()
        c.h = c.h + a.p * a.chi / a.gamma * (mean - m.decode()) / a.scale


def half_mu(k: theory.Setting) -> float:
    """Return min mu_i/2, 0 where it is unknown: then y has no function of its own, and no theorem."""
    return (k.constants.mu_min or 0.0) / 2


def locodl_pull(k: theory.Setting) -> float:
    """Return rho = 1/(1 + omega/n), which leaves most room for eta."""
    return 1 / (1 + k.mean_omega)


def locodl_most_eta(k: theory.Setting) -> float:
    """Return (2 rho - rho^2 (1 + omega/n))/(1 + 2 omega)."""
    rho = k.number("rho")
    return (2 * rho - rho**2 * (1 + k.mean_omega)) / (1 + 2 * k.need("omega"))


def locodl_exchanges(k: theory.Setting) -> float:
    """Return p at which p^2 eta is 1 - (1 - gamma mu)^2: fewer exchanges would be slower."""
    return min(1.0, sqrt(per_iteration(k, 1)[1] / k.number("eta")))


def locodl_step(k: theory.Setting) -> float:
    """2/(L + mu), the constants of f_i - lam ||x||^2/2 and lam ||x||^2/2; eta as ``auto`` has it, or less.

    In the norm sum ||x_i||^2 + n ||y||^2 the mean of z = (x_i, y) is half mean x_i and half y. Let d_i = x_i - y:
    ||W z||^2 = sum ||d_i||^2 - (n/2)||mean d_i||^2 >= sum ||d_i||^2/2 of the deviations W z from it. The step of
    (u, v) is unbiased for -W z, of square at most (1 + 2 omega)||W z||^2; that of z for -rho W z, and its noise
    rho^2 (n/2) E||mean noise_i||^2 is at most rho^2 (omega/n)||W z||^2.
    """
    if not 0 < k.number("eta") <= locodl_most_eta(k) * (1 + 1e-12):
        raise theory.NoTheory(f"eta is not between 0 and {locodl_most_eta(k):.3g}")
    return per_iteration(k, 1)[0]


LOCODL_STEPS = theory.StepSizes(
    pl=theory.Theorem(
        locodl_step,
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
    theory=LOCODL_STEPS,
    auto={"lam": half_mu, "rho": locodl_pull, "eta": locodl_most_eta, "p": locodl_exchanges},
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


def third_mu(k: theory.Setting) -> float:
    """Return min mu_i/3, 0 where it is unknown: then there is no theorem."""
    return (k.constants.mu_min or 0.0) / 3


def bicolor_spread(k: theory.Setting) -> float:
    """Return 3 + 2 omega_down + 2 omega/n."""
    return 3 + 2 * k.need("down_omega") + 2 * k.mean_omega


def bicolor_pull(k: theory.Setting) -> float:
    """Return rho = 1/(3 + 2 omega_down + 2 omega/n), which leaves most room for eta."""
    return 1 / bicolor_spread(k)


def bicolor_most_eta(k: theory.Setting) -> float:
    """Return (2 rho - rho^2 (3 + 2 omega_down + 2 omega/n))/(1 + 2 omega + 2 omega_down)."""
    rho = k.number("rho")
    both = 1 + 2 * k.need("omega") + 2 * k.need("down_omega")
    return (2 * rho - rho**2 * bicolor_spread(k)) / both


def bicolor_exchanges(k: theory.Setting) -> float:
    """Return p at which p^2 eta is 1 - (1 - gamma mu)^2: fewer exchanges would be slower."""
    return min(1.0, sqrt(per_iteration(k, 2)[1] / k.number("eta")))


def bicolor_step(k: theory.Setting) -> float:
    """2/(L + mu), the constants of f_i - lam ||x||^2 and lam ||x||^2/2; eta as ``auto`` has it, or less.

    x_i and y are tied to z: let M be that graph's Laplacian in the norm mean||x_i||^2 + ||z||^2 + ||y||^2, with
    eigenvalues 1 and 3, E = <., M .> = mean||x_i - z||^2 + ||z - y||^2, and mean||x_i - y||^2 <= 2 E. (x, z, y)
    moves by -rho M, noise of rho^2 (2 omega_down + 2 omega/n) E; the step of (u, w, v) is unbiased for -M, of
    square at most (1 + 2 omega + 2 omega_down) E in the norm <., M^+ .>, in which Psi measures them.
    """
    if not 0 < k.number("eta") <= bicolor_most_eta(k) * (1 + 1e-12):
        raise theory.NoTheory(f"eta is not between 0 and {bicolor_most_eta(k):.3g}")
    return per_iteration(k, 2)[0]


BICOLOR_STEPS = theory.StepSizes(
    pl=theory.Theorem(
        bicolor_step,
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
    theory=BICOLOR_STEPS,
    auto={"lam": third_mu, "rho": bicolor_pull, "eta": bicolor_most_eta, "p": bicolor_exchanges},
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
