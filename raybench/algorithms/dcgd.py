"""Distributed compressed gradient descent."""

from raybench.algorithms.base import Algorithm, Any_, Dense, algorithm, theory


@algorithm("dcgd", up=Any_, theory=theory.dcgd)
class DCGD(Algorithm):
    """x^{t+1} = x^t - gamma mean_i C_i(grad f_i(x^t)): no memory.

    Unbiased C: linear to a floor of order gamma omega mean||grad f_i(x*)||^2/n. Biased C may diverge
    for every step size. Up: one message. Down: d values. Source: Khirirat et al. 2018.
    """

    def round(a, net, s, c):
        m = a.C(net.grad(s.x), net.stream("up"))
        s.x = net.down(Dense(s.x - a.gamma * net.up(m).mean()))
