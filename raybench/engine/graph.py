"""Communication graphs and their mixing matrices."""

from __future__ import annotations

from typing import NamedTuple

import networkx as nx
import torch
from torch import Tensor

from raybench.errors import InputError, nearest

GRAPHS = {
    "ring": nx.cycle_graph,
    "path": nx.path_graph,
    "star": lambda n: nx.star_graph(n - 1),
    "complete": nx.complete_graph,
}


class Mixing(NamedTuple):
    """W (n, n), symmetric, doubly stochastic, eigenvalues in (-1, 1]; degrees (n,) without self."""

    W: Tensor
    degrees: Tensor


def mixing(name: str, n: int) -> Mixing:
    """Return Metropolis-Hastings weights of a named graph: W_ij = 1/(1 + max(deg_i, deg_j)).

    Raises InputError for an unknown name. Source: Xiao, Boyd 2004.
    """
    if name not in GRAPHS:
        raise InputError.of("graph", f"unknown graph {name!r}", nearest(name, GRAPHS))
    graph = GRAPHS[name](n)
    graph.remove_edges_from(nx.selfloop_edges(graph))
    degrees = torch.tensor([graph.degree[i] for i in range(n)], dtype=torch.float64)
    W = torch.zeros(n, n, dtype=torch.float64)
    for i, j in graph.edges:
        W[i, j] = W[j, i] = 1 / (1 + max(degrees[i], degrees[j]))
    W += torch.diag(1 - W.sum(1))
    return Mixing(W, degrees)
