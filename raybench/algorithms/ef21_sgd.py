"""EF21-SGD: EF21 on minibatches."""

from raybench.algorithms.base import Contractive, Integer, algorithm, theory
from raybench.algorithms.ef21 import EF21


def ef21_sgdm(k: theory.Setting) -> theory.Rate:
    """EF21-SGDM: 1/(L + L_tilde sqrt(2 q)), q = 2 (beta/theta)(eta^2 + (1-eta)^2) + (1-eta)^2/eta^2.

    P = mean||v_i - grad f_i||^2 and G = mean||g_i - v_i||^2 obey P+ <= (1-eta) P +
    (1-eta)^2/eta L_tilde^2 R + eta^2 sigma^2 and G+ <= (1-theta) G + beta E||v+ - v||^2, with
    E||v+ - v||^2 <= 2 eta^2 (P + L_tilde^2 R) + eta^2 sigma^2. Then (1/T) sum E||grad f||^2 <=
    2 Phi0/(gamma T) + 2 (eta + eta^2 beta/theta + 2 eta^3 beta/theta) sigma^2, sigma^2 the variance of
    a client's minibatch. Paper: min{alpha/(20 L_tilde), eta/(7 L)}, as recalled.
    """
    if k.numbers.get("double"):
        raise theory.NoTheory("double momentum has none here")
    alpha, eta = k.need("alpha"), float(k.numbers.get("eta", 1.0))
    theta, beta = theory.contraction(alpha)
    past, L = (1 - eta) ** 2, k.need("L")
    q = 2 * beta / theta * (eta**2 + past) + past / eta**2
    paper = min(alpha / (20 * k.need("L_tilde")), eta / (7 * L))
    return theory.Rate(nonconvex=1 / (L + k.need("L_tilde") * (2 * q) ** 0.5), paper=paper)


@algorithm(
    "ef21_sgd",
    up=Contractive,
    broadcast=Contractive,
    proximal=True,
    theory=ef21_sgdm,
    stochastic=True,
    batch=Integer(1, low=1, help="samples per client and round"),
)
class EF21SGD(EF21):
    """EF21 on minibatch gradients: c_i = C(grad f_i(x; J) - g_i).

    Reaches a floor of order sigma^2 (beta/theta) that does not shrink with n: use large batches, or
    EF21-SGDM. Step: that of EF21-SGDM with eta = 1. Up: one message. Down: d values. Source:
    Fatkhullin et al. 2021, EF21 with Bells & Whistles.
    """
