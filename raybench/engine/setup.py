"""Before the first round: the method with its numbers and operators, and the point it starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybench.algorithms.base import Algorithm
from raybench.compressors.base import Applied, build
from raybench.core import registry
from raybench.core.cells import PerCell
from raybench.core.clock import Clock
from raybench.core.parts import PARTS
from raybench.core.streams import Stream
from raybench.planning.batch import Resolved
from raybench.planning.operators import dims_of, own_operators, relays, unbound, uplink
from raybench.problems.base import Problem


def method_of(cells: Sequence[Resolved], problem: Problem, clock: Clock) -> Algorithm:
    """Return the method of a batch of cells: parameters, step sizes and bound operators set."""
    first = cells[0]
    entry = registry.lookup("algorithm", first.cell.algorithm.name)
    dims = dims_of(problem, first.params)
    a: Algorithm = entry.target()

    def per_cell(values: Sequence[float]) -> PerCell:
        return PerCell(torch.tensor(values, dtype=problem.dtype, device=problem.device))

    for name, value in first.params.items():
        varies = name in first.numbers
        setattr(a, name, per_cell([float(c.params[name]) for c in cells]) if varies else value)
    if type(a).batch is None and "batch" not in first.params:
        a.batch = problem.batch
    for part, kind in PARTS.items():
        given = getattr(first.cell, part)
        if given is not None:
            setattr(a, part, kind(**given))
    if a.robust is not None and a.robust.idle(problem.n):
        a.robust = None
    a.gamma = per_cell([c.step_size for c in cells])
    for name, bound in own_operators(entry, first.params, dims).items():
        setattr(a, name, Applied(bound, clock, build(first.params[name], name), problem.n))
    up, down = first.roles
    declared = unbound(uplink(first.cell, entry))
    a.C = a.Q = Applied(declared.bind(*dims, up), clock, declared, problem.n)
    a.D = None
    compressed = first.cell.downlink is not None and not relays(first.cell.downlink)
    if entry.facts.down or compressed:
        declared = unbound(first.cell.downlink)
        a.D = Applied(declared.bind(*dims, down), clock, declared, problem.n)
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
