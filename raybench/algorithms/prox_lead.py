"""Prox-LEAD: decentralised, compressed, proximal."""

from raybench.algorithms.base import Unbiased, algorithm
from raybench.algorithms.diana import shift_rate
from raybench.algorithms.diffusion import HALF
from raybench.algorithms.lead import LEAD, dual_weight


@algorithm(
    "prox_lead",
    title="Prox-LEAD",
    up=Unbiased,
    decentralised=True,
    proximal=True,
    theory=HALF,
    auto={"alpha": shift_rate, "mix": dual_weight},
)
class ProxLEAD(LEAD):
    """LEAD, then X <- prox(X) of the problem's nonsmooth part at every client.

    Exact on heterogeneous, convex data; the rates ``alpha`` and ``mix`` as in LEAD. Default step:
    0.5/L_max, no theorem. Up: one message per neighbour. Source: Li et al. 2021, Decentralized
    Composite Optimization with Compression.
    """

    def round(a, net, s, c):
        super().round(net, s, c)
        c.X = net.prox(c.X, a.gamma)
