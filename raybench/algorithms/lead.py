"""LEAD: decentralised, compressed, exact."""

from raybench.algorithms.base import Number, Points, Unbiased, algorithm, theory, zeros_like
from raybench.algorithms.diana import shift_rate
from raybench.algorithms.diffusion import HALF


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

    diff = (H + q) - (WH + Wq); H <- H + alpha q; D <- D + mix/(2 gamma) diff. Column sums of D
    stay 0. Exact on heterogeneous, convex data. ``alpha`` = auto is 1/(1 + omega), ``mix`` = auto
    min{1/(1 + omega), 2/(1 + omega)^3}: coarse compressors converge, but slowly, at a rate of order
    mix (1 - lambda_2). With the identity it is exact diffusion. Rule of thumb: 0.5/L_max.
    Up: one message per neighbour. Source: Liu, Li, Wang, Tang, Yan 2021.
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
