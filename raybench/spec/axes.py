"""Read the axes of every case: what is multiplied out into cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from raybench.core import registry
from raybench.core.errors import Complaint
from raybench.core.facts import USUAL_SHARE, AlgorithmFacts, Role
from raybench.spec import exclude, merge, sections, settings
from raybench.spec.parts import Section, Step
from raybench.spec.sections import MAX_CELLS, Option
from raybench.spec.values import Found

OVERRIDES = ("compressor", "step_size", "downlink", "rounds")
"""Keys of the sweep that an entry of ``algorithm`` may set for itself."""


@dataclass(frozen=True)
class Method:
    """An entry of ``algorithm`` with the axes that it may override."""

    option: Option
    compressors: list[Option]
    downlinks: list[Option]
    steps: list[Step]
    rounds: list[int]

    @property
    def algorithm(self) -> Section:
        """Return the algorithm itself."""
        assert self.option.section is not None
        return self.option.section

    @property
    def facts(self) -> AlgorithmFacts:
        """Return what the method says about itself."""
        return registry.lookup("algorithm", self.algorithm.name).facts

    def compresses(self, way: str) -> bool:
        """Tell whether the method compresses ``up`` or ``down``; if not, that section is ignored."""
        return self.facts.compresses(way)

    def needs(self, way: str) -> bool:
        """Tell whether the method cannot do without an operator for that way."""
        return self.facts.role(way) is not None

    def proposal(self, way: str) -> str:
        """Return how to give the operator that is missing: its key with one of the right class."""
        key = "compressor" if way == "up" else "downlink"
        role = self.facts.role(way) or Role.ANY
        kind = "an operator" if role == Role.ANY else f"{sections.a(role)} one"
        form = f"{{name: {role.usual}, k: {USUAL_SHARE}}}"
        return f"{kind}, as {key}: {form}; raybench ls compressors lists all"


@dataclass(frozen=True)
class Grid:
    """The axes of one case."""

    problems: list[Option]
    methods: list[Method]
    graphs: list[Section]
    proxes: list[Any]
    participations: list[float]
    f_stars: list[float | None]
    iterates: list[str]
    stops: list[dict[str, float]]
    starts: list[Any]
    seeds: list[int]
    patterns: list[exclude.Pattern]
    where: str = ""
    case: Mapping[str, Any] = field(default_factory=dict)

    def blame(self, complaints: Found) -> Found:
        """Return complaints with the paths of where the user wrote the keys."""
        return [merge.blame(complaint, self.where, self.case) for complaint in complaints]

    def __len__(self) -> int:
        methods = sum(
            len(m.compressors) * len(m.downlinks) * len(m.steps) * len(m.rounds)
            for m in self.methods
        )
        shared = (self.graphs, self.proxes, self.participations, self.f_stars, self.iterates)
        rest = math.prod(len(axis) for axis in (*shared, self.stops, self.starts, self.seeds))
        return len(self.problems) * methods * rest


def read(document: Mapping[str, Any], found: Found) -> list[Grid]:
    """Return the grid of every case; complaints name the path where the user wrote the key."""
    grids = []
    for where, merged, case in merge.cases(document, found):
        wrong: Found = []
        grid = replace(_grid(merged, wrong), where=where, case=case)
        grids.append(grid)
        found.extend(grid.blame(wrong))
    size = sum(map(len, grids))
    if size > MAX_CELLS:
        found.append(Complaint("", f"the grid has {size:,} cells", f"at most {MAX_CELLS:,}"))
    return grids


def _grid(raw: Mapping[str, Any], found: Found) -> Grid:
    for key in ("problem", "algorithm"):
        if raw.get(key) is None:
            found.append(Complaint(key, "required", sections.choices(key)))
    problems = _named("problem", raw.get("problem"), found)
    common = _overridable(raw, "", found)
    methods = []
    for option in _named("algorithm", raw.get("algorithm"), found):
        own = _overridable(option.overrides, f"{option.where}.", found)
        method = Method(option, **{**common, **own})
        for way, axis in (("up", method.compressors), ("down", method.downlinks)):
            missing = [choice for choice in axis if choice.section is None]
            if missing and method.needs(way):
                key = "compressor" if way == "up" else "downlink"
                what = f"{method.algorithm.name} needs a {key}"
                found.append(Complaint(missing[0].where, what, method.proposal(way)))
        methods.append(method)
    return Grid(
        problems,
        methods,
        settings.graphs(raw.get("graph"), "graph", found),
        settings.proxes(raw.get("prox"), "prox", found),
        settings.scalars(settings.PARTICIPATION, raw.get("participation"), "participation", found),
        settings.scalars(settings.F_STAR, raw.get("f_star"), "f_star", found),
        settings.scalars(settings.ITERATE, raw.get("iterate"), "iterate", found),
        settings.stops(raw.get("stop"), "stop", found),
        [None] if raw.get("x0") is None else settings.starts(raw["x0"], "x0", found),
        settings.scalars(settings.SEED, raw.get("seed"), "seed", found),
        exclude.read(raw.get("exclude"), "exclude", found),
    )


def _overridable(raw: Mapping[str, Any], at: str, found: Found) -> dict[str, Any]:
    """Return the axes an entry of ``algorithm`` may set for itself; of the entry only those it sets."""

    def plugins(value: Any, where: str, found: Found) -> list[Option]:
        return sections.read("compressor", value, where, found)

    def rounds(value: Any, where: str, found: Found) -> list[int]:
        return settings.scalars(settings.ROUNDS, value, where, found)

    readers: dict[str, tuple[str, Callable[[Any, str, Found], list[Any]]]] = {
        "compressor": ("compressors", plugins),
        "downlink": ("downlinks", plugins),
        "step_size": ("steps", settings.steps),
        "rounds": ("rounds", rounds),
    }
    return {
        name: read_axis(raw.get(key), at + key, found)
        for key, (name, read_axis) in readers.items()
        if key in raw or not at
    }


def _named(kind: str, value: Any, found: Found) -> list[Option]:
    if value is None:
        return []
    overrides = OVERRIDES if kind == "algorithm" else ()
    out = sections.read(kind, value, kind, found, overrides=overrides)
    for option in out:
        if option.section is None:
            what = f"{sections.a(kind)} is needed"
            found.append(Complaint(option.where, what, sections.choices(kind)))
    return [option for option in out if option.section is not None]
