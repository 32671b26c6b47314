"""An algorithm of one's own: EF21 whose server takes heavy-ball steps."""

from raybench.plugins import Algorithm, Contractive, Dense, Number, algorithm, zeros_like


@algorithm("ef21_heavy_ball", up=Contractive)
class EF21HeavyBall(Algorithm):
    """v <- momentum v + g; x <- x - gamma v; g_i and g as in EF21."""

    momentum: float = Number(0.9, low=0, high=0.999, per_cell=True, help="weight of the last step")

    def start(a, net, s, c):
        grad = net.grad(s.x)
        m = a.C(grad, net.stream("up"))
        c.g, s.v = m.decode(), zeros_like(s.x)
        s.g = net.up(m).mean()

    def round(a, net, s, c):
        s.v = a.momentum * s.v + s.g
        s.x = net.down(Dense(s.x - a.gamma * s.v))
        m = a.C(net.grad(s.x) - c.g, net.stream("up"))
        m.add_to(c.g)
        s.g = s.g + net.up(m).mean()
