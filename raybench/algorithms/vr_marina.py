"""VR-MARINA, finite sum: MARINA with minibatch differences."""

from raybench.algorithms.base import (
    Contractive,
    Dense,
    Integer,
    Number,
    Unbiased,
    algorithm,
    theory,
    where,
)
from raybench.algorithms.marina import Marina


@algorithm(
    "vr_marina",
    up=Unbiased,
    broadcast=Contractive,
    proximal=True,
    theory=theory.vr_marina,
    stochastic=True,
    auto={"p": theory.vr_sync_probability},
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
    batch=Integer(1, low=1),
)
class VRMarina(Marina):
    """MARINA whose differences are of ``batch`` samples, the same ones at both points.

    p = auto is min{K/d, b/(m + b)}. Gradients per round and client: m with probability p, else 2b.
    Source: Gorbunov, Burlachenko, Li, Richtarik 2021, algorithm 2.
    """

    def start(a, net, s, c):
        s.g = net.up(Dense(net.grad(s.x))).mean()

    def round(a, net, s, c):
        old = s.x
        a.step(net, s, s.g)
        coin, q, J = net.coin("sync", a.p), net.stream("up"), net.sample("batch", a.batch)

        def difference(b):
            return net.grad(s.x, J, cells=b) - net.grad(old, J, cells=b)

        m = net.cases(
            coin,
            lambda b: Dense(net.grad(s.x, cells=b)),
            lambda b: a.Q(difference(b), q[b]),
        )
        got = net.up(m).mean()
        s.g = where(coin[:, None], got, s.g + got)
