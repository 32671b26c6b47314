"""Gradient descent."""

from raybench.algorithms.base import Algorithm, Contractive, Dense, algorithm, theory


@algorithm("gd", up=None, broadcast=Contractive, proximal=True, theory=theory.gd)
class GD(Algorithm):
    """x^{t+1} = x^t - gamma mean_i grad f_i(x^t): the uncompressed baseline, 1/L.

    Up: d values per client. Down: d values.
    """

    def round(a, net, s, c):
        a.step(net, s, net.up(Dense(a.gradient(net, s.x))).mean())
