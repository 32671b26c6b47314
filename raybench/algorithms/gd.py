"""Gradient descent."""

from raybench.algorithms.base import Algorithm, Dense, algorithm, theory


@algorithm("gd", up=None, theory=theory.gd)
class GD(Algorithm):
    """x^{t+1} = x^t - gamma mean_i grad f_i(x^t): the uncompressed baseline, 1/L.

    Up: d values per client. Down: d values.
    """

    def round(a, net, s, c):
        g = net.up(Dense(net.grad(s.x))).mean()
        s.x = net.down(Dense(s.x - a.gamma * g))
