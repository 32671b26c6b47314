"""Whole folders: two of them into one, and one into few files. Sources are never changed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raybench.core.errors import Complaint, InputError
from raybench.store import identity, reader
from raybench.store.files import Files
from raybench.store.scan import RANK, best_status, read_folder
from raybench.store.schema import CELLS, CURVES, stamped
from raybench.store.writer import Store, shard_name


def merge(first: reader.Source, second: reader.Source, out: reader.Source) -> None:
    """Write the cells of two results folders into the empty folder ``out``.

    A cell in both is taken from the folder where it ended better (ok, diverged, pruned, failed,
    skipped), from the first where that is equal.
    Raises InputError if ``out`` holds anything, a source has no results or the problems differ.
    """
    sources = [reader.open_results(folder) for folder in (first, second)]
    sweeps = [reader.sweep(folder) for folder in (first, second)]
    wrong = identity.problem_differs(*(s.get("problem") for s in sweeps)) if all(sweeps) else []
    if wrong:
        what = f"{sources[0].name} and {sources[1].name} hold different problems"
        raise InputError([Complaint("merge", what), *wrong])
    goal = _empty(out)
    taken = [best_status(read_folder(s, "cells", CELLS, ["cell", "status"])) for s in sources]
    own = {c for c, s in taken[0].items() if c not in taken[1] or not _better(taken[1][c], s)}
    _write(goal, sources, [own, set(taken[1]) - own])


def compact(folder: reader.Source, out: reader.Source) -> None:
    """Write a results folder into the empty folder ``out`` as one shard.

    Raises InputError if ``out`` holds anything or ``folder`` has no results.
    """
    source = reader.open_results(folder)
    goal = _empty(out)
    _write(goal, [source], [set(best_status(read_folder(source, "cells", CELLS)))])


def _better(status: str, other: str) -> bool:
    return RANK.index(status) < RANK.index(other)


def _empty(out: reader.Source) -> Store:
    store = Store(out)
    if any(store.files.names(folder) for folder in ("", "cells", "curves")):
        raise InputError.of("out", f"{store.folder} is not empty", "give a new folder")
    return store


def _write(goal: Store, sources: list[Files], ids: list[set[str]]) -> None:
    """Write the rows of ``ids[i]`` of each source as one shard; skipped rows keep their own file."""
    cells = pa.concat_tables(
        [_rows(s, "cells", CELLS, wanted) for s, wanted in zip(sources, ids, strict=True)]
    )
    curves = pa.concat_tables(
        [_rows(s, "curves", CURVES, wanted) for s, wanted in zip(sources, ids, strict=True)]
    )
    rank = pc.index_in(cells["status"], pa.array(RANK))
    order = pc.sort_indices(pa.table({"rank": rank}), [("rank", "ascending")])
    cells = cells.take(order)
    first = np.unique(cells["cell"].to_numpy(), return_index=True)[1]
    cells = cells.take(pa.array(np.sort(first)))
    text = next((t for s in sources if (t := s.read("sweep.yaml")) is not None), None)
    if text is not None:
        goal.files.write("sweep.yaml", text)
    skipped = pc.equal(cells["status"], "skipped")
    goal.skip(cells.filter(skipped).cast(stamped(CELLS)))
    rest = cells.filter(pc.invert(skipped))
    if len(rest):
        shard = shard_name(rest["cell"].to_pylist())
        goal.commit(shard, curves.cast(stamped(CURVES)), rest.cast(stamped(CELLS)))


def _rows(files: Files, folder: str, schema: pa.Schema, ids: set[str]) -> pa.Table:
    table = read_folder(files, folder, schema)
    return table.filter(pc.is_in(table["cell"], pa.array(sorted(ids), pa.string())))
