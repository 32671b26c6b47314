"""Local steps between the rounds: Local SGD, FedAvg, FedProx, SCAFFOLD and EF21 on what they sum up to."""

from raybench.algorithms.base import Contractive, Dense, Integer, Local, Number, algorithm, where
from raybench.algorithms.ef21 import EF21
from raybench.algorithms.gd import GD
from raybench.algorithms.parts import directions


@algorithm(
    "local_sgd",
    title="Local SGD",
    version="2",
    up=None,
    theory=None,
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

    def outer_step(a, s, g):
        # a schedule's gamma of each round stays in v, as it stays in x - y_i
        s.v = a.momentum * s.v + a.gamma * g
        return a.server * s.v


@algorithm(
    "fedavg",
    title="FedAvg",
    version="2",
    up=None,
    theory=None,
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


@algorithm(
    "fedprox",
    title="FedProx",
    version="2",
    up=None,
    theory=None,
    participation="p",
    mu=Number(0.1, low=0, per_cell=True, help="weight of the proximal term"),
)
class FedProx(LocalSGD):
    """Local SGD on f_i(y) + mu/2 ||y - x||^2: the local steps are held near x. mu = 0 is Local SGD.

    Where clients differ it ends beside x*, as Local SGD does. Up: d values. Down: d values. Source: Li et al. 2020,
    Federated Optimization in Heterogeneous Networks.
    """

    def source(a, net, s, c):
        S = net.participants(a.p)
        return a.steps(net, s, c, S, lambda g, y: g + a.mu * (y - s.x[:, None]))


@algorithm(
    "scaffold",
    version="2",
    up=None,
    theory=None,
    participation="p",
)
class Scaffold(LocalSGD):
    """Local SGD along g_i(y) - c_i + c; c_i <- mean of the client's tau gradients; c <- c + mean (new c_i - old).

    c_i estimates grad f_i, c their mean, so x* is a fixed point whatever tau and the clients'
    differences. Clients that do not take part keep c_i; the change of c is divided by n. Up: d values
    twice (the step and the change of c_i). Down: d values twice (x and c). Source: Karimireddy et al.
    2020, algorithm 1, option II.
    """

    def setup(a, wire, s, c):
        super().setup(wire, s, c)
        c.h, s.h = wire.zeros(), wire.zero()

    def round(a, net, s, c):
        S = net.participants(a.p)
        total = a.steps(net, s, c, S, lambda g, y: g - c.h + s.h[:, None])
        # the mean of the client's gradients, less its control variate c_i
        change = total / a.tau - s.h[:, None]
        steps = net.up(Dense(total).masked(S)).mean_sent()
        changes = net.up(Dense(change).masked(S)).mean()
        c.h = where(S[..., None], c.h + change, c.h)
        s.h = net.model(s.h + changes)
        a.move(net, s, a.outer_step(s, steps))


@algorithm(
    "local_ef21",
    title="Local EF21",
    up=Contractive,
    robust=True,
    theory=None,
    tau=Integer(5, low=1, help="local steps per round"),
    batch=Integer("full", low=1, words=("full",), help="samples per client and local step"),
)
class LocalEF21(EF21):
    """EF21 on what tau local steps sum up to: c_i = C((x - y_i)/gamma - g_i), y_i as in local_sgd.

    tau = 1 is EF21. Up: one message. Down: d values. No guarantee here.
    """

    presets = ("local",)

    def setup(a, wire, s, c):
        super().setup(wire, s, c)
        a.local = Local(a.tau)
