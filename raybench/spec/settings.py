"""How the settings of a whole sweep are written: one value each, no axes, no part of a cell's id."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from raybench.core import registry
from raybench.core.errors import InputError
from raybench.core.registry import Param
from raybench.spec.keys import Kind, Scalar, Schema, closed, param_schema
from raybench.spec.sections import mapping, single
from raybench.spec.values import Complaints, show
from raybench.store import accounting
from raybench.store.accounting import Accounting


class Single(Scalar):
    """One value of a parameter."""

    def read(self, value: object, where: str, complaints: Complaints) -> Any:
        return single(self.param, value, where, complaints)

    def schema(self) -> Schema:
        return param_schema(self.param, axis=False)


@dataclass(frozen=True)
class Group(Kind):
    """A mapping of settings, held by a record class (``raybench.core.params.record``).

    either: settings of which one takes the place of another. short: the setting that may stand for the
    mapping, as in ``prune: halving``.
    """

    record: Any
    either: tuple[str, ...] = ()
    short: str = ""

    @property
    def fields(self) -> Mapping[str, Param]:
        """The settings, by name."""
        return getattr(self.record, "__params__", {})

    def absent(self) -> Any:
        return self.record()

    def long_form(self, value: object) -> object:
        return {self.short: value} if self.short and isinstance(value, str) else value

    def read(self, value: object, where: str, complaints: Complaints) -> Any:
        return self.record(**mapping(self.fields, self.long_form(value), where))

    def schema(self) -> Schema:
        said = (self.record.__doc__ or "").split("\n")[0]
        parts = {name: param_schema(param, axis=False) for name, param in self.fields.items()}
        whole = {**closed(parts), "description": said}
        return {"anyOf": [parts[self.short], whole]} if self.short else whole


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class FolderName(Kind):
    """A name that a folder may have."""

    def read(self, value: object, where: str, complaints: Complaints) -> str | None:
        if not isinstance(value, str):
            raise InputError.of(where, f"expected text, not {show(value)}")
        if not _NAME.fullmatch(value):
            fix = "letters, digits, '.', '_' and '-', at most 100, beginning with a letter or digit"
            raise InputError.of(where, f"{show(value)} cannot name a folder", fix)
        return value

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^{_NAME.pattern}$"}


@dataclass(frozen=True)
class PluginFiles(Kind):
    """Paths of Python files with plug-ins, which are loaded as they are read."""

    def absent(self) -> tuple[str, ...]:
        return ()

    def read(self, value: object, where: str, complaints: Complaints) -> tuple[str, ...]:
        files = value if isinstance(value, list) else [value]
        for i, file in enumerate(files):
            try:
                if not isinstance(file, str):
                    what = f"expected the path of a Python file, not {show(file)}"
                    raise InputError.of(f"{where}[{i}]", what)
                registry.load_plugin(file)
            except InputError as error:
                complaints.extend(error.complaints)
        return tuple(file for file in files if isinstance(file, str))

    def schema(self) -> Schema:
        text = {"type": "string"}
        return {"anyOf": [text, {"type": "array", "items": text}], "default": []}


@dataclass(frozen=True)
class Booking(Kind):
    """How counts become bits: a preset, or a mapping (``raybench.store.accounting``)."""

    def absent(self) -> Accounting:
        return Accounting()

    def read(self, value: Any, where: str, complaints: Complaints) -> Accounting:
        return accounting.parse(value)

    def schema(self) -> Schema:
        usual = Accounting()
        widths: list[Schema] = [
            {"const": "dtype"},
            {"type": "integer", "minimum": 1, "maximum": accounting.MOST_VALUE_BITS},
        ]
        parts: dict[str, Schema] = {
            "preset": {"enum": [*accounting.PRESETS]},
            "value_bits": {"anyOf": widths, "default": usual.value_bits},
            "index_bits": {"enum": [*accounting.INDEX_BITS], "default": usual.index_bits},
            "count_init": {"type": "boolean", "default": usual.count_init},
        }
        preset = {"type": "string", "description": "a preset such as paper:ef21"}
        return {"anyOf": [preset, closed(parts)]}


@dataclass(frozen=True)
class Shaping(Kind):
    """A key that shapes the grid as a whole: read where the grid is made. items: of what it is a list."""

    items: Callable[[], Schema]

    def schema(self) -> Schema:
        return {"type": "array", "items": self.items(), "default": []}
