"""Error feedback, the classic form, and what differs from it by a compressor or by minibatches."""

from math import inf, sqrt

from raybench.algorithms.base import Choice, Contractive, Estimator, Integer, algorithm, theory
from raybench.algorithms.ef21 import RELEASED


def spread(k: theory.Setting) -> float:
    """Return s = theta/beta: E = mean||e_i||^2 obeys E+ <= (1-theta) E + beta gamma^2 mean||grad f_i||^2.

    On minibatches E gains theta beta gamma^2 sigma^2 a round, and f(x) or ||x - x*||^2 gamma^2 sigma^2/n.
    """
    if k.numbers.get("memory") == "gradient" and not k.constant_step:
        raise theory.NoTheory("a memory of gradients has a theorem for constant steps only")
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
    return k.need("alpha") / (28 * k.need("L_max"))


BASIC = (theory.SMOOTH, theory.CONTRACTIVE, theory.BOUNDED_NOISE)
CONVEX = (*BASIC, theory.STRONGLY_CONVEX, theory.CONVEX_CLIENTS)
STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        nonconvex,
        "(1/T) sum_{t<T} E||grad f(x^t)||^2 <= 4 e (f(x^0) - f_low)/(gamma T) "
        "+ (2/n + 4 L gamma beta) e L gamma sigma^2, f_low = mean inf f_i",
        (*BASIC, theory.BOUNDED_CLIENTS),
        "derived here",
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
MEMORY = Choice("step", "gradient", help="the error is of gamma grad, or of grad")


@algorithm(
    "ef14",
    up=Contractive,
    robust=True,
    theory=STEPS.with_rules(released=RELEASED),
    memory=MEMORY,
)
class EF14(Estimator):
    """c_i = C(e_i + gamma grad f_i(x)); e_i <- e_i + gamma grad f_i(x) - c_i; x <- x - mean c_i.

    With ``memory: gradient`` gamma stays outside: c_i = C(e_i + grad f_i(x)), x <- x - gamma mean c_i;
    the same for constant gamma and C(t x) = t C(x). x^t - mean e_i^t (gamma e_i) follows uncompressed
    steps exactly; with a constant step a heterogeneous problem is solved to a floor only. Up: one
    message. Down: d values. Source: Seide et al. 2014; Stich et al. 2018.
    """

    errors = ("e",)

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
class OneBit(EF14):
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
