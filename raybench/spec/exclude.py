"""Patterns that take cells out of a grid: a cell is excluded where every key of a pattern matches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raybench import registry
from raybench.errors import Complaint, InputError, nearest
from raybench.registry import Param
from raybench.spec import settings
from raybench.spec.cells import Cell, Section, canonical
from raybench.spec.values import Found, options, show, tidy

_KINDS = {
    "problem": "problem",
    "algorithm": "algorithm",
    "compressor": "compressor",
    "downlink": "compressor",
}
_ORDER = ("algorithm", "compressor", "problem", "graph")  # where a bare parameter is looked up
_PLAIN: dict[str, Param] = {
    "seed": settings.SEED,
    "rounds": settings.ROUNDS,
    "participation": settings.PARTICIPATION,
    "step": settings.STEP["value"],
}


@dataclass(frozen=True)
class Pattern:
    """One entry of ``exclude``: raw values by key, dotted where it says which section is meant."""

    where: str
    raw: Mapping[str, Any]

    def matches(self, cell: Cell) -> bool:
        """Tell whether every key of the pattern matches the cell."""
        return all(_matches(key, value, cell) for key, value in self.raw.items())


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
    """Return the pattern with nested sections dotted and ``step_size`` as ``step``."""
    out: dict[str, Any] = {}
    for key, value in raw.items():
        if key in (*_KINDS, "graph") and isinstance(value, Mapping):
            for inner, v in value.items():
                out[key if inner == "name" else f"{key}.{inner}"] = v
        elif key in ("step", "step_size") and isinstance(value, Mapping):
            out.update({f"step.{kind}": number for kind, number in value.items()})
        else:
            out["step" if key in ("step_size", "step_multiple") else key] = value
    return out


def check(patterns: Iterable[Pattern], cells: Sequence[Cell], found: Found) -> None:
    """Complain about keys that no cell has, unknown names, and values that no parameter takes."""
    known: dict[str, dict[str, Param]] = {}
    for cell in cells:
        for name, section in _sections(cell).items():
            for key, param in _params(name, section).items():
                at = f"{section.name}.{key}"
                known.setdefault(f"{name}.{key}", {})[at] = param
                if name in _ORDER:
                    known.setdefault(key, {})[at] = param
    fixed = [*_KINDS, "graph", "x0", *_PLAIN, "step.theory", "step.value"]
    for pattern in patterns:
        for key, value in pattern.raw.items():
            at = f"{pattern.where}.{key}"
            if key in _KINDS:
                _names(_KINDS[key], value, at, found)
            elif key in ("step.theory", "step.value") or key in _PLAIN:
                options(_PLAIN[key.split(".")[0]], value, at, found)
            elif key in known:
                tries: list[Found] = []
                for param in known[key].values():
                    tries.append([])
                    _wanted(param, value, at, tries[-1])
                if all(tries):
                    found.extend(tries[0])
            elif key not in fixed:
                names = [*fixed, *known]
                found.append(Complaint(at, "unknown key", nearest(key, names)))


def _names(kind: str, value: Any, where: str, found: Found) -> None:
    for name in value if isinstance(value, list) else [value]:
        if name is None or name == "none":
            continue
        try:
            registry.lookup(kind, name if isinstance(name, str) else show(name), where)
        except InputError as error:
            found.extend(error.complaints)


def _sections(cell: Cell) -> dict[str, Section]:
    names = (*_KINDS, "graph")
    return {name: part for name in names if (part := getattr(cell, name)) is not None}


def _params(name: str, section: Section) -> Mapping[str, Param]:
    if name == "graph":
        return settings.GRAPHS[section.name]
    return registry.lookup(_KINDS[name], section.name).params


def _wanted(param: Param, value: Any, where: str, found: Found) -> list[Any]:
    if param.kind == "list" and isinstance(value, list):
        nested = value and all(isinstance(item, list) for item in value)
        return [[tidy(v) for v in item] for item in (value if nested else [value])]
    return options(param, value, where, found)


def _matches(key: str, value: Any, cell: Cell) -> bool:
    sections = _sections(cell)
    if key in _KINDS or key == "graph":
        name = sections[key].name if key in sections else None
        wanted = value if isinstance(value, list) else [value]
        return name in [None if w == "none" else w for w in wanted]
    if key in ("step.theory", "step.value") and key != f"step.{cell.step.kind}":
        return False
    if key.startswith("step"):
        return cell.step.number in options(_PLAIN["step"], value, key, [])
    if key in _PLAIN:
        return getattr(cell, key) in options(_PLAIN[key], value, key, [])
    if key == "x0":
        return canonical(cell.x0) in map(canonical, options(settings.X0, value, key, []))
    section, dot, inner = key.partition(".")
    for name in [section] if dot else _ORDER:
        params = _params(name, sections[name]) if name in sections else {}
        if (inner or key) in params:
            has = canonical(sections[name].params[inner or key])
            return has in map(canonical, _wanted(params[inner or key], value, key, []))
    return False
