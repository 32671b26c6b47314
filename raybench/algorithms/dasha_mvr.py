"""DASHA-MVR: trackers by momentum over minibatches."""

from raybench.algorithms.base import Integer, Number, Unbiased, algorithm, theory
from raybench.algorithms.dasha import ASSUMES, BOUND, Dasha, follow_rate
from raybench.algorithms.dasha_page import tracked


def nonconvex(k: theory.Setting) -> float:
    """1/(L + sqrt(F (2 L_tilde^2 + 3 v)) + sqrt(v/(q (2-q) n))), v = 2 (1-q)^2 Lcal^2/b; to a floor.

    F is DASHA's. P = mean||h_i - grad f_i||^2 obeys P+ <= (1-q)^2 P + v R + N, N = 2 q^2 sigma^2, and in the mean
    E||h_i+ - h_i||^2 <= 2 L_tilde^2 R + 2 q^2 P + v R + N. The noise adds, with S = 1/gamma - L,
    (1 + S/L)(sqrt(3 F N) + sqrt(N/(q (2-q) n)))^2.
    """
    q, b = k.number("momentum"), k.number("batch")
    v = 2 * (1 - q) ** 2 * k.need("L_samples") ** 2 / b
    return tracked(k, 2 * k.need("L_tilde") ** 2 + 3 * v, v / (q * (2 - q) * k.n))


STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        nonconvex,
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
    theory=STEPS,
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
