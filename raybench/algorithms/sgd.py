"""Minibatch stochastic gradient descent."""

from raybench.algorithms.base import Algorithm, Dense, Integer, algorithm, theory


@algorithm("sgd", up=None, theory=theory.gd, stochastic=True, batch=Integer(1, low=1))
class SGD(Algorithm):
    """x^{t+1} = x^t - gamma mean_i g_i, g_i the gradient of ``batch`` samples drawn with replacement.

    With unbiased variance sigma^2 per client: mean E||grad f||^2 <= 2 Delta0/(gamma T) +
    gamma L sigma^2/n. Up: d values per client. Down: d values. Source: Robbins, Monro 1951.
    """

    def round(a, net, s, c):
        g = net.up(Dense(net.grad(s.x, net.sample("batch", a.batch)))).mean()
        s.x = net.down(Dense(s.x - a.gamma * g))
