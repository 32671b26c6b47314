"""Read the axes of every case: what is multiplied out into cells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from raybench.core import registry
from raybench.core.errors import Complaint
from raybench.core.facts import USUAL_SHARE, AlgorithmFacts, Role
from raybench.spec import document, exclude, merge, sections
from raybench.spec.keys import AxisKey
from raybench.spec.kinds import Plugin
from raybench.spec.parts import Section
from raybench.spec.sections import MAX_CELLS, Option
from raybench.spec.values import Found

Axes = Mapping[str, list[Option]]  # the options of an axis, by its key


@dataclass(frozen=True)
class Method:
    """An entry of ``algorithm`` with the axes that it may set for itself, its own or the sweep's."""

    section: Section
    axes: Axes

    @property
    def facts(self) -> AlgorithmFacts:
        """What the method says about itself."""
        return registry.lookup("algorithm", self.section.name).facts


@dataclass(frozen=True)
class Grid:
    """The axes of one case: problems, methods with their own axes, and those all have in common."""

    problems: list[Section]
    methods: list[Method]
    axes: Axes
    patterns: list[exclude.Pattern]
    where: str = ""
    case: Mapping[str, Any] = field(default_factory=dict)

    def blame(self, complaints: Found) -> Found:
        """Return complaints with the paths of where the user wrote the keys."""
        return [merge.blame(complaint, self.where, self.case) for complaint in complaints]

    def of(self, method: Method) -> Axes:
        """Return every axis of a method's cells, by key, in the order of the grid."""
        both = {**self.axes, **method.axes}
        return {name: both[name] for name in document.axes() if name in both}

    def __len__(self) -> int:
        methods = sum(math.prod(map(len, self.of(m).values())) for m in self.methods)
        return len(self.problems) * methods


def read(raw: Mapping[str, object], found: Found) -> list[Grid]:
    """Return the grid of every case; complaints name the path where the user wrote the key."""
    grids = []
    for where, merged, case in merge.cases(raw, found):
        wrong: Found = []
        grid = replace(_grid(merged, wrong), where=where, case=case)
        grids.append(grid)
        found.extend(grid.blame(wrong))
    size = sum(map(len, grids))
    if size > MAX_CELLS:
        found.append(Complaint("", f"the grid has {size:,} cells", f"at most {MAX_CELLS:,}"))
    return grids


def _grid(raw: Mapping[str, object], found: Found) -> Grid:
    keys = document.axes()
    for name, key in keys.items():
        if key.required and raw.get(name) is None:
            found.append(Complaint(name, "required", sections.choices(name)))
    problems = _named("problem", raw, found)
    rest = [name for name, key in keys.items() if not key.required]
    own = document.overrides()
    common = {name: read_axis(keys[name], raw.get(name), name, found) for name in rest}
    methods = []
    for option in _named("algorithm", raw, found):
        axes = {
            name: read_axis(keys[name], value, f"{option.where}.{name}", found)
            for name, value in option.overrides.items()
        }
        method = Method(option.value, {name: axes.get(name, common[name]) for name in own})
        methods.append(method)
        _lacking(method, found)
    shared = {name: axis for name, axis in common.items() if name not in own}
    patterns = exclude.read(raw.get("exclude"), "exclude", found)
    return Grid([option.value for option in problems], methods, shared, patterns)


def read_axis(key: AxisKey, value: object, where: str, found: Found) -> list[Option]:
    """Return the points of a key's axis: a single one, its default, where it is not given."""
    if value is None:
        return [Option(key.kind.absent(), where)]
    return key.kind.read(value, where, found)


def _named(name: str, raw: Mapping[str, object], found: Found) -> list[Option]:
    if raw.get(name) is None:
        return []
    kind = document.axes()[name].kind
    if name == "algorithm":
        kind = Plugin("algorithm", overrides=tuple(document.overrides()))
    return kind.read(raw[name], name, found)


def _lacking(method: Method, found: Found) -> None:
    """Complain where a method is given none of an operator that it cannot do without."""
    for name, axis in method.axes.items():
        needs = document.axes()[name].needs
        role = None if needs is None else needs(method.facts)
        missing = [option for option in axis if option.value is None]
        if role is not None and missing:
            what = f"{method.section.name} needs a {name}"
            found.append(Complaint(missing[0].where, what, _proposal(name, role)))


def _proposal(name: str, role: Role) -> str:
    """Return how to give the operator that is missing: its key with one of the right class."""
    one = "an operator" if role == Role.ANY else f"{sections.a(role)} one"
    form = f"{{name: {role.usual}, k: {USUAL_SHARE}}}"
    return f"{one}, as {name}: {form}; raybench ls compressors lists all"
