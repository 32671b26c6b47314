"""Gradient descent where features are split over clients, and what comes of compressing products."""

from raybench.algorithms.base import Algorithm, Any_, Dense, algorithm
from raybench.algorithms.gd import STEPS


@algorithm("vertical_gd", up=None, theory=STEPS, vertical=True)
class VerticalGD(Algorithm):
    """Client j holds columns A_j and block x_j: x_j <- x_j - gamma 2 A_j'(v - b), v = sum_j A_j x_j.

    The uncompressed baseline, 1/L with L = 2||A||^2. Up: N values, a product. Down: N values, v.
    """

    def start(a, net, s, c):
        c.x = net.oracle.split(s.x)
        s.v = a.products(net, c)

    def round(a, net, s, c):
        c.x = c.x - a.gamma * net.oracle.block_grad(net.down(Dense(s.v)))
        s.v = a.products(net, c)

    def products(a, net, c):
        return net.up(Dense(net.oracle.products(c.x))).sum()

    def point(a, net, s, c):
        return net.oracle.assemble(c.x)


@algorithm("vertical_naive", up=Any_, theory=None, vertical=True)
class VerticalNaive(VerticalGD):
    """v = sum_j C_j(A_j x_j), each product compressed anew and no memory: a control that stalls.

    The products do not vanish at x*, so neither does the error of v: with an unbiased C f stays at a
    floor that grows with gamma and omega, with one mask for all clients too. No step is proved;
    step_size.of: vertical_gd gives 1/L. Up: one message. Down: N values.
    """

    def products(a, net, c):
        return net.up(a.C(net.oracle.products(c.x), net.stream("up"))).sum()
