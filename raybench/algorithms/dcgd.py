"""Distributed compressed gradient descent."""

from raybench.algorithms.base import Any_, Contractive, Estimator, algorithm, theory


@algorithm("dcgd", up=Any_, broadcast=Contractive, proximal=True, theory=theory.dcgd)
class DCGD(Estimator):
    """x^{t+1} = x^t - gamma mean_i C_i(grad f_i(x^t)): no memory.

    Unbiased C: linear to a floor of order gamma omega mean||grad f_i(x*)||^2/n. Biased C may diverge
    for every step size. Up: one message. Down: d values. Source: Khirirat et al. 2018.
    """

    def estimate(a, wire, s, c, grad):
        return wire.up(a.C(grad, wire.stream("up"))).mean()
