"""EXTRA: decentralised gradient descent with its bias corrected."""

from raybench.algorithms.base import Dense, Points, algorithm, zeros_like
from raybench.algorithms.diffusion import HALF


@algorithm("extra", version="2", up=None, decentralised=True, proximal=True, theory=HALF)
class Extra(Points):
    """Z^{t+1} = W X^t + Z^t - (I + W)/2 X^{t-1} - gamma (G^t - G^{t-1}); X^{t+1} = prox(Z^{t+1}).

    Begins with Z^1 = W X^0 - gamma G^0. With a schedule each gradient keeps the step of its round:
    gamma_t G^t - gamma_{t-1} G^{t-1}. Without a penalty Z = X: EXTRA; with one PG-EXTRA. Exact:
    the only fixed points have all x_i = x*. Convex f_i: gamma < (1 + lambda_min(W))/L_max. Rule of thumb:
    0.5/L_max. Up: d values per neighbour. Source: Shi, Ling, Wu, Yin 2015.
    """

    def start(a, net, s, c):
        super().start(net, s, c)
        # everybody knows x^0, so W X^0 needs no message
        c.Z, c.half, c.U = c.X, c.X, zeros_like(c.X)

    def round(a, net, s, c):
        WX, U = net.mix(Dense(c.X)), a.gamma * net.grad(c.X)
        c.Z = WX + c.Z - c.half - (U - c.U)
        c.half, c.U = (c.X + WX) / 2, U
        c.X = net.prox(c.Z, a.gamma)
