"""MARINA: compressed gradient differences with occasional full synchronisation."""

from raybench.algorithms.base import (
    Algorithm,
    Contractive,
    Dense,
    Number,
    Unbiased,
    algorithm,
    theory,
    where,
)


@algorithm(
    "marina",
    up=Unbiased,
    broadcast=Contractive,
    proximal=True,
    theory=theory.marina,
    auto={"p": theory.sync_probability},
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
)
class Marina(Algorithm):
    """x <- x - gamma g; with probability p g <- grad f(x), else g <- g + mean Q_i(difference).

    One coin for all clients. p = auto balances dense and compressed rounds (K/d for Rand-K).
    gamma = 1/(L + L_tilde sqrt((1-p) omega/(p n))). Up: d values or one message. Down: d values.
    Source: Gorbunov, Burlachenko, Li, Richtarik 2021, algorithm 1.
    """

    def start(a, net, s, c):
        c.grad = net.grad(s.x)
        s.g = net.up(Dense(c.grad)).mean()

    def round(a, net, s, c):
        a.step(net, s, s.g)
        new, old = net.grad(s.x), c.grad
        coin, q = net.coin("sync", a.p), net.stream("up")
        m = net.cases(coin, lambda b: Dense(new[b]), lambda b: a.Q(new[b] - old[b], q[b]))
        got = net.up(m).mean()
        s.g = where(coin[:, None], got, s.g + got)
        c.grad = new
