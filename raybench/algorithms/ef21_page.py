"""EF21-PAGE: EF21 on variance-reduced gradients."""

from raybench.algorithms.base import Contractive, Integer, Number, algorithm, theory, where
from raybench.algorithms.ef21 import EF21, PLAIN


def refresh(k: theory.Setting) -> float:
    """Return p = b/(m + b): as many samples for full gradients as for minibatches."""
    return k.number("batch") / (k.m + k.number("batch"))


def nonconvex(k: theory.Setting) -> float:
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


STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        nonconvex,
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
    theory=STEPS,
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
