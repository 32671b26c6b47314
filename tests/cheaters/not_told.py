"""A cheater: an estimator that says that clients step themselves, along what they were never sent."""

from raybench.plugins import Contractive, Estimator, algorithm


@algorithm("not_told", up=Contractive)
class NotTold(Estimator):
    """EF21 with ``broadcasts_model = False``: no broadcast is booked, of the model or of g."""

    opens = True
    broadcasts_model = False

    def setup(a, wire, s, c):
        c.g, s.g = wire.zeros(), wire.zero()

    def estimate(a, wire, s, c, grad):
        m = a.C(grad - c.g, wire.stream("up"))
        m.add_to(c.g)
        return s.g + wire.up(m).mean()
