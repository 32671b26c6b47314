"""ADIANA: accelerated DIANA."""

from math import inf, sqrt

from raybench.algorithms.base import Algorithm, Number, PerCell, Unbiased, algorithm, theory, where
from raybench.algorithms.diana import FAMILY, shift_rate


def refresh(k: theory.Setting) -> float:
    """Return p = min{1, max{1, sqrt(n/(32 omega)) - 1}/(2 (1 + omega))}, the paper's."""
    ahead = sqrt(1 / (32 * k.mean_omega)) - 1 if k.mean_omega else inf
    return min(1.0, max(1.0, ahead) / (2 * (1 + k.need("omega"))))


def strength(k: theory.Setting) -> float:
    """Return mu; raises NoTheory where it is not known to be positive."""
    if k.need("mu") <= 0:
        raise theory.NoTheory("mu is not positive: the method is for strongly convex f")
    return k.need("mu")


def paper(k: theory.Setting) -> float:
    """min{1/(2L), n/(64 omega (2p(omega+1)+1)^2 L)}, L = max_i L_i."""
    omega, p, L = k.need("omega"), k.number("p"), k.need("L_max")
    noise = 64 * k.mean_omega * (2 * p * (omega + 1) + 1) ** 2
    return 1 / (max(2.0, noise) * L)


STEPS = theory.StepSizes(
    paper=theory.Theorem(
        paper,
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
    theory=STEPS,
    auto={"alpha": shift_rate, "p": refresh, "mu": strength},
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
