"""Gradient tracking: the clients agree on their points and on the mean gradient."""

from raybench.algorithms.base import Dense, Points, algorithm
from raybench.algorithms.diffusion import HALF


@algorithm("gradient_tracking", title="gradient tracking", up=None, decentralised=True, theory=HALF)
class GradientTracking(Points):
    """X <- V (X - gamma Y); Y <- V (Y + G(X) - G(X^old)), V = (I + W)/2, Y^0 = G(X^0).

    mean Y = mean G in every round; exact. V in place of W: on a graph whose W has eigenvalues near -1
    (expanders) steps of order 1/L would diverge. Rule of thumb: 0.5/L_max. Up: two messages of d values
    per neighbour. Source: Xu, Zhu, Soh, Xie 2015 (the adapt-then-combine form).
    """

    def start(a, net, s, c):
        super().start(net, s, c)
        c.G = c.Y = net.grad(c.X)

    def round(a, net, s, c):
        def average(v):
            return (v + net.mix(Dense(v))) / 2

        c.X = average(c.X - a.gamma * c.Y)
        G = net.grad(c.X)
        c.Y, c.G = average(c.Y + G - c.G), G
