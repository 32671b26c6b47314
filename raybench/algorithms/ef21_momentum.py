"""EF21 on minibatches and with momentum: at the clients or the server, PAGE, steps of length 1, Muon, clipping."""

import torch

from raybench.algorithms.base import (
    Choice,
    Contractive,
    Dense,
    Estimator,
    Flag,
    Integer,
    Number,
    Outer,
    algorithm,
    theory,
    where,
)
from raybench.algorithms.ef21 import EF21, PLAIN, RELEASED, errors
from raybench.algorithms.parts import steepest


def momentum(k: theory.Setting) -> float:
    """Return eta, 1 for EF21-SGD; raises NoTheory for double momentum."""
    if k.numbers.get("double"):
        raise theory.NoTheory("double momentum has none here")
    return float(k.numbers.get("eta", 1.0))


def momentum_step(k: theory.Setting) -> float:
    """1/(L + L_tilde sqrt(2 q)), q = 2 (beta/theta)(eta^2 + (1-eta)^2) + (1-eta)^2/eta^2; EF21-SGD: eta = 1.

    P = mean||v_i - grad f_i||^2 and G = mean||g_i - v_i||^2 obey P+ <= (1-eta) P +
    (1-eta)^2/eta L_tilde^2 R + eta^2 sigma^2 and G+ <= (1-theta) G + beta E||v+ - v||^2, with
    E||v+ - v||^2 <= 2 eta^2 (P + L_tilde^2 R) + eta^2 sigma^2; ||g - grad f||^2 <= 2 G + 2 P.
    Phi = f + gamma G/theta + gamma (1/eta + 2 eta beta/theta) P. sigma^2: a client's minibatch variance.
    """
    eta = momentum(k)
    theta, beta = theory.contraction(k.need("alpha"))
    past = (1 - eta) ** 2
    q = 2 * beta / theta * (eta**2 + past) + past / eta**2
    return 1 / (k.need("L") + k.need("L_tilde") * (2 * q) ** 0.5)


def momentum_promise(k: theory.Setting, gamma: float) -> theory.Inequality:
    """Return the promise of ``momentum_step`` where gradients are full."""
    eta = momentum(k)
    theta, beta = theory.contraction(k.need("alpha"))
    of_v, of_g = gamma * (1 / eta + 2 * eta * beta / theta), gamma / theta

    def V(s, c, grad):
        v = vars(c).get("v", grad)
        return theory.together((of_g, c.g - v), (of_v, v - grad))

    return theory.Inequality(V, over=2 / gamma)


def momentum_paper(k: theory.Setting) -> float:
    """min{alpha/(20 L_tilde), eta/(7 L)}."""
    return min(k.need("alpha") / (20 * k.need("L_tilde")), momentum(k) / (7 * k.need("L")))


NOISE = "2 (eta + (eta^2 + 2 eta^3) beta/theta) sigma^2"
BOUND = f"(1/T) sum_{{t<T}} E||grad f(x^t)||^2 <= 2 Phi^0/(gamma T) + {NOISE}"
ASSUMES = (theory.PROXIMABLE, theory.CONTRACTIVE, theory.BOUNDED_NOISE)
STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(momentum_step, BOUND, ASSUMES, "derived here", says=momentum_promise),
    paper=theory.Theorem(
        momentum_paper,
        "E||grad f||^2 <= O(Delta0/(gamma T) + noise)",
        (theory.SMOOTH, *ASSUMES[1:]),
        "Fatkhullin, Tyurin, Richtarik 2023",
        recalled=True,
    ),
)


@algorithm(
    "ef21_sgd",
    up=Contractive,
    proximal=True,
    robust=True,
    theory=STEPS.with_rules(released=PLAIN),
    batch=Integer(1, low=1, help="samples per client and round"),
)
class EF21SGD(EF21):
    """EF21 on minibatch gradients: c_i = C(grad f_i(x; J) - g_i).

    Reaches a floor of order sigma^2 (beta/theta) that does not shrink with n: use large batches, or
    EF21-SGDM. Step: that of EF21-SGDM with eta = 1. Up: one message. Down: d values. Source:
    Fatkhullin et al. 2021, EF21 with Bells & Whistles.
    """


@algorithm(
    "ef21_sgdm",
    up=Contractive,
    proximal=True,
    robust=True,
    theory=STEPS,
    eta=Number(0.1, low=0, high=1, open_low=True, per_cell=True, help="weight of new gradients"),
    double=Flag(help="average twice (SGD2M)"),
)
class EF21SGDM(EF21SGD):
    """v_i <- (1-eta) v_i + eta grad f_i(x; J); c_i = C(v_i - g_i); g_i <- g_i + c_i; x <- x - gamma g.

    eta = 1 is EF21-SGD, a smaller eta lowers its floor. ``double``, without a theorem here: u_i <- (1-eta) u_i + eta
    v_i is sent in place of v_i. v_i and u_i begin as the first minibatch gradient. Up: one message. Down: d values.
    Source: Fatkhullin, Tyurin, Richtarik 2023, Momentum Provably Improves Error Feedback, algorithms 1 and 4.
    """

    def open(a, wire, s, c, grad):
        c.v = grad
        if a.double:
            c.u = grad
        return super().open(wire, s, c, grad)

    def estimate(a, wire, s, c, grad):
        c.v = (1 - a.eta) * c.v + a.eta * grad
        if a.double:
            c.u = (1 - a.eta) * c.u + a.eta * c.v
        return super().estimate(wire, s, c, c.u if a.double else c.v)


def refresh(k: theory.Setting) -> float:
    """Return p = b/(m + b): as many samples for full gradients as for minibatches."""
    return k.number("batch") / (k.m + k.number("batch"))


def page_step(k: theory.Setting) -> float:
    """1/(L + sqrt(2 q)), q = r ((1+p) L_tilde^2 + 3 (1-p) l) + (1-p) l/p, l = Lcal^2/b, r = beta/theta.

    P = mean||v_i - grad f_i||^2 and G = mean||g_i - v_i||^2 obey P+ <= (1-p)(P + l R) and
    G+ <= (1-theta) G + beta (2 p P + ((1+p) L_tilde^2 + (1-p) l) R); Phi = f + gamma G/theta +
    gamma (1/p + 2 beta/theta) P in the descent lemma, ||g - grad f||^2 <= 2 G + 2 P.
    """
    theta, beta = theory.contraction(k.need("alpha"))
    p, r = k.number("p"), beta / theta
    noise = (1 - p) * k.need("L_samples") ** 2 / k.number("batch")
    q = r * ((1 + p) * k.need("L_tilde") ** 2 + 3 * noise) + noise / p
    return 1 / (k.need("L") + (2 * q) ** 0.5)


PAGE_STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        page_step,
        "(1/T) sum_{t<T} E||grad f(x^t)||^2 <= 2 (Delta0 + gamma G^0/theta)/(gamma T)",
        (theory.PROXIMABLE, theory.CONTRACTIVE),
        "derived here; method: Fatkhullin et al. 2021",
    ),
    released=PLAIN,
)


@algorithm(
    "ef21_page",
    up=Contractive,
    proximal=True,
    robust=True,
    theory=PAGE_STEPS,
    auto={"p": refresh},
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
    batch=Integer(1, low=1, help="samples per client and round"),
)
class EF21PAGE(EF21):
    """EF21 on v_i = grad f_i(x) with probability p, else v_i + grad f_i(x; J) - grad f_i(x_old; J).

    Each client tosses its own coin; p = auto is b/(m + b). Starts with the full gradient. Gradients
    per round and client: m with probability p, else 2 b. gamma is derived here (``nonconvex``);
    (1/T) sum E||grad f||^2 <= 2 (Delta0 + gamma G0/theta)/(gamma T): no floor. Up: one message. Down: d
    values. Source: Fatkhullin et al. 2021, EF21 with Bells & Whistles; Li et al. 2021, PAGE.
    """

    def source(a, net, s, c):
        if net.t == 0:
            c.v = net.grad(s.x)
        else:
            coin, J = net.coins("refresh", a.p), net.sample("batch", a.batch)
            full = net.grad(s.x, clients=coin)
            near = net.grad(s.x, J, clients=~coin) - net.grad(s.old, J, clients=~coin)
            c.v = where(coin[..., None], full, c.v + near)
        return c.v

    def apply(a, net, s, u):
        s.old = s.x
        super().apply(net, s, u)


def heavy_ball_step(k: theory.Setting) -> float:
    """(1-eta)/(L + sqrt(2 eta (1+eta)/(1-eta)^2 L^2 + (1+eta) (beta/theta) L_tilde^2)).

    m = (1-eta) v averages g: with M = ||m - grad f||^2, r = (1-eta)/(1+eta),
    M+ <= (1-r) M + 2 eta/(1-eta) L^2 R + (1-eta) G+; in the descent lemma, with step h = gamma/(1-eta),
    Phi = f + h/(2 r) M + h (1+eta)(1-theta)/(2 theta) G falls.
    """
    theta, beta = theory.contraction(k.need("alpha"))
    eta, L = k.number("eta"), k.need("L")
    spread = beta / theta * k.need("L_tilde") ** 2
    root = (2 * eta * (1 + eta) / (1 - eta) ** 2 * L**2 + (1 + eta) * spread) ** 0.5
    return (1 - eta) / (L + root)


def heavy_ball_promise(k: theory.Setting, gamma: float) -> theory.Inequality:
    """Return the promise of ``heavy_ball_step``."""
    theta, _ = theory.contraction(k.need("alpha"))
    eta = k.number("eta")
    h = gamma / (1 - eta)
    of_m, of_g = h * (1 + eta) / (2 * (1 - eta)), h * (1 + eta) * (1 - theta) / (2 * theta)

    def V(s, c, grad):
        m = (1 - eta) * (eta * s.outer + s.g)  # of the next step
        return theory.together((of_m, m - grad.mean(1)), (of_g, errors(s, c, grad)))

    return theory.Inequality(V, over=2 / h)


HB_STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        heavy_ball_step,
        "(1/T) sum_{t<T} E||grad f(x^t)||^2 <= 2 Phi^0/(h T)",
        (theory.SMOOTH, theory.CONTRACTIVE),
        "derived here; method: Fatkhullin et al. 2021",
        says=heavy_ball_promise,
    ),
    released=RELEASED,
)


@algorithm(
    "ef21_hb",
    up=Contractive,
    robust=True,
    theory=HB_STEPS,
    eta=Number(0.9, low=0, high=0.999, per_cell=True, help="momentum"),
)
class EF21HB(EF21):
    """x <- x - gamma v; g_i, g as in EF21; v <- eta v + g.

    eta = 0 is EF21. gamma multiplies the undamped v, so its theory (derived here, see
    ``heavy_ball_step``) has a factor 1 - eta. No prox: its step would be gamma/(1 - eta). Up: one message.
    Down: d values. Source: Fatkhullin et al. 2021, EF21 with Bells & Whistles.
    """

    presets = ("outer",)

    def setup(a, wire, s, c):
        super().setup(wire, s, c)
        a.outer = Outer("momentum", a.eta)
        s.outer = wire.zero()


def normalized_step(k: theory.Setting) -> float:
    """1/sqrt(T), T the rounds: any multiple of it has the rate 1/sqrt(T), and needs no constant of f.

    The bound for L-smooth f: e_t = mean||g_i - grad f_i||. The compressor makes of it at most s (e_t + L_AM gamma),
    s = sqrt(1 - alpha), as every step has the length gamma, and <grad f, g/||g||> >= ||grad f|| - 2 e_t.
    """
    if k.numbers.get("eta", 1.0) != 1:
        raise theory.NoTheory("with momentum its step depends on what curvature does")
    return 1 / k.rounds**0.5


NORMALIZED_STEPS = theory.StepSizes(
    paper=theory.Theorem(
        normalized_step,
        "(1/T) sum_{t<T} E||grad f(x^t)|| <= Delta0/(gamma T) + 2 e_0/(theta T) "
        "+ gamma (L/2 + 2 L_AM sqrt(1-alpha)/theta)",
        (theory.SMOOTH, theory.CONTRACTIVE, theory.FULL, theory.CONSTANT_STEP),
        "Khirirat, Sadiev, Riabinin, Gorbunov, Richtarik 2024, theorem 1; its bound for L-smooth f is derived here",
    )
)


@algorithm(
    "ef21_normalized",
    title="normalised EF21",
    up=Contractive,
    theory=NORMALIZED_STEPS,
    eta=Number(1.0, low=0, high=1, open_low=True, per_cell=True, help="weight of new gradients"),
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class EF21Normalized(EF21):
    """v_i <- (1 - eta) v_i + eta grad f_i(x); g_i <- g_i + C(v_i - g_i); x <- x - gamma g/||g||, g = mean g_i.

    Made for f_i whose Hessian is bounded by L0 + L1 ||grad f_i|| only: every step has the length gamma, so that x ends
    in a ball of that order around the minimum. gamma = c/sqrt(T) for T rounds and any c > 0 (``{theory: c, rule:
    paper}``). Where g = 0 x stays. eta = 1 is ||EF21||; v_i begins as the first gradient. Up: one message. Down: d
    values. Source: Khirirat et al. 2024, Error Feedback under (L0, L1)-Smoothness, algorithms 1 and 2.
    """

    def open(a, wire, s, c, grad):
        c.v = grad
        return super().open(wire, s, c, grad)

    def estimate(a, wire, s, c, grad):
        c.v = (1 - a.eta) * c.v + a.eta * grad
        return super().estimate(wire, s, c, c.v)

    def outer_step(a, s, g):
        size = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
        return g / size.clamp(min=torch.finfo(g.dtype).tiny)


@algorithm(
    "ef21_muon",
    title="EF21-Muon",
    up=Contractive,
    theory=None,
    eta=Number(0.1, low=0, high=1, open_low=True, per_cell=True, help="weight of a fresh gradient"),
    norm=Choice(
        "spectral", "sign", "euclidean", help="of matrices; vectors move by signs unless euclidean"
    ),
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class EF21Muon(EF21):
    """M_i <- (1 - eta) M_i + eta g_i; G_i <- G_i + C(M_i - G_i); G = mean G_i; x <- x + gamma LMO(G).

    For each tensor, LMO(G) is the steepest step of norm 1: -U V' of a matrix G = U S V' (spectral, by
    Newton-Schulz, times sqrt(max(1, a/b))), -sign(G), or -G/||G||. With LMO(G) = -G it is EF21-SGDM. Up:
    one message. Down: d values. No guarantee here. Source: Gruntkowska et al. 2025, EF21-Muon.
    """

    def setup(a, wire, s, c):
        super().setup(wire, s, c)
        a.layout, c.m = wire.layout, wire.zeros()

    def open(a, wire, s, c, grad):
        c.m = grad
        return super().open(wire, s, c, grad)

    def estimate(a, wire, s, c, grad):
        c.m = (1 - a.eta) * c.m + a.eta * grad
        return super().estimate(wire, s, c, c.m)

    def outer_step(a, s, g):
        return a.layout.concat([steepest(tensor, a.norm) for tensor in a.layout.views(g)])


@algorithm(
    "clip21_sgd2m",
    title="Clip21-SGD2M",
    up=None,
    theory=None,
    tau=Number(
        1.0, low=0, open_low=True, words=("off",), help="norm to which a message is clipped"
    ),
    beta=Number(0.1, low=0, high=1, open_low=True, per_cell=True, help="weight of new gradients"),
    beta_server=Number(
        0.5, low=0, high=1, open_low=True, per_cell=True, help="weight of a message in g_i and g"
    ),
    sigma=Number(
        0.0, low=0, per_cell=True, help="deviation of each coordinate's noise, for privacy"
    ),
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class Clip21SGD2M(Estimator):
    """v_i <- (1-b) v_i + b grad f_i(x); m_i = clip(v_i - g_i); x <- x - gamma g, g <- g + b' mean (m_i + noise_i).

    g_i <- g_i + b' m_i, b and b' being ``beta`` and ``beta_server``; clip(u) = min{1, tau/||u||} u, noise_i of
    Gaussians N(0, sigma^2) in every coordinate. All begin at 0. Without noise g = mean g_i. The noise of all rounds
    stays in g: b' damps it. tau = off, b = b' = 1: gradient descent; tau = off, b' = 1: momentum. The
    accounting of privacy is not done here, and the theorem's step, which rests on bounds of the first gradients, is
    not given. Up: d values. Down: d values. Source: Islamov, Horvath, Lucchi, Richtarik, Gorbunov 2025, Double Momentum
    and Error Feedback for Clipping (the updates as public descriptions of it have them; there the first step, from
    g = 0, comes before the first message: the same sequence a round later).
    """

    opens = True

    def setup(a, wire, s, c):
        c.v, c.g, s.g = wire.zeros(), wire.zeros(), wire.zero()

    def estimate(a, wire, s, c, grad):
        c.v = (1 - a.beta) * c.v + a.beta * grad
        with wire.compressing():
            m = a.clip(c.v - c.g)
            c.g = c.g + a.beta_server * m
            if bool((a.sigma.values > 0).any()):
                m = m + a.sigma * wire.stream("noise").normal(m.shape[-1]).to(m)
        return s.g + a.beta_server * wire.up(Dense(m)).mean()

    def clip(a, u):
        """Return u (B, n_here, d), every row scaled down to the norm tau where it is above."""
        if a.tau == "off":
            return u
        size = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
        return u * (a.tau / size.clamp(min=a.tau))
