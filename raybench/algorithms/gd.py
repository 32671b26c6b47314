"""Gradient descent."""

from raybench.algorithms.base import Contractive, Dense, Estimator, algorithm, theory


@algorithm("gd", up=None, broadcast=Contractive, proximal=True, theory=theory.gd)
class GD(Estimator):
    """x^{t+1} = x^t - gamma mean_i grad f_i(x^t): the uncompressed baseline, 1/L.

    Up: d values per client. Down: d values.
    """

    def estimate(a, wire, s, c, grad):
        return wire.up(Dense(grad)).mean()
