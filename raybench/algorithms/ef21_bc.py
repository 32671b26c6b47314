"""EF21 with bidirectional compression."""

from math import sqrt

from raybench.algorithms.base import Contractive, algorithm, theory
from raybench.algorithms.ef21 import EF21, PLAIN


def nonconvex(k: theory.Setting) -> float:
    """1/(L + L_tilde sqrt(2 [(1 + s) b_w/t_w + s])), s = 8 b_M/t_M; t, b are theta, beta of the clients' (w)
    and the server's (M) compressor.

    P = mean||g_i - grad f_i||^2 (the clients') obeys EF21's recursion, and Q = ||g - w||^2 obeys Q+ <= (1-t_M) Q
    + b_M ||w+ - w||^2 with E||w+ - w||^2 <= 4 mean||grad f_i(x+) - g_i||^2 <= 8 (P + L_tilde^2 R), as
    E||C(v)||^2 <= 4 ||v||^2; ||g - grad f||^2 <= 2 P + 2 Q.
    """
    theta_w, beta_w = theory.contraction(k.need("alpha"))
    theta_m, beta_m = theory.contraction(k.need("down_alpha"))
    server = 8 * beta_m / theta_m
    root = sqrt(2 * ((1 + server) * beta_w / theta_w + server))
    return 1 / (k.need("L") + k.need("L_tilde") * root)


STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        nonconvex,
        "(1/T) sum_{t<T} E||grad f(x^t)||^2 <= 2 (Delta0 + gamma (1 + s) P^0/t_w + gamma Q^0/t_M)/(gamma T)",
        (theory.SMOOTH, theory.CONTRACTIVE),
        "derived here; method: Fatkhullin et al. 2021",
    ),
    released=PLAIN,
)


@algorithm("ef21_bc", up=Contractive, down=Contractive, theory=STEPS)
class EF21BC(EF21):
    """EF21 at the clients (its mean is s.w), and again from server to clients: g <- g + D(w - g).

    Every client keeps x and g itself, x <- x - gamma g, so the model is never broadcast. Up: one
    message of C. Down: one of D. Source: Fatkhullin et al. 2021, algorithm 5.
    """

    broadcasts_model = False

    def setup(a, wire, s, c):
        super().setup(wire, s, c)
        s.w = wire.zero()

    def open(a, wire, s, c, grad):
        s.w = super().open(wire, s, c, grad)
        return a.broadcast(wire, s.w)

    def estimate(a, wire, s, c, grad):
        s.w = s.w + a.send(wire, s, c, grad)
        return s.g + a.broadcast(wire, s.w - s.g)
