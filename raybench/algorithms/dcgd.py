"""Distributed compressed gradient descent."""

from raybench.algorithms.base import Any_, Estimator, algorithm, theory


def nonconvex(k: theory.Setting) -> float:
    """min{1/L, 1/sqrt(L A T)}, A = L_max omega/n, T the rounds: the variance of g is expected smooth.

    E||g - grad f||^2 <= (omega/n) mean||grad f_i||^2 and ||grad f_i||^2 <= 2 L_i (f_i - inf f_i), so with
    f_low = mean inf f_i it is at most 2 A (f - f_low). With one mask for all clients omega takes the
    place of omega/n. Where some f_i has no lower bound it says nothing: with Hessians 11 I and -9 I,
    Rand-1 and d = 2 the step 1/(L + 2 A) of the convex case lets E||x||^2 grow by 1.19 a round.
    """
    return theory.expected_nonconvex(k, k.mean_omega * k.need("L_max"))


def strongly_convex(k: theory.Setting) -> float:
    """1/(L + 2 A), A = L_max omega/n: (omega/n) mean||grad f_i||^2 is at most twice that of differences to x*,
    each at most 2 L_i D_i as f_i is convex, plus 2 S, S = (omega/n) mean||grad f_i(x*)||^2.
    """
    return theory.expected_strong(k, k.mean_omega * k.need("L_max"))


STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        nonconvex,
        f"{theory.EXPECTED_NONCONVEX}, f_low = mean inf f_i",
        (theory.SMOOTH, theory.UNBIASED, theory.BOUNDED_CLIENTS),
        "Khaled, Richtarik 2020, Better Theory for SGD in the Nonconvex World; derived here",
    ),
    pl=theory.Theorem(
        strongly_convex,
        f"{theory.EXPECTED_STRONG}, S = (omega/n) mean||grad f_i(x*)||^2",
        (theory.PROXIMABLE, theory.UNBIASED, theory.STRONGLY_CONVEX, theory.CONVEX_CLIENTS),
        "Khirirat, Feyzmahdavian, Johansson 2018; Gorbunov, Hanzely, Richtarik 2020; derived here",
    ),
)


@algorithm(
    "dcgd",
    up=Any_,
    proximal=True,
    robust=True,
    theory=STEPS,
)
class DCGD(Estimator):
    """x^{t+1} = x^t - gamma mean_i C_i(grad f_i(x^t)): no memory.

    Unbiased C: to a floor of order gamma omega mean||grad f_i(x*)||^2/n. Biased C may diverge for every
    step size. Up: one message. Down: d values. Source: Khirirat et al. 2018.
    """

    def estimate(a, wire, s, c, grad):
        return wire.up(a.C(grad, wire.stream("up"))).mean()
