"""CompressedScaffnew: local steps of random number, corrected by control variates, and masks that clients share."""

from math import sqrt

from raybench.algorithms.base import Algorithm, Integer, Number, SharedMask, algorithm, theory


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
