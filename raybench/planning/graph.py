"""Communication graphs and their mixing matrices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from raybench.core.capacity import need_memory
from raybench.core.errors import InputError, nearest
from raybench.spec.cells import GRAPHS
from raybench.wire.neighbours import Mixing

if TYPE_CHECKING:
    from networkx import Graph


def mixing(name: str, n: int, params: Mapping[str, object] | None = None) -> Mixing:
    """Return the mixing matrix of a named graph of n clients.

    grid, torus: the most nearly square a x b = n. erdos_renyi: each edge with probability p,
    drawn anew from the seed until connected. exponential: i and i + 2^j mod n are neighbours.
    weights: metropolis, W_ij = 1/(1 + max(deg_i, deg_j)); or laplacian, W = I - Laplacian/(1 + max deg).
    Raises InputError for an unknown name, and where 100 random graphs are not connected.
    Source: Xiao, Boyd 2004.
    """
    fewer = "fewer problem.clients, or a method with a server"
    need_memory(8 * n**2, f"mixing weights of {n:,} x {n:,} clients", fewer, "graph")
    import networkx as nx  # takes half a second to import, and few methods need it

    given = dict(params or {})
    graph = _graph(nx, name, n, given)
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    degrees = torch.tensor([graph.degree[i] for i in range(n)], dtype=torch.float64)
    W = torch.zeros(n, n, dtype=torch.float64)
    same = given.get("weights", "metropolis") == "laplacian"
    for i, j in graph.edges:
        largest = degrees.max() if same else max(degrees[i], degrees[j])
        W[i, j] = W[j, i] = 1 / (1 + largest)
    W += torch.diag(1 - W.sum(1))
    return Mixing(W, degrees)


def _graph(nx: ModuleType, name: str, n: int, given: Mapping[str, Any]) -> Graph:
    if name not in GRAPHS:
        raise InputError.of("graph", f"unknown graph {name!r}", nearest(name, GRAPHS))
    if name == "star":
        return nx.star_graph(n - 1)  # networkx does not count the hub
    if name in ("grid", "torus"):
        a = next(a for a in range(math.isqrt(n), 0, -1) if n % a == 0)
        grid = nx.grid_2d_graph(a, n // a, periodic=name == "torus")
        return nx.convert_node_labels_to_integers(grid, ordering="sorted")
    if name == "exponential":
        hops = [2**j for j in range(max(1, (n - 1).bit_length()))]
        return nx.circulant_graph(n, [h for h in hops if h < n]) if n > 1 else nx.empty_graph(1)
    if name == "erdos_renyi":
        p, seed = float(given.get("p", 0.5)), int(given.get("seed", 0))
        for trial in range(100):
            graph = nx.gnp_random_graph(n, p, seed=1000 * seed + trial)
            if nx.is_connected(graph):
                return graph
        raise InputError.of("graph.p", f"{p:g} leaves {n} clients unconnected", "a larger p")
    makers = {"ring": nx.cycle_graph, "path": nx.path_graph, "complete": nx.complete_graph}
    return makers[name](n)
