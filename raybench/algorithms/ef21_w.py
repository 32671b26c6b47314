"""EF21-W: EF21 weighted by the clients' smoothness."""

from raybench.algorithms.base import Contractive, Dense, algorithm, theory
from raybench.algorithms.ef21 import EF21, LEAST_WEIGHT, weighted

STEPS = theory.recursive(
    weighted,
    "Richtarik, Gasanov, Burlachenko 2024, Error Feedback Reloaded; derived here",
    theory.CONTRACTIVE,
    as_in_paper=True,
)


@algorithm(
    "ef21_w",
    up=Contractive,
    averaged=False,  # its mean is weighted
    proximal=True,
    theory=STEPS,
)
class EF21W(EF21):
    """EF21 with c_i = C((grad f_i(x) - g_i)/(n w_i)), g_i <- g_i + n w_i c_i, g <- g + sum_i w_i c_i.

    w_i = L_i/sum_j L_j, known to all as the step size is. gamma = 1/(L + L_AM sqrt(beta/theta)), L_AM =
    mean L_i <= L_tilde. Where C(t x) = t C(x), as for top-k, the iterates are EF21's at the same
    step. Up: one message. Down: d values. Source: Richtarik, Gasanov, Burlachenko 2024, Error
    Feedback Reloaded, algorithm 3.
    """

    def start(a, net, s, c):
        L = net.oracle.smoothness()
        L = L.clamp(min=LEAST_WEIGHT * float(L.max()))
        s.w = (L / L.sum()).expand(len(s.x), -1)
        c.nw = net.n * net.here(s.w)[..., None]
        super().start(net, s, c)

    def send(a, wire, s, c, grad, dense=False):
        v = (grad - c.g) / c.nw
        m = Dense(v) if dense else a.C(v, wire.stream("up"))
        c.g += c.nw * m.decode()
        return wire.up(m).weighted(s.w)
