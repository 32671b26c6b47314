"""Read the plug-in sections (problem, algorithm, compressor, downlink) into their axes of choices."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raybench.core import registry
from raybench.core.errors import Complaint, InputError, nearest
from raybench.core.registry import REQUIRED, Param
from raybench.spec.cells import Section
from raybench.spec.values import Found, allowed, options, show

MAX_CELLS = 200_000


@dataclass(frozen=True)
class Option:
    """One point of a section's axis: the section, its overrides (raw) and its key path."""

    section: Section | None
    where: str
    overrides: Mapping[str, Any] = field(default_factory=dict)


def read(
    kind: str, value: Any, where: str, found: Found, *, overrides: tuple[str, ...] = ()
) -> list[Option]:
    """Return the choices of a section: a name, ``{name: ..., parameters}``, or a list of either.

    kind is the registry's; null and ``none`` mean no plug-in. overrides are keys that an entry may
    carry besides the plug-in's parameters. What is wrong is appended to ``found``.
    """
    if not isinstance(value, list):
        return _entry(kind, value, where, found, overrides)
    if not value:
        found.append(Complaint(where, "an empty list leaves no cells", f"name {a(kind)}"))
    return [
        option
        for i, item in enumerate(value)
        for option in _entry(kind, item, f"{where}[{i}]", found, overrides)
    ]


def _entry(
    kind: str, value: Any, where: str, found: Found, overrides: tuple[str, ...]
) -> list[Option]:
    if value is None or value == "none":
        return [Option(None, where)]
    short = isinstance(value, str)
    if short:
        value = {"name": value}
    if not isinstance(value, Mapping):
        what = f"expected {a(kind)} by name or as a mapping, not {show(value)}"
        found.append(Complaint(where, what, choices(kind)))
        return []
    if "name" not in value:
        found.append(Complaint(f"{where}.name", "required", choices(kind)))
        return []
    given = {k: v for k, v in value.items() if k != "name" and k not in overrides}
    extra = {k: v for k, v in value.items() if k in overrides}
    names = value["name"] if isinstance(value["name"], list) else [value["name"]]
    out: list[Option] = []
    for name in names:
        at = where if short else f"{where}.name"
        try:
            if not isinstance(name, str):
                what = f"expected the name of {a(kind)}, not {show(name)}"
                raise InputError.of(at, what, choices(kind))
            entry = registry.lookup(kind, name, at)
        except InputError as error:
            found.extend(error.complaints)
            continue
        if "dataset" in entry.params:
            _files(given.get("dataset"), f"{where}.dataset", found)
        # where parameters are wrong a stand-in lets the entry's other keys be checked too
        every = product(entry.params, given, where, found, also=overrides) or [{}]
        out += [Option(Section(name, params), where, extra) for params in every]
    return out


def product(
    params: Mapping[str, Param],
    given: Mapping[str, Any],
    where: str,
    found: Found,
    *,
    also: tuple[str, ...] = (),
) -> list[dict[str, Any]]:
    """Return every combination of the values given for ``params``, defaults filled in.

    Combinations come in the order in which the parameters are declared, the last one fastest.
    ``also`` are further names that may be meant by an unknown key.
    """
    before = len(found)
    misspelt = ""
    for key in given:
        if key not in params:
            fix = nearest(key, [*params, *also]) or "it takes no parameters"
            misspelt += f"{fix} "
            found.append(Complaint(f"{where}.{key}", "unknown key", fix))
    axes: list[list[Any]] = []
    for name, param in params.items():
        at = f"{where}.{name}"
        if name in given:
            axes.append(options(param, given[name], at, found))
        elif param.default is REQUIRED and f"did you mean {name}?" in misspelt:
            continue
        elif param.default is REQUIRED:
            fix = param.help if param.kind == "text" and param.help else allowed(param)
            found.append(Complaint(at, "required", fix))
        else:
            axes.append([default(param)])
    if len(found) > before:
        return []
    if (size := math.prod(len(axis) for axis in axes)) > MAX_CELLS:
        found.append(Complaint(where, f"{size:,} combinations", f"at most {MAX_CELLS:,}"))
        return []
    return [dict(zip(params, values)) for values in itertools.product(*axes)]


def a(kind: str) -> str:
    """Return ``an algorithm``, ``a compressor``."""
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def choices(kind: str) -> str:
    """Return which plug-ins there are; of many only some, and where the others are listed."""
    names = registry.names(kind)
    text = f"allowed: {', '.join(names[:20])}"
    return text if len(names) <= 20 else f"{text}, ...; raybench ls {kind}s lists all"


def default(param: Param) -> Any:
    """Return the default of ``param``, typed as a value of a sweep file would be."""
    found: Found = []
    value = param.default
    if param.kind == "list" and isinstance(value, (list, tuple)):
        value = [list(value)]
    typed = options(param, value, "", found)
    return typed[0] if len(typed) == 1 and not found else param.default


def is_path(text: str) -> bool:
    """Tell whether a data set is given by its path: a separator in it, or an existing file."""
    if "/" in text or os.sep in text:
        return True
    file = locate(text)
    return file is not None and file.is_file()


def locate(text: str, *folders: Path) -> Path | None:
    """Return the file or folder ``text`` names in the first of ``folders`` that has it, else None.

    Without folders the working directory is meant.
    """
    for folder in folders or (Path(),):
        try:
            path = folder / Path(text).expanduser()
            if path.exists():
                return path
        except (OSError, ValueError, RuntimeError):  # not a name that a file could have
            continue
    return None


def _files(value: Any, where: str, found: Found) -> None:
    """Complain about data sets that are given by paths where no file is."""
    for i, text in enumerate(value if isinstance(value, list) else [value]):
        if isinstance(text, str) and is_path(text) and locate(text) is None:
            at = f"{where}[{i}]" if isinstance(value, list) else where
            fix = "give a known name, or the path of a file on this machine"
            found.append(Complaint(at, f"no file {text}", fix))
