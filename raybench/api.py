"""The Python side: one compressor, one cell, one sweep."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raybench import spec
from raybench.core import registry
from raybench.core.errors import InputError
from raybench.spec import sections

if TYPE_CHECKING:
    import pandas as pd

    from raybench.compressors import Compressor
    from raybench.runtime.callbacks import Callback
    from raybench.runtime.driver import Outcome

Source = str | os.PathLike[str] | Mapping[str, object]
RESULTS_FOLDER = "results"
Data = Mapping[str, object]  # data sets by name: see raybench.data.session.FORMS


def compressor(name: str, **params: object) -> Compressor:
    """Return a compressor by name: ``compressor("top_k", k=10)``, ``compressor("top_k:k=1%")``.

    It has ``compress(x, stream=)`` for x of shape (..., d), ``omega(d)`` and ``alpha(d)``, None where it is not of that
    class. Raises InputError for a wrong name or value.

    Args:
        name: such as ``top_k``, or with parameters as in a sweep file.
        params: those of a sweep file (``raybench show top_k``); k is a count, or a share as ``"1%"`` or 0.01.
    """
    section = sections.section("compressor", name, params)
    return registry.lookup("compressor", section.name).target(**section.params)


def run(
    config: Source,
    *,
    sets: Sequence[str] = (),
    plugins: Sequence[str] = (),
    params: bool = False,
    data: Data | None = None,
) -> pd.DataFrame:
    """Run one cell in this process and return its curve, one row per recorded round.

    Columns are those of ``raybench.load``. Nothing is saved. Raises InputError for bad input, for a grid, and where the
    cell makes no sense (its reason); what the method raises passes through.

    Args:
        config: a sweep file's content, or its path, with single values.
        sets: overrides such as ``problem.clients=50``.
        plugins: Python files that register methods, compressors or problems.
        params: whether the resolved configuration is joined, as columns such as ``algorithm.p``.
        data: data sets by name, as of ``sweep``.
    """
    if data:
        with tempfile.TemporaryDirectory(prefix="raybench-data-") as folder:
            return _run(_with_data(config, sets, plugins, data, Path(folder)), params)
    return _run(spec.load(_source(config), sets=sets, plugins=plugins), params)


def _run(sweep: spec.Sweep, params: bool) -> pd.DataFrame:
    from raybench import store
    from raybench.execution import rows
    from raybench.execution.costs import check_memory_and_disk
    from raybench.execution.execute import hosted
    from raybench.execution.plan import make_plan
    from raybench.execution.run import Options, Run
    from raybench.wire.transport import Transport

    if len(sweep.cells) != 1:
        fix = "give single values, or call raybench.sweep"
        raise InputError.of("run", f"this is a grid of {len(sweep.cells)} cells", fix)
    plan = make_plan(sweep)
    if plan.skipped:
        why = plan.skipped[0].why
        raise InputError.of("run", why.text, why.fix)
    check_memory_and_disk(plan, tempfile.gettempdir())
    (batch,) = plan.batches
    options = Options(sweep.record, sweep.accounting, sweep.evaluate)
    job = Run(batch, hosted(batch, Transport(), "cpu"), options)
    job.advance(job.rounds)
    curves, cells = job.tables({**rows.host_facts(), "mode": "simulate", "workers": 1})
    with tempfile.TemporaryDirectory(prefix="raybench-run-") as folder:
        store.Store(folder).commit(batch.name, curves, cells)
        return store.load(folder, params=params)


def sweep(
    config: Source,
    out: str | os.PathLike[str] | None = None,
    *,
    sets: Sequence[str] = (),
    plugins: Sequence[str] = (),
    inline: bool = False,
    address: str | None = None,
    fresh: bool = False,
    retry_failed: bool = False,
    fail_fast: bool = False,
    callbacks: Sequence[str | Callback] = (),
    data: Data | None = None,
) -> Outcome:
    """Run what is missing of a sweep and return how it ended; ``load(outcome.folder)`` reads it.

    What has ended before stays, and is not run again. Raises InputError, with nothing written, for bad input.

    Args:
        config: the path of a sweep file, or its content as a mapping.
        out: the results folder, or its URL; ``results/<name>`` by default.
        sets: overrides such as ``problem.clients=50``.
        plugins: Python files that register methods, compressors or problems.
        inline: in this process, without Ray.
        address: of a Ray cluster that is up, such as ``auto``; by default Ray is started here.
        fresh: whether the folder is emptied first.
        retry_failed: whether cells that failed are run again.
        fail_fast: whether the sweep ends at the first cell that fails.
        callbacks: names such as ``"mlflow"``, or objects of ``raybench.plugins.Callback``.
        data: data sets by name, ``{"mine": (X, y)}`` for ``dataset: mine``: (X, y), (X, y, client), a mapping of arrays
            by name, or a pandas or Polars frame with a column ``label``. They are saved as ``.npz`` in the results
            folder's ``data`` (in the data folder where results go to an object store), so that workers and later runs
            find them, and ids hold their content.
    """
    from raybench.analysis import BestSteps, frames, keep_targets
    from raybench.runtime.driver import drive

    if data:
        planned = _saved(config, sets, plugins, data, out)
    else:
        planned = spec.load(_source(config), sets=sets, plugins=plugins)
    folder = out if out is not None else Path(RESULTS_FOLDER) / planned.name
    outcome = drive(
        planned,
        folder,
        inline=inline,
        address=address,
        fresh=fresh,
        retry_failed=retry_failed,
        fail_fast=fail_fast,
        best=BestSteps(folder),
        callbacks=callbacks,
    )
    over = not outcome.interrupted and not outcome.counts.get("missing")
    if over and outcome.counts.get("ok"):
        keep_targets(frames(folder))
    return outcome


def _saved(
    config: Source,
    sets: Sequence[str],
    plugins: Sequence[str],
    data: Data,
    out: str | os.PathLike[str] | None,
) -> spec.Sweep:
    """Return the sweep with its data saved where its results go; nothing stays of bad input."""
    from raybench.data.catalogue import folder
    from raybench.spec.grid import whole
    from raybench.store.files import open_folder

    if out is None:
        out = Path(RESULTS_FOLDER) / str(whole(_source(config), sets, plugins)[0]["name"])
    open_folder(out).check()  # the data is not written through a link either
    place = folder() / "own" if "://" in os.fspath(out) else Path(out).absolute() / "data"
    try:
        return _with_data(config, sets, plugins, data, place)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError.of("out", f"{out} is a file", "give a folder") from error


def _with_data(
    config: Source, sets: Sequence[str], plugins: Sequence[str], data: Data, place: Path
) -> spec.Sweep:
    """Return the sweep that reads ``data`` from files below ``place``, where nothing stays of bad input."""
    from raybench.data import session

    absent = [folder for folder in (place, *place.parents) if not folder.exists()]
    files, new = session.save(data, place)
    try:
        planned = spec.load(_source(config), sets=sets, plugins=plugins, data=files)
        problems = [cell.problem.params.values() for cell in planned.cells]
        for name, path in files.items():
            if not any(str(path.resolve()) in values for values in problems):
                fix = f"write dataset: {name}, or test_set: {name}"
                raise InputError.of(f"data.{name}", "no problem names it", fix)
    except InputError:
        for path in new:
            path.unlink()
            path.parent.rmdir()
        for folder in absent:
            folder.rmdir()
        raise
    return planned


def _source(config: Source) -> str | Mapping[str, object] | Path:
    return config if isinstance(config, str | Mapping) else Path(config)
