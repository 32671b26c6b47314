"""Communication graphs and their mixing matrices."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from raybench.errors import InputError, nearest

GRAPHS = {  # networkx's makers
    "ring": "cycle_graph",
    "path": "path_graph",
    "star": "star_graph",
    "complete": "complete_graph",
}


class Mixing(NamedTuple):
    """W (n, n), symmetric, doubly stochastic, eigenvalues in (-1, 1]; degrees (n,) without self."""

    W: Tensor
    degrees: Tensor


def mixing(name: str, n: int) -> Mixing:
    """Return Metropolis-Hastings weights of a named graph: W_ij = 1/(1 + max(deg_i, deg_j)).

    Raises InputError for an unknown name. Source: Xiao, Boyd 2004.
    """
    import networkx as nx  # half a second, and few methods need it

    if name not in GRAPHS:
        raise InputError.of("graph", f"unknown graph {name!r}", nearest(name, GRAPHS))
    graph = getattr(nx, GRAPHS[name])(n - 1 if name == "star" else n)  # a star's hub is not counted
    graph.remove_edges_from(nx.selfloop_edges(graph))
    degrees = torch.tensor([graph.degree[i] for i in range(n)], dtype=torch.float64)
    W = torch.zeros(n, n, dtype=torch.float64)
    for i, j in graph.edges:
        W[i, j] = W[j, i] = 1 / (1 + max(degrees[i], degrees[j]))
    W += torch.diag(1 - W.sum(1))
    return Mixing(W, degrees)
