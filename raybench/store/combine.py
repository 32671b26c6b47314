"""Whole folders: two of them into one, and one into few files. Sources are never changed.

The new folder is built aside and is there as a whole or not at all: a local one is renamed from a hidden folder beside
it. An object store knows no renaming: there the shards are another folder's, which nobody counts, until the last PUT
gives the folder the id that they bear.
"""

from __future__ import annotations

import errno
import glob
import json
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from raybench.core.errors import Complaint, InputError
from raybench.store import identity, lock, log, reader
from raybench.store.accounting import Accounting, rebook
from raybench.store.files import Files, LocalFolder, reached
from raybench.store.log import OWNER, SWEEPS, Log, best, rank
from raybench.store.schema import CURVES, SIDES
from raybench.store.writer import Store, shard_name

UNFINISHED = "not whole yet"  # the id of a folder in an object store until its last file is there


def merge(
    first: reader.Source,
    second: reader.Source,
    out: reader.Source,
    meaning: identity.Meaning = identity.as_written,
) -> None:
    """Write the cells of two results folders into the empty folder ``out``.

    A cell in both is taken from the folder where it ended better (ok, diverged, pruned, failed,
    skipped), from the first where that is equal. Bits are booked as in the first folder. meaning: as in ``Store.claim``.
    Raises InputError if ``out`` holds anything, a source has no results or the problems differ.
    """
    sources = [reader.open_results(folder) for folder in (first, second)]
    sweeps = [reader.sweep(folder) for folder in (first, second)]
    wrong = []
    if all(sweeps):
        old, new = (saved.get("problem") for saved in sweeps)
        wrong = identity.problem_differs(old, new, meaning)
    if wrong:
        what = f"{sources[0].name} and {sources[1].name} hold different problems"
        raise InputError([Complaint("merge", what), *wrong])
    _combine(sources, out)


def compact(folder: reader.Source, out: reader.Source) -> None:
    """Write a results folder into the empty folder ``out`` as one shard.

    Raises InputError if ``out`` holds anything or ``folder`` has no results.
    """
    _combine([reader.open_results(folder)], out)


def _combine(sources: list[Files], out: reader.Source) -> None:
    """Write the cells of folders into an empty one, each from where it ended better, of equals the first."""
    with _built(out) as goal:
        logs = [reader.checked(source) for source in sources]
        ended = [commits.statuses() for commits in logs]
        places = range(len(sources))
        source_of = {
            cell: min((n for n in places if cell in ended[n]), key=lambda n: rank(ended[n][cell]))
            for cell in set().union(*ended)
        }
        ids = [{cell for cell, place in source_of.items() if place == n} for n in places]
        _write(goal, sources, logs, ids)
        plans = [reader.planned(source) for source in sources]
        if any(plan is not None for plan in plans):
            # a folder that has noted no plan shows all that it holds
            shown = [e if p is None else p for p, e in zip(plans, ended, strict=True)]
            goal.plan({cell for cells in shown for cell in cells})


@contextmanager
def _built(out: reader.Source) -> Iterator[Store]:
    """Yield the store of a folder that becomes ``out`` where nothing fails. Raises InputError if ``out`` holds anything."""
    files, _ = reached(out)
    _check_empty(files)
    if not isinstance(files, LocalFolder):
        with tempfile.TemporaryDirectory(prefix="raybench-") as here:
            yield Store(here)
            with lock.held(files):
                _check_empty(files)
                _upload(Path(here), files)
        return
    place = Path(os.path.realpath(files.name))  # a link that leads to an empty folder stays
    for left in map(LocalFolder, place.parent.glob(f".{glob.escape(place.name)}.{'[0-9a-f]' * 8}")):
        if left.exists(lock.PLACE) and lock.holder(left) is None:  # its merge was killed
            left.clear("")
    aside = LocalFolder(place.with_name(f".{place.name}.{uuid.uuid4().hex[:8]}"), files.disk)
    try:
        store = Store(aside.name)
        with store.held():
            yield store
        files.disk.rename(aside.root, place)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            _check_empty(files)  # somebody was quicker
        raise
    finally:
        aside.clear("")
    files.disk.sync(place.parent)


def _check_empty(files: Files) -> None:
    """Raise InputError if a folder holds anything but, in an object store, what an interrupted merge and its lease have left."""
    rest = {*files.names(""), *files.folders("")}
    if log.owner_of(files).get("folder") == UNFINISHED:
        rest -= {"sweep.yaml", "plan", "cells", "curves"}
    elif not isinstance(files, LocalFolder) and all(
        n.startswith("lock.") for n in files.names("plan")
    ):
        rest -= {"plan"}
    if rest:
        raise InputError.of("out", f"{files.name} is not empty", "give a new folder")


def _upload(here: Path, files: Files) -> None:
    """Copy a results folder into an object store: its owner last, so that its shards count at once."""
    rels = [path.relative_to(here).as_posix() for path in here.rglob("*") if path.is_file()]
    files.write(OWNER, json.dumps({"folder": UNFINISHED, "driver": ""}).encode())
    for folder in ("cells", "curves", SWEEPS):  # of a merge that was interrupted
        files.clear(folder)
    for rel in sorted(set(rels) - {OWNER}, key=lambda rel: (rel.startswith("cells/"), rel)):
        files.write(rel, (here / rel).read_bytes())
    files.write(OWNER, (here / OWNER).read_bytes())


def _write(goal: Store, sources: list[Files], logs: list[Log], ids: list[set[str]]) -> None:
    """Write the rows of ``ids[i]`` of each source as one shard, booked as the first source is.

    Failed cells stand in shards of their own, as in every folder; skipped rows keep their own file.
    """
    curves, cells = [], []
    books = [reader.accounting_of(source) for source in sources]
    how = books[0]
    for files, commits, some, book in zip(sources, logs, ids, books, strict=True):
        parts = log.each_curves(files, commits, CURVES.names, lambda table: table)
        every = pa.concat_tables([CURVES.empty_table(), *(p.cast(CURVES) for p in parts)])
        among = pa.array(sorted(some), pa.string())
        pair = [t.filter(pc.is_in(t["cell"], among)) for t in (every, commits.cells())]
        part = (pair[0], pair[1]) if book == how else _rebooked(pair[0], pair[1], how)
        curves.append(part[0])
        cells.append(part[1])
    rows = best(pa.concat_tables(cells))
    goal.own()
    sweeps = [reader.sweep_texts(source) for source in sources]
    texts = [text for files in sweeps for text in reversed(files.values())]  # the last one first
    if texts:
        goal.write("sweep.yaml", identity.with_accounting(texts[0], how))
        for text in reversed(dict.fromkeys(texts)):
            if text != texts[0]:
                goal.keep_sweep(text.encode())
    goal.skip(rows.filter(pc.equal(rows["status"], "skipped")))
    failed = rows.filter(pc.equal(rows["status"], "failed"))
    for i, cell in enumerate(failed["cell"].to_pylist()):
        goal.commit(cell, None, failed.slice(i, 1))
    rest = rows.filter(pc.invert(pc.is_in(rows["status"], pa.array(["skipped", "failed"]))))
    if len(rest):
        goal.commit(shard_name(rest["cell"].to_pylist()), pa.concat_tables(curves), rest)


def _rebooked(curves: pa.Table, cells: pa.Table, how: Accounting) -> tuple[pa.Table, pa.Table]:
    """Return the curves and cells with their bits booked by ``how``."""
    tables = [curves, cells]
    frames = rebook(curves.to_pandas(), cells.select(["cell", "value_bits"]).to_pandas(), how)
    for i, frame in enumerate(frames):
        for name in (f"bits_{side}" for side in SIDES):
            at = tables[i].column_names.index(name)
            bits = pa.array(frame[name], pa.float64(), from_pandas=True)
            tables[i] = tables[i].set_column(at, tables[i].schema.field(at), bits)
    return tables[0], tables[1]
