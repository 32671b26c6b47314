"""EF21 with the step of another alpha: sqrt(alpha) in its place, as if the compressor were better than it is."""

from raybench.plugins import Contractive, Estimator, algorithm, theory


def recursion(k):
    """EF21's recursion, of the wrong alpha."""
    theta, beta = theory.contraction(k.need("alpha") ** 0.5)
    return theory.Rate(rho=theta, B=beta * k.need("L_tilde") ** 2)


@algorithm("wrong_alpha", up=Contractive, theory=recursion)
class WrongAlpha(Estimator):
    """x <- x - gamma g; c_i = C(grad f_i(x) - g_i); g_i <- g_i + c_i; g <- g + mean c_i."""

    opens = True

    def setup(a, wire, s, c):
        c.g, s.g = wire.zeros(), wire.zero()

    def estimate(a, wire, s, c, grad):
        m = a.C(grad - c.g, wire.stream("up"))
        c.g = c.g + m.decode()
        return s.g + wire.up(m).mean()
