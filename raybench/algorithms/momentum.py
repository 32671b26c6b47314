"""Gradient descent and SGD with momentum at the server."""

from raybench.algorithms.base import Flag, Integer, Number, Outer, algorithm, theory
from raybench.algorithms.gd import GD


def heavy_ball(k: theory.Setting) -> theory.Rate:
    """(1-eta)^2/L, eta the momentum: the average m = (1-eta) v follows the gradient, and x+ = x - h m.

    M = ||m - grad f(x)||^2 obeys M+ <= eta M + eta^2/(1-eta) L^2 R: the generic rule for h =
    gamma/(1-eta), with rho = 1-eta. M^0 = eta^2 ||grad f(x^0)||^2. On minibatches M gains N =
    (1-eta)^2 sigma^2/n a round. In the bounds h takes the place of gamma.
    """
    if k.numbers.get("nesterov"):
        raise theory.NoTheory("Nesterov's form has none here")
    eta, L = k.number("momentum"), k.need("L")
    return theory.Rate(rho=1 - eta, B=eta**2 / (1 - eta) * L**2, scale=1 - eta)


def released(k: theory.Setting) -> float:
    """1/L, whatever the momentum."""
    return 1 / k.need("L")


SOURCE = "derived here"
CODE = theory.Convention(released, "IgorSokoloff/ef21_b-w_experiements_source_code, hb.py")


@algorithm(
    "heavy_ball",
    title="heavy ball",
    version="2",
    up=None,
    proximal=True,
    robust=True,
    theory=theory.recursive(heavy_ball, SOURCE, released=CODE),
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
        SOURCE,
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
