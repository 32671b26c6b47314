"""The JSON schema of sweep files, with all defaults and the parameters of every plug-in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from raybench.core import registry
from raybench.core.registry import REQUIRED, Param
from raybench.spec import settings
from raybench.spec.axes import OVERRIDES
from raybench.spec.model import CELL_KEYS, Document
from raybench.spec.sections import default
from raybench.store.accounting import INDEX_BITS, WIDEST

_RANGE = {"type": "string", "pattern": r"^(-?\d+\.\.-?\d+|\d+\^-?\d+(\.\.\d+\^-?\d+)?)$"}
_SHARE = {"type": "string", "pattern": r"^\d+(\.\d+)?%$"}


def json_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a sweep file, for editors and ``raybench schema``."""
    document = Document.model_json_schema()
    own: dict[str, Any] = document["properties"]
    cell: dict[str, Any] = {
        "problem": {"$ref": "#/$defs/problem"},
        "algorithm": {"$ref": "#/$defs/algorithm"},
        "compressor": {"$ref": "#/$defs/compressor", "default": None},
        "downlink": {"$ref": "#/$defs/compressor", "default": None},
        "step_size": {"$ref": "#/$defs/step_size", "default": {"theory": 1}},
        "seed": axis(settings.SEED),
        "x0": {**axis(settings.X0), "default": "zeros"},
        "rounds": axis(settings.ROUNDS),
        "stop": _mapping(settings.STOP),
        "graph": _choices(settings.GRAPHS),
        "prox": axis(settings.PROX),
        "participation": axis(settings.PARTICIPATION),
        "iterate": axis(settings.ITERATE),
        "f_star": axis(settings.F_STAR),
        "exclude": {"type": "array", "items": {"type": "object"}, "default": []},
    }
    cell["graph"]["default"] = "ring"
    own_keys = {key: cell[key] for key in OVERRIDES}
    case = {
        "type": "object",
        "properties": {k: cell[k] for k in CELL_KEYS},
        "additionalProperties": False,
    }
    accounting = {
        "anyOf": [
            {"type": "string", "description": "a preset such as paper:ef21"},
            {
                "type": "object",
                "properties": {
                    "preset": {"type": "string"},
                    "value_bits": {
                        "anyOf": [
                            {"const": "dtype"},
                            {"type": "integer", "minimum": 1, "maximum": WIDEST},
                        ],
                        "default": "dtype",
                    },
                    "index_bits": {"enum": [*INDEX_BITS], "default": "auto"},
                    "count_init": {"type": "boolean", "default": True},
                },
                "additionalProperties": False,
            },
        ]
    }
    shared = {
        "problem": _plugins("problem"),
        "algorithm": _plugins("algorithm", own_keys),
        "compressor": {"anyOf": [_plugins("compressor"), {"type": "null"}]},
        "step_size": _steps(),
    }
    extra = {
        "cases": {"type": "array", "items": case, "default": []},
        "accounting": accounting,
    }
    properties = {key: {**cell, **extra}.get(key, own[key]) for key in own}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "raybench sweep",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "$defs": {**document.get("$defs", {}), **shared},
    }


def axis(param: Param) -> dict[str, Any]:
    """Return the schema of one parameter: a value, or a list of values where it may be an axis."""
    one = _one(param)
    many = {"type": "array", "items": one, "minItems": 1}
    out: dict[str, Any] = {"anyOf": [one, many]}
    if param.kind == "list":
        ways: list[dict[str, Any]] = [many]
        if param.default is None:
            ways.append({"type": "null"})
        if param.words:
            ways.append({"enum": [*param.words]})
        out = {"anyOf": ways}
    if param.help:
        out["description"] = param.help
    if param.default is not REQUIRED:
        out["default"] = default(param)
    return out


def _one(param: Param) -> dict[str, Any]:
    ways: list[dict[str, Any]] = []
    if param.kind == "list":
        ways.append({"type": "array", "items": {"type": ["number", "string", "null"]}})
    elif param.kind == "flag":
        ways.append({"type": "boolean"})
    elif param.kind == "text":
        ways.append({"type": "string"})
    elif param.kind == "operator":  # a short form, or a section
        ways += [{"type": "string"}, {"$ref": "#/$defs/compressor"}]
    elif param.kind == "choice":
        ways.append({"enum": [*param.choices]})
    else:
        number: dict[str, Any] = {"type": "number" if param.kind == "number" else "integer"}
        if param.low > -math.inf:
            number["exclusiveMinimum" if param.open_low else "minimum"] = param.low
        if param.high < math.inf:
            number["maximum"] = param.high
        ways += [number, _RANGE]
        if param.kind == "count":
            share = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
            ways += [share, _SHARE]
    if param.words:
        ways.append({"enum": [*param.words]})
    for tag, inner in param.tags.items():
        tagged = {tag: axis(inner)}
        ways.append(
            {
                "type": "object",
                "properties": tagged,
                "required": [tag],
                "additionalProperties": False,
            }
        )
    if param.default is None and param.kind != "choice":
        ways.append({"type": "null"})
    return ways[0] if len(ways) == 1 else {"anyOf": ways}


def _mapping(params: Mapping[str, Param], name: str = "", summary: str = "") -> dict[str, Any]:
    properties = {key: axis(param) for key, param in params.items()}
    required = [key for key, param in params.items() if param.default is REQUIRED]
    if name:
        properties = {"name": {"const": name}, **properties}
        required = ["name", *required]
    out: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    if required:
        out["required"] = required
    if summary:
        out["description"] = summary
    return out


def _choices(known: Mapping[str, Mapping[str, Param]]) -> dict[str, Any]:
    one = {"anyOf": [{"enum": [*known]}, *(_mapping(p, n) for n, p in known.items())]}
    return {"anyOf": [one, {"type": "array", "items": one}]}


def _plugins(kind: str, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    names = registry.names(kind)
    ways: list[dict[str, Any]] = [{"enum": names}]
    for name in names:
        entry = registry.lookup(kind, name)
        way = _mapping(entry.params, name, entry.summary)
        way["properties"].update(overrides or {})
        ways.append(way)
    one = {"anyOf": ways}
    return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}


def _steps() -> dict[str, Any]:
    one = {"anyOf": [_one(settings.STEP["value"]), _mapping(settings.STEP)]}
    return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}
