"""What cells are made of: a plug-in with its parameters, a step size, and the one text of plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


def canonical(value: object) -> str:
    """Return the one JSON text of a plain value: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, eq=False)
class Section:
    """A plug-in by name with its parameters, typed and with the defaults filled in.

    Equal and hashed by content. Shares such as ``10%`` stay text; what they amount to depends on
    the problem's message dimension.
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        """Return the section as plain JSON values."""
        return {"name": self.name, "params": dict(self.params)}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Section):
            return NotImplemented
        return self is other or self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    @cached_property
    def text(self) -> str:
        """The section's one text; params are never written to."""
        return canonical(self.config())


class Operator(str):
    """A compressor as a value of a parameter: its canonical short form, and the typed section that it stands for.

    So what is typed once is not parsed again. Equal, hashed and written as text.
    """

    section: Section

    @classmethod
    def of(cls, text: str, section: Section) -> Operator:
        """Return the compressor of a section whose short form is ``text``."""
        out = cls(text)
        out.section = section
        return out


@dataclass(frozen=True)
class Step:
    """A step size as requested: ``number`` times the theoretical one, or ``number`` itself.

    rule and of say whose theory: the rule (nonconvex | pl | paper | released) and the algorithm,
    None for the cell's own. schedule: how the step changes over the rounds; warmup: rounds of linear
    growth first.
    """

    kind: str = "theory"
    number: float = 1.0
    rule: str = "nonconvex"
    of: str | None = None
    schedule: str = "constant"
    warmup: int = 0

    def config(self) -> dict[str, Any]:
        """Return the step as plain JSON values."""
        return dict(vars(self))
