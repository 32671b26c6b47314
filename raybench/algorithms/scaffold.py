"""SCAFFOLD: local steps corrected by control variates."""

from raybench.algorithms.base import Contractive, Dense, algorithm, where
from raybench.algorithms.local_sgd import LocalSGD


@algorithm(
    "scaffold",
    version="2",
    up=None,
    broadcast=Contractive,
    theory=None,
    stochastic=True,
    participation="p",
)
class Scaffold(LocalSGD):
    """Local SGD along g_i(y) - c_i + c; c_i <- mean of the client's tau gradients; c <- c + mean (new c_i - old).

    c_i estimates grad f_i, c their mean, so x* is a fixed point whatever tau and the clients'
    differences. Clients that do not take part keep c_i; the change of c is divided by n. Up: d values
    twice (the step and the change of c_i). Down: d values twice (x and c). Source: Karimireddy et al.
    2020, algorithm 1, option II.
    """

    def setup(a, wire, s, c):
        super().setup(wire, s, c)
        c.h, s.h = wire.zeros(), wire.zero()

    def round(a, net, s, c):
        S = net.participants(a.p)
        total = a.steps(net, s, c, S, lambda g, y: g - c.h + s.h[:, None])
        # the mean of the client's gradients, less its control variate c_i
        change = total / a.tau - s.h[:, None]
        steps = net.up(Dense(total).masked(S)).mean_sent()
        changes = net.up(Dense(change).masked(S)).mean()
        c.h = where(S[..., None], c.h + change, c.h)
        s.h = net.model(s.h + changes)
        a.move(net, s, a.outer_step(s, steps))
