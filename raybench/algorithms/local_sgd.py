"""Local steps between the rounds: Local SGD and FedAvg."""

from raybench.algorithms.base import Contractive, Dense, Integer, Number, algorithm, zeros_like
from raybench.algorithms.gd import GD


def walk(a, net, x, clients=None, pull=lambda g, y: g):
    """Return the sum of ``tau`` local gradients (B, n_here, d) along y <- y - gamma g(y) from y = x.

    It is (x - y)/gamma, y being where the client ends. pull: changes a gradient at y.
    """
    fresh = isinstance(a.batch, int)
    J = net.sample("batch", a.tau * a.batch).split(a.batch, -1) if fresh else [None] * a.tau
    y, total = x, 0.0
    for own in J:
        total = total + pull(net.grad(y, own, clients=clients), y if y.ndim == 3 else y[:, None])
        y = x[:, None] - a.gamma * total
    return total


@algorithm(
    "local_sgd",
    version="2",
    up=None,
    broadcast=Contractive,
    theory=None,
    stochastic=True,
    participation="p",
    tau=Integer(5, low=1, help="local steps per round"),
    batch=Integer("full", low=1, words=("full",), help="samples per client and local step"),
    p=Number(1.0, low=0, high=1, open_low=True, per_cell=True, help="chance to take part"),
    server=Number(1.0, low=0, open_low=True, per_cell=True, help="step of the server"),
    momentum=Number(0.0, low=0, high=0.999, per_cell=True, help="of the server (FedAvgM)"),
)
class LocalSGD(GD):
    """y_i = x; tau times y_i <- y_i - gamma g_i(y_i); x <- x + server mean_i (y_i - x).

    The mean is over those who take part, equal weights as in f; a round without any adds nothing. gamma
    is the clients' step. Momentum: v <- momentum v + mean (x - y_i), x <- x - server v. tau = 1 is
    SGD. On heterogeneous data its fixed point is not x*, by an amount that grows with gamma tau.
    Up: d values. Down: d values. Source: Stich 2019; Hsu et al. 2019.
    """

    def start(a, net, s, c):
        s.v = zeros_like(s.x)

    def round(a, net, s, c):
        S = net.participants(a.p)
        a.follow(net, s, a.mean(net, net.up(Dense(a.drift(net, s, c, S)).masked(S))))

    def follow(a, net, s, mean):
        """Step along the mean of (x - y_i)/gamma. v keeps the gamma of its rounds, as x - y_i does."""
        s.v = a.momentum * s.v + a.gamma * mean
        a.move(net, s, a.server * s.v)

    def drift(a, net, s, c, S):
        """Return (x - y_i)/gamma of the clients here."""
        return walk(a, net, s.x, S)

    def mean(a, net, got):
        """Return the mean of what participants sent."""
        return got.mean_sent()


@algorithm(
    "fedavg",
    version="2",
    up=None,
    broadcast=Contractive,
    theory=None,
    stochastic=True,
    participation="p",
)
class FedAvg(LocalSGD):
    """Local SGD whose mean weighs client i by N_i, its number of samples: sum_i N_i (y_i - x) / sum_i N_i.

    It minimises the mean over all samples, sum_i (N_i/N) f_i, which is f only where clients hold
    equally many; then it is Local SGD. Up: d values. Down: d values. Source: McMahan et al. 2017.
    """

    def mean(a, net, got):
        return got.mean_sent(net.shares)
