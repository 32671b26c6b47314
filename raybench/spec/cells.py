"""The keys of a sweep file, each declared once: those that make a cell, and those of the whole sweep.

A requested cell (``Cell``) is what a sweep file asks for before any data is read, one typed object per
cell. A new key is one field of ``Cell`` or ``Sweep``; see ``raybench.spec.keys``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raybench.core import registry
from raybench.core.errors import InputError
from raybench.core.facts import AlgorithmFacts, ProblemFacts
from raybench.core.parts import Delay, Local, Outer, Robust, Train
from raybench.core.registry import Choice, Flag, Integer, Number, Param, Text
from raybench.spec.keys import (
    Clocked,
    Graphs,
    Groups,
    ParameterTable,
    Plugin,
    Prox,
    Scalar,
    Start,
    StepSizeKey,
    closed,
    key,
    keys_of,
    param_schema,
)
from raybench.spec.model import (
    Checkpoint,
    Evaluate,
    Prune,
    Record,
    Resources,
    Search,
    Section,
    StepSize,
)
from raybench.spec.sections import COLLECTIVE, Kind, Schema, mapping
from raybench.spec.values import Complaints, show
from raybench.store import accounting
from raybench.store.accounting import Accounting

MOST_ROUNDS = 10**12
STOP_PARAMS: Mapping[str, Param] = {
    "grad_norm_sq": Number(None, low=0, help="stop at or below"),
    "loss": Number(None, help="stop at or below"),
    "suboptimality": Number(None, low=0, help="stop at or below"),
    "bits_up": Number(None, low=0, open_low=True, help="stop at or above, per client"),
    "bits_down": Number(None, low=0, open_low=True, help="stop at or above"),
    "seconds": Number(None, low=0, open_low=True, help="stop at or above"),
    "clock": Number(None, low=0, open_low=True, help="stop at or above, seconds of the clock"),
}


def _has_server(problem: ProblemFacts, method: AlgorithmFacts) -> bool:
    return not method.decentralised and not method.vertical


def _part(part: type, text: str) -> Any:
    """Return the key of a part of a round that an entry of ``algorithm`` may set for itself."""
    params = vars(part)["__params__"]
    return key(
        ParameterTable(params),
        text,
        override=True,
        heard=_has_server,
        ignored="has no server to step",
    )


@dataclass(frozen=True, slots=True)  # a sweep may have 100,000 of them
class Cell:
    """One requested cell. Cells of a grid come in the order of the fields, step and seed fastest.

    id: 16 hex digits, a hash of the content: typed values, defaults left out, the ``version`` of every
    plug-in, the source hash of a user's plug-in file, and the content of data files in place of their
    paths; the same on every machine, however the file is written. group: the same without seed and step.
    compressor and downlink are None where the algorithm sends dense messages, graph where it has a
    server. x0: ``zeros``, ``problem``, ``{"normal": scale}`` or the path of an ``.npy`` file. stop:
    thresholds by column name. prox: None so far.
    """

    id: str
    group: str
    problem: Section = key(
        Plugin("problem"), "what is minimised, and over which clients", required=True
    )
    algorithm: Section = key(Plugin("algorithm"), "the method", required=True)
    compressor: Section | None = key(
        Plugin("compressor", optional=True, beside=COLLECTIVE),
        "the compressor for messages to the server; none leaves them dense",
        override=True,
        heard=lambda problem, method: method.compresses("up"),
        needs=lambda method: None if method.dense else method.up,
    )
    groups: Sequence[Mapping[str, str]] | None = key(
        Groups(),
        "compressors of tensors by their names; `compressor` is that of all others",
        heard=lambda problem, method: method.compresses("up"),
        ignored="compresses nothing on the way up",
    )
    downlink: Section | None = key(
        Plugin("compressor", optional=True),
        "the compressor for messages from the server; none leaves them dense",
        override=True,
        heard=lambda problem, method: method.compresses("down"),
        ignored="compresses nothing on the way down",
        needs=lambda method: method.down,
    )
    local: Mapping[str, Any] | None = _part(
        Local, "what clients do between messages: steps of an inner optimizer"
    )
    outer: Mapping[str, Any] | None = _part(
        Outer, "the outer optimizer, which steps along what the server estimates"
    )
    delay: Mapping[str, Any] | None = _part(Delay, "how late the server steps")
    robust: Mapping[str, Any] | None = _part(
        Robust, "Byzantine clients, and the rule by which the server resists them"
    )
    train: Mapping[str, Any] | None = key(
        ParameterTable(vars(Train)["__params__"], idle=True),
        "how the gradients of a network are taken, and what is kept of it",
        override=True,
        heard=lambda problem, method: problem.trained,
        ignored="trains no network on such a problem",
    )
    graph: Section | None = key(
        Graphs("graph"),
        "who talks to whom, for decentralised methods",
        heard=lambda problem, method: method.decentralised,
        in_every_id=True,
    )
    clock: Mapping[str, Any] | None = key(
        Clocked(),
        "simulated clients: what their gradients and messages take, for the column clock_seconds",
    )
    prox: Mapping[str, float] | None = key(
        Prox(Choice("none")), "a problem's nonsmooth term is its regularizer, for example l1"
    )
    participation: float = key(
        Scalar(Number(1.0, low=0, high=1, open_low=True)),
        "probability that a client joins a round",
    )
    f_star: float | None = key(
        Scalar(Number(None)), "minimum of f, where it is known and the problem does not know it"
    )
    iterate: str = key(
        Scalar(Choice("last", "average", "weighted")), "the point at which f is recorded"
    )
    stop: Mapping[str, float] = key(
        ParameterTable(STOP_PARAMS, sparse=True),
        "thresholds at which a cell ends before its last round",
        in_every_id=True,
    )
    x0: Any = key(
        Start(Text(None, tags={"normal": Number(low=0, open_low=True)})),
        "zeros, problem (the problem's own start), {normal: scale}, or an .npy file",
        usual=lambda problem, method: problem.x0,
    )
    rounds: int = key(
        Scalar(Integer(1000, low=1, high=MOST_ROUNDS)),
        "rounds of a cell",
        override=True,
        in_every_id=True,
    )
    step: StepSize = key(
        StepSizeKey(),
        "step sizes, or multiples of the theoretical one",
        name="step_size",
        override=True,
        in_every_id=True,
    )
    seed: int = key(
        Scalar(Integer(0, low=0)),
        "drives the algorithm and x0",
        in_group=False,
        in_every_id=True,
    )

    def __hash__(self) -> int:
        return hash(self.id)

    def config(self) -> dict[str, Any]:
        """Return everything that makes the cell as plain JSON values, defaults written out."""
        return {
            name: entry.kind.plain(getattr(self, entry.field))
            for name, entry in keys_of(Cell).items()
        }


# Settings of a whole sweep: one value each, no axes, no part of a cell's id -------------------------


@dataclass(frozen=True)
class SettingsGroup(Kind):
    """A mapping of settings, held by a record class (``raybench.core.params.record``).

    either: settings of which one takes the place of another. short: the setting that may stand for the
    mapping, as in ``prune: halving``.
    """

    record: Any
    either: tuple[str, ...] = ()
    short: str = ""

    @property
    def fields(self) -> Mapping[str, Param]:
        """The settings, by name."""
        return getattr(self.record, "__params__", {})

    def absent(self) -> Any:
        return self.record()

    def long_form(self, value: object) -> object:
        return {self.short: value} if self.short and isinstance(value, str) else value

    def read(self, value: object, where: str, complaints: Complaints) -> Any:
        return self.record(**mapping(self.fields, self.long_form(value), where))

    def schema(self) -> Schema:
        said = (self.record.__doc__ or "").split("\n")[0]
        parts = {name: param_schema(param, axis=False) for name, param in self.fields.items()}
        whole = {**closed(parts), "description": said}
        return {"anyOf": [parts[self.short], whole]} if self.short else whole


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class FolderName(Scalar):
    """A name that a folder may have."""

    def read(self, value: object, where: str, complaints: Complaints) -> str | None:
        name: str | None = super().read(value, where, complaints)
        if name is not None and not _NAME.fullmatch(name):
            fix = "letters, digits, '.', '_' and '-', at most 100, beginning with a letter or digit"
            raise InputError.of(where, f"{show(name)} cannot name a folder", fix)
        return name

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^{_NAME.pattern}$"}


@dataclass(frozen=True)
class PluginFiles(Kind):
    """Paths of Python files with plug-ins, which are loaded as they are read."""

    def absent(self) -> tuple[str, ...]:
        return ()

    def read(self, value: object, where: str, complaints: Complaints) -> tuple[str, ...]:
        files: list[Any] = value if isinstance(value, list) else [value]
        for file in files:
            try:
                registry.load_plugin(file)
            except InputError as error:
                complaints.extend(error.complaints)
        return tuple(map(str, files))

    def schema(self) -> Schema:
        text = {"type": "string"}
        ways = [text, {"type": "array", "items": text}]
        return {"anyOf": ways, "default": [], "runs_code": True}


@dataclass(frozen=True)
class Booking(Kind):
    """How counts become bits: a preset, or a mapping (``raybench.store.accounting``)."""

    def absent(self) -> Accounting:
        return Accounting()

    def read(self, value: Any, where: str, complaints: Complaints) -> Accounting:
        return accounting.parse_accounting(value)

    def schema(self) -> Schema:
        params = vars(Accounting)["__params__"].items()
        parts = {name: param_schema(param, axis=False) for name, param in params}
        preset = {"type": "string", "description": "a preset such as paper:ef21"}
        return {"anyOf": [preset, closed({"preset": {"enum": [*accounting.PRESETS]}, **parts})]}


@dataclass(frozen=True)
class Sweep:
    """A sweep file, read: its cells in grid order with unique ids, and how they are to be run.

    notes: merged duplicates and exclusions that match nothing. excluded: how many cells the
    exclusions took out. code: what runs code that is not raybench's. text: the normalised YAML, with absolute paths and
    every ``--set`` applied; loading it gives the same cells.
    """

    cells: tuple[Cell, ...]
    notes: tuple[str, ...]
    excluded: int
    code: tuple[str, ...]
    text: str
    source: str
    name: str = key(FolderName(Text(), is_axis=False), "results go to results/NAME")
    plugins: tuple[str, ...] = key(PluginFiles(), "Python files with plug-ins of one's own")
    record: Record = key(
        SettingsGroup(Record, either=("every", "points", "clock")), "which rounds make a row"
    )
    accounting: Accounting = key(Booking(), "how messages become bits")
    resources: Resources = key(SettingsGroup(Resources), "what a trial takes")
    evaluate: Evaluate = key(
        SettingsGroup(Evaluate), "what is measured besides the standard columns"
    )
    checkpoint: Checkpoint = key(SettingsGroup(Checkpoint), "when cells that run long are saved")
    timeout: float | None = key(
        Scalar(Number(None, low=0, open_low=True), is_axis=False), "seconds of a cell"
    )
    attempts: int = key(Scalar(Integer(2, low=1), is_axis=False), "how often a cell is tried")
    search: Search = key(SettingsGroup(Search), "which steps of the grid are tried")
    prune: Prune = key(SettingsGroup(Prune, short="rule"), "whether hopeless steps end early")
    allow_unproven: bool = key(
        Scalar(Flag(), is_axis=False), "run pairs without theory too, instead of skipping them"
    )
