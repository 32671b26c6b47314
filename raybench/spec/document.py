"""A sweep file as a whole: all of its keys, and its JSON schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raybench.spec import cells, schema
from raybench.spec.keys import AxisKey, Key, keys_of
from raybench.spec.kinds import Plugin
from raybench.spec.schema import Schema
from raybench.spec.sections import COLLECTIVE, GRANULARITY
from raybench.spec.settings import SettingKind, Shaping


def axes() -> Mapping[str, AxisKey]:
    """Return the keys that make a cell, by name, in the order of the grid."""
    return keys_of(cells.Cell)


def settings() -> Mapping[str, Key[SettingKind]]:
    """Return the keys that hold for the whole sweep, by name."""
    return keys_of(cells.Sweep)


def shaping() -> Mapping[str, Key[Shaping]]:
    """Return the keys that shape the grid: what is left out of it, and partial sweeps over the base."""
    return {
        "exclude": Key(
            Shaping(lambda: {"type": "object"}), "patterns of cells that are not planned"
        ),
        "cases": Key(Shaping(_case), "partial sweeps laid over the rest; the grid is their union"),
    }


def every_key() -> Mapping[str, Key[Any]]:
    """Return every key of a sweep file, by name."""
    return {**axes(), **shaping(), **settings()}


def of_cases() -> list[str]:
    """Return the keys that a case may set."""
    return [*axes(), "exclude"]


def overrides() -> list[str]:
    """Return the keys that an entry of ``algorithm`` may set for itself."""
    return [name for name, key in axes().items() if key.override]


def json_schema() -> Schema:
    """Return the JSON schema (draft 2020-12) of a sweep file, for editors and ``raybench schema``."""
    own = {name: _property(name) for name in overrides()}
    beside = {name: schema.axis(param) for name, param in COLLECTIVE.items()}
    beside["granularity"] = schema.axis(GRANULARITY)
    plugins = {key.kind.kind for key in axes().values() if isinstance(key.kind, Plugin)}
    also = {"algorithm": own, "compressor": beside}
    parts = {kind: schema.plugins(kind, also.get(kind, {})) for kind in sorted(plugins)}
    parts["compressor"] = {"anyOf": [parts["compressor"], {"type": "null"}]}
    for name, key in axes().items():
        if not isinstance(key.kind, Plugin):
            parts[name] = key.kind.schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "raybench sweep",
        **schema.closed({name: _property(name) for name in every_key()}),
        "$defs": parts,
    }


def _case() -> Schema:
    """Return the schema of a case, whose sections may leave out what the base says."""
    part = {"type": "object", "not": {"required": ["name"]}}
    whole = {name: _property(name) for name in of_cases()}
    parts = {
        name: {"anyOf": [one, part]} if every_key()[name].kind.named else one
        for name, one in whole.items()
    }
    return schema.closed(parts)


def _property(name: str) -> Schema:
    """Return the schema of a key's value: that of an axis stands among the definitions."""
    key = every_key()[name]
    if name not in axes():
        return {**key.kind.schema(), "description": key.help}
    kind = key.kind
    one = kind.schema() if isinstance(kind, Plugin) else {"$ref": f"#/$defs/{name}"}
    out = {**one, "description": key.help}
    return out if key.required else {**out, "default": kind.written()}
