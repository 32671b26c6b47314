"""PP-MARINA: MARINA in which a few clients send differences."""

from math import sqrt

from torch import arange

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
from raybench.algorithms.marina import SOURCE
from raybench.algorithms.marina import sync_probability as everyones


def sync_probability(k: theory.Setting) -> float:
    """Return p = r/n times that of MARINA: dense rounds cost what the others do."""
    return min(1.0, everyones(k) * k.number("clients") / k.n)


def recursion(k: theory.Setting) -> theory.Rate:
    """G = ||g - grad f||^2: rho = p, B = (1-p)(1 + omega) L_tilde^2/r, r clients drawn with replacement.

    Compressors whose messages depend on each other: B = (1-p)(omega + 1/r) L_tilde^2, by Jensen.
    """
    p, r, omega = k.number("p"), k.number("clients"), k.need("omega")
    spread = (1 + omega) / r if theory.INDEPENDENT.holds(k) else omega + 1 / r
    return theory.Rate(rho=p, B=(1 - p) * spread * k.need("L_tilde") ** 2)


def paper(k: theory.Setting) -> float:
    """1/(L (1 + sqrt((1-p)(1 + omega)/(p r)))), L = L_tilde for f as well."""
    p, r = k.number("p"), k.number("clients")
    return 1 / (k.need("L_tilde") * (1 + sqrt((1 - p) * (1 + k.need("omega")) / (p * r))))


PAPER = theory.Theorem(
    paper,
    theory.NONCONVEX,
    (theory.PROXIMABLE, theory.UNBIASED, theory.INDEPENDENT),
    f"{SOURCE}, theorem 4.1",
)
STEPS = theory.recursive(recursion, f"{SOURCE}, with L of f", theory.UNBIASED, paper=PAPER)


@algorithm(
    "pp_marina",
    up=Unbiased,
    broadcast=Contractive,
    proximal=True,
    theory=STEPS,
    auto={"p": sync_probability},
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
    clients=Integer(1, low=1, help="r, how many clients are drawn in a round"),
)
class PPMarina(Algorithm):
    """With probability p g <- grad f(x), else g <- g + (1/r) sum of Q(difference) of r drawn clients.

    Drawn with replacement: one drawn twice sends two messages, independent of each other; those not
    drawn send nothing. A drawn client has no gradient of the round before: it is counted at both
    points, 2 m samples. p = auto is r/n times that of MARINA. gamma = 1/(L + L_tilde
    sqrt((1-p)(1+omega)/(p r))). Up: d values, or r/n messages on average. Down: d values, x to all
    clients. Source: Gorbunov, Burlachenko, Li, Richtarik 2021, algorithm 4.
    """

    def start(a, net, s, c):
        s.g = net.up(Dense(net.grad(s.x))).mean()

    def round(a, net, s, c):
        coin, q = net.coin("sync", a.p), net.stream("up")
        drawn = net.shared_stream("clients").integers(a.clients, net.n)
        hits = drawn[..., None] == arange(net.n, device=drawn.device)
        times = hits.sum(1) * ~coin[:, None]
        took, most = net.here(times), int(times.max())

        old = net.grad(s.x, clients=took > 0)
        a.step(net, s, s.g)
        new = net.grad(s.x, clients=(took > 0) | coin[:, None])
        m = net.cases(
            coin,
            lambda b: Dense(new[b]),
            lambda b: a.Q(new[b] - old[b], q[b]).masked(took[b] > 0),
        )
        got = net.up(m).sum()
        # a client may be drawn several times, and then sends as many messages
        for j in range(1, most):
            got += net.up(a.Q(new - old, q.fold(j)).masked(took > j)).sum()
        s.g = where(coin[:, None], got / net.n, s.g + got / a.clients)
