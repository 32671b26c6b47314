"""Error feedback, the classic form."""

from raybench.algorithms.base import Algorithm, Contractive, algorithm, theory, zeros_like


@algorithm("ef14", up=Contractive, broadcast=Contractive, theory=theory.ef14)
class EF14(Algorithm):
    """c_i = C(e_i + gamma grad f_i(x)); e_i <- e_i + gamma grad f_i(x) - c_i; x <- x - mean c_i.

    The step size lies inside the memory. x^t - mean e_i^t follows uncompressed steps exactly; with a
    constant step a heterogeneous problem is solved to a floor only. Up: one message. Down: d values.
    Source: Seide et al. 2014; Stich et al. 2018.
    """

    def start(a, net, s, c):
        c.e = zeros_like(net.grad(s.x))

    def round(a, net, s, c):
        v = c.e + a.gamma * a.gradient(net, s.x)
        m = a.C(v, net.stream("up"))
        c.e = v - m.decode()
        a.move(net, s, net.up(m).mean())
