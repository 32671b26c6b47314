"""EF21 whose clients remember the gradient itself, which the server has never received."""

from raybench.plugins import Contractive, Estimator, algorithm, theory


def recursion(k):
    """EF21's recursion, which needs that g = mean g_i."""
    theta, beta = theory.contraction(k.need("alpha"))
    return theory.Rate(rho=theta, B=beta * k.need("L_tilde") ** 2)


@algorithm("unshared_memory", up=Contractive, theory=recursion)
class UnsharedMemory(Estimator):
    """x <- x - gamma g; c_i = C(grad f_i(x) - g_i); g_i <- grad f_i(x); g <- g + mean c_i."""

    opens = True

    def setup(a, wire, s, c):
        c.g, s.g = wire.zeros(), wire.zero()

    def estimate(a, wire, s, c, grad):
        m = a.C(grad - c.g, wire.stream("up"))
        c.g = grad
        return s.g + wire.up(m).mean()
