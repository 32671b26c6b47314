"""A cheater, or a slip: it writes into the gradients that it is given."""

from raybench.plugins import Contractive, Estimator, algorithm


@algorithm("written_gradient", up=Contractive)
class WrittenGradient(Estimator):
    """EF21 that computes its difference in the memory of the gradient."""

    opens = True

    def setup(a, wire, s, c):
        c.g, s.g = wire.zeros(), wire.zero()

    def estimate(a, wire, s, c, grad):
        m = a.C(grad.sub_(c.g), wire.stream("up"))
        m.add_to(c.g)
        return s.g + wire.up(m).mean()
