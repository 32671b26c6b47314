"""EF21 on minibatches: EF21-SGD, and EF21-SGDM with momentum at the clients."""

from raybench.algorithms.base import Contractive, Flag, Integer, Number, algorithm, theory
from raybench.algorithms.ef21 import EF21, PLAIN


def momentum(k: theory.Setting) -> float:
    """Return eta, 1 for EF21-SGD; raises NoTheory for double momentum."""
    if k.numbers.get("double"):
        raise theory.NoTheory("double momentum has none here")
    return float(k.numbers.get("eta", 1.0))


def nonconvex(k: theory.Setting) -> float:
    """1/(L + L_tilde sqrt(2 q)), q = 2 (beta/theta)(eta^2 + (1-eta)^2) + (1-eta)^2/eta^2; EF21-SGD: eta = 1.

    P = mean||v_i - grad f_i||^2 and G = mean||g_i - v_i||^2 obey P+ <= (1-eta) P +
    (1-eta)^2/eta L_tilde^2 R + eta^2 sigma^2 and G+ <= (1-theta) G + beta E||v+ - v||^2, with
    E||v+ - v||^2 <= 2 eta^2 (P + L_tilde^2 R) + eta^2 sigma^2; ||g - grad f||^2 <= 2 G + 2 P.
    Phi = f + gamma G/theta + gamma (1/eta + 2 eta beta/theta) P. sigma^2: a client's minibatch variance.
    """
    eta = momentum(k)
    theta, beta = theory.contraction(k.need("alpha"))
    past = (1 - eta) ** 2
    q = 2 * beta / theta * (eta**2 + past) + past / eta**2
    return 1 / (k.need("L") + k.need("L_tilde") * (2 * q) ** 0.5)


def paper(k: theory.Setting) -> float:
    """min{alpha/(20 L_tilde), eta/(7 L)}."""
    return min(k.need("alpha") / (20 * k.need("L_tilde")), momentum(k) / (7 * k.need("L")))


NOISE = "2 (eta + (eta^2 + 2 eta^3) beta/theta) sigma^2"
BOUND = f"(1/T) sum_{{t<T}} E||grad f(x^t)||^2 <= 2 Phi^0/(gamma T) + {NOISE}"
ASSUMES = (theory.PROXIMABLE, theory.CONTRACTIVE, theory.BOUNDED_NOISE)
STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(nonconvex, BOUND, ASSUMES, "derived here"),
    paper=theory.Theorem(
        paper,
        "E||grad f||^2 <= O(Delta0/(gamma T) + noise)",
        (theory.SMOOTH, *ASSUMES[1:]),
        "Fatkhullin, Tyurin, Richtarik 2023",
        recalled=True,
    ),
)


@algorithm(
    "ef21_sgd",
    up=Contractive,
    proximal=True,
    robust=True,
    theory=STEPS.with_rules(released=PLAIN),
    batch=Integer(1, low=1, help="samples per client and round"),
)
class EF21SGD(EF21):
    """EF21 on minibatch gradients: c_i = C(grad f_i(x; J) - g_i).

    Reaches a floor of order sigma^2 (beta/theta) that does not shrink with n: use large batches, or
    EF21-SGDM. Step: that of EF21-SGDM with eta = 1. Up: one message. Down: d values. Source:
    Fatkhullin et al. 2021, EF21 with Bells & Whistles.
    """


@algorithm(
    "ef21_sgdm",
    up=Contractive,
    proximal=True,
    robust=True,
    theory=STEPS,
    eta=Number(0.1, low=0, high=1, open_low=True, per_cell=True, help="weight of new gradients"),
    double=Flag(help="average twice (SGD2M)"),
)
class EF21SGDM(EF21SGD):
    """v_i <- (1-eta) v_i + eta grad f_i(x; J); c_i = C(v_i - g_i); g_i <- g_i + c_i; x <- x - gamma g.

    eta = 1 is EF21-SGD. ``double``: u_i <- (1-eta) u_i + eta v_i is sent in place of v_i. v_i and u_i
    begin as the first minibatch gradient. Up: one message. Down: d values. Source: Fatkhullin,
    Tyurin, Richtarik 2023, Momentum Provably Improves Error Feedback, algorithms 1 and 4.
    """

    def open(a, wire, s, c, grad):
        c.v = grad
        if a.double:
            c.u = grad
        return super().open(wire, s, c, grad)

    def estimate(a, wire, s, c, grad):
        c.v = (1 - a.eta) * c.v + a.eta * grad
        if a.double:
            c.u = (1 - a.eta) * c.u + a.eta * c.v
        return super().estimate(wire, s, c, c.u if a.double else c.v)
