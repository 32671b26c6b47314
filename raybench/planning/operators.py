"""From sections of a cell to what they stand for: operators, bound in their roles, and graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from raybench.compressors import Bound, Compressor, Role
from raybench.compressors.base import build, named
from raybench.compressors.dense import Identity
from raybench.compressors.per_tensor import PerPart, PerTensor
from raybench.core import registry
from raybench.core.layout import Layout
from raybench.planning.graph import mixing
from raybench.problems.base import Problem
from raybench.spec import Cell, Section
from raybench.spec.sections import grained
from raybench.wire.collectives import ALL_TO_ALL, GATHER
from raybench.wire.neighbours import Mixing


def unbound(section: Section | None) -> Compressor:
    """Return the operator of a compressor section as declared; None is the identity.

    With ``groups``, tensors whose names match have operators of their own. By ``collective:
    all_to_all`` it acts on a part of the vector for every client.
    """
    if section is None:
        return Identity()
    entry = registry.lookup("compressor", section.name)
    own: Compressor = entry.target(**{k: v for k, v in section.params.items() if k in entry.params})
    if isinstance(own, PerTensor) and "groups" in section.params:
        pairs = tuple((one["match"], one["compressor"]) for one in section.params["groups"])
        own = replace(own, groups=pairs)
    return PerPart(own) if collective_of(section) == ALL_TO_ALL else own


def collective_of(section: Section | None) -> str:
    """Return how the messages of a compressor section become a mean: gathered unless it says so."""
    if section is None or "collective" in registry.lookup("compressor", section.name).params:
        return GATHER
    return str(section.params.get("collective", GATHER))


def operator(section: Section | None, d: int, n: int, layout: Layout, role: Role) -> Bound:
    """Return the bound operator of a compressor section; None is the identity."""
    return _operator(section, (d, n, layout), role, registry.state())


@lru_cache(maxsize=1024)  # cells of a plan differ in steps and seeds most of all
def _operator(
    section: Section | None, dims: tuple[int, int, Layout], role: Role, state: tuple[int, int]
) -> Bound:
    return unbound(section).bind(*dims, role)


def uplink(cell: Cell, entry: registry.Entry) -> Section | None:
    """Return the uplink operator's section: the method's ``own`` operator where it is bound to one.

    With groups of tensors the cell's operator acts on every tensor that is in none of them.
    """
    own = entry.facts.own
    if own is not None:
        return Section(own, {})
    if cell.groups is None or cell.compressor is None:
        return cell.compressor
    base, how = cell.compressor, collective_of(cell.compressor)
    if base.name != "per_tensor":
        plain = {name: value for name, value in base.params.items() if name != "collective"}
        base = grained(Section(base.name, plain), "tensor")
    told = {} if how == GATHER else {"collective": how}
    return Section("per_tensor", {**base.params, "groups": cell.groups, **told})


def own_operators(
    entry: registry.Entry, params: Mapping[str, Any], dims: tuple[int, int, Layout]
) -> dict[str, Bound]:
    """Return the bound operators that a method has as parameters, by name.

    ``operators`` of its decorator gives their roles. Raises InputError where one cannot play its role.
    """
    roles = entry.facts.operators
    out = {}
    for name, param in entry.params.items():
        if param.kind == "operator":
            role = roles.get(name, Role.ANY)
            with named(f"algorithm.{name}"):
                out[name] = build(params[name], name).bind(*dims, role)
    return out


def dims_of(problem: Problem, params: Mapping[str, Any]) -> tuple[int, int, Layout]:
    """Return what operators are bound to: the length of a method's messages, the clients, and the layout.

    params: the method's, of which a minibatch may decide the length. Raises InputError where it does not fit.
    """
    layout = problem.message_layout(params.get("batch"))
    return layout.dim, problem.n, layout


@lru_cache(maxsize=64)  # all cells of a plan ask for the same few operators
def graph_of(section: Section | None, n: int) -> Mixing:
    """Return the graph of n clients that a graph section names, a ring by default."""
    asked = section or Section("ring", {})
    return mixing(asked.name, n, asked.params)


def relays(section: Section | None) -> bool:
    """Return whether a downlink section says that the server passes on the sum of what it receives."""
    return unbound(section).relay
