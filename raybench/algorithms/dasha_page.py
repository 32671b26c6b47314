"""DASHA-PAGE: trackers that cost minibatches, and full gradients now and then."""

from math import sqrt

from raybench.algorithms.base import Integer, Number, Unbiased, algorithm, theory, where
from raybench.algorithms.dasha import ASSUMES, BOUND, Dasha, follow_rate, lag
from raybench.algorithms.ef21_page import refresh


def tracked(k: theory.Setting, change: float, noise: float) -> float:
    """Return 1/(L + sqrt(F change) + sqrt(noise)), F of ``lag``.

    If sum mean_i E||h_i+ - h_i||^2 <= change sum R and sum E||mean_i (h_i - grad f_i)||^2 <= noise
    sum R, R = ||x+ - x||^2, then sum E||g - grad f||^2 <= (sqrt(F change) + sqrt(noise))^2 sum R by
    Minkowski, and the descent lemma gives (1/T) sum E||grad f||^2 <= 2 Delta0/(gamma T).
    """
    return 1 / (k.need("L") + sqrt(lag(k) * change) + sqrt(noise))


def nonconvex(k: theory.Setting) -> float:
    """1/(L + sqrt(F ((1+p) L_tilde^2 + 3 (1-p) l)) + sqrt((1-p) l/(p n))), l = Lcal^2/b.

    F is DASHA's. P = mean||h_i - grad f_i||^2 obeys P+ <= (1-p)(P + l R), and E||h_i+ - h_i||^2 <= 2 p P +
    ((1+p) L_tilde^2 + (1-p) l) R in the mean; the coins are independent, so E||mean (h_i - grad f_i)||^2 is P/n.
    """
    p, l = k.number("p"), k.need("L_samples") ** 2 / k.number("batch")
    change = (1 + p) * k.need("L_tilde") ** 2 + 3 * (1 - p) * l
    return tracked(k, change, (1 - p) * l / (p * k.n))


STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        nonconvex, BOUND, ASSUMES, "derived here; method: Tyurin, Richtarik 2022"
    )
)


@algorithm(
    "dasha_page",
    up=Unbiased,
    proximal=True,
    robust=True,
    theory=STEPS,
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
        own, b = net.here(coins), coins.any(1).nonzero().flatten()
        h = c.h + net.grad(s.x, J, clients=~own) - net.grad(s.old, J, clients=~own)
        if len(b):
            full = net.grad(s.x, cells=b, clients=own[b])
            h[b] = where(own[b, :, None], full, h[b])
        return h

    def coins(a, net):
        """Return who takes a full gradient, bool (cells, n): known everywhere, so that nobody else pays for one."""
        return net.shared_stream("refresh").uniform(net.n) < a.p.values[:, None]

    def apply(a, net, s, u):
        s.old = s.x
        super().apply(net, s, u)
