"""Adapt, then combine with the neighbours: diffusion, exact diffusion and decentralised gradient descent."""

from raybench.algorithms.base import Choice, Dense, Integer, Points, algorithm, theory


def half(k: theory.Setting) -> float:
    """0.5/L_max, a quarter of where gradient descent on convex f_i ends to be stable."""
    return 0.5 / k.need("L_max")


HALF = theory.thumb(half)


@algorithm(
    "diffusion",
    title="diffusion",
    up=None,
    decentralised=True,
    theory=HALF,
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
    order=Choice("atc", "cta", help="adapt, then combine; or combine, then adapt"),
)
class Diffusion(Points):
    """atc: X <- W (X - gamma G(X)). cta: X <- V - gamma G(V), V = W X.

    Bias O(gamma) where the clients differ, both in mean X and among the x_i; none where they share
    a minimiser. Stable for gamma < 2/L_max with convex f_i. On the complete graph atc is gradient
    descent. Rule of thumb: 0.5/L_max. Up: d values per neighbour. Source: Cattivelli, Sayed 2010.
    """

    def round(a, net, s, c):
        if a.order == "cta":
            c.X = net.mix(Dense(c.X))
        c.X = c.X - a.gamma * a.gradient(net, c.X)
        if a.order == "atc":
            c.X = net.mix(Dense(c.X))


def quarter(k: theory.Setting) -> float:
    """0.25/L_max: stable on convex f_i where lambda_min(W) > -0.75; the graphs here have -0.6 or more."""
    return 0.25 / k.need("L_max")


@algorithm(
    "dgd",
    version="2",
    up=None,
    decentralised=True,
    theory=theory.thumb(quarter),
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class DGD(Points):
    """X <- W X - gamma G(X): decentralised gradient descent.

    It is gradient descent on sum_i f_i(x_i) + <X, (I - W) X>/(2 gamma), hence the bias O(gamma) of its
    fixed point; stable for gamma < (1 + lambda_min(W))/L_max with convex f_i, which on a torus is
    0.4/L_max. Rule of thumb: 0.25/L_max. Up: d values per neighbour. Source: Nedic, Ozdaglar 2009.
    """

    def round(a, net, s, c):
        c.X = net.mix(Dense(c.X)) - a.gamma * a.gradient(net, c.X)


@algorithm(
    "exact_diffusion",
    title="exact diffusion",
    up=None,
    decentralised=True,
    proximal=True,
    theory=HALF,
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class ExactDiffusion(Points):
    """psi+ = X - gamma G(X); phi = psi+ + X - psi; Z <- Z - X + (I + W)/2 phi; X <- prox(Z).

    psi^0 = Z^0 = X^0. Without a penalty Z = X, and X <- (I + W)/2 phi: exact diffusion; with one
    NIDS. Exact, at gamma < 2/L_max with convex f_i whatever the graph, for a constant step. Rule of thumb:
    0.5/L_max. Up: d values per neighbour. Sources: Yuan, Ying, Zhao, Sayed 2019; Li, Shi, Yan 2019.
    """

    def start(a, net, s, c):
        super().start(net, s, c)
        c.psi = c.Z = c.X

    def round(a, net, s, c):
        psi = c.X - a.gamma * a.gradient(net, c.X)
        phi = psi + c.X - c.psi
        c.Z = c.Z - c.X + (phi + net.mix(Dense(phi))) / 2
        c.psi, c.X = psi, net.prox(c.Z, a.gamma)
