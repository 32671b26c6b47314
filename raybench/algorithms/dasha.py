"""DASHA: compressed differences of trackers, no synchronisation; its trackers on minibatches."""

from math import sqrt

from raybench.algorithms.base import (
    Dense,
    Estimator,
    Integer,
    Number,
    PerCell,
    Robust,
    Unbiased,
    algorithm,
    theory,
    where,
)
from raybench.algorithms.ef21_momentum import refresh
from raybench.algorithms.marina import anew, vr_sync_probability


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
    """1/(L + L_tilde sqrt(16 omega (2 omega + 1)/n)), with alpha of ``auto``: less than ``nonconvex``."""
    if abs(k.number("alpha") - follow_rate(k)) > 1e-12:
        raise theory.NoTheory(f"the paper's alpha is 1/(2 omega + 1) = {follow_rate(k):.3g}")
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


def tracked(k: theory.Setting, change: float, noise: float) -> float:
    """Return 1/(L + sqrt(F change) + sqrt(noise)), F of ``lag``.

    If sum mean_i E||h_i+ - h_i||^2 <= change sum R and sum E||mean_i (h_i - grad f_i)||^2 <= noise
    sum R, R = ||x+ - x||^2, then sum E||g - grad f||^2 <= (sqrt(F change) + sqrt(noise))^2 sum R by
    Minkowski, and the descent lemma gives (1/T) sum E||grad f||^2 <= 2 Delta0/(gamma T).
    """
    return 1 / (k.need("L") + sqrt(lag(k) * change) + sqrt(noise))


def page_step(k: theory.Setting) -> float:
    """1/(L + sqrt(F ((1+p) L_tilde^2 + 3 (1-p) l)) + sqrt((1-p) l/(p n))), l = Lcal^2/b.

    F is DASHA's. P = mean||h_i - grad f_i||^2 obeys P+ <= (1-p)(P + l R), and E||h_i+ - h_i||^2 <= 2 p P +
    ((1+p) L_tilde^2 + (1-p) l) R in the mean; the coins are independent, so E||mean (h_i - grad f_i)||^2 is P/n.
    """
    p, l = k.number("p"), k.need("L_samples") ** 2 / k.number("batch")
    change = (1 + p) * k.need("L_tilde") ** 2 + 3 * (1 - p) * l
    return tracked(k, change, (1 - p) * l / (p * k.n))


PAGE_STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        page_step, BOUND, ASSUMES, "derived here; method: Tyurin, Richtarik 2022"
    )
)


@algorithm(
    "dasha_page",
    up=Unbiased,
    proximal=True,
    robust=True,
    theory=PAGE_STEPS,
    auto={"alpha": follow_rate, "p": refresh},
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
    batch=Integer(1, low=1, help="samples per client and round"),
)
class DashaPage(Dasha):
    """DASHA with h_i+ = grad f_i(x) with probability p, else h_i + grad f_i(x; J) - grad f_i(x_old; J).

    Each client tosses its own coin; p = auto is b/(m + b). gamma is derived here (``nonconvex``), without
    a floor. Gradients per round and client: m with probability p, else 2 b. Up: one message. Down: d
    values. Source: Tyurin, Richtarik 2022, DASHA-PAGE.
    """

    def source(a, net, s, c):
        if net.t == 0:
            return net.grad(s.x)
        J = net.sample("batch", a.batch)
        coins = a.coins(net)
        coin, b = net.here(coins), coins.any(1).nonzero().flatten()
        h = c.h + net.grad(s.x, J, clients=~coin) - net.grad(s.old, J, clients=~coin)
        if len(b):
            full = net.grad(s.x, cells=b, clients=coin[b])
            h[b] = where(coin[b, :, None], full, h[b])
        return h

    def coins(a, net):
        """Return who takes a full gradient, bool (cells, n): known everywhere, so that nobody else pays for one."""
        return net.shared_stream("refresh").uniform(net.n) < a.p.values[:, None]

    def apply(a, net, s, u):
        s.old = s.x
        super().apply(net, s, u)


def mvr_step(k: theory.Setting) -> float:
    """1/(L + sqrt(F (2 L_tilde^2 + 3 v)) + sqrt(v/(q (2-q) n))), v = 2 (1-q)^2 Lcal^2/b; to a floor.

    F is DASHA's. P = mean||h_i - grad f_i||^2 obeys P+ <= (1-q)^2 P + v R + N, N = 2 q^2 sigma^2, and in the mean
    E||h_i+ - h_i||^2 <= 2 L_tilde^2 R + 2 q^2 P + v R + N. The noise adds, with S = 1/gamma - L,
    (1 + S/L)(sqrt(3 F N) + sqrt(N/(q (2-q) n)))^2.
    """
    q, b = k.number("momentum"), k.number("batch")
    v = 2 * (1 - q) ** 2 * k.need("L_samples") ** 2 / b
    return tracked(k, 2 * k.need("L_tilde") ** 2 + 3 * v, v / (q * (2 - q) * k.n))


MVR_STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        mvr_step,
        f"{BOUND} + (1/(gamma L))(sqrt(6 F q^2) + sqrt(2 q/((2-q) n)))^2 sigma^2",
        (*ASSUMES, theory.BOUNDED_NOISE),
        "derived here; method: Tyurin, Richtarik 2022",
    )
)


@algorithm(
    "dasha_mvr",
    up=Unbiased,
    proximal=True,
    robust=True,
    theory=MVR_STEPS,
    auto={"alpha": follow_rate},
    momentum=Number(0.1, low=0, high=1, open_low=True, per_cell=True, help="q, weight of the new"),
    batch=Integer(1, low=1, help="samples per client and round"),
)
class DashaMVR(Dasha):
    """DASHA with h_i+ = grad f_i(x; J) + (1 - q)(h_i - grad f_i(x_old; J)), q the momentum.

    Samples enter with weight q: a floor that falls with q. gamma is derived here (``nonconvex``). Gradients
    per round and client: 2 b, full ones at the start only. Up: one message. Down: d values. Source:
    Tyurin, Richtarik 2022, DASHA-MVR.
    """

    def source(a, net, s, c):
        if net.t == 0:
            return net.grad(s.x)
        J = net.sample("batch", a.batch)
        return net.grad(s.x, J) + (1 - a.momentum) * (c.h - net.grad(s.old, J))

    def apply(a, net, s, u):
        s.old = s.x
        super().apply(net, s, u)


def sync_mvr_step(k: theory.Setting) -> float:
    """1/(L + sqrt(F (1-p)(L_tilde^2 + l)) + sqrt((1-p) l/(p n))), l = Lcal^2/b.

    F is DASHA's: a dense round sets g_i = h_i, so the lag only falls faster. Online the noise of dense rounds
    adds sigma^2/(n big), times 1 + S/L, S = 1/gamma - L.
    """
    p, l = k.number("p"), k.need("L_samples") ** 2 / k.number("batch")
    return tracked(k, (1 - p) * (k.need("L_tilde") ** 2 + l), (1 - p) * l / (p * k.n))


SYNC_MVR_STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        sync_mvr_step,
        f"{BOUND} + (1 + 1/(p T)) sigma^2/(gamma L n big) if online",
        (*ASSUMES, theory.BOUNDED_ONLINE),
        "derived here; method: Tyurin, Richtarik 2022",
    )
)


@algorithm(
    "dasha_sync_mvr",
    up=Unbiased,
    proximal=True,
    robust=True,
    theory=SYNC_MVR_STEPS,
    auto={"alpha": follow_rate, "p": vr_sync_probability},
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
    batch=Integer(1, low=1, help="samples of a difference"),
    big=Integer(0, low=0, help="samples of a dense round (online); 0: all of them"),
)
class DashaSyncMVR(Dasha):
    """DASHA with h_i+ = h_i + grad f_i(x; J) - grad f_i(x_old; J); with probability p all start anew.

    Then h_i = g_i = grad f_i(x), sent dense, or online the gradient of ``big`` samples. One coin for
    all clients; p = auto as in VR-MARINA. Gradients per round and client: m or big with probability
    p, else 2 b. Up: d values or one message. Down: d values. Source: Tyurin, Richtarik 2022,
    DASHA-SYNC-MVR.
    """

    def start(a, net, s, c):
        c.h = anew(a, net, s.x)
        c.g, s.g = c.h, net.up(Dense(c.h)).mean()  # neither is written to: both are replaced

    def round(a, net, s, c):
        old = s.x
        a.step(net, s, a.pooled(net, s.g))
        coin, q, J = net.coin("sync", a.p), net.stream("up"), net.sample("batch", a.batch)
        last, c.h = c.h, c.h.clone()

        def dense(b):
            c.h[b] = anew(a, net, s.x, b)
            return Dense(c.h[b])

        def change(b):
            c.h[b] += net.grad(s.x, J, cells=b) - net.grad(old, J, cells=b)
            return a.Q(c.h[b] - last[b] - a.alpha[b] * (c.g[b] - last[b]), q[b])

        m = net.cases(coin, dense, change)
        c.g = where(coin[:, None, None], c.h, c.g + m.decode())
        mean = net.up(m).mean()
        s.g = where(PerCell(coin).like(mean), mean, s.g + mean)


def byzantine_step(k: theory.Setting) -> float:
    """1/(L + c), or 1/(L + sqrt(2) c) with kappa > 0; c = sqrt(F q) + sqrt(r/n) + sqrt(kappa)(sqrt(D q) + sqrt(r)).

    As in DASHA-PAGE, f the mean over the n honest clients: l = Lcal^2/b, q = (1+p) L_tilde^2 + 3 (1-p) l, r = (1-p)
    l/p, F of ``lag``; of single clients sum mean||g_i - h_i||^2 <= D q sum R, D = 2 omega/(2 a - a^2 (1 + 2 omega)),
    and sum mean||h_i - grad f_i||^2 <= r sum R. By Minkowski sum E||g - grad f||^2 is at most (c sqrt(sum R) +
    sqrt(kappa T) zeta)^2 <= 2 c^2 sum R + 2 kappa T zeta^2, zeta^2 a bound of mean||grad f_i - grad f||^2.
    """
    p, l = k.number("p"), k.need("L_samples") ** 2 / k.number("batch")
    a, omega, kappa = k.number("alpha"), k.need("omega"), k.need("kappa")
    q, r = (1 + p) * k.need("L_tilde") ** 2 + 3 * (1 - p) * l, (1 - p) * l / p
    c = sqrt(lag(k) * q) + sqrt(r / k.n)
    if kappa > 0:
        a_h = 2 * omega / (2 * a - a**2 * (1 + 2 * omega))
        c = sqrt(2) * (c + sqrt(kappa) * (sqrt(a_h * q) + sqrt(r)))
    return 1 / (k.need("L") + c)


BYZANTINE_STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        byzantine_step,
        f"{BOUND} + 2 kappa zeta^2",
        ASSUMES,
        "derived here; method: Rammal, Gruntkowska, Fedin, Gorbunov, Richtarik 2024",
    )
)


@algorithm(
    "byz_dasha_page",
    title="Byz-DASHA-PAGE",
    up=Unbiased,
    proximal=True,
    robust=True,
    theory=BYZANTINE_STEPS,
    auto={"alpha": follow_rate, "p": refresh},
    alpha=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
    batch=Integer(1, low=1, help="samples per client and round"),
)
class ByzDashaPage(DashaPage):
    """DASHA-PAGE with one coin for all clients, and F(g_1, .., g_n) in place of mean g_i.

    F is the rule of ``robust``, by default the geometric median; the server keeps every g_i. Nothing is dense after
    the start. gamma is derived here (``nonconvex``); on clients of unlike data to a floor. Gradients per round
    and client: m with probability p, else 2 b. Up: one message. Down: d values. Source: Rammal,
    Gruntkowska, Fedin, Gorbunov, Richtarik 2024, Communication Compression for Byzantine Robust Learning.
    """

    robust = Robust()

    def coins(a, net):
        return net.coin("refresh", a.p)[:, None].expand(-1, net.n)
