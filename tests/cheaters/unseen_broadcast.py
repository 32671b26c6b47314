"""Cheaters: what their clients use, the server never sent, or sent to nobody's account."""

import torch

from raybench.plugins import Algorithm, Contractive, Estimator, SparseMessage, algorithm


@algorithm("untold_model", up=Contractive)
class UntoldModel(Algorithm):
    """EF21 without a broadcast: x <- x - gamma g, g = mean g_i, which the server alone can know."""

    def setup(a, wire, s, c):
        c.g, s.g = wire.zeros(), wire.zero()

    def round(a, net, s, c):
        m = a.C(net.grad(s.x) - c.g, net.stream("up"))
        m.add_to(c.g)
        s.g = s.g + net.up(m).mean()
        s.x = s.x - a.gamma * s.g


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


@algorithm("small_broadcast", up=Contractive)
class SmallBroadcast(Algorithm):
    """DCGD whose server sends x_1 and whose clients know x."""

    def round(a, net, s, c):
        g = net.up(a.C(net.grad(s.x), net.stream("up"))).mean()
        s.x = s.x - a.gamma * g
        first = torch.zeros(len(g), 1, dtype=torch.int64)
        net.down(SparseMessage(g.shape[-1], g.dtype, first, s.x[:, :1].clone()))


@algorithm("hidden_state", up=Contractive)
class HiddenState(Estimator):
    """DCGD whose clients send C(grad f_i - g), g the last mean, which reaches them as an attribute of the method."""

    def setup(a, wire, s, c):
        s.last = wire.zero()

    def estimate(a, wire, s, c, grad):
        m = a.C(grad - s.last[:, None], wire.stream("up"))
        s.last = s.last + wire.up(m).mean()
        return s.last
