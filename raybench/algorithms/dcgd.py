"""Distributed compressed gradient descent."""

from raybench.algorithms.base import Algorithm, Any_, Contractive, algorithm, theory


@algorithm("dcgd", up=Any_, broadcast=Contractive, proximal=True, theory=theory.dcgd)
class DCGD(Algorithm):
    """x^{t+1} = x^t - gamma mean_i C_i(grad f_i(x^t)): no memory.

    Unbiased C: linear to a floor of order gamma omega mean||grad f_i(x*)||^2/n. Biased C may diverge
    for every step size. Up: one message. Down: d values. Source: Khirirat et al. 2018.
    """

    def round(a, net, s, c):
        m = a.C(a.gradient(net, s.x), net.stream("up"))
        a.step(net, s, net.up(m).mean())
