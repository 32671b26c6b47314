"""Gradient descent, and on minibatches."""

from raybench.algorithms.base import Dense, Estimator, Integer, algorithm, theory


def exact(k: theory.Setting) -> theory.Rate:
    """The estimate is exact, G = 0: rho = 1 and B = 0 give 1/L."""
    return theory.Rate(rho=1.0, B=0.0)


def exact_linear(k: theory.Setting) -> float:
    """1/L: without an error to wait for, rho/(2 mu) does not bind."""
    return 1 / k.need("L")


STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        exact,
        "(1/T) sum_{t<T} ||grad f(x^t)||^2 <= 2 Delta0/(gamma T)",
        (theory.PROXIMABLE,),
        "textbook",
    ),
    pl=theory.Theorem(
        exact_linear,
        "f(x^t) - f* <= (1 - gamma mu)^t (f(x^0) - f*)",
        (theory.PROXIMABLE, theory.PL),
        "Polyak 1963; Karimi, Nutini, Schmidt 2016",
    ),
)


@algorithm(
    "gd",
    up=None,
    proximal=True,
    robust=True,
    theory=STEPS,
)
class GD(Estimator):
    """x^{t+1} = x^t - gamma mean_i grad f_i(x^t): the uncompressed baseline, 1/L.

    Up: d values per client. Down: d values.
    """

    def estimate(a, wire, s, c, grad):
        return wire.up(Dense(grad)).mean()


def noisy(k: theory.Setting) -> theory.Rate:
    """1/L: the error is noise of variance sigma^2/n, drawn anew in every round: rho = 1, B = 0, N = sigma^2/n.

    Without a nonsmooth part f(x+) <= f(x) - gamma ||grad f||^2 + L gamma^2/2 (||grad f||^2 + sigma^2/n) in
    expectation gives the lower floor. sigma^2: a bound of the variance of a client's minibatch.
    """
    return theory.Rate(rho=1.0, B=0.0)


def strongly_convex(k: theory.Setting) -> float:
    """1/(L + 2 A), A = max_ij L_ij/(n b): expected smoothness of minibatches of b samples.

    E||g - grad f||^2 <= mean_ij ||grad f_ij||^2/(n b), twice that of differences to x* plus that at x*;
    ||grad f_ij(x) - grad f_ij(x*)||^2 <= 2 L_ij D_ij as f_ij is convex. S = C/(n b), C the variance of a
    sample's gradient at x*.
    """
    b = k.minibatch
    A = 0.0 if b is None else k.need("L_sample_max") / (k.n * b)
    return theory.expected_strong(k, A)


SGD_STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        noisy,
        "(1/T) sum_{t<T} E||grad f(x^t)||^2 <= 2 Delta0/(gamma T) + gamma L sigma^2/n, "
        "with a nonsmooth part + sigma^2/n",
        (theory.PROXIMABLE, theory.BOUNDED_NOISE),
        "Ghadimi, Lan 2013; with a nonsmooth part derived here",
    ),
    pl=theory.Theorem(
        strongly_convex,
        f"{theory.EXPECTED_STRONG}, S = C/(n b)",
        (theory.PROXIMABLE, theory.STRONGLY_CONVEX, theory.CONVEX_SAMPLES),
        "Gower et al. 2019, SGD: General Analysis and Improved Rates; derived here",
    ),
)


@algorithm(
    "sgd",
    up=None,
    proximal=True,
    robust=True,
    theory=SGD_STEPS,
    batch=Integer(1, low=1),
)
class SGD(GD):
    """x^{t+1} = x^t - gamma mean_i g_i, g_i the gradient of ``batch`` samples drawn with replacement.

    With unbiased variance sigma^2 per client: mean E||grad f||^2 <= 2 Delta0/(gamma T) +
    gamma L sigma^2/n. Up: d values per client. Down: d values. Source: Robbins, Monro 1951.
    """
