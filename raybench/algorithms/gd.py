"""Gradient descent, on minibatches, with momentum at the server, and with compressed gradients."""

from raybench.algorithms.base import (
    Any_,
    Dense,
    Estimator,
    Flag,
    Integer,
    Number,
    Outer,
    algorithm,
    theory,
)


def exact(k: theory.Setting) -> theory.Rate:
    """The estimate is exact, G = 0: rho = 1 and B = 0 give 1/L."""
    return theory.Rate(rho=1.0, B=0.0)


def exact_linear(k: theory.Setting) -> float:
    """1/L: without an error to wait for, rho/(2 mu) does not bind."""
    return 1 / k.need("L")


STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        exact,
        "(1/T) sum_{t<T} ||grad f(x^t)||^2 <= 2 Delta0/(gamma T)",
        (theory.PROXIMABLE,),
        "textbook",
    ),
    pl=theory.Theorem(
        exact_linear,
        "f(x^t) - f* <= (1 - gamma mu)^t (f(x^0) - f*)",
        (theory.PROXIMABLE, theory.PL),
        "Polyak 1963; Karimi, Nutini, Schmidt 2016",
        says=lambda k, gamma: theory.Inequality(factor=1 - gamma * k.need("mu")),
    ),
)


@algorithm(
    "gd",
    up=None,
    baseline=True,
    proximal=True,
    robust=True,
    theory=STEPS,
)
class GD(Estimator):
    """x^{t+1} = x^t - gamma mean_i grad f_i(x^t): the uncompressed baseline, 1/L.

    Up: d values per client. Down: d values.
    """

    def estimate(a, wire, s, c, grad):
        return wire.up(Dense(grad)).mean()


def noisy(k: theory.Setting) -> theory.Rate:
    """1/L: the error is noise of variance sigma^2/n, drawn anew in every round: rho = 1, B = 0, N = sigma^2/n.

    Without a nonsmooth part f(x+) <= f(x) - gamma ||grad f||^2 + L gamma^2/2 (||grad f||^2 + sigma^2/n) in
    expectation gives the lower floor. sigma^2: a bound of the variance of a client's minibatch.
    """
    return theory.Rate(rho=1.0, B=0.0)


def strongly_convex(k: theory.Setting) -> float:
    """1/(L + 2 A), A = max_ij L_ij/(n b): expected smoothness of minibatches of b samples.

    E||g - grad f||^2 <= mean_ij ||grad f_ij||^2/(n b), twice that of differences to x* plus that at x*;
    ||grad f_ij(x) - grad f_ij(x*)||^2 <= 2 L_ij D_ij as f_ij is convex. S = C/(n b), C the variance of a
    sample's gradient at x*.
    """
    b = k.minibatch
    A = 0.0 if b is None else k.need("L_sample_max") / (k.n * b)
    return theory.expected_strong(k, A)


SGD_STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        noisy,
        "(1/T) sum_{t<T} E||grad f(x^t)||^2 <= 2 Delta0/(gamma T) + gamma L sigma^2/n, "
        "with a nonsmooth part + sigma^2/n",
        (theory.PROXIMABLE, theory.BOUNDED_NOISE),
        "Ghadimi, Lan 2013; with a nonsmooth part derived here",
    ),
    pl=theory.Theorem(
        strongly_convex,
        f"{theory.EXPECTED_STRONG}, S = C/(n b)",
        (theory.PROXIMABLE, theory.STRONGLY_CONVEX, theory.CONVEX_SAMPLES),
        "Gower et al. 2019, SGD: General Analysis and Improved Rates; derived here",
    ),
)


@algorithm(
    "sgd",
    up=None,
    baseline=True,
    proximal=True,
    robust=True,
    theory=SGD_STEPS,
    batch=Integer(1, low=1),
)
class SGD(GD):
    """x^{t+1} = x^t - gamma mean_i g_i, g_i the gradient of ``batch`` samples drawn with replacement.

    With unbiased variance sigma^2 per client: mean E||grad f||^2 <= 2 Delta0/(gamma T) +
    gamma L sigma^2/n. Up: d values per client. Down: d values. Source: Robbins, Monro 1951.
    """


def heavy_ball(k: theory.Setting) -> theory.Rate:
    """(1-eta)^2/L, eta the momentum: the average m = (1-eta) v follows the gradient, and x+ = x - h m.

    M = ||m - grad f(x)||^2 obeys M+ <= eta M + eta^2/(1-eta) L^2 R: the generic rule for h =
    gamma/(1-eta), with rho = 1-eta. M^0 = eta^2 ||grad f(x^0)||^2. On minibatches M gains N =
    (1-eta)^2 sigma^2/n a round. In the bounds h takes the place of gamma.
    """
    if k.numbers.get("nesterov"):
        raise theory.NoTheory("Nesterov's form has none here")
    eta, L = k.number("momentum"), k.need("L")

    def G(s, c, grad):  # m of the next step is (1 - eta)(eta v + grad f)
        return eta * ((1 - eta) * s.outer - grad.mean(1))[:, None]

    return theory.Rate(rho=1 - eta, B=eta**2 / (1 - eta) * L**2, scale=1 - eta, G=G)


def undamped(k: theory.Setting) -> float:
    """1/L, whatever the momentum."""
    return 1 / k.need("L")


DERIVED = "derived here"
CODE = theory.Convention(undamped, "IgorSokoloff/ef21_b-w_experiements_source_code, hb.py")


@algorithm(
    "heavy_ball",
    title="heavy ball",
    version="2",
    up=None,
    proximal=True,
    robust=True,
    theory=theory.recursive(heavy_ball, DERIVED, released=CODE),
    momentum=Number(0.9, low=0, high=0.999, per_cell=True, help="eta"),
    nesterov=Flag(help="step along g + eta v in place of v"),
)
class HeavyBall(GD):
    """v <- eta v + mean_i grad f_i(x); x <- x - gamma v; Nesterov: x <- x - gamma (g + eta v).

    gamma multiplies the undamped v: gamma/(1 - eta) is the step that gradients take in the long run,
    and that of the prox, so that minimisers of f + psi are fixed points. gamma = (1-eta)^2/L, eta =
    ``momentum``; Nesterov's form has no theory here. Up: d values per client. Down: d values. Source:
    Polyak 1964; Nesterov's form as in Sutskever et al. 2013.
    """

    presets = ("outer",)

    def setup(a, wire, s, c):
        a.outer = Outer("nesterov" if a.nesterov else "momentum", a.momentum)
        s.outer = wire.zero()

    def step(a, net, s, u):
        x = s.x if a.D is None else s.y
        a.broadcast_model(net, s, net.prox(x - a.gamma * u, a.gamma / (1 - a.momentum)))


@algorithm(
    "momentum_sgd",
    title="momentum SGD",
    version="2",
    up=None,
    proximal=True,
    robust=True,
    theory=theory.recursive(
        heavy_ball,
        DERIVED,
        theory.BOUNDED_NOISE,
        floor=("(1-eta) sigma^2/n", "(1-eta) sigma^2/(n mu)"),
    ),
    batch=Integer(1, low=1, help="samples per client and round"),
)
class MomentumSGD(HeavyBall):
    """Heavy ball on minibatches: v <- eta v + mean_i g_i; x <- x - gamma v.

    g_i is the gradient of ``batch`` samples drawn with replacement. Reaches a floor of order
    gamma L sigma^2/((1-eta) n). Up: d values per client. Down: d values. Source: as for heavy_ball.
    """


def compressed_step(k: theory.Setting) -> float:
    """min{1/L, 1/sqrt(L A T)}, A = L_max omega/n, T the rounds: the variance of g is expected smooth.

    E||g - grad f||^2 <= (omega/n) mean||grad f_i||^2 and ||grad f_i||^2 <= 2 L_i (f_i - inf f_i), so with
    f_low = mean inf f_i it is at most 2 A (f - f_low). With one mask for all clients omega takes the
    place of omega/n. Where some f_i has no lower bound it says nothing: with Hessians 11 I and -9 I,
    Rand-1 and d = 2 the step 1/(L + 2 A) of the convex case lets E||x||^2 grow by 1.19 a round.
    """
    return theory.expected_nonconvex(k, k.mean_omega * k.need("L_max"))


def compressed_linear_step(k: theory.Setting) -> float:
    """1/(L + 2 A), A = L_max omega/n: (omega/n) mean||grad f_i||^2 is at most twice that of differences to x*,
    each at most 2 L_i D_i as f_i is convex, plus 2 S, S = (omega/n) mean||grad f_i(x*)||^2.
    """
    return theory.expected_strong(k, k.mean_omega * k.need("L_max"))


COMPRESSED_STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        compressed_step,
        f"{theory.EXPECTED_NONCONVEX}, f_low = mean inf f_i",
        (theory.SMOOTH, theory.UNBIASED, theory.BOUNDED_CLIENTS),
        "Khaled, Richtarik 2020, Better Theory for SGD in the Nonconvex World; derived here",
    ),
    pl=theory.Theorem(
        compressed_linear_step,
        f"{theory.EXPECTED_STRONG}, S = (omega/n) mean||grad f_i(x*)||^2",
        (theory.PROXIMABLE, theory.UNBIASED, theory.STRONGLY_CONVEX, theory.CONVEX_CLIENTS),
        "Khirirat, Feyzmahdavian, Johansson 2018; Gorbunov, Hanzely, Richtarik 2020; derived here",
    ),
)


@algorithm(
    "dcgd",
    up=Any_,
    baseline=True,
    proximal=True,
    robust=True,
    theory=COMPRESSED_STEPS,
)
class DCGD(Estimator):
    """x^{t+1} = x^t - gamma mean_i C_i(grad f_i(x^t)): no memory.

    Unbiased C: to a floor of order gamma omega mean||grad f_i(x*)||^2/n. Biased C may diverge for every
    step size. Up: one message. Down: d values. Source: Khirirat et al. 2018.
    """

    def estimate(a, wire, s, c, grad):
        return wire.up(a.C(grad, wire.stream("up"))).mean()
