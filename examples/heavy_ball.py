"""An algorithm of one's own: EF21 whose server takes heavy-ball steps."""

from raybench.plugins import Contractive, Estimator, Number, algorithm


@algorithm("ef21_heavy_ball", up=Contractive)
class EF21HeavyBall(Estimator):
    """g_i <- g_i + C(grad f_i(x) - g_i), g = mean g_i; v <- momentum v + g; x <- x - gamma v."""

    momentum: float = Number(0.9, low=0, high=0.999, per_cell=True, help="weight of the last step")

    opens = True  # the clients exchange their first messages at x^0

    def setup(a, wire, s, c):
        c.g, s.g, s.v = wire.zeros(), wire.zero(), wire.zero()

    def estimate(a, wire, s, c, grad):
        m = a.C(grad - c.g, wire.stream("up"))
        m.add_to(c.g)
        return s.g + wire.up(m).mean()

    def outer_step(a, s, g):
        s.v = a.momentum * s.v + g
        return s.v
