"""VR-MARINA: MARINA with minibatch differences."""

from raybench.algorithms.base import (
    Algorithm,
    Contractive,
    Dense,
    Integer,
    Number,
    Unbiased,
    algorithm,
    theory,
    where,
)


@algorithm(
    "vr_marina",
    up=Unbiased,
    broadcast=Contractive,
    proximal=True,
    theory=theory.vr_marina,
    stochastic=True,
    auto={"p": theory.vr_sync_probability},
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
    batch=Integer(1, low=1, help="samples of a difference"),
    big=Integer(0, low=0, help="samples of a dense round (online); 0: all of them"),
)
class VRMarina(Algorithm):
    """MARINA whose differences are of ``batch`` samples, the same ones at both points.

    Dense rounds take full gradients or, online, ``big`` samples: with variance sigma^2 per sample the
    bound then has a floor, 2 Delta0/(gamma T) + (1 + 1/(p T)) sigma^2/(n big). p = auto is
    min{K/d, b/(m + b)}, online b/(big + b). Gradients per round and client: m or big with probability
    p, else 2 b. Source: Gorbunov, Burlachenko, Li, Richtarik 2021, algorithms 2 and 3.
    """

    def start(a, net, s, c):
        s.g = net.up(Dense(anew(a, net, s.x))).mean()

    def round(a, net, s, c):
        old = s.x
        a.step(net, s, s.g)
        coin, q, J = net.coin("sync", a.p), net.stream("up"), net.sample("batch", a.batch)

        def difference(b):
            return net.grad(s.x, J, cells=b) - net.grad(old, J, cells=b)

        m = net.cases(
            coin,
            lambda b: Dense(anew(a, net, s.x, b)),
            lambda b: a.Q(difference(b), q[b]),
        )
        got = net.up(m).mean()
        s.g = where(coin[:, None], got, s.g + got)


def anew(a, net, x, cells=None):
    """Return grad f_i(x) of some cells, or online that of ``big`` samples."""
    J = net.sample("big", a.big) if a.big else None
    return net.grad(x, J, cells=cells)
