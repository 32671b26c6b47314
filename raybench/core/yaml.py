"""Read YAML as its 1.2 core schema has it, with a line number for everything that is wrong.

``1e-14`` is a number, ``no`` is text, ``0o17`` is 15, ``1_000`` and ``2^0..2^8`` are text. Keys must
be text and may not repeat; aliases that would blow a file up are refused. Only plain values are
built (a safe loader).
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, TypeVar

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.resolver import VersionedResolver

from raybench.core.errors import Complaint, InputError, cut

T = TypeVar("T")

MAX_NODES = 200_000
MAX_DEPTH = 40
MAX_BRACKETS = 200  # of a JSON text that is not looked through
MAX_LETTERS = 4_000_000

LIMIT = f"at most {MAX_DEPTH} levels, {MAX_NODES:,} values and {MAX_LETTERS:,} letters"
MOST_SHOWN = 60  # letters of a place in a document

_CORE = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
)
_TABLE: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
for _tag, _pattern, _first in _CORE:
    for _char in _first:
        _entry = (f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})\\Z"))
        _TABLE.setdefault(_char, []).append(_entry)


class _CoreResolver(VersionedResolver):
    """The 1.2 core schema and nothing else (no dates, underscores, binary or merge keys)."""

    @property
    def versioned_resolver(self) -> object:
        return {key: list(patterns) for key, patterns in _TABLE.items()}


class _Composer(Composer):
    """Stops at a document that is too deep or too large, before anything is built of it."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader=loader)
        self._depth = self._count = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._count += 1
        if self._depth > MAX_DEPTH or self._count > MAX_NODES:
            raise InputError.of("", "nested too deeply, or too large", LIMIT)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Representer(SafeRepresenter):
    """Quotes text that begins with anything but a word; the emitter takes ``?0`` for plain."""

    def represent_str(self, data: Any) -> Any:
        style = None if re.match(r"[A-Za-z0-9_./]", data) else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Representer.add_representer(str, _Representer.represent_str)


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Resolver, yaml.Composer = _CoreResolver, _Composer
    yaml.Representer = _Representer
    yaml.version = (1, 2)
    yaml.allow_duplicate_keys = False
    return yaml


def parse(text: str, source: str = "") -> Any:
    """Return the plain value of one YAML document: dict, list, str, int, float, bool or None.

    source names the text in what is wrong. Raises InputError with line and column, and where the
    document is longer, deeper or larger than any sweep.
    """
    if len(text) > MAX_LETTERS:
        raise InputError.of(source, f"a text of {len(text):,} letters", LIMIT)
    try:
        value = _yaml().load(text)
    except InputError as error:
        raise InputError([replace(c, where=source) for c in error.complaints]) from None
    except MarkedYAMLError as error:
        raise InputError([_marked(error, source)]) from error
    except RecursionError as error:
        raise InputError.of(source, "nested too deeply", f"at most {MAX_DEPTH} levels") from error
    except (YAMLError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        # ruamel raises its own errors, and lets those of int(), float() and odd tags through.
        what = " ".join(str(error).split())[:200]
        raise InputError.of(source, f"not valid YAML: {what}", "quote the value?") from error
    return plain(value, source)


def _marked(error: MarkedYAMLError, source: str) -> Complaint:
    mark = error.problem_mark or error.context_mark
    at = f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
    where = ", ".join(part for part in (source, at) if part)
    problem = " ".join(str(error.problem or error.context or error).split())
    duplicate = re.match(r'found duplicate key "(.*?)"', problem)
    if duplicate:
        first = error.context_mark.line + 1 if error.context_mark is not None else 0
        fix = f"the mapping begins in line {first}; for several values write a list"
        return Complaint(where, f"duplicate key {duplicate[1]!r}", fix)
    context = " ".join(str(error.context or "").split())
    return Complaint(where, f"not valid YAML: {problem}", context)


def plain(value: object, where: str = "") -> Any:
    """Return ``value`` as new dicts, lists and scalars; numpy scalars, ranges, tuples, paths allowed.

    Raises InputError for other types, keys that are not text, and structures that are too large.
    """
    wrong: list[Complaint] = []
    count = 0

    def walk(item: object, at: str, depth: int) -> object:
        nonlocal count
        count += 1
        if depth > MAX_DEPTH or count > MAX_NODES:
            raise InputError.of(
                cut(at, MOST_SHOWN) or where, "too large or refers to itself", LIMIT
            )
        if isinstance(item, Mapping):
            for key in item:
                if not isinstance(key, str):
                    spelling = repr(key)[:40]
                    wrong.append(Complaint(at or where, f"key {spelling} is not text", "quote it?"))
            keys = [key for key in item if isinstance(key, str)]
            return {str(k): walk(item[k], f"{at}.{k}" if at else k, depth + 1) for k in keys}
        if isinstance(item, str) and not item.isascii() and not _is_text(item):
            wrong.append(
                Complaint(
                    at or where, "holds half a character", "\\ud800 to \\udfff stand in pairs"
                )
            )
        if isinstance(item, (str, bool, int, float)) or item is None:
            for kind in (str, int, float):  # subclasses (enums, numpy.float64) become plain
                if isinstance(item, kind) and type(item) not in (kind, bool):
                    return kind(item)
            return item
        if isinstance(item, (Sequence, range)) and not isinstance(item, (bytes, bytearray)):
            return [walk(entry, f"{at}[{i}]", depth + 1) for i, entry in enumerate(item)]
        if isinstance(item, PurePath):
            return str(item)
        if hasattr(item, "tolist"):  # numpy scalars and arrays
            return walk(item.tolist(), at, depth + 1)
        what = f"a value of type {type(item).__name__} is not allowed"
        wrong.append(Complaint(at or where, what, "allowed: text, numbers, true, false, lists"))
        return None

    result = walk(value, "", 0)
    if wrong:
        raise InputError(wrong)
    return result


def _is_text(item: str) -> bool:
    """Return whether a text can be written: JSON and YAML can spell halves of a pair of UTF-16, which cannot."""
    try:
        return bool(item.encode())
    except UnicodeEncodeError:
        return False


def from_json(text: str | bytes, source: str, fix: str, kind: type[T]) -> T:
    """Return the value of a JSON text that raybench wrote as a list or a mapping.

    Raises InputError, with ``fix``, for another value, and for one that ``plain`` refuses.
    """
    try:
        value = json.loads(text)
        if not isinstance(value, kind):
            raise TypeError(value)
        letters = text if isinstance(text, str) else text.decode()
        # with fewer brackets it cannot be too deep, and without an escape it has no half of a character
        brackets = letters.count("{") + letters.count("[")
        return plain(value, source) if brackets > MAX_BRACKETS or "\\u" in letters else value
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError.of(source, "is not as it was written", fix) from error


def dump(value: object) -> str:
    """Return ``value`` as YAML that ``parse`` reads back unchanged."""
    yaml = _yaml()
    yaml.version = None  # as an attribute it would print a %YAML directive
    yaml.default_flow_style = None  # innermost collections on one line
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # ruamel declares None
    yaml.width = 100
    out = io.StringIO()
    yaml.dump(value, out)
    text = out.getvalue()
    return text.removesuffix("...\n")
