"""A sweep file as a whole: all of its keys, its JSON schema, cases laid over the base, and ``--set``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from raybench.core import yaml
from raybench.core.errors import Complaint, InputError, nearest
from raybench.spec import cells
from raybench.spec.keys import Key, Plugin, closed, keys_of, param_schema, plugins_schema
from raybench.spec.sections import COLLECTIVE, GRANULARITY, Kind, Schema
from raybench.spec.values import Complaints, show

OVERRIDES = [name for name, key in keys_of(cells.Cell).items() if key.override]
"""The keys that an entry of ``algorithm`` may set for itself."""
AXES: Mapping[str, Key] = {
    name: replace(key, kind=replace(key.kind, overrides=OVERRIDES)) if name == "algorithm" else key
    for name, key in keys_of(cells.Cell).items()
}
"""The keys that make a cell, by name, in the order of the grid."""
SETTINGS: Mapping[str, Key] = keys_of(cells.Sweep)
"""The keys that hold for the whole sweep, by name."""
EVERY_KEY: Mapping[str, Key] = {
    **AXES,
    "exclude": Key(Kind(), "patterns of cells that are not planned"),
    "cases": Key(Kind(), "partial sweeps laid over the rest; the grid is their union"),
    **SETTINGS,
}
OF_CASES = [*AXES, "exclude"]
"""The keys that a case may set."""


def json_schema() -> Schema:
    """Return the JSON schema (draft 2020-12) of a sweep file, for editors and ``raybench schema``."""
    ways = {**COLLECTIVE, "granularity": GRANULARITY}
    beside: dict[str, dict[str, Schema]] = {
        "algorithm": {name: _property(name) for name in OVERRIDES},
        "compressor": {name: param_schema(param) for name, param in ways.items()},
        "problem": {},
    }
    parts = {kind: plugins_schema(kind, more) for kind, more in beside.items()}
    parts["compressor"] = {"anyOf": [parts["compressor"], {"type": "null"}]}
    for name, key in AXES.items():
        if not isinstance(key.kind, Plugin):
            parts[name] = key.kind.schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "raybench sweep",
        **closed({name: _property(name) for name in EVERY_KEY}),
        "$defs": parts,
    }


def _case() -> Schema:
    """Return the schema of a case, whose sections may leave out what the base says."""
    part = {"type": "object", "not": {"required": ["name"]}}
    whole = {name: _property(name) for name in OF_CASES}
    parts = {
        name: {"anyOf": [schema, part]} if EVERY_KEY[name].kind.named else schema
        for name, schema in whole.items()
    }
    return closed(parts)


def _property(name: str) -> Schema:
    """Return the schema of a key's value: that of an axis stands among the definitions."""
    key = EVERY_KEY[name]
    if name in ("exclude", "cases"):
        items = _case() if name == "cases" else {"type": "object"}
        return {"type": "array", "items": items, "default": [], "description": key.help}
    if name not in AXES:
        return {**key.kind.schema(), "description": key.help}
    kind = key.kind
    schema = kind.schema() if isinstance(kind, Plugin) else {"$ref": f"#/$defs/{name}"}
    out = {**schema, "description": key.help}
    return out if key.required else {**out, "default": kind.written()}


# Cases over the base, and overrides ---------------------------------------------------------------


_TOKEN = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")


def overlay(base: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    """Return ``base`` with ``over`` laid on it: sections are merged key by key, the rest replaced.

    Lists and tags (``{dirichlet: 0.5}``) are replaced. Another ``name`` in an algorithm, compressor,
    downlink or graph replaces the section, since its parameters are others, while problems share most of
    theirs; ``theory`` replaces ``value`` and ``every`` replaces ``points``, and the other way round.
    """
    out = dict(base)
    for key, new in over.items():
        kind = _kind(key)
        old = kind.long_form(out.get(key))
        if not (isinstance(new, Mapping) and isinstance(old, Mapping) and kind.merges):
            out[key] = new
        elif (
            kind.named and key != "problem" and new.get("name", old.get("name")) != old.get("name")
        ):
            out[key] = dict(new)
        else:
            drop = _replaced(kind, new)
            out[key] = {**{k: v for k, v in old.items() if k not in drop}, **new}
    return out


def _kind(key: str) -> Kind:
    """Return how a key is written; one that is unknown, and complained about elsewhere, just merges."""
    key_entry = EVERY_KEY.get(key)
    return Kind() if key_entry is None else key_entry.kind


def _replaced(kind: Kind, new: Iterable[str]) -> list[str]:
    """Return the keys of a mapping whose place is taken by one that is new."""
    given = set(new) & set(kind.either)
    return [key for key in kind.either if key not in given] if given else []


def cases(
    raw: Mapping[str, object], complaints: Complaints
) -> list[tuple[str, dict[str, Any], Any]]:
    """Return (path, merged sweep, the case itself) of every case, or the base alone without any.

    Cases that are no mappings and keys that hold for the whole sweep are complained about.
    """
    base = {key: raw.get(key) for key in OF_CASES if raw.get(key) is not None}
    given = [] if raw.get("cases") is None else raw["cases"]
    if not isinstance(given, list):
        complaints.append(Complaint("cases", f"expected a list of mappings, not {show(given)}"))
    if not isinstance(given, list) or not given:
        return [("", base, {})]
    out = []
    for i, case in enumerate(given):
        where = f"cases[{i}]"
        if not isinstance(case, Mapping):
            complaints.append(Complaint(where, f"expected a mapping, not {show(case)}"))
            continue
        for key in [key for key in case if key not in OF_CASES]:
            what, fix = "unknown key", nearest(key, OF_CASES)
            if key in EVERY_KEY:
                what = "cannot differ between cases"
                fix = "it holds for the whole sweep: move it to the top level"
            complaints.append(Complaint(f"{where}.{key}", what, fix))
        accepted = {key: value for key, value in case.items() if key in OF_CASES}
        out.append((where, overlay(base, accepted), accepted))
    return out


def blame(complaint: Complaint, where: str, case: Mapping[str, object]) -> Complaint:
    """Return the complaint about a merged case with the path of where the user wrote the key."""
    if not where or not _covers(case, _tokens(complaint.where)):
        return complaint
    return Complaint(f"{where}.{complaint.where}", complaint.what, complaint.fix)


def _tokens(path: str) -> list[str | int]:
    out: list[str | int] = []
    end = 0
    while token := _TOKEN.match(path, end):
        out.append(token[1] if token[1] is not None else int(token[2]))
        end = token.end()
    return out if end == len(path) else []


def _covers(node: object, tokens: Sequence[str | int], *, exactly: bool = False) -> bool:
    """Tell whether a case says anything at that path, itself or in a value that contains it.

    exactly: at the path itself, which a list on the way hides.
    """
    for depth, token in enumerate(tokens):
        if not isinstance(node, Mapping):
            return not exactly
        if token not in node:
            return False
        node = node[token]
        if exactly and not depth:
            node = _kind(str(token)).long_form(node)
    return True


def assign(raw: dict[str, object], text: str) -> dict[str, object]:
    """Return the document with ``a.b=value`` applied, in the base and in every case and entry of ``algorithm`` that sets it.

    The value is read as YAML. Raises InputError that names the option.
    """
    where = f"--set {shlex.quote(text)}"
    left, equals, right = text.partition("=")
    tokens = _tokens(left.strip())
    if not equals or not tokens:
        raise InputError.of(where, "expected key=value", "for example --set problem.clients=50")
    if tokens[0] not in EVERY_KEY:
        fix = nearest(str(tokens[0]), EVERY_KEY)
        raise InputError.of(where, f"unknown key {tokens[0]!r}", fix)
    value = yaml.parse(right, where)

    def assigned(node: Mapping[str, Any], always: bool) -> dict[str, Any]:
        """Return a sweep, or a case, in which entries of ``algorithm`` that have this very key have the value too."""
        out = _placed(node, tokens, value, where) if always or _covers(node, tokens) else dict(node)
        given = out.get("algorithm")
        if tokens[0] in OVERRIDES and given is not None:
            entries = [
                _placed(entry, tokens, value, where)
                if _covers(entry, tokens, exactly=True)
                else entry
                for entry in (given if isinstance(given, list) else [given])
            ]
            out["algorithm"] = entries if isinstance(given, list) else entries[0]
        return out

    out = assigned(raw, always=True)
    given = out.get("cases")
    if tokens[0] != "cases" and isinstance(given, list):
        out["cases"] = [
            assigned(case, always=False) if isinstance(case, Mapping) else case for case in given
        ]
    return out


def _placed(
    node: object, tokens: Sequence[str | int], value: object, where: str, at: str = ""
) -> Any:
    """Return ``node`` with the value put at the path, mappings on the way made as needed."""
    if not tokens:
        return value
    token, rest = tokens[0], tokens[1:]
    if isinstance(token, int):
        if not isinstance(node, list) or token >= len(node):
            size = f"it has {len(node)} entries, from 0" if isinstance(node, list) else ""
            raise InputError.of(where, f"{at or 'the sweep'} has no entry [{token}]", size)
        entries = list(node)
        entries[token] = _placed(node[token], rest, value, where, f"{at}[{token}]")
        return entries
    if at:
        node = _kind(at).long_form(node)
    if isinstance(node, list):
        fix = f"name the entry, for example {at}[0].{token}"
        raise InputError.of(where, f"{at} is a list of {len(node)}", fix)
    if isinstance(node, str):  # a bare word stands for the section of that name
        node = {"name": node}
    if node is not None and not isinstance(node, Mapping):
        raise InputError.of(where, f"{at} is {show(node)}, not a mapping")
    new = dict(node or {})
    path = f"{at}.{token}" if at else token
    for other in _replaced(_kind(at), [token]) if at else []:
        new.pop(other, None)
    new[token] = _placed(new.get(token), rest, value, where, path)
    return new
