"""DASHA-SYNC-MVR: minibatch trackers, and a coin for dense rounds."""

from raybench.algorithms.base import (
    Dense,
    Integer,
    Number,
    PerCell,
    Unbiased,
    algorithm,
    theory,
    where,
)
from raybench.algorithms.dasha import ASSUMES, BOUND, Dasha, follow_rate
from raybench.algorithms.dasha_page import tracked
from raybench.algorithms.vr_marina import anew, vr_sync_probability


def nonconvex(k: theory.Setting) -> float:
    """1/(L + sqrt(F (1-p)(L_tilde^2 + l)) + sqrt((1-p) l/(p n))), l = Lcal^2/b.

    F is DASHA's: a dense round sets g_i = h_i, so the lag only falls faster. Online the noise of dense rounds
    adds sigma^2/(n big), times 1 + S/L, S = 1/gamma - L.
    """
    p, l = k.number("p"), k.need("L_samples") ** 2 / k.number("batch")
    return tracked(k, (1 - p) * (k.need("L_tilde") ** 2 + l), (1 - p) * l / (p * k.n))


STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        nonconvex,
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
    theory=STEPS,
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
        got = net.up(m).mean()
        s.g = where(PerCell(coin).like(got), got, s.g + got)
