"""Step sizes as sweep files say them: multiples of a theory's, or numbers, and how they change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raybench.core import registry
from raybench.core.errors import Complaint, InputError
from raybench.core.registry import Choice, Integer, Number, Param, Text
from raybench.spec import schema
from raybench.spec.kinds import AxisKind, each
from raybench.spec.parts import Step
from raybench.spec.schema import Schema
from raybench.spec.sections import Option, options, product
from raybench.spec.values import Found

STEP: Mapping[str, Param] = {
    "theory": Number(None, low=0, open_low=True, help="multiples of the theoretical step"),
    "value": Number(None, low=0, open_low=True, help="step sizes"),
    "rule": Choice(
        "nonconvex", "pl", "convex", "arithmetic", "paper", "released", help="which theory"
    ),
    "of": Text(None, help="the algorithm whose theory is meant, the cell's own if null"),
    "schedule": Choice(
        "constant", "sqrt", "inverse", "cosine", "linear", help="factor on the step in round t"
    ),
    "warmup": Integer(0, low=0, help="rounds over which the step grows to its size"),
}
# keys that cells of one group share, though they differ in seed and step size
_SHAPE = ("schedule", "warmup")


@dataclass(frozen=True)
class Steps(AxisKind):
    """Step sizes: ``{theory: ...}``, ``{value: ...}``, bare numbers (values), or a list of these."""

    either: tuple[str, ...] = ("theory", "value")

    def absent(self) -> Step:
        return Step()

    def written(self) -> Any:
        return {"theory": 1}

    def long_form(self, value: object) -> Any:
        numbers = value if isinstance(value, list) else [value]
        bare = value is not None and not any(isinstance(n, Mapping) for n in numbers)
        return {"value": value} if bare else value

    def read(self, value: object, where: str, found: Found) -> list[Option]:
        return each(value, where, found, lambda v, at: self._one(v, at, found), "{theory: 1}")

    def _one(self, value: object, where: str, found: Found) -> list[Step]:
        if not isinstance(value, Mapping):
            if isinstance(value, str) and value in STEP:
                found.append(Complaint(where, f"{value} needs a number", f"write {{{value}: 1}}"))
                return []
            return [Step("value", number) for number in options(STEP["value"], value, where, found)]
        kinds = [kind for kind in self.either if value.get(kind) is not None]
        if len(kinds) == 2:
            fix = "write a list of two mappings"
            found.append(Complaint(where, "theory and value together", fix))
            return []
        kind = kinds[0] if kinds else "theory"
        given = {k: v for k, v in value.items() if v is not None or k not in self.either}
        every = product(STEP, {kind: 1, **given}, where, found)
        try:
            for name in {one["of"] for one in every if kind == "theory"} - {None}:
                registry.lookup("algorithm", name, f"{where}.of")
        except InputError as error:
            found.extend(error.complaints)
            return []
        if kind == "value":  # a plain number needs no rule of the theory
            return [Step(kind, one[kind], **{n: one[n] for n in _SHAPE}) for one in every]
        return [
            Step(kind, one[kind], **{n: one[n] for n in ("rule", "of", *_SHAPE)}) for one in every
        ]

    def plain(self, value: Step) -> Any:
        return value.config()

    def identity(self, value: Step) -> Any:
        usual = Step(value.kind, value.number).config()
        fixed = ("kind", "number")
        return {k: v for k, v in value.config().items() if k in fixed or v != usual[k]}

    def in_group(self, value: Step, name: str) -> dict[str, Any]:
        return {k: v for k, v in self.identity(value).items() if k in _SHAPE}

    def schema(self) -> Schema:
        number, many = schema.one_value(STEP["value"]), schema.mapping(STEP)
        return schema.or_list({"anyOf": [number, many]})
