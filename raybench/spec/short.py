"""Sections outside sweep files: ``top_k:k=1%`` on the command line, ``compressor("top_k", k=10)``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from raybench.errors import InputError
from raybench.spec import sections, yaml
from raybench.spec.cells import Section
from raybench.spec.values import Found, show

_PAIR = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)", re.DOTALL)


def parse(text: str, where: str) -> dict[str, Any]:
    """Return ``name:key=value,key=value`` as the mapping a sweep file would hold.

    Values are YAML, so ``split={dirichlet: 0.5}`` works; commas inside brackets do not separate.
    Raises InputError where a part is no ``key=value``.
    """
    if not isinstance(text, str):
        raise InputError.of(where, f"expected a name, not {show(text)}", "such as top_k:k=1%")
    name, _, rest = text.partition(":")
    section: dict[str, Any] = {"name": name.strip()}
    for part in _split(rest) if rest.strip() else []:
        match = _PAIR.fullmatch(part)
        if match is None:
            fix = f"write {where} as name:key=value,key=value, such as top_k:k=1%"
            raise InputError.of(where, f"{part.strip()!r} is not key=value", fix)
        if match[1] in section:
            raise InputError.of(f"{where}.{match[1]}", "given twice", "leave one out")
        section[match[1]] = yaml.parse(match[2], f"{where}.{match[1]}")
    return section


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for char in text:
        depth += (char in "[{") - (char in "]}")
        if char == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def section(kind: str, text: str, params: Mapping[str, Any] | None = None) -> Section:
    """Return the one section that a short form and further parameters describe, typed and checked.

    kind is the registry's. Raises InputError with everything that is wrong, also where a value is
    an axis.
    """
    given = parse(text, kind)
    more = yaml.plain(dict(params or {}), kind)
    for key in sorted(given.keys() & more.keys()):
        raise InputError.of(f"{kind}.{key}", "given twice", "leave one out")
    given |= more
    found: Found = []
    choices = sections.read(kind, given, kind, found)
    if found:
        raise InputError(list(dict.fromkeys(found)))
    first = choices[0].section
    if len(choices) > 1 or first is None:
        what = f"{text} stands for {len(choices)} of them" if first else "none is none"
        raise InputError.of(kind, what, "give one name and single values")
    return first
