"""Patterns that take cells out of a grid: a cell is excluded where every key of a pattern matches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raybench.core.errors import Complaint, InputError, nearest
from raybench.core.registry import Param
from raybench.spec import document
from raybench.spec.cells import Cell
from raybench.spec.keys import AxisKey
from raybench.spec.kinds import Scalar, Sections, Table
from raybench.spec.parts import canonical
from raybench.spec.sections import options
from raybench.spec.steps import STEP
from raybench.spec.values import Found, show

# sections in which a parameter without a section's name is looked up
_BARE = ("algorithm", "compressor", "problem", "graph")
_STEPS: Mapping[str, Param] = {
    "step": STEP["value"],
    "step.theory": STEP["theory"],
    "step.value": STEP["value"],
}
_ALIASES = {"step_size": "step.value", "step_multiple": "step.theory"}


def _sections() -> dict[str, Sections]:
    """Return the keys that name a section, such as a plug-in, with their kind."""
    axes = document.axes().items()
    return {name: key.kind for name, key in axes if isinstance(key.kind, Sections)}


def _tables() -> dict[str, AxisKey]:
    """Return the keys whose values have parameters."""
    tables = (Sections, Table)
    return {name: key for name, key in document.axes().items() if isinstance(key.kind, tables)}


def _plain() -> dict[str, Scalar]:
    """Return the keys that are numbers or words, with their kind."""
    axes = document.axes().items()
    return {name: key.kind for name, key in axes if isinstance(key.kind, Scalar)}


@dataclass(frozen=True)
class Pattern:
    """One entry of ``exclude``: raw values by key, dotted where a section is named."""

    where: str
    raw: Mapping[str, Any]
    _seen: dict[tuple[str, int], set[str]] = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        return show(dict(self.raw), bare=True)

    def matches(self, cell: Cell) -> bool:
        """Tell whether every key of the pattern matches the cell."""
        return all(self._match(key, cell) for key in self.raw)

    def _match(self, key: str, cell: Cell) -> bool:
        if key in _STEPS:
            fits = key in ("step", f"step.{cell.step.kind}")
            return fits and self._accepts(key, _STEPS[key], cell.step.number)
        axes = document.axes()
        if key in axes:
            kind, value = axes[key].kind, getattr(cell, axes[key].field)
            if isinstance(kind, Scalar):
                return self._accepts(key, kind.param, kind.spelled(value))
            wanted = self.raw[key] if isinstance(self.raw[key], list) else [self.raw[key]]
            name = None if value is None else value.name
            return name in [None if one == "none" else one for one in wanted]
        head, dot, inner = key.partition(".")
        name = inner or key
        for part in [head] if dot else _BARE:
            kind, value = axes[part].kind, getattr(cell, axes[part].field)
            held = kind.settings(value)
            if name in held:
                return self._accepts(key, kind.params(value)[name], held[name])
        return False

    def _accepts(self, key: str, param: Param, value: object) -> bool:
        at = (key, id(param))
        if at not in self._seen:
            self._seen[at] = set(map(canonical, _wanted(param, self.raw[key], key, [])))
        return canonical(value) in self._seen[at]


def read(value: object, where: str, found: Found) -> list[Pattern]:
    """Return the patterns of an ``exclude`` key: a list of mappings, or a single one."""
    if value is None:
        return []
    out = []
    for i, item in enumerate(value if isinstance(value, list) else [value]):
        at = f"{where}[{i}]" if isinstance(value, list) else where
        if isinstance(item, Mapping) and item:
            out.append(Pattern(at, _flat(item)))
        else:
            what = f"expected a mapping, not {show(item)}"
            found.append(Complaint(at, what, "for example {algorithm: diana, k: 1}"))
    return out


def _flat(raw: Mapping[str, object]) -> dict[str, object]:
    """Return the pattern with nested mappings dotted and the names of the step's keys unified."""
    out: dict[str, Any] = {}
    for key, value in raw.items():
        if key in ("step", "step_size") and isinstance(value, Mapping):
            out.update({f"step.{kind}": number for kind, number in value.items()})
        elif key in _tables() and isinstance(value, Mapping):
            out.update({key if k == "name" else f"{key}.{k}": v for k, v in value.items()})
        else:
            out[_ALIASES.get(key, key)] = value
    return out


def check(patterns: Iterable[Pattern], cells: Sequence[Cell], found: Found) -> None:
    """Complain about keys that no cell has, unknown names, and values that no parameter takes."""
    known: dict[str, list[Param]] = {}
    for name, param in _params(cells):
        known.setdefault(name, []).append(param)
    sections, plain = _sections(), _plain()
    for pattern in patterns:
        for key, value in pattern.raw.items():
            at = f"{pattern.where}.{key}"
            if key in sections:
                _names(sections[key], value, at, found)
            elif key in plain or key in _STEPS:
                _wanted(_STEPS[key] if key in _STEPS else plain[key].param, value, at, found)
            elif key in known:
                tries: list[Found] = []
                for param in known[key]:
                    tries.append([])
                    _wanted(param, value, at, tries[-1])
                if all(tries):
                    found.extend(tries[0])
            else:
                names = [*sections, *plain, *_STEPS, *known]
                found.append(Complaint(at, "unknown key", nearest(key, names)))


def _params(cells: Sequence[Cell]) -> Iterator[tuple[str, Param]]:
    """Yield the parameters that patterns may name, as ``compressor.k`` and, where that is enough, ``k``."""
    for name, key in _tables().items():
        values = [getattr(cell, key.field) for cell in cells]
        # one value for each name
        every = {getattr(v, "name", ""): v for v in values if v is not None}
        for value in every.values():
            for inner, param in key.kind.params(value).items():
                yield f"{name}.{inner}", param
                if name in _BARE:
                    yield inner, param


def _names(kind: Sections, value: object, where: str, found: Found) -> None:
    """Complain about names of sections that there are none of."""
    for name in value if isinstance(value, list) else [value]:
        if name is None or name == "none":
            continue
        try:
            kind.check_name(name if isinstance(name, str) else show(name), where)
        except InputError as error:
            found.extend(error.complaints)


def _wanted(param: Param, value: object, where: str, found: Found) -> list[object]:
    """Return the values a pattern accepts; for a list-valued parameter a flat list is one value."""
    if param.kind == "list" and isinstance(value, list):
        nested = value and all(isinstance(item, list) for item in value)
        value = value if nested else [value]
    return options(param, value, where, found)
