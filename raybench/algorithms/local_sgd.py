"""Local steps between the rounds: Local SGD and FedAvg."""

from raybench.algorithms.base import Contractive, Dense, Integer, Local, Number, algorithm
from raybench.algorithms.gd import GD
from raybench.algorithms.local_work import directions


@algorithm(
    "local_sgd",
    version="2",
    up=None,
    broadcast=Contractive,
    blocks=True,
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

    in_steps = True

    def setup(a, wire, s, c):
        s.v = wire.zero()

    def source(a, net, s, c):
        return a.steps(net, s, c, net.participants(a.p))

    def steps(a, net, s, c, clients, change=lambda g, y: g):
        """Return the sum of the tau local gradients, each changed at y, along y <- y - gamma g(y)."""
        return directions(Local(a.tau), net, s, c, a.batch, a.gamma, clients, change)

    def estimate(a, wire, s, c, grad):
        return wire.up(Dense(grad).masked(wire.participants(a.p))).mean_sent()

    def along(a, s, g):
        # a schedule's gamma of each round stays in v, as it stays in x - y_i
        s.v = a.momentum * s.v + a.gamma * g
        return a.server * s.v


@algorithm(
    "fedavg",
    version="2",
    up=None,
    broadcast=Contractive,
    blocks=True,
    theory=None,
    stochastic=True,
    participation="p",
)
class FedAvg(LocalSGD):
    """Local SGD whose mean weighs client i by N_i, its number of samples: sum_i N_i (y_i - x) / sum_i N_i.

    It minimises the mean over all samples, sum_i (N_i/N) f_i, which is f only where clients hold
    equally many; then it is Local SGD. Up: d values. Down: d values. Source: McMahan et al. 2017.
    """

    def start(a, net, s, c):
        super().start(net, s, c)
        s.shares = net.oracle.shares.expand(len(s.x), -1)

    def estimate(a, wire, s, c, grad):
        return wire.up(Dense(grad).masked(wire.participants(a.p))).mean_sent(s.shares)
