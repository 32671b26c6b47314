"""Gradient descent and SGD with momentum at the server."""

from raybench.algorithms.base import (
    Contractive,
    Flag,
    Integer,
    Number,
    algorithm,
    theory,
)
from raybench.algorithms.gd import GD


def heavy_ball(k: theory.Setting) -> theory.Rate:
    """Heavy ball: gamma = (1-eta)^2/L, eta the momentum.

    m = (1-eta) v averages the gradients: M = ||m - grad f(x)||^2 obeys M+ <= eta M + eta^2/(1-eta) L^2 R,
    and x+ = x - h m with h = gamma/(1-eta): the generic rule for h, rho = 1-eta. M^0 = eta^2 ||grad
    f(x^0)||^2: (1/T) sum ||grad f||^2 <= 2 Delta0/(h T) + M^0/((1-eta) T).
    """
    if k.numbers.get("nesterov"):
        raise theory.NoTheory("Nesterov's form has none here")
    eta, L = float(k.numbers["momentum"]), k.need("L")
    mu = k.constants.mu or 0.0
    h = 1 / (L * (1 + 2**0.5 * eta / (1 - eta)))
    pl = (1 - eta) * min(h, (1 - eta) / (2 * mu)) if mu > 0 else None
    return theory.Rate(nonconvex=(1 - eta) ** 2 / L, pl=pl)


@algorithm(
    "heavy_ball",
    version="2",
    up=None,
    broadcast=Contractive,
    proximal=True,
    theory=heavy_ball,
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

    def setup(a, wire, s, c):
        s.v = wire.zero()

    def along(a, s, g):
        s.v = a.momentum * s.v + g
        return g + a.momentum * s.v if a.nesterov else s.v

    def step(a, net, s, u):
        x = s.x if a.D is None else s.y
        a.tell(net, s, net.prox(x - a.gamma * u, a.gamma / (1 - a.momentum)))


@algorithm(
    "momentum_sgd",
    version="2",
    up=None,
    broadcast=Contractive,
    proximal=True,
    theory=heavy_ball,
    stochastic=True,
    batch=Integer(1, low=1, help="samples per client and round"),
)
class MomentumSGD(HeavyBall):
    """Heavy ball on minibatches: v <- eta v + mean_i g_i; x <- x - gamma v.

    g_i is the gradient of ``batch`` samples drawn with replacement. Reaches a floor of order
    gamma L sigma^2/((1-eta) n). Up: d values per client. Down: d values. Source: as for heavy_ball.
    """
