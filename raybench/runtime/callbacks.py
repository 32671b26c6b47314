"""Callbacks: what follows a sweep from its driver, such as a logger of experiments.

A callback is told of what is committed, read from the results folder, so that workers do nothing for it. Those
that raybench brings are ``mlflow``, ``tensorboard`` and ``wandb``; one of your own is a class in a file
(``my.py:MyCallback``), in a package (``package.module:MyCallback``) or an entry point of the group
``raybench.callbacks``.
"""

from __future__ import annotations

import importlib
import inspect
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raybench.core.errors import InputError, Notice, nearest
from raybench.core.registry import module_of
from raybench.store import log
from raybench.store.files import Files
from raybench.store.remote import RemoteEntry
from raybench.store.schema import CELLS, CURVES
from raybench.store.table import expand_extra

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from raybench.execution.plan import Plan

GROUP = "raybench.callbacks"
LOGGERS = {"mlflow": "MLflow", "tensorboard": "TensorBoard", "wandb": "WeightsAndBiases"}
EVERY = 2.0  # seconds between two looks at the folder
LAST_LOOKS = 10  # at shards whose files do not fit together, before these are left out


class Callback:
    """What follows a sweep; a subclass overrides what it needs. All calls come one after the other, in the driver.

    What a method raises is told once, and never ends the sweep.
    """

    def begin(self, plan: Plan, folder: str) -> None:
        """Hear that a sweep is about to run: its plan, and its results folder (a path or a URL)."""

    def cell(self, row: Mapping[str, Any], curve: pd.DataFrame) -> None:
        """Hear of a cell that this run has committed.

        row: its columns of ``cells`` (None where unknown), ``config`` its settings as JSON. curve: its
        rows of ``curves`` in the order of rounds, empty where it has none. A cell is told once.
        """

    def batch(self, shard: str, cells: Sequence[str]) -> None:
        """Hear that all cells of a shard were told of: its name, and the ids of its cells."""

    def end(self, outcome: Any) -> None:
        """Hear how it ended: the ``Outcome`` that ``raybench.sweep`` returns, None where it broke off with an error."""


def named_callbacks(names: Sequence[str | Callback]) -> list[tuple[str, Callback]]:
    """Return callbacks with their names; each given as one, or by a name as the module's docstring says.

    Raises InputError for one that there is not, or whose package is missing.
    """
    return [
        (name, _made(name)) if isinstance(name, str) else (type(name).__name__, name)
        for name in names
    ]


def _made(name: str) -> Callback:
    """Return the callback of a name. Raises InputError that says what is wrong with it."""
    points = {point.name: point for point in entry_points(group=GROUP)}
    for logger, kind in LOGGERS.items():
        points[logger] = EntryPoint(logger, f"raybench.runtime.loggers:{kind}", GROUP)
    fix = "name a class with begin, cell, end, which is called without arguments"
    try:
        kind = points[name].load() if name in points else _imported(name, points)
        if not inspect.isclass(kind):
            raise InputError.of("--callback", f"{name} is no class", fix)
        callback = kind()
    except InputError:
        raise
    except ModuleNotFoundError as error:
        what = f"{name} needs the package {error.name}, which is not installed"
        fix = f"pip install 'raybench[{name}]'" if name in LOGGERS else f"pip install {error.name}"
        raise InputError.of("--callback", what, fix) from error
    except Exception as error:
        what = f"{name} cannot be made: {type(error).__name__}: {error}"
        raise InputError.of("--callback", what, fix) from error
    if not isinstance(callback, Callback):
        fix = "derive it from raybench.plugins.Callback"
        raise InputError.of("--callback", f"{name} is no callback", fix)
    return callback


def _imported(name: str, points: Mapping[str, EntryPoint]) -> Any:
    """Return the class that ``module:Class`` or ``file.py:Class`` names. Raises InputError if it is not there."""
    place, colon, attribute = name.rpartition(":")
    path = Path(place).expanduser()
    if not colon:
        fix = f"{nearest(name, list(points))} or FILE.py:CLASS"
        raise InputError.of("--callback", f"unknown {name!r}", fix)
    if path.suffix != ".py":
        module = importlib.import_module(place)
    elif path.is_file():
        module = module_of(path, f"raybench_callback_{path.stem}")
    else:
        raise InputError.of("--callback", f"no such file: {place}", "give FILE.py:CLASS")
    if not hasattr(module, attribute):
        classes = [key for key, value in vars(module).items() if inspect.isclass(value)]
        fix = nearest(attribute, classes)
        raise InputError.of("--callback", f"{place} has no {attribute}", fix)
    return getattr(module, attribute)


class Follower:
    """Tells callbacks of the cells of a sweep as they are committed: a context around the run, then ``end``.

    A thread of the driver looks at the results folder now and then. Without callbacks, or with nothing to run, it
    does nothing. A sweep that searches plans more as it goes; the plan is the first one.
    """

    def __init__(self, callbacks: Sequence[tuple[str, Callback]], plan: Plan, files: Files) -> None:
        self.callbacks = callbacks if plan.batches else ()
        self.plan, self.files = plan, files
        self._seen: dict[str, RemoteEntry] = {}
        self._told: set[str] = set()
        self._failed: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Follower:
        if self.callbacks:
            self._seen = {entry.name: entry for entry in self.files.files_in("cells")}
            self._tell("begin", self.plan, self.files.name)
            self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self.callbacks:
            return
        self._over.set()
        self._thread.join()
        if error is not None and not isinstance(error, KeyboardInterrupt):
            self._tell("end", None)

    def end(self, outcome: Any) -> None:
        """Tell, after the context, of the cells that are left to tell of, and how the sweep ended."""
        if not self.callbacks:
            return
        for _ in range(LAST_LOOKS):
            if self._look():
                break
            time.sleep(0.05)
        self._tell("end", outcome)

    def _follow(self) -> None:
        while not self._over.wait(EVERY):
            self._look()

    def _look(self) -> bool:
        """Tell of all shards written since the last look; return whether none is left for later."""
        where = "reading results for callbacks"
        return bool(self._guarded(where, where, self._pass_on))

    def _pass_on(self) -> bool:
        torn = False
        for entry in self.files.files_in("cells"):
            if self._seen.get(entry.name) == entry or not entry.name.endswith(".parquet"):
                continue
            tables = self._read(entry.name)
            if tables is None:
                torn = True  # it is being replaced; the next look finds it whole
                continue
            self._seen[entry.name] = entry
            curves = tables[1].to_pandas().sort_values("round", kind="stable")
            ended = [row for row in tables[0].to_pylist() if row["status"] != "skipped"]
            cells = [row for row in ended if row["cell"] not in self._told]
            for row in cells:
                self._told.add(row["cell"])
                curve = curves[curves["cell"] == row["cell"]].reset_index(drop=True)
                self._tell("cell", row, curve)
            if cells:
                shard = entry.name.removesuffix(".parquet")
                self._tell("batch", shard, [row["cell"] for row in cells])
        return not torn

    def _read(self, name: str) -> tuple[pa.Table, pa.Table] | None:
        """Return the rows of a shard and of its curves, None where its files do not fit together."""
        data, curves = self.files.read(f"cells/{name}"), self.files.read(f"curves/{name}")
        with suppress(log.Unsound):
            seal, file = log.open_cells(data or b"")
            if seal.fits(curves):
                rows = log.rows(log.parquet(curves), CURVES) if curves else CURVES.empty_table()
                return log.rows(file, CELLS), expand_extra(rows)
        return None

    def _tell(self, what: str, *said: Any) -> None:
        for name, callback in self.callbacks:
            self._guarded(f"callback {name}, in {what}", name, getattr(callback, what), *said)

    def _guarded(self, where: str, once: str, call: Callable[..., Any], *said: Any) -> Any:
        """Return what a call returns; what it raises is told the first time, and the sweep goes on."""
        try:
            return call(*said)
        except (Exception, SystemExit) as error:
            if once not in self._failed:
                self._failed.add(once)
                text = f"{where}: {type(error).__name__}: {error}; the sweep goes on, told once"
                warnings.warn(text, Notice, stacklevel=2)
            return None
