"""JSON schema (draft 2020-12) of parameters, of groups of them, and of plug-ins by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from raybench.core import registry
from raybench.core.registry import REQUIRED, Param
from raybench.spec.sections import default

Schema = dict[str, Any]
RANGE: Schema = {"type": "string", "pattern": r"^(-?\d+\.\.-?\d+|\d+\^-?\d+(\.\.\d+\^-?\d+)?)$"}
SHARE: Schema = {"type": "string", "pattern": r"^\d+(\.\d+)?%$"}


def any_of(ways: list[Schema]) -> Schema:
    """Return the schema of what fits one of several; of a single one itself."""
    return ways[0] if len(ways) == 1 else {"anyOf": ways}


def or_list(one: Schema) -> Schema:
    """Return the schema of a value, or of a list of at least one: an axis."""
    return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}


def single(param: Param) -> Schema:
    """Return the schema of one value of a parameter, with what it means and its default."""
    return {**one_value(param), **_said(param)}


def axis(param: Param) -> Schema:
    """Return the schema of one parameter: a value, or a list of values where it may be an axis."""
    one = one_value(param)
    out = or_list(one)
    if param.kind == "list":
        ways: list[Schema] = [{"type": "array", "items": one, "minItems": 1}]
        if param.default is None:
            ways.append({"type": "null"})
        if param.words:
            ways.append({"enum": [*param.words]})
        out = {"anyOf": ways}
    return {**out, **_said(param)}


def _said(param: Param) -> Schema:
    out: Schema = {"description": param.help} if param.help else {}
    if param.default is not REQUIRED:
        out["default"] = default(param)
    return out


def one_value(param: Param) -> Schema:
    """Return the schema of one value of a parameter, ranges of numbers included."""
    ways: list[Schema] = []
    if param.kind == "list":
        ways.append({"type": "array", "items": {"type": ["number", "string", "null"]}})
    elif param.kind == "flag":
        ways.append({"type": "boolean"})
    elif param.kind == "text":
        ways.append({"type": "string"})
    elif param.kind == "operator":  # written as a short form or as a section
        ways += [{"type": "string"}, {"$ref": "#/$defs/compressor"}]
    elif param.kind == "choice":
        ways.append({"enum": [*param.choices]})
    else:
        number: Schema = {"type": "number" if param.kind == "number" else "integer"}
        if param.low > -math.inf:
            number["exclusiveMinimum" if param.open_low else "minimum"] = param.low
        if param.high < math.inf:
            number["maximum"] = param.high
        ways += [number, RANGE]
        if param.kind == "count":
            share = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
            ways += [share, SHARE]
    if param.words:
        ways.append({"enum": [*param.words]})
    for tag, inner in param.tags.items():
        ways.append(closed({tag: axis(inner)}, required=[tag]))
    if param.default is None and param.kind != "choice":
        ways.append({"type": "null"})
    return any_of(ways)


def closed(properties: Mapping[str, Schema], required: list[str] | None = None) -> Schema:
    """Return the schema of a mapping with these keys and no others."""
    out: Schema = {
        "type": "object",
        "properties": dict(properties),
        "additionalProperties": False,
    }
    return {**out, "required": required} if required else out


def mapping(params: Mapping[str, Param], name: str = "", summary: str = "") -> Schema:
    """Return the schema of a mapping of parameters, with a ``name`` if one is given."""
    properties = {key: axis(param) for key, param in params.items()}
    required = [key for key, param in params.items() if param.default is REQUIRED]
    if name:
        properties = {"name": {"const": name}, **properties}
        required = ["name", *required]
    out = closed(properties, required)
    return {**out, "description": summary} if summary else out


def plugins(kind: str, overrides: Mapping[str, Schema]) -> Schema:
    """Return the schema of a section: a plug-in's name, or its mapping; or a list of these.

    overrides: further keys that every entry may carry. Where ``name`` is a list, the parameters are not
    checked: they are those that all of its plug-ins have.
    """
    names = registry.names(kind)
    ways: list[Schema] = [{"enum": names}]
    for name in names:
        entry = registry.lookup(kind, name)
        way = mapping(entry.params, name, entry.summary)
        way["properties"] = {**overrides, **way["properties"]}
        ways.append(way)
    several = {"type": "array", "items": {"enum": names}, "minItems": 1}
    ways.append(
        {"type": "object", "properties": {"name": several, **overrides}, "required": ["name"]}
    )
    return or_list({"anyOf": ways})
