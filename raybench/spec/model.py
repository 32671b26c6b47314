"""The keys of a sweep file and the settings that hold for a whole sweep.

The pydantic models here type what is not part of a cell (how to run, record and account); they take
single values only. What makes a cell (problem, algorithm, step size, ...) may be an axis everywhere
and is read by ``raybench.spec.settings`` and ``raybench.spec.sections``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from raybench.core.errors import Complaint, nearest
from raybench.spec.values import show


def _integral(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_integral), Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Record(_Strict):
    """Which rounds make a row: every so many, or about so many points in all.

    Neither given: every round, or 400 points where the method is stochastic.
    """

    every: Whole | None = None
    points: Whole | None = None

    @model_validator(mode="after")
    def _one(self) -> Record:
        if self.every is not None and self.points is not None:
            raise ValueError("give every or points, not both")
        return self


class Resources(_Strict):
    """What a trial of the sweep takes on the machine or cluster."""

    mode: Literal["auto", "simulate", "train"] = "auto"
    workers: Whole = 1
    cpus_per_worker: Positive = 1.0
    gpus_per_worker: NonNegative = 0.0
    timing: Literal["shared", "exclusive"] = "shared"


class Evaluate(_Strict):
    """What is measured at the recorded rounds besides the standard columns."""

    metrics: tuple[str, ...] = Field(default=(), strict=False)


class Train(_Strict):
    """Settings of a Ray Train worker group (``resources: {mode: train}``); there are none so far."""


class Document(_Strict):
    """The top level of a sweep file. Keys typed ``Any`` are read elsewhere (see the module's text)."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)] | None = (
        None
    )
    problem: Any = None
    algorithm: Any = None
    compressor: Any = None
    downlink: Any = None
    step_size: Any = None
    seed: Any = None
    x0: Any = None
    rounds: Any = None
    stop: Any = None
    graph: Any = None
    prox: Any = None
    participation: Any = None
    f_star: Any = None
    iterate: Any = None
    exclude: Any = None
    cases: Any = None
    record: Record = Record()
    accounting: Any = None
    resources: Resources = Resources()
    evaluate: Evaluate = Evaluate()
    train: Train = Train()
    plugins: tuple[str, ...] = Field(default=(), strict=False)
    timeout: Positive | None = None
    attempts: Whole = 2
    allow_unproven: bool = False


SECTIONS: dict[str, type[BaseModel]] = {
    "record": Record,
    "resources": Resources,
    "evaluate": Evaluate,
    "train": Train,
}
CELL_KEYS = (
    "problem",
    "algorithm",
    "compressor",
    "downlink",
    "step_size",
    "seed",
    "x0",
    "rounds",
    "stop",
    "graph",
    "prox",
    "participation",
    "f_star",
    "iterate",
    "exclude",
)
"""The keys a case may set."""


def read(raw: Mapping[str, Any]) -> tuple[Document | None, list[Complaint]]:
    """Return the typed document, or None and every complaint about its fixed parts."""
    known = Document.model_fields
    given = {key: value for key, value in raw.items() if value is not None or key not in known}
    if isinstance(given.get("plugins"), str):  # short form: one file
        given["plugins"] = [given["plugins"]]
    try:
        return Document.model_validate(given), []
    except ValidationError as error:
        complaints = [_translate(item, given) for item in error.errors(include_url=False)]
        return None, list(dict.fromkeys(complaints))


def path(parts: Iterable[Any]) -> str:
    """Return a key path: ``("compressor", 1, "k")`` is ``compressor[1].k``."""
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _translate(item: Any, raw: Mapping[str, Any]) -> Complaint:
    loc, kind, context = item["loc"], item["type"], item.get("ctx", {})
    where, value = path(loc), item["input"]
    if kind == "extra_forbidden":
        model = Document if len(loc) == 1 else SECTIONS[loc[0]]
        fix = nearest(str(loc[-1]), model.model_fields) or "it has no settings"
        return Complaint(where, "unknown key", fix)
    if kind == "literal_error":
        names = context["expected"].replace(" or ", ", ").replace("'", "").split(", ")
        return Complaint(where, f"unknown value {show(value)}", nearest(str(value), names))
    if kind == "value_error":
        return Complaint(where, str(context["error"]))
    if kind == "string_pattern_mismatch" or kind == "string_too_long":
        fix = "letters, digits, '.', '_' and '-', at most 100, beginning with a letter or digit"
        return Complaint(where, f"{show(value)} cannot name a folder", fix)
    bounds = {"greater_than": ">", "greater_than_equal": ">=", "finite_number": ""}
    if kind in bounds:
        limit = context.get("gt", context.get("ge"))
        fix = f"must be {bounds[kind]} {limit:g}" if limit is not None else "must be finite"
        return Complaint(where, f"{show(value)} is out of range", fix)
    wanted = {
        "int_type": "an integer",
        "float_type": "a number",
        "bool_type": "true or false",
        "string_type": "text",
        "tuple_type": "a list",
        "model_type": "a mapping",
    }.get(kind)
    if wanted is None:
        return Complaint(where, f"{show(value)}: {item['msg']}")
    single = isinstance(value, list) and wanted != "a list"
    fix = "this key holds for the whole sweep and is no axis" if single else ""
    if wanted == "a mapping" and loc[0] in SECTIONS:
        fix = "keys: " + ", ".join(SECTIONS[loc[0]].model_fields)
    return Complaint(where, f"expected {wanted}, not {show(value)}", fix)
