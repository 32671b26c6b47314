"""Clients that talk to their neighbours: Choco-SGD and gossip, EXTRA, gradient tracking."""

from raybench.algorithms.base import (
    Contractive,
    Dense,
    Integer,
    Number,
    Points,
    algorithm,
    theory,
    zeros_like,
)
from raybench.algorithms.diffusion import HALF


def weight(k: theory.Setting) -> float:
    """Return alpha/(2 - alpha): 1 without compression, half of alpha for coarse compressors."""
    return k.need("alpha") / (2 - k.need("alpha"))


@algorithm(
    "gossip",
    title="gossip",
    up=Contractive,
    decentralised=True,
    theory=HALF,
    auto={"mix": weight},
    mix=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
)
class Gossip(Points):
    """v_i = x_i - gamma u_i; h_i <- h_i + C(v_i - h_i); x_i <- v_i + mix sum_j W_ij (h_j - h_i).

    u_i = grad f_i(x^0) in the first round and 0 afterwards: the clients agree on the mean of their
    first gradient steps, which never changes. Without compression X <- W X, and the disagreement falls
    by max(|lambda_2|, |lambda_n|) a round. ``mix`` = auto is alpha/(2 - alpha): it converged on every
    graph tried; twice as much diverged for Rand-K. Up: one message per neighbour. Source: Koloskova, Stich,
    Jaggi 2019, CHOCO-Gossip (whose own ``mix`` depends on the graph and is far smaller).
    """

    def start(a, net, s, c):
        super().start(net, s, c)
        c.H, c.Hw = c.X.clone(), c.X.clone()  # everybody knows x^0: no message is needed

    def direction(a, net, c):
        return net.grad(c.X) if net.t == 1 else zeros_like(c.X)

    def round(a, net, s, c):
        v = c.X - a.gamma * a.direction(net, c)
        m = a.C(v - c.H, net.stream("up"))
        c.H += m.decode()
        c.Hw += net.mix(m)
        c.X = v + a.mix * (c.Hw - c.H)


@algorithm(
    "choco_sgd",
    up=Contractive,
    decentralised=True,
    theory=HALF,
    auto={"mix": weight},
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class ChocoSGD(Gossip):
    """Gossip with u_i = grad f_i(x_i), of ``batch`` samples, in every round.

    Bias O(gamma) as diffusion, of which it is the compressed form: equal to it without compression.
    Rule of thumb: 0.5/L_max. Up: one message per neighbour. Source: Koloskova, Stich, Jaggi
    2019, CHOCO-SGD.
    """

    def direction(a, net, c):
        return a.gradient(net, c.X)


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


@algorithm("gradient_tracking", title="gradient tracking", up=None, decentralised=True, theory=HALF)
class GradientTracking(Points):
    """X <- V (X - gamma Y); Y <- V (Y + G(X) - G(X^old)), V = (I + W)/2, Y^0 = G(X^0).

    mean Y = mean G in every round; exact. V in place of W: on a graph whose W has eigenvalues near -1
    (expanders) steps of order 1/L would diverge. Rule of thumb: 0.5/L_max. Up: two messages of d values
    per neighbour. Source: Xu, Zhu, Soh, Xie 2015 (the adapt-then-combine form).
    """

    def start(a, net, s, c):
        super().start(net, s, c)
        c.G = c.Y = net.grad(c.X)

    def round(a, net, s, c):
        def average(v):
            return (v + net.mix(Dense(v))) / 2

        c.X = average(c.X - a.gamma * c.Y)
        G = net.grad(c.X)
        c.Y, c.G = average(c.Y + G - c.G), G
