"""Clients that talk to their neighbours: diffusion and DGD, gossip, EXTRA, gradient tracking, LEAD."""

from raybench.algorithms.base import (
    Choice,
    Contractive,
    Dense,
    Integer,
    Number,
    Points,
    Unbiased,
    algorithm,
    theory,
    zeros_like,
)
from raybench.algorithms.diana import shift_rate


def half(k: theory.Setting) -> float:
    """0.5/L_max, a quarter of where gradient descent on convex f_i ends to be stable."""
    return 0.5 / k.need("L_max")


HALF = theory.thumb(half)


@algorithm(
    "diffusion",
    title="diffusion",
    up=None,
    decentralised=True,
    theory=HALF,
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
    order=Choice("atc", "cta", help="adapt, then combine; or combine, then adapt"),
)
class Diffusion(Points):
    """atc: X <- W (X - gamma G(X)). cta: X <- V - gamma G(V), V = W X.

    Bias O(gamma) where the clients differ, both in mean X and among the x_i; none where they share
    a minimiser. Stable for gamma < 2/L_max with convex f_i. On the complete graph atc is gradient
    descent. Rule of thumb: 0.5/L_max. Up: d values per neighbour. Source: Cattivelli, Sayed 2010.
    """

    def round(a, net, s, c):
        if a.order == "cta":
            c.X = net.mix(Dense(c.X))
        c.X = c.X - a.gamma * a.gradient(net, c.X)
        if a.order == "atc":
            c.X = net.mix(Dense(c.X))


def quarter(k: theory.Setting) -> float:
    """0.25/L_max: stable on convex f_i where lambda_min(W) > -0.75; the graphs here have -0.6 or more."""
    return 0.25 / k.need("L_max")


@algorithm(
    "dgd",
    version="2",
    up=None,
    decentralised=True,
    theory=theory.thumb(quarter),
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class DGD(Points):
    """X <- W X - gamma G(X): decentralised gradient descent.

    It is gradient descent on sum_i f_i(x_i) + <X, (I - W) X>/(2 gamma), hence the bias O(gamma) of its
    fixed point; stable for gamma < (1 + lambda_min(W))/L_max with convex f_i, which on a torus is
    0.4/L_max. Rule of thumb: 0.25/L_max. Up: d values per neighbour. Source: Nedic, Ozdaglar 2009.
    """

    def round(a, net, s, c):
        c.X = net.mix(Dense(c.X)) - a.gamma * a.gradient(net, c.X)


@algorithm(
    "exact_diffusion",
    title="exact diffusion",
    up=None,
    decentralised=True,
    proximal=True,
    theory=HALF,
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class ExactDiffusion(Points):
    """psi+ = X - gamma G(X); phi = psi+ + X - psi; Z <- Z - X + (I + W)/2 phi; X <- prox(Z).

    psi^0 = Z^0 = X^0. Without a penalty Z = X, and X <- (I + W)/2 phi: exact diffusion; with one
    NIDS. Exact, at gamma < 2/L_max with convex f_i whatever the graph, for a constant step. Rule of thumb:
    0.5/L_max. Up: d values per neighbour. Sources: Yuan, Ying, Zhao, Sayed 2019; Li, Shi, Yan 2019.
    """

    def start(a, net, s, c):
        super().start(net, s, c)
        c.psi = c.Z = c.X

    def round(a, net, s, c):
        psi = c.X - a.gamma * a.gradient(net, c.X)
        phi = psi + c.X - c.psi
        c.Z = c.Z - c.X + (phi + net.mix(Dense(phi))) / 2
        c.psi, c.X = psi, net.prox(c.Z, a.gamma)


def weight(k: theory.Setting) -> float:
    """Return alpha/(2 - alpha): 1 without compression, half of alpha for coarse compressors."""
    return k.need("alpha") / (2 - k.need("alpha"))


@algorithm(
    "gossip",
    title="gossip",
    up=Contractive,
    decentralised=True,
    theory=HALF,
    auto={"mix": weight},
    mix=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
)
class Gossip(Points):
    """v_i = x_i - gamma u_i; h_i <- h_i + C(v_i - h_i); x_i <- v_i + mix sum_j W_ij (h_j - h_i).

    u_i = grad f_i(x^0) in the first round and 0 afterwards: the clients agree on the mean of their
    first gradient steps, which never changes. Without compression X <- W X, and the disagreement falls
    by max(|lambda_2|, |lambda_n|) a round. ``mix`` = auto is alpha/(2 - alpha): it converged on every
    graph tried; twice as much diverged for Rand-K. Up: one message per neighbour. Source: Koloskova, Stich,
    Jaggi 2019, CHOCO-Gossip (whose own ``mix`` depends on the graph and is far smaller).
    """

    def start(a, net, s, c):
        super().start(net, s, c)
        c.H, c.Hw = c.X.clone(), c.X.clone()  # everybody knows x^0: no message is needed

    def direction(a, net, c):
        return net.grad(c.X) if net.t == 1 else zeros_like(c.X)

    def round(a, net, s, c):
        v = c.X - a.gamma * a.direction(net, c)
        m = a.C(v - c.H, net.stream("up"))
        c.H += m.decode()
        c.Hw += net.mix(m)
        c.X = v + a.mix * (c.Hw - c.H)


@algorithm(
    "choco_sgd",
    up=Contractive,
    decentralised=True,
    theory=HALF,
    auto={"mix": weight},
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class ChocoSGD(Gossip):
    """Gossip with u_i = grad f_i(x_i), of ``batch`` samples, in every round.

    Bias O(gamma) as diffusion, of which it is the compressed form: equal to it without compression.
    Rule of thumb: 0.5/L_max. Up: one message per neighbour. Source: Koloskova, Stich, Jaggi
    2019, CHOCO-SGD.
    """

    def direction(a, net, c):
        return a.gradient(net, c.X)


@algorithm("extra", version="2", up=None, decentralised=True, proximal=True, theory=HALF)
class Extra(Points):
    """Z^{t+1} = W X^t + Z^t - (I + W)/2 X^{t-1} - gamma (G^t - G^{t-1}); X^{t+1} = prox(Z^{t+1}).

    Begins with Z^1 = W X^0 - gamma G^0. With a schedule each gradient keeps the step of its round:
    gamma_t G^t - gamma_{t-1} G^{t-1}. Without a penalty Z = X: EXTRA; with one PG-EXTRA. Exact:
    the only fixed points have all x_i = x*. Convex f_i: gamma < (1 + lambda_min(W))/L_max. Rule of thumb:
    0.5/L_max. Up: d values per neighbour. Source: Shi, Ling, Wu, Yin 2015.
    """

    def start(a, net, s, c):
        super().start(net, s, c)
        # everybody knows x^0, so W X^0 needs no message
        c.Z, c.half, c.U = c.X, c.X, zeros_like(c.X)

    def round(a, net, s, c):
        WX, U = net.mix(Dense(c.X)), a.gamma * net.grad(c.X)
        c.Z = WX + c.Z - c.half - (U - c.U)
        c.half, c.U = (c.X + WX) / 2, U
        c.X = net.prox(c.Z, a.gamma)


@algorithm("gradient_tracking", title="gradient tracking", up=None, decentralised=True, theory=HALF)
class GradientTracking(Points):
    """X <- V (X - gamma Y); Y <- V (Y + G(X) - G(X^old)), V = (I + W)/2, Y^0 = G(X^0).

    mean Y = mean G in every round; exact, under any step schedule too. V in place of W: on a graph whose W has
    eigenvalues near -1 (expanders) steps of order 1/L would diverge. Rule of thumb: 0.5/L_max. Up: two messages of
    d values per neighbour. Source: Xu, Zhu, Soh, Xie 2015 (the adapt-then-combine form).
    """

    def start(a, net, s, c):
        super().start(net, s, c)
        c.G = c.Y = net.grad(c.X)

    def round(a, net, s, c):
        def average(v):
            return (v + net.mix(Dense(v))) / 2

        c.X = average(c.X - a.gamma * c.Y)
        G = net.grad(c.X)
        c.Y, c.G = average(c.Y + G - c.G), G


def dual_weight(k: theory.Setting) -> float:
    """Return min{1/(1 + omega), 2/(1 + omega)^3}.

    Where f is flat, points that disagree swing slowly: H lags, and the noise omega ||Z - H||^2 feeds the
    swing. A second-order model of it is stable below order 1/omega^3 without help from curvature;
    the constant is measured, with divergence from 2 to 4 times as much.
    """
    omega = k.need("omega")
    return min(1 / (1 + omega), 2 / (1 + omega) ** 3)


@algorithm(
    "lead",
    up=Unbiased,
    decentralised=True,
    theory=HALF,
    auto={"alpha": shift_rate, "mix": dual_weight},
    alpha=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
    mix=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
)
class LEAD(Points):
    """Z = X - gamma (G(X) + D); neighbours exchange q = Q(Z - H) only; X <- Z - mix/2 diff.

    diff = (H + q) - (WH + Wq); H <- H + alpha q; D <- D + mix/(2 gamma) diff. Column sums of D stay 0. Exact on
    heterogeneous, convex data, under any step schedule too. ``alpha`` = auto is 1/(1 + omega), ``mix`` = auto
    min{1/(1 + omega), 2/(1 + omega)^3}, measured and not proved: coarse compressors converge, but slowly, at a rate
    of order mix (1 - lambda_2). Dithering goes well with 0.5 for both, coarse sparsifiers diverge with it. With the
    identity it is exact diffusion. Rule of thumb: 0.5/L_max. Up: one message per neighbour. Source: Liu, Li, Wang,
    Tang, Yan 2021.
    """

    def start(a, net, s, c):
        super().start(net, s, c)
        # everybody knows x^0: no message is needed
        c.D, c.H, c.Hw = zeros_like(c.X), c.X.clone(), c.X.clone()

    def round(a, net, s, c):
        Z = c.X - a.gamma * (net.grad(c.X) + c.D)
        m = a.Q(Z - c.H, net.stream("up"))
        q, Wq = m.decode(), net.mix(m)
        diff = (c.H + q) - (c.Hw + Wq)
        c.H += a.alpha * q
        c.Hw += a.alpha * Wq
        c.D += a.mix / (2 * a.gamma) * diff
        c.X = Z - a.mix / 2 * diff


@algorithm(
    "prox_lead",
    title="Prox-LEAD",
    up=Unbiased,
    decentralised=True,
    proximal=True,
    theory=HALF,
    auto={"alpha": shift_rate, "mix": dual_weight},
)
class ProxLEAD(LEAD):
    """LEAD, then X <- prox(X) of the problem's nonsmooth part at every client.

    Exact on heterogeneous, convex data; the rates ``alpha`` and ``mix`` as in LEAD. Default step:
    0.5/L_max, no theorem. Up: one message per neighbour. Source: Li et al. 2021, Decentralized
    Composite Optimization with Compression.
    """

    def round(a, net, s, c):
        super().round(net, s, c)
        c.X = net.prox(c.X, a.gamma)
