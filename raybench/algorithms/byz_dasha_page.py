"""Byz-DASHA-PAGE: DASHA-PAGE whose server resists Byzantine clients."""

from math import sqrt

from raybench.algorithms.base import Integer, Number, Robust, Unbiased, algorithm, theory
from raybench.algorithms.dasha import ASSUMES, BOUND, follow_rate, lag
from raybench.algorithms.dasha_page import DashaPage
from raybench.algorithms.ef21_page import refresh


def nonconvex(k: theory.Setting) -> float:
    """1/(L + c), or 1/(L + sqrt(2) c) with kappa > 0; c = sqrt(F q) + sqrt(r/n) + sqrt(kappa)(sqrt(D q) + sqrt(r)).

    As in DASHA-PAGE, f the mean over the n honest clients: l = Lcal^2/b, q = (1+p) L_tilde^2 + 3 (1-p) l, r =
    (1-p) l/p, F of ``lag``; of single clients sum mean||g_i - h_i||^2 <= D q sum R, D = 2 omega/(2 a - a^2 (1 + 2 omega)),
    and sum mean||h_i - grad f_i||^2 <= r sum R. By Minkowski sum E||g - grad f||^2 is at most
    (c sqrt(sum R) + sqrt(kappa T) zeta)^2 <= 2 c^2 sum R + 2 kappa T zeta^2, zeta^2 a bound of mean||grad f_i - grad f||^2.
    """
    p, l = k.number("p"), k.need("L_samples") ** 2 / k.number("batch")
    a, omega, kappa = k.number("alpha"), k.need("omega"), k.need("kappa")
    q, r = (1 + p) * k.need("L_tilde") ** 2 + 3 * (1 - p) * l, (1 - p) * l / p
    c = sqrt(lag(k) * q) + sqrt(r / k.n)
    if kappa > 0:
        own = 2 * omega / (2 * a - a**2 * (1 + 2 * omega))
        c = sqrt(2) * (c + sqrt(kappa) * (sqrt(own * q) + sqrt(r)))
    return 1 / (k.need("L") + c)


STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        nonconvex,
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
    theory=STEPS,
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
