"""EF21: error feedback by compressed differences; weighted, with a choice, by some clients, in both directions."""

from math import sqrt

import torch

from raybench.algorithms.base import (
    Choice,
    Contractive,
    Dense,
    Estimator,
    Number,
    algorithm,
    choose,
    theory,
    where,
)


def errors(s, c, grad):
    """Return g_i - grad f_i(x), (B, n, d)."""
    return c.g - grad


def recursion(k: theory.Setting) -> theory.Rate:
    """G = mean ||g_i - grad f_i||^2: rho = theta, B = beta L_tilde^2.

    The compressor shrinks ||grad f_i(x+) - g_i||^2 by 1 - alpha, of which (1 + t)||grad f_i(x) - g_i||^2 +
    (1 + 1/t) L_i^2 ||x+ - x||^2 is a bound; t makes the first factor 1 - theta.
    """
    theta, beta = theory.contraction(k.need("alpha"))
    return theory.Rate(rho=theta, B=beta * k.need("L_tilde") ** 2, G=errors)


LEAST_WEIGHT = 1e-9  # as a share of the largest L_i: a client whose gradient is constant must not have weight 0


def weighted(k: theory.Setting) -> theory.Rate:
    """G = sum_i ||g_i - grad f_i||^2/(n^2 w_i): rho = theta, B = beta L_AM^2, L_AM = mean L_i.

    w_i = L_i/sum_j L_j. G bounds ||g - grad f||^2 by Jensen with the weights w_i, and every client's error obeys
    EF21's recursion with its own L_i, whatever the weights: the drift of G is sum_i L_i^2/(n^2 w_i) = L_AM^2.
    """
    theta, beta = theory.contraction(k.need("alpha"))
    most = k.need("L_max")
    L_i = torch.tensor([max(L, LEAST_WEIGHT * most) for L in k.constants.L_i], dtype=torch.float64)
    mean = float(L_i.mean())
    nw = (L_i / mean)[:, None]

    def G(s, c, grad):
        return errors(s, c, grad) / nw.sqrt()

    return theory.Rate(rho=theta, B=beta * mean**2, G=G)


def released(k: theory.Setting) -> float:
    """min{1/(L + L_tilde sqrt(2 beta/theta)), theta/(2 mu)} where a mu > 0 is known, as in the code for least
    squares; else 1/(L + L_tilde sqrt(beta/theta)), as in that for logistic regression.
    """
    return recursion(k).pl(k) if (k.constants.mu or 0) > 0 else recursion(k).nonconvex(k)


def tight(k: theory.Setting) -> float:
    """2/mean(L_i + mu_i) * alpha/(1 + s)^2, s = sqrt(1 - alpha): a percent more is as bad as L/mu percent less.

    V = s ||grad f||^2 + mean_i w_i ||g_i - grad f_i||^2, w_i = mean_j(L_j + mu_j)/(L_i + mu_i), shrinks by the larger
    eigenvalue of M'M, M = [[1 - a, -sqrt(s) a], [sqrt(s) a, s (1 + a)]], where a is gamma times a curvature: det M = s, so
    it is (F + sqrt(F^2 - 4 s^2))/2, F = (1 - a)^2 + 2 s a^2 + s^2 (1 + a)^2, and at this step F is the same at both ends
    of the curvatures. By the source no other quadratic function of these vectors shrinks faster, at any step.
    """
    a, s = k.need("alpha"), sqrt(1 - k.need("alpha"))
    return 2 / (k.need("L_AM") + k.need("mu_AM")) * a / (1 + s) ** 2


def factor(k: theory.Setting, gamma: float) -> float:
    """Return what V of ``tight`` shrinks by in a round at a step gamma up to that of the rule.

    Clients whose mu_i/L_i differ are taken for f_i of the same L_i + mu_i and the smallest of them.
    """
    pairs = list(zip(k.constants.mu_i, k.constants.L_i, strict=True))
    least = min(mu / (L + mu) for mu, L in pairs)
    a = gamma * least * sum(L + mu for mu, L in pairs) / len(pairs)
    s = sqrt(1 - k.need("alpha"))
    F = (1 - a) ** 2 + 2 * s * a**2 + s**2 * (1 + a) ** 2
    return (F + sqrt(max(F**2 - 4 * s**2, 0.0))) / 2


def shrinks(k: theory.Setting, gamma: float) -> theory.Inequality:
    """Return that V of ``tight`` shrinks by ``factor``."""
    each = [L + mu for L, mu in zip(k.constants.L_i, k.constants.mu_i, strict=True)]
    w = torch.tensor([sum(each) / len(each) / one for one in each], dtype=torch.float64)[:, None]
    left = sqrt(1 - k.need("alpha"))

    def V(s, c, grad):
        return theory.together((left, grad.mean(1)), (1.0, w.sqrt() * errors(s, c, grad)))

    return theory.Inequality(V, gap=False, factor=factor(k, gamma))


TIGHT_SOURCE = "Berg Thomsen, Taylor, Dieuleveut 2025, 2026 (arXiv 2506.05271, 2605.31594)"
RELEASED = theory.Convention(
    released,
    "IgorSokoloff/ef21_experiments_source_code, ef21_b-w_experiements_source_code: pl_ef21_fg.py, ef21_fg.py",
)
PLAIN = theory.Convention(recursion, "IgorSokoloff/ef21_b-w_experiements_source_code: EF21's step")
TIGHT = theory.Theorem(
    tight,
    "V^t <= r^t V^0, V = sqrt(1 - alpha) ||grad f||^2 + mean w_i ||g_i - grad f_i||^2, r as told below",
    (theory.SMOOTH, theory.CONTRACTIVE, theory.STRONGLY_CONVEX_CLIENTS),
    TIGHT_SOURCE,
    says=shrinks,
)
STEPS = theory.recursive(
    recursion,
    "Richtarik, Sokolov, Fatkhullin 2021, theorems 1 and 2",
    theory.CONTRACTIVE,
    arithmetic=theory.Theorem(
        weighted,
        theory.NONCONVEX,
        (theory.PROXIMABLE, theory.CONTRACTIVE),
        "Richtarik, Gasanov, Burlachenko 2024, Error Feedback Reloaded, on EF21 as it is; derived here",
    ),
    as_in_paper=True,
    released=RELEASED,
)


@algorithm(
    "ef21",
    up=Contractive,
    proximal=True,
    robust=True,
    theory=STEPS.with_rules(tight=TIGHT),
    init=Choice("compressed", "full", "zero", help="first message: C(grad), grad, or none"),
)
class EF21(Estimator):
    """x <- x - gamma g; c_i = C(grad f_i(x) - g_i); g_i <- g_i + c_i; g <- g + mean c_i.

    gamma = 1/(L + L_tilde sqrt(beta/theta)), theta = 1 - sqrt(1 - alpha), beta = (1 - alpha)/theta; under the rule
    ``arithmetic`` with L_AM = mean L_i <= L_tilde. The server's g equals mean g_i. On a problem with a nonsmooth part
    it is ``ef21_prox``. Up: one message. Down: d values. Source: Richtarik, Sokolov, Fatkhullin 2021, algorithm 2.
    """

    opens = True

    def setup(a, wire, s, c):
        c.g, s.g = wire.zeros(), wire.server_zeros()

    def estimate(a, wire, s, c, grad):
        return a.send(wire, s, c, grad).add_(s.g)  # the mean is ours: no further (B, d) is made

    def open(a, wire, s, c, grad):
        return s.g if a.init == "zero" else s.g + a.send(wire, s, c, grad, dense=a.init == "full")

    def send(a, wire, s, c, grad, dense=False):
        """g_i <- g_i + C(grad_i - g_i); return the mean of the messages."""
        v = grad - c.g
        m = Dense(v) if dense else a.C(v, wire.stream("up"))
        m.add_to(c.g)
        return wire.up(m).mean()


@algorithm(
    "ef21_prox",
    title="EF21-Prox",
    up=Contractive,
    proximal=True,
    robust=True,
    theory=STEPS.with_rules(released=None),
)
class EF21Prox(EF21):
    """EF21 for f + psi: x <- prox_{gamma psi}(x - gamma g), the step that ``ef21`` takes there too.

    gamma as in EF21; recorded is the gradient mapping. Without psi it is EF21. Up: one message. Down: d
    values. Source: Fatkhullin, Sokolov, Gorbunov, Li, Richtarik 2021, EF21 with Bells & Whistles.
    """


W_STEPS = theory.recursive(
    weighted,
    "Richtarik, Gasanov, Burlachenko 2024, Error Feedback Reloaded; derived here",
    theory.CONTRACTIVE,
    as_in_paper=True,
)


@algorithm(
    "ef21_w",
    up=Contractive,
    averaged=False,  # its mean is weighted
    proximal=True,
    theory=W_STEPS,
)
class EF21W(EF21):
    """EF21 with c_i = C((grad f_i(x) - g_i)/(n w_i)), g_i <- g_i + n w_i c_i, g <- g + sum_i w_i c_i.

    w_i = L_i/sum_j L_j, known to all as the step size is. gamma = 1/(L + L_AM sqrt(beta/theta)), L_AM =
    mean L_i <= L_tilde. Where C(t x) = t C(x), as for top-k, the iterates are EF21's at the same
    step. Up: one message. Down: d values. Source: Richtarik, Gasanov, Burlachenko 2024, Error
    Feedback Reloaded, algorithm 3.
    """

    def start(a, net, s, c):
        L = net.oracle.smoothness()
        L = L.clamp(min=LEAST_WEIGHT * float(L.max()))
        s.w = (L / L.sum()).expand(len(s.x), -1)
        c.nw = net.n * net.here(s.w)[..., None]
        super().start(net, s, c)

    def send(a, wire, s, c, grad, dense=False):
        v = (grad - c.g) / c.nw
        m = Dense(v) if dense else a.C(v, wire.stream("up"))
        c.g += c.nw * m.decode()
        return wire.up(m).weighted(s.w)


@algorithm(
    "ef21_plus",
    up=Contractive,
    averaged=False,  # a flag says which of two meanings a message has
    relay=False,  # some messages replace a g_i, so their sum is not the change of g
    proximal=True,
    theory=STEPS,  # EF21's recursion holds, since the smaller of the two errors is kept
)
class EF21Plus(Estimator):
    """g_i <- g_i + C(grad f_i(x) - g_i) or C(grad f_i(x)), whichever is closer to grad f_i(x).

    A flag bit says which; as the second replaces g_i, the server keeps every g_i (s.G, n d values).
    Step size and rate as EF21. Up: one message and a bit. Down: d values; the sum of
    the messages (``downlink: aggregate``) would not do. Source: Richtarik, Sokolov, Fatkhullin 2021,
    algorithm 3.
    """

    opens = True

    def open(a, wire, s, c, grad):
        m = a.C(grad, wire.stream("up"))
        c.g, s.G = m.decode(), wire.up(m).decode()
        return s.G.mean(1)

    def estimate(a, wire, s, c, grad):
        q = wire.stream("up")
        step, anew = a.C(grad - c.g, q), a.C(grad, q)
        moved, fresh = c.g + step.decode(), anew.decode()
        replace = (fresh - grad).square().sum(-1) < (moved - grad).square().sum(-1)
        c.g = where(replace[..., None], fresh, moved)

        message = wire.up(choose(replace, anew, step))
        s.G = where(message.flags[..., None], message.decode(), s.G + message.decode())
        return s.G.mean(1)


def partial_recursion(k: theory.Setting) -> theory.Rate:
    """rho = p theta - (1-p) r, B = (p beta + (1-p)(1 + 1/r)) L_tilde^2, r = p theta/(2(1-p)); p = 1: EF21.

    A participant's error obeys EF21's recursion; an absent one's only drifts, ||grad f_i(x+) - g_i||^2 <=
    (1 + r)||grad f_i(x) - g_i||^2 + (1 + 1/r) L_i^2 ||x+ - x||^2, r > 0 being free.
    """
    theta, beta = theory.contraction(k.need("alpha"))
    p = k.number("p")
    if p == 1:
        return recursion(k)
    r = p * theta / (2 * (1 - p))
    drift = p * beta + (1 - p) * (1 + 1 / r)
    return theory.Rate(rho=p * theta - (1 - p) * r, B=drift * k.need("L_tilde") ** 2, G=errors)


@algorithm(
    "ef21_pp",
    up=Contractive,
    proximal=True,
    participation="p",
    robust=True,
    theory=theory.recursive(
        partial_recursion,
        "Fatkhullin et al. 2021; r chosen here",
        theory.CONTRACTIVE,
        released=PLAIN,
    ),
    p=Number(0.5, low=0, high=1, open_low=True, per_cell=True, help="chance to take part"),
)
class EF21PP(EF21):
    """EF21 in which each client takes part in a round with probability p; the others send nothing.

    g <- g + (1/n) sum over participants of c_i (n, not their number), so g = mean g_i still holds.
    Up: p messages on average. Down: d values. Source: Fatkhullin et al. 2021, EF21 with Bells &
    Whistles, algorithm 4.
    """

    refused_in_loops = {}

    def source(a, net, s, c):
        return net.grad(s.x, clients=net.participants(a.p)) if net.t else net.grad(s.x)

    def estimate(a, wire, s, c, grad):
        m = a.C(grad - c.g, wire.stream("up")).masked(wire.participants(a.p))
        m.add_to(c.g)
        return s.g + wire.up(m).mean()


def two_way_step(k: theory.Setting) -> float:
    """1/(L + L_tilde sqrt(2 [(1 + s) b_w/t_w + s])), s = 8 b_M/t_M; t, b are theta, beta of the clients' (w)
    and the server's (M) compressor.

    P = mean||g_i - grad f_i||^2 (the clients') obeys EF21's recursion, and Q = ||g - w||^2 obeys Q+ <= (1-t_M) Q
    + b_M ||w+ - w||^2 with E||w+ - w||^2 <= 4 mean||grad f_i(x+) - g_i||^2 <= 8 (P + L_tilde^2 R), as
    E||C(v)||^2 <= 4 ||v||^2; ||g - grad f||^2 <= 2 P + 2 Q.
    """
    theta_w, beta_w = theory.contraction(k.need("alpha"))
    theta_m, beta_m = theory.contraction(k.need("down_alpha"))
    server = 8 * beta_m / theta_m
    root = sqrt(2 * ((1 + server) * beta_w / theta_w + server))
    return 1 / (k.need("L") + k.need("L_tilde") * root)


def two_way(k: theory.Setting, gamma: float) -> theory.Inequality:
    """Return the promise of ``two_way_step``."""
    theta_w, _ = theory.contraction(k.need("alpha"))
    theta_m, beta_m = theory.contraction(k.need("down_alpha"))
    P, Q = gamma * (1 + 8 * beta_m / theta_m) / theta_w, gamma / theta_m

    def V(s, c, grad):
        return theory.together((P, errors(s, c, grad)), (Q, s.g - s.w))

    return theory.Inequality(V, over=2 / gamma)


BC_STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        two_way_step,
        "(1/T) sum_{t<T} E||grad f(x^t)||^2 <= 2 (Delta0 + gamma (1 + s) P^0/t_w + gamma Q^0/t_M)/(gamma T)",
        (theory.SMOOTH, theory.CONTRACTIVE),
        "derived here; method: Fatkhullin et al. 2021",
        says=two_way,
    ),
    released=PLAIN,
)


@algorithm("ef21_bc", up=Contractive, down=Contractive, theory=BC_STEPS)
class EF21BC(EF21):
    """EF21 at the clients (its mean is s.w), and again from server to clients: g <- g + D(w - g).

    Every client keeps x and g itself, x <- x - gamma g, so the model is never broadcast. Up: one
    message of C. Down: one of D. Source: Fatkhullin et al. 2021, algorithm 5.
    """

    broadcasts_model = False

    def setup(a, wire, s, c):
        super().setup(wire, s, c)
        s.w = wire.zero()

    def open(a, wire, s, c, grad):
        s.w = super().open(wire, s, c, grad)
        return a.broadcast(wire, s.w)

    def estimate(a, wire, s, c, grad):
        s.w = s.w + a.send(wire, s, c, grad)
        return s.g + a.broadcast(wire, s.w - s.g)
