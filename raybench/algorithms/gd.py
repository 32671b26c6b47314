"""Gradient descent."""

from raybench.algorithms.base import Contractive, Dense, Estimator, algorithm, theory


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
    broadcast=Contractive,
    proximal=True,
    blocks=True,
    robust=True,
    theory=STEPS,
)
class GD(Estimator):
    """x^{t+1} = x^t - gamma mean_i grad f_i(x^t): the uncompressed baseline, 1/L.

    Up: d values per client. Down: d values.
    """

    def estimate(a, wire, s, c, grad):
        return wire.up(Dense(grad)).mean()
