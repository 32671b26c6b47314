"""The short form of a plug-in and its parameters, ``top_k:k=1%``: to the mapping of a sweep file, and back.

An operator that is itself a parameter stands in parentheses: ``chain:first=(top_k:k=1%),then=natural``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from raybench.core import yaml
from raybench.core.errors import InputError
from raybench.core.registry import Param
from raybench.spec.values import show, tidy

_PAIR = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)", re.DOTALL)
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./%+-]*", re.ASCII)
_OPEN, _CLOSED = "[{(", "]})"
MAX_DEPTH = 20


def parse(text: str, where: str) -> dict[str, Any]:
    """Return ``name:key=value,key=value`` as the mapping a sweep file would hold.

    Values are YAML, so ``split={dirichlet: 0.5}`` works, or operators in parentheses, which stay
    text; commas inside brackets and quotes do not separate. Raises InputError where a part is no
    ``key=value``.
    """
    if not isinstance(text, str):
        raise InputError.of(where, f"expected a name, not {show(text)}", "such as top_k:k=1%")
    text = _bare(text, where)
    name, _, rest = text.partition(":")
    section: dict[str, Any] = {"name": name.strip()}
    for part in _split(rest) if rest.strip() else []:
        match = _PAIR.fullmatch(part)
        if match is None:
            fix = f"write {where} as name:key=value,key=value, such as top_k:k=1%"
            raise InputError.of(where, f"{part.strip()!r} is not key=value", fix)
        if match[1] in section:
            raise InputError.of(f"{where}.{match[1]}", "given twice", "leave one out")
        section[match[1]] = _value(match[2].strip(), f"{where}.{match[1]}")
    return section


def _value(text: str, where: str) -> object:
    if text.startswith("("):
        return f"({_bare(text, where)})"
    if text.startswith("[") and text.endswith("]"):
        items = [item.strip() for item in _split(text[1:-1])]
        if any(item.startswith("(") for item in items):  # several operators make an axis
            return [_value(item, f"{where}[{i}]") for i, item in enumerate(items)]
    return yaml.parse(text, where)


def _bare(text: str, where: str) -> str:
    """Return the text without the parentheses around it."""
    inner = text.strip()
    if not inner.startswith("("):
        return text
    for _ in range(MAX_DEPTH):
        if not inner.startswith("("):
            return inner
        ends = [i for i, depth, _ in _scan(inner) if not depth]
        if not ends or ends[0] != len(inner) - 1 or inner[-1] != ")":
            fix = "write (name:key=value,key=value)"
            raise InputError.of(where, f"{show(text)}: parentheses do not match", fix)
        inner = inner[1:-1].strip()
    raise InputError.of(where, "nested too deeply", f"at most {MAX_DEPTH} levels")


def _scan(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield (place, depth of brackets after it, character) of what is not in quotes."""
    depth, quote, before, escaped = 0, "", "", False
    for i, char in enumerate(text):
        if quote:
            if not escaped and char == quote:
                quote = ""
            escaped = not escaped and quote == '"' and char == "\\"
            continue
        # elsewhere it is an apostrophe, not a quotation
        if char in "\"'" and before in ("", "=", ",", ":", *_OPEN):
            quote = char
        depth += (char in _OPEN) - (char in _CLOSED)
        before = before if char.isspace() else char
        yield i, depth, char


def _split(text: str) -> list[str]:
    commas = [i for i, depth, char in _scan(text) if char == "," and depth <= 0]
    ends = [-1, *commas, len(text)]
    return [text[a + 1 : b] for a, b in pairwise(ends)]


def write(param: Param, value: object) -> str:
    """Return a typed value of a parameter as a short form holds it."""
    if param.kind == "operator" and isinstance(value, str):
        return f"({value})" if ":" in value else value
    if param.kind == "list" and isinstance(value, list):
        return f"[{_yaml(value)}]"  # two brackets: the outer list would be an axis
    return _yaml(value)


def _yaml(value: object) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_yaml, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_yaml(key)}: {_yaml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and yaml.parse(f"[{value}]") == [value]:
            return value
        safe = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in value)
        return f'"{"".join(safe)}"'
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return repr(tidy(value))
