"""Patterns that take cells out of a grid: a cell is excluded where every key of a pattern matches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raybench.core import registry
from raybench.core.errors import Complaint, InputError, nearest
from raybench.core.registry import Param
from raybench.spec import settings
from raybench.spec.cells import Cell
from raybench.spec.parts import Section, canonical
from raybench.spec.sections import options
from raybench.spec.values import Found, show

_KINDS = {
    "problem": "problem",
    "algorithm": "algorithm",
    "compressor": "compressor",
    "downlink": "compressor",
}
_SECTIONS = (*_KINDS, "graph")
_ORDER = ("algorithm", "compressor", "problem", "graph")  # where a bare parameter is looked up
_PLAIN: dict[str, Param] = {
    "seed": settings.SEED,
    "rounds": settings.ROUNDS,
    "participation": settings.PARTICIPATION,
    "x0": settings.X0,
    "step": settings.STEP["value"],
    "step.theory": settings.STEP["theory"],
    "step.value": settings.STEP["value"],
}
_ALIASES = {"step_size": "step.value", "step_multiple": "step.theory"}


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
        if key in _SECTIONS:
            section = getattr(cell, key)
            value = self.raw[key]
            wanted = value if isinstance(value, list) else [value]
            return (None if section is None else section.name) in [
                None if name == "none" else name for name in wanted
            ]
        if key in _PLAIN:
            if key.startswith("step"):
                fits = key in ("step", f"step.{cell.step.kind}")
                return fits and self._accepts(key, _PLAIN[key], cell.step.number)
            return self._accepts(key, _PLAIN[key], getattr(cell, key))
        head, dot, inner = key.partition(".")
        name = inner or key
        for part in [head] if dot else _ORDER:
            section = getattr(cell, part)
            if section is not None and name in section.params:
                param = _params(part, section)[name]
                return self._accepts(key, param, section.params[name])
        return False

    def _accepts(self, key: str, param: Param, value: Any) -> bool:
        at = (key, id(param))
        if at not in self._seen:
            self._seen[at] = set(map(canonical, _wanted(param, self.raw[key], key, [])))
        return canonical(value) in self._seen[at]


def read(value: Any, where: str, found: Found) -> list[Pattern]:
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


def _flat(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pattern with nested mappings dotted and the names of the step's keys unified."""
    out: dict[str, Any] = {}
    for key, value in raw.items():
        if key in _SECTIONS and isinstance(value, Mapping):
            out.update({key if k == "name" else f"{key}.{k}": v for k, v in value.items()})
        elif key in ("step", "step_size") and isinstance(value, Mapping):
            out.update({f"step.{kind}": number for kind, number in value.items()})
        else:
            out[_ALIASES.get(key, key)] = value
    return out


def check(patterns: Iterable[Pattern], cells: Sequence[Cell], found: Found) -> None:
    """Complain about keys that no cell has, unknown names, and values that no parameter takes."""
    known: dict[str, list[Param]] = {}
    parts = {(name, part.name): part for cell in cells for name, part in _parts(cell)}
    for (name, _), section in parts.items():
        for key, param in _params(name, section).items():
            known.setdefault(f"{name}.{key}", []).append(param)
            if name in _ORDER:
                known.setdefault(key, []).append(param)
    for pattern in patterns:
        for key, value in pattern.raw.items():
            at = f"{pattern.where}.{key}"
            if key in _SECTIONS:
                _names(key, value, at, found)
            elif key in _PLAIN:
                _wanted(_PLAIN[key], value, at, found)
            elif key in known:
                tries: list[Found] = []
                for param in known[key]:
                    tries.append([])
                    _wanted(param, value, at, tries[-1])
                if all(tries):
                    found.extend(tries[0])
            else:
                names = [*_SECTIONS, *_PLAIN, *known]
                found.append(Complaint(at, "unknown key", nearest(key, names)))


def _parts(cell: Cell) -> list[tuple[str, Section]]:
    return [(name, part) for name in _SECTIONS if (part := getattr(cell, name)) is not None]


def _names(key: str, value: Any, where: str, found: Found) -> None:
    for name in value if isinstance(value, list) else [value]:
        text = name if isinstance(name, str) else show(name)
        if name is None or name == "none" or (key == "graph" and text in settings.GRAPHS):
            continue
        try:
            if key == "graph":
                raise InputError.of(
                    where, f"unknown graph {text!r}", nearest(text, settings.GRAPHS)
                )
            registry.lookup(_KINDS[key], text, where)
        except InputError as error:
            found.extend(error.complaints)


def _params(name: str, section: Section) -> Mapping[str, Param]:
    if name == "graph":
        return settings.GRAPHS[section.name]
    return registry.lookup(_KINDS[name], section.name).params


def _wanted(param: Param, value: Any, where: str, found: Found) -> list[Any]:
    """Return the values a pattern accepts; for a list-valued parameter a flat list is one value."""
    if param.kind == "list" and isinstance(value, list):
        nested = value and all(isinstance(item, list) for item in value)
        value = value if nested else [value]
    return options(param, value, where, found)
