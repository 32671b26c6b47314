"""Error feedback, the classic form."""

from raybench.algorithms.base import Algorithm, Choice, Contractive, algorithm, theory


@algorithm(
    "ef14",
    up=Contractive,
    broadcast=Contractive,
    theory=theory.ef14,
    memory=Choice("step", "gradient", help="the error is of gamma grad, or of grad"),
)
class EF14(Algorithm):
    """c_i = C(e_i + gamma grad f_i(x)); e_i <- e_i + gamma grad f_i(x) - c_i; x <- x - mean c_i.

    With ``memory: gradient`` gamma stays outside: c_i = C(e_i + grad f_i(x)), x <- x - gamma mean c_i;
    the same for constant gamma and C(t x) = t C(x). x^t - mean e_i^t (gamma e_i) follows uncompressed
    steps exactly; with a constant step a heterogeneous problem is solved to a floor only. Up: one
    message. Down: d values. Source: Seide et al. 2014; Stich et al. 2018.
    """

    def start(a, net, s, c):
        c.e = net.zeros()

    def direction(a, net, s, c):
        """Return what the client would step along, (B, n_here, d)."""
        return a.gradient(net, s.x)

    def round(a, net, s, c):
        inside, outside = (a.gamma, 1.0) if a.memory == "step" else (1.0, a.gamma)
        v = c.e + inside * a.direction(net, s, c)
        m = a.C(v, net.stream("up"))
        c.e = v - m.decode()
        a.move(net, s, outside * net.up(m).mean())
