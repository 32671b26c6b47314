"""Normalised EF21: error feedback for functions whose curvature may grow with their gradient."""

import torch

from raybench.algorithms.base import Contractive, Integer, Number, algorithm, theory
from raybench.algorithms.ef21 import EF21


def paper(k: theory.Setting) -> float:
    """1/sqrt(T), T the rounds: any multiple of it has the rate 1/sqrt(T), and needs no constant of f.

    The bound for L-smooth f: e_t = mean||g_i - grad f_i||. The compressor makes of it at most s (e_t + L_AM gamma),
    s = sqrt(1 - alpha), as every step has the length gamma, and <grad f, g/||g||> >= ||grad f|| - 2 e_t.
    """
    if k.numbers.get("eta", 1.0) != 1:
        raise theory.NoTheory("with momentum its step depends on what curvature does")
    return 1 / k.rounds**0.5


STEPS = theory.StepSizes(
    paper=theory.Theorem(
        paper,
        "(1/T) sum_{t<T} E||grad f(x^t)|| <= Delta0/(gamma T) + 2 e_0/(theta T) "
        "+ gamma (L/2 + 2 L_AM sqrt(1-alpha)/theta)",
        (theory.SMOOTH, theory.CONTRACTIVE, theory.FULL, theory.CONSTANT_STEP),
        "Khirirat, Sadiev, Riabinin, Gorbunov, Richtarik 2024, theorem 1; its bound for L-smooth f is derived here",
    )
)


@algorithm(
    "ef21_normalized",
    title="normalised EF21",
    up=Contractive,
    theory=STEPS,
    eta=Number(1.0, low=0, high=1, open_low=True, per_cell=True, help="weight of new gradients"),
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class EF21Normalized(EF21):
    """v_i <- (1 - eta) v_i + eta grad f_i(x); g_i <- g_i + C(v_i - g_i); x <- x - gamma g/||g||, g = mean g_i.

    Made for f_i whose Hessian is bounded by L0 + L1 ||grad f_i|| only: every step has the length gamma, so that
    x ends in a ball of that order around the minimum. gamma = c/sqrt(T) for T rounds and any c > 0. Where g = 0
    x stays. eta = 1 is ||EF21||; v_i begins as the first gradient. Up: one message. Down: d values. Source:
    Khirirat et al. 2024, Error Feedback under (L0, L1)-Smoothness, algorithms 1 and 2.
    """

    def open(a, wire, s, c, grad):
        c.v = grad
        return super().open(wire, s, c, grad)

    def estimate(a, wire, s, c, grad):
        c.v = (1 - a.eta) * c.v + a.eta * grad
        return super().estimate(wire, s, c, c.v)

    def outer_step(a, s, g):
        size = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
        return g / size.clamp(min=torch.finfo(g.dtype).tiny)
