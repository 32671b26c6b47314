"""From batches to the columns of the results: what identifies a cell, where it ran, how it ended."""

from __future__ import annotations

import json
import platform
import socket
import subprocess
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raybench.core import registry
from raybench.execution.batch import Batch, Resolved
from raybench.spec import Cell
from raybench.store import CELLS, CURVES, to_table


def requested(cell: Cell) -> dict[str, Any]:
    """Return the columns that the request alone decides."""
    problem, compressor = cell.problem.params, cell.compressor
    split = problem.get("split")
    params = None if compressor is None else json.dumps(dict(compressor.params), sort_keys=True)
    method = registry.lookup("algorithm", cell.algorithm.name).facts
    return {
        "cell": cell.id,
        "group": cell.group,
        "problem": cell.problem.name,
        "dataset": problem.get("dataset"),
        "clients": problem.get("clients"),
        "split": json.dumps(split) if isinstance(split, Mapping) else split,
        "algorithm": cell.algorithm.name,
        "compressor": None if compressor is None else compressor.name,
        "compressor_params": params,
        "downlink": None if cell.downlink is None else cell.downlink.name,
        "step_multiple": cell.step.number if cell.step.kind == "theory" else None,
        "seed": cell.seed,
        "on_clock": cell.clock is not None,
        "baseline": method.baseline and (compressor is None or compressor.name == "identity"),
        "config": json.dumps(cell.config(), sort_keys=True),
    }


def own_plugins(cell: Cell) -> list[dict[str, Any]]:
    """Return the plug-ins of a cell that do not come with raybench; source: hash of its file, if it has one."""
    named = [("problem", cell.problem), ("algorithm", cell.algorithm)]
    named += [("compressor", part) for part in (cell.compressor, cell.downlink) if part is not None]
    pairs = dict.fromkeys((kind, part.name) for kind, part in named)
    plugins = []
    for entry in (registry.lookup(*pair) for pair in pairs):
        if entry.ours:
            continue
        facts = ("kind", "name", "version", "source")
        plugins.append({name: getattr(entry, name) for name in facts})
        title = getattr(entry.facts, "title", None)
        if title:  # so that whoever reads the results without the file sees the same names
            plugins[-1]["title"] = title
    return plugins


def resolved(cell: Resolved) -> dict[str, Any]:
    """Return the columns of a resolved cell."""
    numbers = {name: getattr(cell, name) for name in ("step_size", "basis", "k")}
    config = {**cell.cell.config(), "resolved": {**numbers, "algorithm": dict(cell.params)}}
    plugins = own_plugins(cell.cell)
    if plugins:
        config["plugins"] = plugins
    names = ("label", "k", "step_size", "theory_step", "omega", "alpha")
    return {
        **requested(cell.cell),
        "config": json.dumps(config, sort_keys=True),
        **{name: getattr(cell, name) for name in names},
    }


def _columns(rows: Iterable[Mapping[str, object]]) -> dict[str, list[Any]]:
    rows = list(rows)
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


CURVE_FACTS = CURVES.names[: CURVES.names.index("seed") + 1]  # what identifies a curve


def curve_facts(batch: Batch) -> dict[str, np.ndarray]:
    """Return the columns that identify each curve, (B, 1) each."""
    columns = _columns(resolved(cell) for cell in batch.cells)
    columns["clients"] = [batch.facts.get("clients")] * len(batch.cells)
    return {name: np.array(columns[name], object)[:, None] for name in CURVE_FACTS}


def cell_table(batch: Batch, ending: Mapping[str, object]) -> pa.Table:
    """Return the cells rows of a batch, given how it ended (scalars, or arrays over the cells)."""
    columns = {
        **_columns(resolved(cell) for cell in batch.cells),
        **batch.facts,
        "batch": batch.name,
        "batch_cells": len(batch.cells),
        "attempts": batch.attempts + 1,
        **ending,
    }
    return to_table(columns, CELLS)


def failed_table(cell: Resolved, batch: Batch, error: str, host: Mapping[str, object]) -> pa.Table:
    """Return the row of a cell that raised."""
    alone = Batch((cell,), batch.attempts, batch.facts)
    return cell_table(alone, {**host, "status": "failed", "error": error})


def skipped_table(cells: Iterable[tuple[Cell, str, str]]) -> pa.Table:
    """Return the rows of skipped cells from (cell, label, reason)."""
    rows = [
        {**requested(cell), "label": label, "status": "skipped", "reason": reason}
        for cell, label, reason in cells
    ]
    return to_table(_columns(rows), CELLS) if rows else CELLS.empty_table()


@lru_cache(maxsize=1)
def host_facts() -> dict[str, Any]:
    """Return the columns of the machine and the software."""
    return {
        "host": socket.gethostname(),
        "git_commit": _git_commit(),
        "python_version": platform.python_version(),
        **{f"{name}_version": version(name) for name in ("raybench", "ray", "torch")},
    }


def _git_commit() -> str | None:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # raybench was installed, not run from its repository
        return None
    try:
        process = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip() or None
