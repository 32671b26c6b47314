"""Byz-VR-MARINA: VR-MARINA whose server resists Byzantine clients."""

from raybench.algorithms.base import (
    Contractive,
    Integer,
    Number,
    Robust,
    Unbiased,
    algorithm,
    theory,
)
from raybench.algorithms.vr_marina import VRMarina, vr_sync_probability


def recursion(k: theory.Setting) -> theory.Rate:
    """G = ||g - grad f||^2: rho = p/2, B = (1-p)((1 + p/2) V + (1 + 2/p) kappa S); kappa = 0: VR-MARINA's.

    f is the mean over the honest clients, h of them. With l = Lcal^2/b their mean estimate z has the error G + V R,
    V = (omega L_tilde^2 + (1 + omega) l)/h, and E||g_i - z||^2 <= S R in the mean, S = (1 + omega)(L_tilde^2 + l).
    ||F - grad f||^2 <= (1 + p/2)||z - grad f||^2 + (1 + 2/p) kappa mean||g_i - z||^2, and (1-p)(1 + p/2) <= 1 - p/2.
    Dense rounds leave N = p kappa zeta^2, zeta^2 a bound of mean||grad f_i - grad f||^2.
    """
    if k.numbers.get("big"):
        raise theory.NoTheory("of dense rounds on minibatches nothing is proved here")
    p, kappa, omega = k.number("p"), k.need("kappa"), k.need("omega")
    far, samples = k.need("L_tilde") ** 2, k.need("L_samples") ** 2 / k.number("batch")
    V = k.mean_omega * (far + samples) + samples / k.n
    if kappa == 0:
        return theory.Rate(rho=p, B=(1 - p) * V)
    S = (1 + omega) * (far + samples)
    return theory.Rate(rho=p / 2, B=(1 - p) * ((1 + p / 2) * V + (1 + 2 / p) * kappa * S))


STEPS = theory.recursive(
    recursion,
    "derived here; method: Gorbunov, Horvath, Richtarik, Gidel 2023",
    theory.UNBIASED,
    floor=("2 kappa zeta^2", "2 kappa zeta^2/mu"),
)


@algorithm(
    "byz_vr_marina",
    title="Byz-VR-MARINA",
    up=Unbiased,
    broadcast=Contractive,
    proximal=True,
    robust=True,
    theory=STEPS,
    auto={"p": vr_sync_probability},
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
    batch=Integer(1, low=1, help="samples of a difference"),
    big=Integer(0, low=0, help="samples of a dense round (online); 0: all of them"),
)
class ByzVRMarina(VRMarina):
    """g_i = grad f_i(x) with probability p, else g + Q_i(difference of ``batch`` samples); g <- F(g_1, .., g_n).

    F is the rule of ``robust``, by default the geometric median. Differences are added to the server's g, not to the last g_i:
    that is ``vr_marina`` with ``robust``. With the mean it is VR-MARINA. gamma as in VR-MARINA, with a term for kappa
    of the rule; on clients of unlike data to a floor. Up: d values or one message. Down: d values.
    Source: Gorbunov, Horvath, Richtarik, Gidel 2023, Variance Reduction is an Antidote to Byzantines, algorithm 1.
    """

    robust = Robust()

    def base(a, s, g):
        return g if a.robust is None else g[:, None]
