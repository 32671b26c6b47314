"""Error feedback, the classic form; with shifts, with a strength of its own, in both directions."""

from math import exp, inf, sqrt

from raybench.algorithms.base import (
    Choice,
    Contractive,
    Estimator,
    Integer,
    Number,
    Operator,
    Unbiased,
    algorithm,
    theory,
    where,
)
from raybench.algorithms.ef21 import RELEASED, TIGHT_SOURCE, factor, tight


def need_memory(k: theory.Setting) -> None:
    """Raise NoTheory where the memory holds gradients and steps follow a schedule, which rescales old errors."""
    if k.numbers.get("memory") == "gradient" and not k.constant_step:
        raise theory.NoTheory("a memory of gradients has a theorem for constant steps only")


def spread(k: theory.Setting) -> float:
    """Return s = theta/beta: E = mean||e_i||^2 obeys E+ <= (1-theta) E + beta gamma^2 mean||grad f_i||^2.

    On minibatches E gains theta beta gamma^2 sigma^2 a round, and f(x) or ||x - x*||^2 gamma^2 sigma^2/n.
    """
    need_memory(k)
    theta, beta = theory.contraction(k.need("alpha"))
    return theta / beta if beta > 0 else inf


def nonconvex(k: theory.Setting) -> float:
    """min{1/(2L), sqrt(s/(4 L L_max)), (s/(4 L^2 L_max T))^(1/3)}, s = theta/beta, T the rounds.

    x~ = x - mean e_i steps by -gamma grad f(x): f(x~+) <= f(x~) - gamma/4 ||grad f(x)||^2 + gamma L^2/2 E.
    mean||grad f_i||^2 <= 2 L_max (f(x) - f_low), and f(x) - f_low <= 2 (f(x~) - f_low) + L E. So
    f(x~) - f_low + (gamma L^2/theta) E grows at most by the factor 1 + 4 gamma^3 L^2 L_max/s a round, by e
    in T of them, less gamma/4 ||grad f(x)||^2.
    """
    L, far, s = k.need("L"), k.need("L_max"), spread(k)
    return min(1 / (2 * L), sqrt(s / (4 * L * far)), (s / (4 * L**2 * far * k.rounds)) ** (1 / 3))


def strongly_convex(k: theory.Setting) -> float:
    """min{1/(4L), sqrt(s/(96 L L_max))}, s = theta/beta.

    ||x~+ - x*||^2 <= (1 - gamma mu/2)||x~ - x*||^2 - gamma/2 (f(x) - f*) + 3 L gamma E, and, f_i being convex,
    mean||grad f_i||^2 <= 4 L_max (f(x) - f*) + 2 D, D = mean||grad f_i(x*)||^2; 6 L gamma/theta times the
    recursion of E leaves -gamma/4 (f(x) - f*). gamma mu <= theta follows.
    """
    L, s = k.need("L"), spread(k)
    return min(1 / (4 * L), sqrt(s / (96 * L * k.need("L_max"))))


def paper(k: theory.Setting) -> float:
    """alpha/(28 L_max): 1/(14 (2 delta + B) L) with delta = 1/alpha and B = 0, L covering every f_i."""
    need_memory(k)
    return k.need("alpha") / (28 * k.need("L_max"))


def errors(k: theory.Setting, gamma: float, c):
    """Return e_i in units of steps, (B, n, d)."""
    return gamma * c.e if k.numbers.get("memory") == "gradient" else c.e


def shrinks(k: theory.Setting, gamma: float) -> theory.Inequality:
    """Return that V of ``tight`` of EF14 shrinks by EF21's ``factor``."""
    left = sqrt(1 - k.need("alpha"))

    def V(s, c, grad):
        lag = errors(k, gamma, c)
        return theory.together((1.0, s.x[:, None] - lag), (1 / left if left else 0.0, lag.mean(1)))

    return theory.Inequality(V, gap=False, factor=factor(k, gamma), free=("e",))


BASIC = (theory.SMOOTH, theory.CONTRACTIVE, theory.BOUNDED_NOISE)
CONVEX = (*BASIC, theory.STRONGLY_CONVEX, theory.CONVEX_CLIENTS)
STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        nonconvex,
        "(1/T) sum_{t<T} E||grad f(x^t)||^2 <= 4 e (f(x^0) - f_low)/(gamma T) "
        "+ (2/n + 4 L gamma beta) e L gamma sigma^2, f_low = mean inf f_i",
        (*BASIC, theory.BOUNDED_CLIENTS),
        "derived here",
        says=lambda k, gamma: theory.Inequality(over=4 * exp(1) / gamma, low=True),
    ),
    pl=theory.Theorem(
        strongly_convex,
        "E f(x^) - f* <= 4 ||x^0 - x*||^2/(gamma W) + 48 L gamma^2 D/s + (4/n + 24 L gamma beta) gamma "
        "sigma^2, x^ the mean of the x^t with weights w_t = (1 - gamma mu/2)^-(t+1), W = sum w_t",
        CONVEX,
        "derived here",
    ),
    paper=theory.Theorem(
        paper,
        "E f(x^) - f* <= O~(delta L ||x^0 - x*||^2 exp(-mu gamma T/2) + (C + delta D)/(mu T))",
        CONVEX,
        "Beznosikov, Horvath, Richtarik, Safaryan 2020",
        recalled=True,
    ),
)
TIGHT = theory.Theorem(
    tight,
    "V^t <= r^t V^0, V = mean ||x - x* - e_i||^2 + ||mean e_i||^2/sqrt(1 - alpha), e_i in units of steps, r as told below",
    (*BASIC, theory.STRONGLY_CONVEX_CLIENTS, theory.SAME_CLIENTS, theory.CONSTANT_STEP),
    TIGHT_SOURCE,
    says=shrinks,
)
MEMORY = Choice("step", "gradient", help="the error is of gamma grad, or of grad")


@algorithm(
    "ef14",
    up=Contractive,
    robust=True,
    theory=STEPS.with_rules(tight=TIGHT, released=RELEASED),
    memory=MEMORY,
)
class EF14(Estimator):
    """c_i = C(e_i + gamma grad f_i(x)); e_i <- e_i + gamma grad f_i(x) - c_i; x <- x - mean c_i.

    With ``memory: gradient`` gamma stays outside: c_i = C(e_i + grad f_i(x)), x <- x - gamma mean c_i;
    the same for constant gamma and C(t x) = t C(x). x^t - mean e_i^t (gamma e_i) follows uncompressed
    steps exactly; with a constant step a heterogeneous problem is solved to a floor only. Up: one
    message. Down: d values. Source: Seide et al. 2014; Stich et al. 2018.
    """

    unsent_state = ("e",)

    def setup(a, wire, s, c):
        a.in_steps = a.memory == "step"
        c.e = wire.zeros()

    def estimate(a, wire, s, c, grad):
        g = a.shifted(wire, s, c, grad)
        v = c.e + (a.gamma * g if a.in_steps else g)
        m = a.C(v, wire.stream("up"))
        c.e = v.sub_(m.decode())  # messages share no memory with what they are made of
        return wire.up(m).mean()

    def shifted(a, wire, s, c, grad):
        """Return what the client would step along, (B, n_here, d)."""
        return grad


@algorithm(
    "ef_sign_sgd",
    title="EF-signSGD",
    own="scaled_sign",
    up=None,
    theory=STEPS,
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class EFSignSGD(EF14):
    """EF14 whose compressor is ``scaled_sign``, (||v||_1/d) sign(v).

    Up: d signs and a value. Down: d values. Source: Karimireddy et al. 2019, Error Feedback Fixes
    SignSGD, algorithm 1.
    """


@algorithm(
    "one_bit_sgd",
    title="1-bit SGD",
    own="one_bit",
    up=None,
    theory=STEPS,
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
    memory=Choice("gradient", "step", help="the error is of grad, or of gamma grad"),
)
class OneBitDescent(EF14):
    """EF14 with a memory of gradients and the compressor ``one_bit``: the two means of the signs.

    The means are over all of v; the paper takes them per column of each matrix. Up: d signs and two
    values. Down: d values. Source: Seide et al. 2014.
    """


@algorithm(
    "ec_sgd",
    up=Contractive,
    robust=True,
    theory=STEPS,
    batch=Integer(1, low=1, help="samples per client and round"),
)
class ECSGD(EF14):
    """EF14 on minibatch gradients: error-compensated SGD.

    Floor: gradient noise and heterogeneity, growing with gamma. Up: one message. Down: d values.
    Source: Stich et al. 2018, Sparsified SGD with Memory.
    """


def rate(k: theory.Setting) -> float:
    """Return 1/(1 + omega) of the second compressor."""
    return 1 / (1 + k.compressor("shift").omega)


@algorithm(
    "ec_diana",
    up=Contractive,
    theory=None,
    auto={"alpha": rate},
    operators={"shift": Unbiased},
    shift=Operator("rand_k:k=10%", help="unbiased compressor of the second message"),
    alpha=Number("auto", low=0, high=1, words=("auto",), per_cell=True, help="shift rate"),
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class ECDiana(EF14):
    """EF14 on g_i - h_i + h, and a second message q_i = Q(g_i - h_i): h_i <- h_i + alpha q_i, h = mean h_i.

    alpha = auto is 1/(1 + omega) of ``shift``, Q; alpha = 0 is EF14. With full gradients it has no floor; gamma =
    1/(8 L_max) times the contraction converges, without a theorem here. Up: both messages. Down: d
    values twice, x and h. Source: Gorbunov et al. 2020, EC-SGD-DIANA.
    """

    def setup(a, wire, s, c):
        super().setup(wire, s, c)
        c.h, s.h = wire.zeros(), wire.zero()

    def shifted(a, wire, s, c, grad):
        left = grad - c.h
        v = left + s.h[:, None]
        m = a.shift(left, wire.stream("shift"))
        c.h += a.alpha * m.decode()
        s.h = wire.model(s.h + a.alpha * wire.up(m).mean())
        return v


def known_shift_step(k: theory.Setting) -> float:
    """min{1/(4L), sqrt(s/(48 L L_max))}, s = theta/beta: EF14's proof with D = 0.

    mean||grad f_i(x) - grad f_i(x*)||^2 <= 2 L_max (f(x) - f*), as f_i is convex.
    """
    L = k.need("L")
    return min(1 / (4 * L), sqrt(spread(k) / (48 * L * k.need("L_max"))))


def known_shift(k: theory.Setting, gamma: float) -> theory.Inequality:
    """Return the promise of ``known_shift_step``."""
    theta, _ = theory.contraction(k.need("alpha"))
    weight = 6 * k.need("L") * gamma / theta

    def V(s, c, grad):
        lag = errors(k, gamma, c)
        return theory.together((1.0, s.x - lag.mean(1)), (weight, lag))

    half = 1 - gamma * k.need("mu") / 2
    return theory.Inequality(V, gap=False, factor=half, free=("e",))


KNOWN_SHIFT_STEPS = theory.StepSizes(
    pl=theory.Theorem(
        known_shift_step,
        "E||x^t - mean e_i^t - x*||^2 + (6 L gamma/theta) mean E||e_i^t||^2 <= (1 - gamma mu/2)^t ||x^0 - x*||^2",
        CONVEX,
        "derived here; method: Gorbunov, Kovalev, Makarenko, Richtarik 2020",
        says=known_shift,
    )
)


@algorithm(
    "ec_gd_star",
    title="EC-GD*",
    up=Contractive,
    minimizer=True,
    theory=KNOWN_SHIFT_STEPS,
)
class ECGDStar(EF14):
    """EF14 on grad f_i(x) - grad f_i(x*): an oracle's method, to see what shifts could do.

    Needs a problem whose minimiser has a closed form. No floor. Up: one message. Down: d values.
    Source: Gorbunov, Kovalev, Makarenko, Richtarik 2020, Linearly Converging Error Compensated SGD.
    """

    def start(a, net, s, c):
        super().start(net, s, c)
        c.h = net.oracle.at_minimizer()

    def shifted(a, wire, s, c, grad):
        return grad - c.h


def refresh(k: theory.Setting) -> float:
    """Return p = 1/m, m the samples of a client."""
    return 1 / k.m


@algorithm(
    "ec_lsvrg",
    up=Contractive,
    robust=True,
    theory=None,
    auto={"p": refresh},
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
    batch=Integer(1, low=1, help="samples per client and round"),
)
class ECLSVRG(EF14):
    """EF14 on g_i = grad f_i(x; J) - grad f_i(w_i; J) + grad f_i(w_i); w_i <- x with probability p.

    Own coin per client; p = auto is 1/m. The gradient noise vanishes, the floor of heterogeneity
    stays. Gradients per round and client: 2 b, and m with probability p. Up: one message. Down: d
    values. Source: Gorbunov et al. 2020, EC-LSVRG.
    """

    def start(a, net, s, c):
        super().start(net, s, c)
        c.full = net.grad(s.x)
        c.w = s.x[:, None].expand_as(c.full)

    def source(a, net, s, c):
        J, coin = net.sample("batch", a.batch), net.coins("refresh", a.p)
        g = net.grad(s.x, J) - net.grad(c.w, J) + c.full
        c.full = where(coin[..., None], net.grad(s.x, clients=coin), c.full)
        c.w = where(coin[..., None], s.x[:, None], c.w)
        return g


def strength(k: theory.Setting) -> float:
    """Return theta/4, near the eta with the largest step of ``controlled_recursion``; theta/2 would be the last stable one."""
    theta, _ = theory.contraction(k.need("alpha"))
    return theta / 4


def controlled_recursion(k: theory.Setting) -> theory.Rate:
    """G = q^2 (V + c E)^2: rho the smaller root of y^2 - (1+eta) theta y + eta (theta - 2 eta w), B = q^2 L_tilde^2/rho.

    V, E: roots of mean E||eta e_i + grad f_i - h_i||^2 and mean E||e_i||^2; w = sqrt(1 - alpha) = 1 - theta, c =
    (theta - rho)/w - eta, q = max(w, eta/c). What is left of a message, v - C(v), has at most w V, so
    V+ <= (1+eta) w V + eta^2 E + L_tilde ||x+ - x||, E+ <= (1-eta) E + w V, ||g - grad f|| <= w V + eta E;
    (1, c) is the left eigenvector of that matrix, 1 - rho its largest eigenvalue. eta = 0 is EF21: rho = theta,
    B = beta L_tilde^2. Needs 2 eta w < theta.
    """
    theta, beta = theory.contraction(k.need("alpha"))
    eta, left = k.number("eta"), 1 - theta
    if eta == 0 or left == 0:
        drift = beta * k.need("L_tilde") ** 2
        return theory.Rate(rho=theta, B=drift, G=lambda s, c, grad: left * (c.h - grad))
    if 2 * eta * left >= theta:
        raise theory.NoTheory(
            f"eta = {eta:.3g} feeds back more than the compressor can shrink: it must be below "
            f"theta/(2 sqrt(1 - alpha)) = {theta / (2 * left):.3g}"
        )
    b, q = (1 + eta) * theta, eta * (theta - 2 * eta * left)
    rho = 2 * q / (b + sqrt(b * b - 4 * q))
    weight = (theta - rho) / left - eta
    factor = max(left, eta / weight)

    def G(s, c, grad):  # V^2 + (c E)^2 <= (V + c E)^2, equal at the start, where e_i = 0
        return factor * theory.together((1.0, eta * c.e + grad - c.h), (weight**2, c.e))

    return theory.Rate(rho=rho, B=(factor * k.need("L_tilde")) ** 2 / rho, G=G)


CONTROLLED_STEPS = theory.recursive(
    controlled_recursion,
    "derived here; method: Gao, Islamov, Stich 2024",
    theory.CONTRACTIVE,
    theory.FULL,
)


@algorithm(
    "econtrol",
    title="EControl",
    up=Contractive,
    proximal=True,
    theory=CONTROLLED_STEPS,
    auto={"eta": strength},
    eta=Number("auto", low=0, high=1, words=("auto",), per_cell=True, help="weight of the error"),
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class EControl(Estimator):
    """c_i = C(eta e_i + g_i - h_i); e_i <- e_i + g_i - h_i - c_i; h_i <- h_i + c_i; x <- x - gamma h.

    The server's h equals mean h_i, and mean e_i is the sum of all mean g_i - h so far. eta = 0 is EF21-SGD
    that steps after its update; eta = 1 with h held at 0 is EF14. auto is theta/4. The theorem here is for full
    gradients; on minibatches, for which the method was made, give steps by ``value``. Up: one message.
    Down: d values. Source: Gao, Islamov, Stich 2024, EControl.
    """

    unsent_state = ("e",)

    def setup(a, wire, s, c):
        c.e, c.h, s.h = wire.zeros(), wire.zeros(), wire.zero()

    def estimate(a, wire, s, c, grad):
        u = grad - c.h
        m = a.C(a.eta * c.e + u, wire.stream("up"))
        sent = m.decode()
        c.e += u - sent
        c.h += sent
        s.h = s.h + wire.up(m).mean()
        return s.h


@algorithm(
    "double_squeeze",
    title="DoubleSqueeze",
    up=Contractive,
    down=Contractive,
    theory=None,
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class DoubleSqueeze(Estimator):
    """c_i = C(g_i + e_i), e_i <- g_i + e_i - c_i; q = D(mean c_i + E), E <- mean c_i + E - q; x <- x - gamma q.

    x - gamma (E + mean e_i) follows uncompressed steps for constant gamma. The model is never sent:
    every client steps itself. Floor as EF14. Up: one message of C. Down: one of D. Source: Tang et
    al. 2019, algorithm 1.
    """

    broadcasts_model = False
    unsent_state = ("e",)

    def setup(a, wire, s, c):
        c.e, s.E = wire.zeros(), wire.zero()

    def estimate(a, wire, s, c, grad):
        v = grad + c.e
        m = a.C(v, wire.stream("up"))
        c.e = v.sub_(m.decode())  # messages share no memory with what they are made of
        u = wire.up(m).mean() + s.E
        q = a.broadcast(wire, u)
        s.E = u - q
        return q
