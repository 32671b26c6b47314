"""Minibatch stochastic gradient descent."""

from raybench.algorithms.base import Contractive, Integer, algorithm, theory
from raybench.algorithms.gd import GD


@algorithm(
    "sgd",
    up=None,
    broadcast=Contractive,
    proximal=True,
    theory=theory.gd,
    stochastic=True,
    batch=Integer(1, low=1),
)
class SGD(GD):
    """x^{t+1} = x^t - gamma mean_i g_i, g_i the gradient of ``batch`` samples drawn with replacement.

    With unbiased variance sigma^2 per client: mean E||grad f||^2 <= 2 Delta0/(gamma T) +
    gamma L sigma^2/n. Up: d values per client. Down: d values. Source: Robbins, Monro 1951.
    """
