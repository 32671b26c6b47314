"""Exact diffusion: adapt, correct, combine."""

from raybench.algorithms.base import Dense, Integer, Points, algorithm
from raybench.algorithms.diffusion import HALF


@algorithm(
    "exact_diffusion",
    title="exact diffusion",
    up=None,
    decentralised=True,
    stochastic=True,
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
