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
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raybench.core.errors import InputError, nearest
from raybench.core.registry import module_of

if TYPE_CHECKING:
    import pandas as pd

    from raybench.execution.plan import Plan

BUILTIN = {
    "mlflow": "raybench.runtime.callbacks.mlflow:MLflow",
    "tensorboard": "raybench.runtime.callbacks.tensorboard:TensorBoard",
    "wandb": "raybench.runtime.callbacks.wandb:WeightsAndBiases",
}
GROUP = "raybench.callbacks"


class Callback:
    """What follows a sweep; a subclass overrides what it needs. All calls come one after the other, in the driver.

    What a method raises is told once, and never ends the sweep.
    """

    def begin(self, plan: Plan, folder: str) -> None:
        """Hear that a sweep is about to run: its plan, and its results folder (a path or a URL)."""

    def cell(self, row: Mapping[str, Any], curve: pd.DataFrame) -> None:
        """Hear of a cell that this run has committed.

        row: its columns of ``cells`` (None where unknown); ``params_of(row)`` are its settings. curve: its
        rows of ``curves`` in the order of rounds, empty where it has none. A cell is told once.
        """

    def batch(self, shard: str, cells: Sequence[str]) -> None:
        """Hear that all cells of a shard were told of: its name, and the ids of its cells."""

    def end(self, outcome: Any) -> None:
        """Hear how it ended: the ``Outcome`` that ``raybench.sweep`` returns, None where it broke off with an error."""


def params_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a cell on one level: ``algorithm.name``, ``compressor.k``, ``problem.dataset``."""
    from raybench.store.reader import flatten

    return {key: value for key, value in flatten(row["config"]).items() if value is not None}


def finals_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the last values of a cell that are known numbers."""
    names = (
        "loss",
        "grad_norm_sq",
        "best_grad_norm_sq",
        "accuracy",
        "bits_up",
        "bits_down",
        "seconds",
    )
    return {name: float(row[name]) for name in names if row[name] is not None}


def curves_of(curve: pd.DataFrame) -> dict[str, tuple[list[int], list[float]]]:
    """Return what a curve measures, each as (bits sent per client up to there, values), without what is unknown."""
    found = {}
    for name in ("loss", "grad_norm_sq", "suboptimality", "accuracy", "test_loss"):
        known = curve[curve[name].notna() & curve["bits_up"].notna()]
        if len(known):
            bits = known["bits_up"].round().astype("int64").tolist()
            found[name] = (bits, known[name].astype(float).tolist())
    return found


def opened(names: Sequence[str | Callback]) -> list[tuple[str, Callback]]:
    """Return callbacks with their names; each given as one, or by a name as the module's docstring says.

    Raises InputError for one that there is not, or whose package is missing.
    """
    return [
        (name, _made(name)) if isinstance(name, str) else (type(name).__name__, name)
        for name in names
    ]


def _made(name: str) -> Callback:
    known = {point.name: point for point in entry_points(group=GROUP)}
    try:
        if name in BUILTIN:
            kind = _imported(BUILTIN[name])
        elif name in known:
            kind = known[name].load()
        elif ":" in name:
            kind = _imported(name)
        else:
            fix = f"{nearest(name, [*BUILTIN, *known])} or FILE.py:CLASS"
            raise InputError.of("--callback", f"unknown {name!r}", fix)
    except ModuleNotFoundError as error:
        what = f"{name} needs the package {error.name}, which is not installed"
        fix = f"pip install 'raybench[{name}]'" if name in BUILTIN else f"pip install {error.name}"
        raise InputError.of("--callback", what, fix) from error
    if not inspect.isclass(kind):
        raise InputError.of(
            "--callback", f"{name} is no class", "name a class with begin, cell, end"
        )
    try:
        made = kind()
    except Exception as error:
        what = f"{name} cannot be made: {type(error).__name__}: {error}"
        raise InputError.of("--callback", what, "its class is called without arguments") from error
    if not isinstance(made, Callback):
        what = f"{name} is no callback"
        fix = "derive it from raybench.plugins.Callback"
        raise InputError.of("--callback", what, fix)
    return made


def _imported(name: str) -> Any:
    """Return the class that ``module:Class`` or ``file.py:Class`` names. Raises InputError if it is not there."""
    place, _, attribute = name.rpartition(":")
    if place.endswith(".py"):
        path = Path(place).expanduser()
        if not path.is_file():
            raise InputError.of("--callback", f"no such file: {place}", "give FILE.py:CLASS")
        try:
            module = module_of(path, f"raybench_callback_{path.stem}")
        except ModuleNotFoundError:
            raise
        except Exception as error:
            what = f"{place} cannot be read: {type(error).__name__}: {error}"
            raise InputError.of("--callback", what) from error
    else:
        module = importlib.import_module(place)
    if not hasattr(module, attribute):
        classes = [n for n, thing in vars(module).items() if inspect.isclass(thing)]
        raise InputError.of(
            "--callback", f"{place} has no {attribute}", nearest(attribute, classes)
        )
    return getattr(module, attribute)
