"""MARINA: compressed gradient differences with occasional full synchronisation."""

from raybench.algorithms.base import (
    Contractive,
    Dense,
    Estimator,
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
class Marina(Estimator):
    """x <- x - gamma g; with probability p g <- grad f(x), else g <- g + mean Q_i(difference).

    One coin for all clients. p = auto balances dense and compressed rounds (K/d for Rand-K).
    gamma = 1/(L + L_tilde sqrt((1-p) omega/(p n))). Up: d values or one message. Down: d values.
    Source: Gorbunov, Burlachenko, Li, Richtarik 2021, algorithm 1.
    """

    opens = True

    def open(a, wire, s, c, grad):
        c.grad = grad
        return wire.up(Dense(grad)).mean()

    def estimate(a, wire, s, c, grad):
        old, c.grad = c.grad, grad
        coin, q = wire.coin("sync", a.p), wire.stream("up")
        m = wire.cases(coin, lambda b: Dense(grad[b]), lambda b: a.Q(grad[b] - old[b], q[b]))
        got = wire.up(m).mean()
        return where(coin[:, None], got, s.g + got)
