"""MARINA: compressed gradient differences with occasional full synchronisation, and what comes of it."""

from math import sqrt

from torch import arange

from raybench.algorithms.base import (
    Algorithm,
    Contractive,
    Dense,
    Estimator,
    Integer,
    Number,
    PerCell,
    Robust,
    Unbiased,
    algorithm,
    theory,
    where,
)


def sync_probability(k: theory.Setting) -> float:
    """Return p that makes dense rounds cost what compressed ones do: K/d for Rand-K.

    Raises NoTheory where messages are empty: without dense rounds nothing would ever be learned.
    """
    if k.dense_share <= 0:
        raise theory.NoTheory("the compressor's messages are empty; give a number")
    return k.dense_share


def recursion(k: theory.Setting) -> theory.Rate:
    """G = ||g - grad f||^2: rho = p, B = (1-p)(omega/n) L_tilde^2.

    The coin resets the error; else n independent errors of differences add noise. With one mask for all
    clients omega instead of omega/n. With (A, B) B = (1-p)((A - B) L_+^2 + B L_pm^2): PermK with
    p = 1/n takes 1/(L + sqrt(n - 1) L_pm) (Szlendak, Tyurin, Richtarik 2021).
    """
    p = k.number("p")
    if k.ab is not None and k.constants.L_pm is not None:
        a, b = k.ab
        noise = (a - b) * k.need("L_plus") ** 2 + b * k.need("L_pm") ** 2
    else:
        noise = k.mean_omega * k.need("L_tilde") ** 2
    return theory.Rate(rho=p, B=(1 - p) * noise)


def factor(k: theory.Setting) -> float:
    """Return 1 + sqrt((1-p) omega/(p n))."""
    p = k.number("p")
    return 1 + sqrt((1 - p) * k.need("omega") / (p * k.n))


def paper(k: theory.Setting) -> float:
    """1/(L (1 + sqrt((1-p) omega/(p n)))), L = L_tilde for f as well; PermK: the step of its own paper."""
    if k.ab is not None:
        return recursion(k).nonconvex(k)
    if k.common_mask:
        raise theory.NoTheory(f"in the paper {theory.INDEPENDENT.text}")
    return 1 / (k.need("L_tilde") * factor(k))


def released(k: theory.Setting) -> float:
    """1/(L (1 + sqrt((1-p) omega/(p n)))) with L = max_ij L_ij, for its loss 0.15405 max_j ||a_j||^2 + lambda."""
    return 1 / (k.need("L_sample_max") * factor(k))


CODE = "burlachenkok/marina, linear_model_with_non_convex_loss/experiment_no_vr_all.py"
SOURCE = "Gorbunov, Burlachenko, Li, Richtarik 2021"
STEPS = theory.recursive(
    recursion,
    f"{SOURCE}, with L of f; PermK: Szlendak, Tyurin, Richtarik 2021",
    theory.UNBIASED,
    paper=theory.Theorem(
        paper, theory.NONCONVEX, (theory.PROXIMABLE, theory.UNBIASED), f"{SOURCE}, theorem 2.1"
    ),
    released=theory.Convention(released, CODE),
)


@algorithm(
    "marina",
    up=Unbiased,
    proximal=True,
    robust=True,
    theory=STEPS,
    auto={"p": sync_probability},
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
)
class Marina(Estimator):
    """x <- x - gamma g; with probability p g <- grad f(x), else g <- g + mean Q_i(difference).

    One coin for all clients. p = auto balances dense and compressed rounds (K/d for Rand-K).
    gamma = 1/(L + L_tilde sqrt((1-p) omega/(p n))). With ``perm_k`` it is PermK-MARINA: p = auto is 1/n where n
    divides d, gamma = 1/(L + sqrt(n-1) L_pm). Up: d values or one message. Down: d values.
    Source: Gorbunov, Burlachenko, Li, Richtarik 2021, algorithm 1.
    """

    opens = True
    batch = "full"  # differences of full gradients, also where a problem has minibatches of its own

    def open(a, wire, s, c, grad):
        c.grad = grad
        return wire.up(Dense(grad)).mean()

    def estimate(a, wire, s, c, grad):
        old, c.grad = c.grad, grad
        coin, q = wire.coin("sync", a.p), wire.stream("up")
        m = wire.cases(coin, lambda b: Dense(grad[b]), lambda b: a.Q(grad[b] - old[b], q[b]))
        mean = wire.up(m).mean()
        return where(PerCell(coin).like(mean), mean, s.g + mean)


def vr_sync_probability(k: theory.Setting) -> float:
    """Return min{size(Q)/size(dense), b/(m + b)}: messages and gradients balanced.

    m: the samples of a dense round, all of a client's or, online, ``big``.
    """
    b = k.number("batch")
    return min(sync_probability(k), b / (float(k.numbers.get("big") or k.m) + b))


def vr_recursion(k: theory.Setting) -> theory.Rate:
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


def vr_paper(k: theory.Setting) -> float:
    """The step of the recursion with L = L_tilde for f as well."""
    return 1 / root(k, k.need("L_tilde"), k.need("L_samples"))


def vr_released(k: theory.Setting) -> float:
    """The step of the recursion with L = max_ij L_ij for all three constants."""
    return 1 / root(k, k.need("L_sample_max"), k.need("L_sample_max"))


CODE_VR = CODE.replace("no_vr", "vr")
VR_STEPS = theory.recursive(
    vr_recursion,
    f"{SOURCE}, with L of f",
    theory.UNBIASED,
    theory.BOUNDED_ONLINE,
    floor=("sigma^2/(n big) if online", "sigma^2/(n big mu) if online"),
    paper=theory.Theorem(
        vr_paper,
        f"{theory.NONCONVEX} + sigma^2/(n big) if online",
        (theory.PROXIMABLE, theory.UNBIASED, theory.INDEPENDENT, theory.BOUNDED_ONLINE),
        SOURCE,
    ),
    released=theory.Convention(vr_released, CODE_VR),
)


@algorithm(
    "vr_marina",
    up=Unbiased,
    broadcast=Contractive,
    proximal=True,
    robust=True,
    theory=VR_STEPS,
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


def byzantine_recursion(k: theory.Setting) -> theory.Rate:
    """G = ||g - grad f||^2: rho = p/2, B = (1-p)((1 + p/2) V + (1 + 2/p) kappa S); kappa = 0: VR-MARINA's.

    f is the mean over the honest clients, h of them. With l = Lcal^2/b their mean estimate z has the error G + V R,
    V = (omega L_tilde^2 + (1 + omega) l)/h, and E||g_i - z||^2 <= S R in the mean, S = (1 + omega)(L_tilde^2 + l).
    ||F - grad f||^2 <= (1 + p/2)||z - grad f||^2 + (1 + 2/p) kappa mean||g_i - z||^2, and (1-p)(1 + p/2) <= 1 - p/2.
    Dense rounds leave N = p kappa zeta^2, zeta^2 a bound of mean||grad f_i - grad f||^2.
    """
    if k.numbers.get("big"):
        raise theory.NoTheory("of dense rounds on minibatches nothing is proved here")
    p, kappa, omega = k.number("p"), k.need("kappa"), k.need("omega")
    far, samples = k.need("L_tilde") ** 2, k.need("L_samples") ** 2 / k.number("batch")
    V = k.mean_omega * (far + samples) + samples / k.n
    if kappa == 0:
        return theory.Rate(rho=p, B=(1 - p) * V)
    S = (1 + omega) * (far + samples)
    return theory.Rate(rho=p / 2, B=(1 - p) * ((1 + p / 2) * V + (1 + 2 / p) * kappa * S))


BYZANTINE_STEPS = theory.recursive(
    byzantine_recursion,
    "derived here; method: Gorbunov, Horvath, Richtarik, Gidel 2023",
    theory.UNBIASED,
    floor=("2 kappa zeta^2", "2 kappa zeta^2/mu"),
)


@algorithm(
    "byz_vr_marina",
    title="Byz-VR-MARINA",
    up=Unbiased,
    broadcast=Contractive,
    proximal=True,
    robust=True,
    theory=BYZANTINE_STEPS,
    auto={"p": vr_sync_probability},
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
    batch=Integer(1, low=1, help="samples of a difference"),
    big=Integer(0, low=0, help="samples of a dense round (online); 0: all of them"),
)
class ByzVRMarina(VRMarina):
    """g_i = grad f_i(x) with probability p, else g + Q_i(difference of ``batch`` samples); g <- F(g_1, .., g_n).

    F is the rule of ``robust``, by default the geometric median. Differences are added to the server's g, not to the
    last g_i: that is ``vr_marina`` with ``robust``. With the mean it is VR-MARINA. gamma as in VR-MARINA, with a term
    for kappa of the rule; on clients of unlike data to a floor. Up: d values or one message. Down: d values. Source:
    Gorbunov, Horvath, Richtarik, Gidel 2023, Variance Reduction is an Antidote to Byzantines, algorithm 1.
    """

    robust = Robust()

    def base(a, s, g):
        return g if a.robust is None else g[:, None]


def pp_sync_probability(k: theory.Setting) -> float:
    """Return p = r/n times that of MARINA: dense rounds cost what the others do."""
    return min(1.0, sync_probability(k) * k.number("clients") / k.n)


def pp_recursion(k: theory.Setting) -> theory.Rate:
    """G = ||g - grad f||^2: rho = p, B = (1-p)(1 + omega) L_tilde^2/r, r clients drawn with replacement.

    Compressors whose messages depend on each other: B = (1-p)(omega + 1/r) L_tilde^2, by Jensen.
    """
    p, r, omega = k.number("p"), k.number("clients"), k.need("omega")
    spread = (1 + omega) / r if theory.INDEPENDENT.holds(k) else omega + 1 / r
    return theory.Rate(rho=p, B=(1 - p) * spread * k.need("L_tilde") ** 2)


def pp_paper(k: theory.Setting) -> float:
    """1/(L (1 + sqrt((1-p)(1 + omega)/(p r)))), L = L_tilde for f as well."""
    p, r = k.number("p"), k.number("clients")
    return 1 / (k.need("L_tilde") * (1 + sqrt((1 - p) * (1 + k.need("omega")) / (p * r))))


PP_PAPER = theory.Theorem(
    pp_paper,
    theory.NONCONVEX,
    (theory.PROXIMABLE, theory.UNBIASED, theory.INDEPENDENT),
    f"{SOURCE}, theorem 4.1",
)
PP_STEPS = theory.recursive(pp_recursion, f"{SOURCE}, with L of f", theory.UNBIASED, paper=PP_PAPER)


@algorithm(
    "pp_marina",
    up=Unbiased,
    broadcast=Contractive,
    proximal=True,
    theory=PP_STEPS,
    auto={"p": pp_sync_probability},
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


def down_sync_probability(k: theory.Setting) -> float:
    """Return p that makes dense rounds cost what compressed ones do: K/d for Rand-K, 1/n for PermK.

    Raises NoTheory where messages are empty: without dense rounds the clients would never hear of the model.
    """
    if k.down_share <= 0:
        raise theory.NoTheory("the compressor's messages are empty; give a number")
    return k.down_share


def down_recursion(k: theory.Setting) -> theory.Rate:
    """G bounds ||mean grad f_i(w_i) - grad f(x)||^2: rho = p, B = (1-p) omega L_tilde^2, or less for quadratics.

    The coin sets w_i = x; else mean||w_i - x||^2 gains omega R and ||mean w_i - x||^2 theta R, R = ||x+ - x||^2, theta
    that of the mean of all messages: omega/n if they are independent, A - B of (A, B), 0 for PermK. G is at most
    L_tilde^2 times the first. Of quadratic f_i, whose Hessians are L_pm from each other and L in the mean, it is
    (L_pm sqrt(first) + L sqrt(second))^2 at most: B = (1-p) (L_pm sqrt(omega) + L sqrt(theta))^2 where that is less.
    PermK: 1/(L + L_pm sqrt((1-p)(n-1)/p)), which for alike clients is the step of gradient descent.
    """
    p, omega = k.number("p"), k.need("down_omega")
    noise = omega * k.need("L_tilde") ** 2
    if k.states(theory.Fact.QUADRATIC) and k.constants.L_pm is not None:
        apart = k.constants.L_pm * sqrt(omega) + k.need("L") * sqrt(k.down_theta)
        noise = min(noise, apart**2)
    return theory.Rate(rho=p, B=(1 - p) * noise)


DOWN_STEPS = theory.recursive(
    down_recursion,
    "derived here; method: Gruntkowska, Tyurin, Richtarik 2024",
    theory.DOWN_UNBIASED,
)


@algorithm(
    "marina_p",
    up=None,
    down=Unbiased,
    relay=False,
    proximal=True,
    theory=DOWN_STEPS,
    auto={"p": down_sync_probability},
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
)
class MarinaP(Algorithm):
    """x+ = x - gamma mean grad f_i(w_i); with probability p w_i <- x+ for all, else w_i <- w_i + Q_i(x+ - x).

    Client i holds w_i, which begins as x^0; the server has no need of them. Every client is sent a message of its
    own, with PermK its block of the coordinates; their mean is booked. f is recorded at the server's x. p = auto
    balances dense and compressed rounds. Up: d values. Down: d values or one message per client. Source:
    Gruntkowska, Tyurin, Richtarik 2024, Improving the Worst-Case Bidirectional Communication Complexity.
    """

    batch = "full"

    def start(a, net, s, c):
        c.w = s.x[:, None].expand(-1, net.n_here, -1).clone()
        s.g = net.up(Dense(net.grad(c.w))).mean()

    def round(a, net, s, c):
        x = net.prox(s.x - a.gamma * s.g, a.gamma)
        coin, q = net.coin("sync", a.p), net.stream("down")
        new, move = (v[:, None].expand_as(c.w) for v in (x, x - s.x))
        compress = a.D
        assert compress is not None, "the method declares a downlink compressor"
        m = net.cases(coin, lambda b: Dense(new[b]), lambda b: compress(move[b], q[b]))
        got = net.down_each(m)
        c.w = where(coin[:, None, None], got, c.w + got)
        s.x, s.g = x, net.up(Dense(net.grad(c.w))).mean()
