"""VR-MARINA: MARINA with minibatch differences."""

from math import sqrt

from raybench.algorithms.base import (
    Algorithm,
    Contractive,
    Dense,
    Integer,
    Number,
    PerCell,
    Unbiased,
    algorithm,
    theory,
    where,
)
from raybench.algorithms.marina import CODE, SOURCE, sync_probability


def vr_sync_probability(k: theory.Setting) -> float:
    """Return min{size(Q)/size(dense), b/(m + b)}: messages and gradients balanced.

    m: the samples of a dense round, all of a client's or, online, ``big``.
    """
    b = k.number("batch")
    return min(sync_probability(k), b / (float(k.numbers.get("big") or k.m) + b))


def recursion(k: theory.Setting) -> theory.Rate:
    """G = ||g - grad f||^2: rho = p, B = (1-p)(omega L_tilde^2 + (1 + omega) Lcal^2/b)/n.

    Lcal^2/b bounds the variance of a minibatch difference, which is compressed too. The minibatches are
    independent even where the mask is shared: then B = (1-p)(omega (L_tilde^2 + Lcal^2/b) + Lcal^2/(b n)).
    Online N = p sigma^2/(n big), sigma^2 the variance of a sample.
    """
    p, omega = k.number("p"), k.mean_omega
    samples = k.need("L_samples") ** 2 / k.number("batch")
    far = k.need("L_tilde") ** 2
    return theory.Rate(rho=p, B=(1 - p) * (omega * (far + samples) + samples / k.n))


def root(k: theory.Setting, L: float, samples: float) -> float:
    """Return L + sqrt((1-p)/(p n) (omega L^2 + (1 + omega) samples^2/b))."""
    p, omega = k.number("p"), k.need("omega")
    noise = omega * L**2 + (1 + omega) * samples**2 / k.number("batch")
    return L + sqrt((1 - p) / (p * k.n) * noise)


def paper(k: theory.Setting) -> float:
    """The step of the recursion with L = L_tilde for f as well."""
    return 1 / root(k, k.need("L_tilde"), k.need("L_samples"))


def released(k: theory.Setting) -> float:
    """The step of the recursion with L = max_ij L_ij for all three constants."""
    return 1 / root(k, k.need("L_sample_max"), k.need("L_sample_max"))


CODE_VR = CODE.replace("no_vr", "vr")
STEPS = theory.recursive(
    recursion,
    f"{SOURCE}, with L of f",
    theory.UNBIASED,
    theory.BOUNDED_ONLINE,
    floor=("sigma^2/(n big) if online", "sigma^2/(n big mu) if online"),
    paper=theory.Theorem(
        paper,
        f"{theory.NONCONVEX} + sigma^2/(n big) if online",
        (theory.PROXIMABLE, theory.UNBIASED, theory.INDEPENDENT, theory.BOUNDED_ONLINE),
        SOURCE,
    ),
    released=theory.Convention(released, CODE_VR),
)


@algorithm(
    "vr_marina",
    up=Unbiased,
    broadcast=Contractive,
    proximal=True,
    robust=True,
    theory=STEPS,
    auto={"p": vr_sync_probability},
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
        g = a.pooled(net, s.g)
        a.step(net, s, g)
        coin, q, J = net.coin("sync", a.p), net.stream("up"), net.sample("batch", a.batch)

        def difference(b):
            return net.grad(s.x, J, cells=b) - net.grad(old, J, cells=b)

        m = net.cases(
            coin,
            lambda b: Dense(anew(a, net, s.x, b)),
            lambda b: a.Q(difference(b), q[b]),
        )
        got = net.up(m).mean()
        s.g = where(PerCell(coin).like(got), got, a.base(s, g) + got)

    def base(a, s, g):
        """Return what differences are added to, g what x has moved along."""
        return s.g


def anew(a, net, x, cells=None):
    """Return grad f_i(x) of some cells, or online that of ``big`` samples."""
    J = net.sample("big", a.big) if a.big else None
    return net.grad(x, J, cells=cells)
