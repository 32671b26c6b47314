"""What a sweep is made of: plug-ins with parameters, step sizes, and the settings that hold for all of its cells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from raybench.core import registry
from raybench.core.errors import InputError
from raybench.core.params import Choice, Flag, Integer, List, Number, Text, record


def canonical(value: object) -> str:
    """Return the one JSON text of a plain value: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, eq=False)
class Section:
    """A plug-in by name with its parameters, typed and with the defaults filled in.

    Equal and hashed by content. Shares such as ``10%`` stay text; what they amount to depends on
    the problem's message dimension.
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        """Return the section as plain JSON values."""
        return {"name": self.name, "params": dict(self.params)}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Section):
            return NotImplemented
        return self is other or self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    @cached_property
    def text(self) -> str:
        """The section's one text; params are never written to."""
        return canonical(self.config())


class CompressorForm(str):
    """A compressor as a value of a parameter: its canonical short form, and the typed section that it stands for.

    So what is typed once is not parsed again. Equal, hashed and written as text.
    """

    section: Section

    @classmethod
    def of(cls, text: str, section: Section) -> CompressorForm:
        """Return the compressor of a section whose short form is ``text``."""
        out = cls(text)
        out.section = section
        return out


@record
class StepSize:
    """A step size as requested: ``number`` times the theoretical one, or ``number`` itself.

    rule and of say whose theory: the rule and the algorithm, None for the cell's own. schedule: how the step
    changes over the rounds; warmup: rounds of linear growth first.
    """

    kind: str = Choice("theory", "value")
    number: float = Number(1.0, low=0, open_low=True)
    rule: str = Choice(
        "nonconvex", "pl", "convex", "arithmetic", "tight", "paper", "released", help="which theory"
    )
    of: str | None = Text(None, help="the algorithm whose theory is meant, the cell's own if null")
    schedule: str = Choice(
        "constant", "sqrt", "inverse", "cosine", "linear", help="factor on the step in round t"
    )
    warmup: int = Integer(0, low=0, help="rounds over which the step grows to its size")

    def config(self) -> dict[str, Any]:
        """Return the step as plain JSON values."""
        return dict(vars(self))


# How to record, what to take of the machine ------------------------------------------------------------


@record
class Record:
    """Which rounds make a row: every so many, about so many points in all, or one for so many simulated seconds.

    None given: every round, or 400 points where the method is stochastic. Raises InputError for several.
    """

    every: int | None = Integer(None, low=1, help="each so many-th round makes a row")
    points: int | None = Integer(None, low=1, help="about so many rows in all")
    clock: float | None = Number(
        None, low=0, open_low=True, help="a row as so many simulated seconds have passed"
    )

    def __post_init__(self) -> None:
        if sum(value is not None for value in vars(self).values()) > 1:
            raise InputError.of("record", "give one of every, points and clock")


@record
class Resources:
    """What a trial of the sweep takes on the machine or cluster.

    Raises InputError for a GPU and a half.
    """

    mode: str = Choice(
        "auto", "simulate", "train", help="train: worker groups of several processes"
    )
    workers: int = Integer(1, low=1, help="processes of a worker group")
    cpus_per_worker: float = Number(
        1.0, low=0, open_low=True, help="CPUs of a worker, or of a trial"
    )
    gpus_per_worker: float = Number(0.0, low=0, help="GPUs of a worker; a fraction shares one")
    timing: str = Choice("shared", "exclusive", help="exclusive: one cell at a time")

    def __post_init__(self) -> None:
        gpus = self.gpus_per_worker
        if gpus > 1 and gpus != int(gpus):
            what = f"gpus_per_worker: {gpus:g} is neither a share of a GPU nor a number of them"
            raise InputError.of("resources", what, "at most 1, or a whole number")


@record
class Evaluate:
    """What a recorded row measures: how often what is costly, and metrics besides the standard columns.

    Raises InputError for a metric that is not registered.
    """

    every: int | None = Integer(
        None, low=1, help="rounds between measures that take a pass over the data; about 50 in all"
    )
    gradient: bool | None = Flag(
        None, help="measure grad f over all samples; null: of all but networks"
    )
    loss: bool | None = Flag(
        None, help="measure f over all samples; null: but for networks with a test part"
    )
    metrics: tuple[str, ...] = List((), help="metrics by name")

    def __post_init__(self) -> None:
        for i, metric in enumerate(self.metrics):
            registry.lookup("metric", metric, f"evaluate.metrics[{i}]")


@record
class Checkpoint:
    """When cells that run long are saved, so that they go on from there."""

    every: float = Number(
        600.0, low=0, open_low=True, help="seconds between saves; shorter cells never save"
    )


@record
class Search:
    """Which steps of the grid are tried: all of them, or few at first and then more around the best."""

    step_size: str = Choice(
        "grid", "refine", help="refine: a few steps of each method, then more around the best"
    )
    start: int = Integer(5, low=2, help="how many steps of each method refine tries first")


@record
class Prune:
    """Whether hopeless steps end early: by halving, the best 1/eta of a method's steps go on at each cut.

    Raises InputError where no cut comes so late as ``first``.
    """

    rule: str = Choice("none", "halving", help="halving: of a method's steps the worse end early")
    eta: int = Integer(2, low=2, high=1000, help="at a cut one step in so many goes on")
    first: float = Number(
        0.125, low=0, open_low=True, high=1, help="share of the rounds before which nothing is cut"
    )

    least: int = Integer(2, low=1, help="how many steps of each method run to their end")

    def __post_init__(self) -> None:
        if self.first * self.eta > 1 + 1e-9:
            what = f"first: {self.first:g} is after the last cut, at 1/{self.eta} of the rounds"
            raise InputError.of("prune", what, f"first: {1 / self.eta:g} or less, or a smaller eta")

    @property
    def halves(self) -> bool:
        """Whether steps are pruned."""
        return self.rule == "halving"
