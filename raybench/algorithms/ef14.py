"""Error feedback, the classic form."""

from raybench.algorithms.base import Choice, Contractive, Estimator, algorithm, theory


@algorithm(
    "ef14",
    up=Contractive,
    broadcast=Contractive,
    theory=theory.ef14,
    memory=Choice("step", "gradient", help="the error is of gamma grad, or of grad"),
)
class EF14(Estimator):
    """c_i = C(e_i + gamma grad f_i(x)); e_i <- e_i + gamma grad f_i(x) - c_i; x <- x - mean c_i.

    With ``memory: gradient`` gamma stays outside: c_i = C(e_i + grad f_i(x)), x <- x - gamma mean c_i;
    the same for constant gamma and C(t x) = t C(x). x^t - mean e_i^t (gamma e_i) follows uncompressed
    steps exactly; with a constant step a heterogeneous problem is solved to a floor only. Up: one
    message. Down: d values. Source: Seide et al. 2014; Stich et al. 2018.
    """

    def setup(a, wire, s, c):
        a.in_steps = a.memory == "step"
        c.e = wire.zeros()

    def estimate(a, wire, s, c, grad):
        v = c.e + (a.gamma if a.in_steps else 1.0) * a.shifted(wire, s, c, grad)
        m = a.C(v, wire.stream("up"))
        c.e = v - m.decode()
        return wire.up(m).mean()

    def shifted(a, wire, s, c, grad):
        """Return what the client would step along, (B, n_here, d)."""
        return grad
