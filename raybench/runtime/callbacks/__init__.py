"""Callbacks: what follows a sweep from its driver, such as a logger of experiments.

A callback is told of what is committed, read from the results folder, so that workers do nothing for it. Those
that raybench brings are ``mlflow``, ``tensorboard`` and ``wandb``; one of your own is a class in a file
(``my.py:MyCallback``), in a package (``package.module:MyCallback``) or an entry point of the group
``raybench.callbacks``.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raybench.core.errors import InputError, nearest
from raybench.core.registry import module_of

if TYPE_CHECKING:
    import pandas as pd

    from raybench.execution.plan import Plan

GROUP = "raybench.callbacks"
BUILTIN = tuple(
    EntryPoint(name, f"raybench.runtime.callbacks.loggers:{kind}", GROUP)
    for name, kind in (
        ("mlflow", "MLflow"),
        ("tensorboard", "TensorBoard"),
        ("wandb", "WeightsAndBiases"),
    )
)


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


def opened(names: Sequence[str | Callback]) -> list[tuple[str, Callback]]:
    """Return callbacks with their names; each given as one, or by a name as the module's docstring says.

    Raises InputError for one that there is not, or whose package is missing.
    """
    return [
        (name, _made(name)) if isinstance(name, str) else (type(name).__name__, name)
        for name in names
    ]


def _made(name: str) -> Callback:
    """Return the callback of a name. Raises InputError that says what is wrong with it."""
    points = {point.name: point for point in (*entry_points(group=GROUP), *BUILTIN)}
    fix = "name a class with begin, cell, end, which is called without arguments"
    try:
        kind = points[name].load() if name in points else _imported(name, points)
        callback = kind() if inspect.isclass(kind) else None
    except InputError:
        raise
    except ModuleNotFoundError as error:
        what = f"{name} needs the package {error.name}, which is not installed"
        brought = name in {point.name for point in BUILTIN}
        fix = f"pip install 'raybench[{name}]'" if brought else f"pip install {error.name}"
        raise InputError.of("--callback", what, fix) from error
    except Exception as error:
        what = f"{name} cannot be made: {type(error).__name__}: {error}"
        raise InputError.of("--callback", what, fix) from error
    if callback is None:
        raise InputError.of("--callback", f"{name} is no class", fix)
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
