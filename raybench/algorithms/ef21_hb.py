"""EF21 with heavy-ball momentum at the server."""

from raybench.algorithms.base import Contractive, Number, Outer, algorithm, theory
from raybench.algorithms.ef21 import EF21, RELEASED


def nonconvex(k: theory.Setting) -> float:
    """(1-eta)/(L + sqrt(2 eta (1+eta)/(1-eta)^2 L^2 + (1+eta) (beta/theta) L_tilde^2)).

    m = (1-eta) v averages g: with M = ||m - grad f||^2, r = (1-eta)/(1+eta),
    M+ <= (1-r) M + 2 eta/(1-eta) L^2 R + (1-eta) G+; in the descent lemma, with step h = gamma/(1-eta),
    Phi = f + h/(2 r) M + h (1+eta)(1-theta)/(2 theta) G falls.
    """
    theta, beta = theory.contraction(k.need("alpha"))
    eta, L = k.number("eta"), k.need("L")
    spread = beta / theta * k.need("L_tilde") ** 2
    root = (2 * eta * (1 + eta) / (1 - eta) ** 2 * L**2 + (1 + eta) * spread) ** 0.5
    return (1 - eta) / (L + root)


STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        nonconvex,
        "(1/T) sum_{t<T} E||grad f(x^t)||^2 <= 2 Phi^0/(h T)",
        (theory.SMOOTH, theory.CONTRACTIVE),
        "derived here; method: Fatkhullin et al. 2021",
    ),
    released=RELEASED,
)


@algorithm(
    "ef21_hb",
    up=Contractive,
    robust=True,
    theory=STEPS,
    eta=Number(0.9, low=0, high=0.999, per_cell=True, help="momentum"),
)
class EF21HB(EF21):
    """x <- x - gamma v; g_i, g as in EF21; v <- eta v + g.

    eta = 0 is EF21. gamma multiplies the undamped v, so its theory (derived here, see the function
    ``nonconvex``) has a factor 1 - eta. No prox: its step would be gamma/(1 - eta). Up: one message.
    Down: d values. Source: Fatkhullin et al. 2021, EF21 with Bells & Whistles.
    """

    presets = ("outer",)

    def setup(a, wire, s, c):
        super().setup(wire, s, c)
        a.outer = Outer("momentum", a.eta)
        s.outer = wire.zero()
