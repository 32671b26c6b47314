"""From sections of a cell to what they stand for: compressors, bound in their roles, and graphs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from raybench.algorithms.base import Algorithm
from raybench.algorithms.build import Dims, assembled
from raybench.compressors import Compressor, FittedCompressor, Role
from raybench.compressors.dense import Identity
from raybench.compressors.per_tensor import PerPart, PerTensor
from raybench.core import registry
from raybench.core.cells import PerCell
from raybench.core.counts import ALL_TO_ALL, GATHER, Clock
from raybench.core.errors import InputError, nearest
from raybench.core.layout import Layout
from raybench.core.limits import need_memory
from raybench.core.parts import PARTS
from raybench.core.streams import Stream
from raybench.execution.batch import Resolved
from raybench.problems.base import Problem
from raybench.spec import Cell, Section
from raybench.spec.sections import GRAPHS, grained
from raybench.wire.neighbours import Mixing

if TYPE_CHECKING:
    from networkx import Graph


def unbound(section: Section | None) -> Compressor:
    """Return the compressor of a compressor section as declared; None is the identity.

    With ``groups``, tensors whose names match have compressors of their own. By ``collective:
    all_to_all`` it acts on a part of the vector for every client.
    """
    if section is None:
        return Identity()
    entry = registry.lookup("compressor", section.name)
    params = {name: value for name, value in section.params.items() if name in entry.params}
    compressor: Compressor = entry.target(**params)
    if isinstance(compressor, PerTensor) and "groups" in section.params:
        groups = tuple((group["match"], group["compressor"]) for group in section.params["groups"])
        compressor = replace(compressor, groups=groups)
    return PerPart(compressor) if collective_of(section) == ALL_TO_ALL else compressor


def collective_of(section: Section | None) -> str:
    """Return how the messages of a compressor section become a mean: gathered unless it says so."""
    if section is None or "collective" in registry.lookup("compressor", section.name).params:
        return GATHER
    return str(section.params.get("collective", GATHER))


def fitted(section: Section | None, d: int, n: int, layout: Layout, role: Role) -> FittedCompressor:
    """Return the bound compressor of a compressor section; None is the identity."""
    return _fitted(section, (d, n, layout), role, registry.state())


@lru_cache(maxsize=1024)  # cells of a plan differ in steps and seeds most of all
def _fitted(
    section: Section | None, dims: Dims, role: Role, state: tuple[int, int]
) -> FittedCompressor:
    return unbound(section).bind(*dims, role)


def uplink(cell: Cell, entry: registry.Entry) -> Section | None:
    """Return the uplink compressor's section: the method's ``own`` compressor where it is bound to one.

    With groups of tensors the cell's compressor acts on every tensor that is in none of them.
    """
    fixed = entry.facts.own
    if fixed is not None:
        return Section(fixed, {})
    if cell.groups is None or cell.compressor is None:
        return cell.compressor
    base, how = cell.compressor, collective_of(cell.compressor)
    if base.name != "per_tensor":
        plain = {name: value for name, value in base.params.items() if name != "collective"}
        base = grained(Section(base.name, plain), "tensor")
    options = {} if how == GATHER else {"collective": how}
    return Section("per_tensor", {**base.params, "groups": cell.groups, **options})


def dims_of(problem: Problem, params: Mapping[str, Any]) -> Dims:
    """Return what compressors are bound to: the length of a method's messages, the clients, and the layout.

    params: the method's, of which a minibatch may decide the length. Raises InputError where it does not fit.
    """
    layout = problem.message_layout(params.get("batch"))
    return layout.dim, problem.n, layout


@lru_cache(maxsize=64)  # all cells of a plan ask for the same few compressors
def graph_of(section: Section | None, n: int) -> Mixing:
    """Return the graph of n clients that a graph section names, a ring by default."""
    graph = section or Section("ring", {})
    return mixing(graph.name, n, graph.params)


def relays(section: Section | None) -> bool:
    """Return whether a downlink section says that the server passes on the sum of what it receives."""
    return unbound(section).relay


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

    values = dict(params or {})
    graph = _graph(nx, name, n, values)
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    degrees = torch.tensor([graph.degree[i] for i in range(n)], dtype=torch.float64)
    W = torch.zeros(n, n, dtype=torch.float64)
    same = values.get("weights", "metropolis") == "laplacian"
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


def method_of(cells: Sequence[Resolved], problem: Problem, clock: Clock) -> Algorithm:
    """Return the method of a batch of cells: parameters, step sizes and bound compressors set."""
    first = cells[0]
    entry = registry.lookup("algorithm", first.cell.algorithm.name)
    dims = dims_of(problem, first.params)

    def per_cell(values: Sequence[float]) -> PerCell:
        return PerCell(torch.tensor(values, dtype=problem.dtype, device=problem.device))

    def bound(section: Section | None, role: Role) -> tuple[Compressor, FittedCompressor]:
        declared = unbound(section)
        return declared, declared.bind(*dims, role)

    numbers = {
        name: per_cell([float(cell.params[name]) for cell in cells]) for name in first.numbers
    }
    up, down = first.roles
    compressed = first.cell.downlink is not None and not relays(first.cell.downlink)
    server = bound(first.cell.downlink, down) if entry.facts.down or compressed else None
    uplink_of = bound(uplink(first.cell, entry), up)
    a = assembled(entry, first.params, numbers, uplink_of, server, dims, clock)
    a.gamma = per_cell([cell.step_size for cell in cells])
    if type(a).batch is None and "batch" not in first.params:
        a.batch = problem.batch
    for part, kind in PARTS.items():
        setting = getattr(first.cell, part)
        if setting is not None:
            setattr(a, part, kind(**setting))
    if a.robust is not None and a.robust.idle(problem.n):
        a.robust = None
    return a


def start_of(x0: str | Mapping[str, Any], problem: Problem, roots: Stream) -> Tensor:
    """Return x^0 of every cell, (B, d): zeros, the problem's own, a file's, or normal draws per seed."""
    if isinstance(x0, Mapping):
        return (roots.fold("x0").normal(problem.dim) * float(x0["normal"])).to(problem.dtype)
    if x0 == "zeros":
        x = torch.zeros(problem.dim, dtype=problem.dtype, device=problem.device)
    elif x0 == "problem":
        x = problem.start()
    else:
        x = torch.as_tensor(np.load(x0, allow_pickle=False)).to(problem.dtype)
        x = x.to(problem.device).reshape(problem.dim)
    return x.expand(len(roots.root), -1).clone()
