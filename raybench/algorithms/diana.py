"""DIANA: compressed differences to learned shifts; with variance reduction, accelerated."""

from math import inf, sqrt

import torch

from raybench.algorithms.base import (
    Algorithm,
    Choice,
    Estimator,
    Integer,
    Number,
    PerCell,
    Unbiased,
    algorithm,
    theory,
    where,
)
from raybench.algorithms.marina import CODE, CODE_VR
from raybench.core.errors import InputError


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

    The server's h equals mean h_i; alpha = auto is 1/(1 + omega); alpha = 0 is DCGD. Nonconvex gamma = 1/(L + 2 L_tilde
    (1 + omega) sqrt(omega/n)); for convex f_i 1/((1 + 6 omega/n) L_max). Up: one message. Down: d values. Source:
    Mishchenko et al. 2019, algorithm 1.
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


MOST_TABLE_VALUES = 1 << 29  # values in SAGA's tables: 4 GiB in float64


def batches(k: theory.Setting) -> float:
    """Return m/b: how many batches make up a client's samples."""
    return max(1.0, k.m / k.number("batch"))


def refresh(k: theory.Setting) -> float:
    """Return p = b/m."""
    return 1 / batches(k)


def vr_step(k: theory.Setting) -> float:
    """1/(L + sqrt(2 [w (1 + 2/a) L_tilde^2/a + (4 w + 1/n)(2/p - 1) V/p])), w = omega/n, V = Lcal^2/b; lsvrg.

    H = mean||grad f_i - h_i||^2 and W = ||x - w||^2, w the reference point, bound the error, w H +
    (w + 1/n) V W, and obey H+ <= (1 - a/2) H + (3a/2) V W + (1 + 2/a) L_tilde^2 R, W+ <= (1 - p/2) W +
    (2/p - 1) R; Phi = f + gamma (w/a) H + gamma (4 w + 1/n)(V/p) W.
    """
    if k.numbers.get("estimator") == "saga":
        raise theory.NoTheory("saga has none here")
    a, p, w = k.number("alpha"), k.number("p"), k.mean_omega
    if not 0 < a <= (1 + 1e-12) * shift_rate(k):
        raise theory.NoTheory(f"it needs 0 < alpha <= 1/(1 + omega) = {shift_rate(k):.3g}")
    V = k.need("L_samples") ** 2 / k.number("batch")
    drift = w * (1 + 2 / a) * k.need("L_tilde") ** 2 / a + (4 * w + 1 / k.n) * (2 / p - 1) * V / p
    return 1 / (k.need("L") + (2 * drift) ** 0.5)


def vr_paper(k: theory.Setting) -> float:
    """1/(10 L sqrt(1 + omega/n)((m/b)^(2/3) + omega + 1)), L = max_ij L_ij, with alpha and p of ``auto``."""
    learns_fully(k)
    if abs(k.number("p") - refresh(k)) > 1e-12:
        raise theory.NoTheory(f"the paper's p is b/m = {refresh(k):.3g}")
    return vr_released(k)


def vr_released(k: theory.Setting) -> float:
    """1/(10 L sqrt(1 + omega/n)((m/b)^(2/3) + omega + 1)), L = max_ij L_ij."""
    return of_family(k, k.need("L_sample_max"), batches(k))


VR_STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        vr_step,
        "(1/T) sum_{t<T} E||grad f(x^t)||^2 <= 2 (Delta0 + gamma (w/a) H^0)/(gamma T)",
        (theory.PROXIMABLE, theory.UNBIASED),
        "derived here; method: Horvath et al. 2019",
    ),
    paper=theory.Theorem(vr_paper, theory.NONCONVEX, FAMILY, PAPER, recalled=True),
    released=theory.Convention(vr_released, CODE_VR),
)


@algorithm(
    "vr_diana",
    version="2",
    up=Unbiased,
    proximal=True,
    robust=True,
    theory=VR_STEPS,
    auto={"alpha": shift_rate, "p": refresh},
    estimator=Choice("lsvrg", "saga", help="reference point, or table of sample gradients"),
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
    batch=Integer(1, low=1, help="samples per client and round"),
)
class VRDiana(Diana):
    """DIANA on g_i = grad f_i(x; J) - (the same samples' remembered gradients) + (mean of all remembered).

    lsvrg: remembered at w, w <- x with probability p, a coin for all clients; p = auto is b/m. Gradients per round and
    client: 2 b, and p m. saga: a table of the samples' gradients, zero at first; b gradients a round, m d values of
    memory; p is not used. No floor. Up: one message. Down: d values. Source: Horvath, Kovalev, Mishchenko, Richtarik,
    Stich 2019.
    """

    def start(a, net, s, c):
        super().start(net, s, c)
        if a.estimator == "lsvrg":
            s.w, c.full = s.x, net.grad(s.x)
            return
        m = int(net.oracle.samples.max())
        if c.h.numel() * m > MOST_TABLE_VALUES:
            what = f"saga's tables of all cells hold {c.h.numel() * m:,} values"
            raise InputError.of("algorithm.estimator", what, "lsvrg needs none")
        c.table, c.full = c.h[:, :, None].repeat(1, 1, m, 1), net.zeros()

    def source(a, net, s, c):
        J = net.sample("batch", a.batch)
        return a.table(net, s, c, J) if a.estimator == "saga" else a.reference(net, s, c, J)

    def reference(a, net, s, c, J):
        g = net.grad(s.x, J) - net.grad(s.w, J) + c.full
        coin = net.coin("refresh", a.p)
        s.w = where(coin[:, None], s.x, s.w)
        if len(b := coin.nonzero().flatten()):
            c.full = c.full.index_copy(0, b, net.grad(s.x, cells=b))
        return g

    def table(a, net, s, c, J):
        at = J.indices[..., None].expand(*J.indices.shape, s.x.shape[-1])
        new = torch.stack([net.grad(s.x, j) for j in J.split(1)], 2)
        change = new - c.table.gather(2, at)
        g = change.mean(2) + c.full
        same = J.indices[..., :, None] == J.indices[..., None, :]
        again = same.tril(-1).any(-1)  # a sample that stands earlier in the same batch
        new_sum = change.masked_fill(again[..., None], 0).sum(2)
        c.full = c.full + new_sum / net.oracle.samples[:, None]
        c.table = c.table.scatter(2, at, new)
        return g


def accelerated_refresh(k: theory.Setting) -> float:
    """Return p = min{1, max{1, sqrt(n/(32 omega)) - 1}/(2 (1 + omega))}, the paper's."""
    ahead = sqrt(1 / (32 * k.mean_omega)) - 1 if k.mean_omega else inf
    return min(1.0, max(1.0, ahead) / (2 * (1 + k.need("omega"))))


def strength(k: theory.Setting) -> float:
    """Return mu; raises NoTheory where it is not known to be positive."""
    if k.need("mu") <= 0:
        raise theory.NoTheory("mu is not positive: the method is for strongly convex f")
    return k.need("mu")


def accelerated_step(k: theory.Setting) -> float:
    """min{1/(2L), n/(64 omega (2p(omega+1)+1)^2 L)}, L = max_i L_i, with alpha of ``auto`` and mu at most that of f."""
    learns_fully(k)
    if k.numbers.get("mu", 0.0) > (1 + 1e-12) * k.need("mu"):
        raise theory.NoTheory(f"mu is above that of the problem, {k.need('mu'):.3g}")
    omega, p, L = k.need("omega"), k.number("p"), k.need("L_max")
    noise = 64 * k.mean_omega * (2 * p * (omega + 1) + 1) ** 2
    return 1 / (max(2.0, noise) * L)


ACCELERATED_STEPS = theory.StepSizes(
    paper=theory.Theorem(
        accelerated_step,
        "linear convergence to x*, without compression in O(sqrt(L/mu)) rounds a digit",
        (*FAMILY, theory.STRONGLY_CONVEX, theory.CONVEX_CLIENTS, theory.CONSTANT_STEP),
        "Li, Kovalev, Qian, Richtarik 2020",
        recalled=True,
    )
)


@algorithm(
    "adiana",
    up=Unbiased,
    proximal=True,
    theory=ACCELERATED_STEPS,
    auto={"alpha": shift_rate, "p": accelerated_refresh, "mu": strength},
    alpha=Number("auto", low=0, high=1, words=("auto",), per_cell=True, help="shift rate"),
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
    mu=Number("auto", low=0, open_low=True, words=("auto",), per_cell=True, help="convexity of f"),
)
class ADiana(Algorithm):
    """x = th1 z + w/2 + (1/2 - th1) y; y+ = prox(x - gamma (h + mean Q(grad f_i(x) - h_i))).

    h_i <- h_i + alpha Q'(grad f_i(w) - h_i); z <- b z + (1-b) x + (q/gamma)(y+ - x); w <- y with
    probability p; th1 = min{1/4, sqrt(gamma mu/p)}, q = gamma/(2 (th1 + gamma mu)), b = 1 - q mu. f is
    recorded at y. For strongly convex f and convex f_i; mu = auto is that of the problem. The step is
    the paper's, not proved here. Up: two messages. Down: d values, the estimate, from which all keep
    x, y, z, w. Source: Li, Kovalev, Qian, Richtarik 2020, algorithm 2.
    """

    def setup(a, wire, s, c):
        c.h, s.h = wire.zeros(), wire.zero()

    def start(a, net, s, c):
        super().start(net, s, c)
        s.y = s.z = s.w = s.x
        c.at_w = net.grad(s.w)

    def round(a, net, s, c):
        eta, mu, p = a.gamma.values, a.mu.values, a.p.values
        th = (eta * mu / p).sqrt().clamp(max=0.25)
        q = eta / (2 * (th + eta * mu))
        th, b, ahead = PerCell(th), PerCell(1 - q * mu), PerCell(q / eta)
        s.x = th * s.z + s.w / 2 + (0.5 - th) * s.y

        m = a.Q(net.grad(s.x) - c.h, net.stream("up"))
        shift = a.Q(c.at_w - c.h, net.stream("shift"))
        g = net.model(s.h + net.up(m).mean())
        c.h += a.alpha * shift.decode()
        s.h += a.alpha * net.up(shift).mean()

        old, s.y = s.y, net.prox(s.x - a.gamma * g, a.gamma)
        s.z = b * s.z + (1 - b) * s.x + ahead * (s.y - s.x)
        coin = net.coin("refresh", a.p)
        s.w = where(coin[:, None], old, s.w)
        if len(moved := coin.nonzero().flatten()):
            c.at_w = c.at_w.index_copy(0, moved, net.grad(old, cells=moved))

    def point(a, net, s, c):
        return s.y
