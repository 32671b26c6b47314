"""FedProx: local steps held near the server's model."""

from raybench.algorithms.base import Contractive, Number, algorithm
from raybench.algorithms.local_sgd import LocalSGD


@algorithm(
    "fedprox",
    version="2",
    up=None,
    broadcast=Contractive,
    blocks=True,
    theory=None,
    stochastic=True,
    participation="p",
    mu=Number(0.1, low=0, per_cell=True, help="weight of the proximal term"),
)
class FedProx(LocalSGD):
    """Local SGD on f_i(y) + mu/2 ||y - x||^2: the local steps are held near x. mu = 0 is Local SGD.

    Up: d values. Down: d values. Source: Li et al. 2020, Federated Optimization in Heterogeneous
    Networks.
    """

    def source(a, net, s, c):
        S = net.participants(a.p)
        return a.steps(net, s, c, S, lambda g, y: g + a.mu * (y - s.x[:, None]))
