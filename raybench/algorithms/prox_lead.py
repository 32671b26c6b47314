"""Prox-LEAD: decentralised, compressed, proximal."""

from raybench.algorithms.base import Algorithm, Number, Unbiased, algorithm, theory, zeros_like


@algorithm(
    "prox_lead",
    up=Unbiased,
    theory=theory.prox_lead,
    decentralised=True,
    proximal=True,
    alpha=Number(0.5, low=0, high=1, open_low=True, per_cell=True, help="rate of H"),
    mix=Number(0.5, low=0, high=1, open_low=True, per_cell=True, help="weight of the dual step"),
)
class ProxLEAD(Algorithm):
    """Z = X - gamma (grad F(X) + D); neighbours exchange q = Q(Z - H) only; X <- prox(Z - mix/2 diff).

    diff = (H + q) - (WH + Wq); H <- H + alpha q; D <- D + mix/(2 gamma) diff. Column sums of D stay
    0. Exact on heterogeneous, convex data for fine operators (omega about 1 at most with these rates);
    coarse ones, such as Rand-K at a tenth, diverge. Up: one message per neighbour. Source: Li et al.
    2021, Decentralized Composite Optimization with Compression.
    """

    def start(a, net, s, c):
        c.X = s.x[:, None].expand(-1, net.n_here, -1).clone()
        c.D, c.H, c.Hw = zeros_like(c.X), zeros_like(c.X), zeros_like(c.X)

    def round(a, net, s, c):
        Z = c.X - a.gamma * (net.grad(c.X) + c.D)
        m = a.Q(Z - c.H, net.stream("up"))
        q, Wq = m.decode(), net.mix(m)
        diff = (c.H + q) - (c.Hw + Wq)
        c.H += a.alpha * q
        c.Hw += a.alpha * Wq
        c.D += a.mix / (2 * a.gamma) * diff
        c.X = net.prox(Z - a.mix / 2 * diff, a.gamma)

    def point(a, net, s, c):
        return net.oracle_mean(c.X)
