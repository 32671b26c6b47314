"""The keys of a sweep file: how each is written, what of a value makes an id, its JSON schema, its declaration.

A key (``key(...)`` at the field of a dataclass, where ``field(...)`` would stand) has a kind. All kinds take a list
as an axis and report what is wrong with the key path of where it stands. What reads sweep files, multiplies axes
out, makes ids, lays cases over the base and writes the JSON schema (draft 2020-12) goes through these declarations,
so that a new key is declared once and nowhere else.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from raybench.core import registry
from raybench.core.errors import Complaint, nearest
from raybench.core.facts import AlgorithmFacts, ProblemFacts, Role
from raybench.core.registry import REQUIRED, Number, Operator, Param, Text
from raybench.spec import clocks, sections
from raybench.spec.model import Section, StepSize
from raybench.spec.sections import Kind, Schema, Sections, beside_defaults, default
from raybench.spec.values import (
    FILES,
    NUMERIC_KINDS,
    Complaints,
    Wrong,
    content_hash,
    is_path,
    locate,
    parted,
    show,
)


@dataclass(frozen=True)
class Scalar(Kind):
    """A number, a word, a flag. is_axis: several make an axis; else there is one of it."""

    param: Param
    is_axis: bool = True
    merges = False

    def absent(self) -> object:
        return self.param.default

    def read(self, value: object, where: str, complaints: Complaints) -> Any:
        if self.is_axis:
            return sections.options(self.param, value, where, complaints)
        return next(iter(sections.single(self.param, value, where, complaints)), None)

    def schema(self) -> Schema:
        return param_schema(self.param, axis=self.is_axis)


class Start(Scalar):
    """A starting point: ``zeros``, ``problem``, ``{normal: scale}``, or the path of an .npy file."""

    def read(self, value: object, where: str, complaints: Complaints) -> list[Any]:
        out = super().read(value, where, complaints)
        for start in out:
            if not isinstance(start, str) or start in ("zeros", "problem"):
                continue
            if not start.endswith(".npy"):
                fix = nearest(start, ["zeros", "problem", "{normal: 1.0}", "FILE.npy"])
                complaints.append(Complaint(where, f"unknown start {start!r}", fix))
            elif locate(start) is None:
                complaints.append(Complaint(where, f"no file {start}", "save x0 with numpy.save"))
        return out

    def identity(self, value: Any) -> Any:
        if isinstance(value, str) and value.endswith(".npy"):
            return f"sha256:{content_hash(value, 'x0')}"
        return value

    def written(self) -> object:
        return "zeros"


class Prox(Scalar):
    """The nonsmooth term that is added to a problem: none so far."""

    def absent(self) -> object:
        return None

    def written(self) -> object:
        return "none"

    def read(self, value: object, where: str, complaints: Complaints) -> list[Any]:
        if any(term != "none" for term in (value if isinstance(value, list) else [value])):
            fix = "give the problem its term: problem: {regularizer: l1, lambda: 0.1}"
            complaints.append(Complaint(where, f"{show(value)} is not known here", fix))
        return [None]


@dataclass(frozen=True)
class ParameterTable(Kind):
    """A mapping of parameters.

    sparse: those that are null are left out, and without any the mapping is empty, not null. idle: nothing
    but defaults is the same as not given.
    """

    table: Mapping[str, Param]
    sparse: bool = False
    idle: bool = False

    def absent(self) -> object:
        return {} if self.sparse else None

    def points(self, value: object, where: str, complaints: Complaints) -> list[Any]:
        if not isinstance(value, Mapping):
            raise Wrong(f"expected a mapping, not {show(value)}", f"keys: {', '.join(self.table)}")
        every = sections.product(self.table, value, where, complaints)
        if self.idle:
            return [one if beside_defaults(self.table, one) else None for one in every]
        if not self.sparse:
            return every
        return [{k: v for k, v in one.items() if v is not None} for one in every]

    def identity(self, value: Any) -> Any:
        return beside_defaults(self.table, value)

    def settings(self, value: Any) -> Mapping[str, tuple[Param, Any]]:
        return {name: (self.table[name], one) for name, one in (value or {}).items()}

    def schema(self) -> Schema:
        return or_list(mapping_schema(self.table))


class Graphs(Sections):
    """A communication graph, by default the ring."""

    def written(self) -> str:
        return "ring"

    def absent(self) -> Section:
        params = self.parameters("ring")
        return Section("ring", {name: default(param) for name, param in params.items()})

    def identity(self, value: Section) -> Any:
        params = beside_defaults(self.parameters(value.name), value.params)
        return {"name": value.name, "params": params}

    def schema(self) -> Schema:
        ways = [mapping_schema(params, name) for name, params in sections.GRAPHS.items()]
        return or_list({"anyOf": [{"enum": [*sections.GRAPHS]}, *ways]})


def _by_content(entry: registry.Entry[ProblemFacts], given: object, where: str) -> object:
    """Return what a problem's parameter holds, with the content of files in place of their paths."""
    if isinstance(given, list):
        return [_by_content(entry, item, where) for item in given]
    file, rest = parted(given) if isinstance(given, str) else ("", "")
    if not file or not is_path(file):
        return given
    if rest and where == "problem.dataset":
        return f"sha256:{entry.target.fingerprint(given)}"
    return f"sha256:{content_hash(file, where)}{rest}"


class Plugin(Sections):
    """A plug-in of the registry."""

    def identity(self, value: Section) -> Any:
        entry = registry.lookup(self.kind, value.name)
        every = {**self.beside, **self.parameters(value.name)}
        params = beside_defaults(every, value.params)
        for key in FILES if self.kind == "problem" else ():
            if params.get(key):
                params[key] = _by_content(entry, params[key], f"problem.{key}")
        out: dict[str, Any] = {"name": value.name, "version": entry.version, "params": params}
        held = sections.inside(value, self.kind)
        if held:
            out["operators"] = held
        return {**out, "source": entry.source} if entry.source else out

    def schema(self) -> Schema:
        return {"$ref": f"#/$defs/{self.kind}"}


# Step sizes: multiples of a theory's, or numbers, and how they change -----------------------------


STEP: Mapping[str, Param] = {
    "theory": Number(None, low=0, open_low=True, help="multiples of the theoretical step"),
    "value": Number(None, low=0, open_low=True, help="step sizes"),
    **{k: p for k, p in vars(StepSize)["__params__"].items() if k not in ("kind", "number")},
}
# keys that cells of one group share, though they differ in seed and step size
_SHAPE = ("schedule", "warmup")


@dataclass(frozen=True)
class StepSizeKey(Kind):
    """Step sizes: ``{theory: ...}``, ``{value: ...}``, bare numbers (values), or a list of these."""

    either: tuple[str, ...] = ("theory", "value")

    def absent(self) -> StepSize:
        return StepSize()

    def written(self) -> Any:
        return {"theory": 1}

    def long_form(self, value: object) -> Any:
        numbers = value if isinstance(value, list) else [value]
        bare = value is not None and not any(isinstance(n, Mapping) for n in numbers)
        return {"value": value} if bare else value

    def points(self, value: object, where: str, complaints: Complaints) -> list[StepSize]:
        if not isinstance(value, Mapping):
            if isinstance(value, str) and value in STEP:
                raise Wrong(f"{value} needs a number", f"write {{{value}: 1}}")
            return [
                StepSize("value", number)
                for number in sections.options(STEP["value"], value, where, complaints)
            ]
        kinds = [kind for kind in self.either if value.get(kind) is not None]
        if len(kinds) == 2:
            raise Wrong("theory and value together", "write a list of two mappings")
        kind = kinds[0] if kinds else "theory"
        given = {k: v for k, v in value.items() if v is not None or k not in self.either}
        every = sections.product(STEP, {kind: 1, **given}, where, complaints)
        for name in {one["of"] for one in every if kind == "theory"} - {None}:
            registry.lookup("algorithm", name, f"{where}.of")
        # A plain number needs no rule of the theory.
        names = _SHAPE if kind == "value" else ("rule", "of", *_SHAPE)
        return [StepSize(kind, step[kind], **{n: step[n] for n in names}) for step in every]

    def identity(self, value: StepSize) -> Any:
        usual = StepSize(value.kind, value.number).config()
        fixed = ("kind", "number")
        return {k: v for k, v in value.config().items() if k in fixed or v != usual[k]}

    def in_group(self, value: StepSize, name: str) -> dict[str, Any]:
        return {k: v for k, v in self.identity(value).items() if k in _SHAPE}

    def schema(self) -> Schema:
        return or_list({"anyOf": [value_schema(STEP["value"]), mapping_schema(STEP)]})


# Simulated clients ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clocked(Kind):
    """A clock: ``{compute: .., per: .., jitter: .., dropout: .., link: ..}``, see ``clocks``."""

    merges = False

    def points(self, value: Any, where: str, complaints: Complaints) -> list[Any]:
        if value is None or value == "none":
            return [None]
        return [clocks.typed(value, where)]

    def identity(self, value: Any) -> Any:
        parts = beside_defaults(clocks.KEYS, value)
        if "trace" in parts["compute"]:  # what is in the file counts, not where it lies
            content = content_hash(parts["compute"]["trace"], "clock.compute.trace")
            parts["compute"] = {"trace": f"sha256:{content}"}
        return parts

    def schema(self) -> Schema:
        return or_list({"anyOf": [mapping_schema(clocks.KEYS), {"type": "null"}]})


# Groups of tensors: compressors by the names of the tensors that they are for -----------------------


GROUP: Mapping[str, Param] = {
    "match": Text(help="a pattern of names, such as *.bias"),
    "compressor": Operator(help="the compressor of the tensors that it matches"),
}
GROUP_FORM = 'such as groups: [{match: "*.bias", compressor: identity}]'


@dataclass(frozen=True)
class Groups(Kind):
    """Compressors of tensors by name: a list of ``{match: pattern, compressor: compressor}``, and no axis."""

    merges = False

    def read(self, value: object, where: str, complaints: Complaints) -> list[Any]:
        if not isinstance(value, list):
            what = f"expected a list of groups, not {show(value)}"
            complaints.append(Complaint(where, what, GROUP_FORM))
            return []
        groups = value and sections.axis(value, where, complaints, self._group, GROUP_FORM)
        return [groups or None]

    def _group(self, value: object, where: str) -> list[dict[str, Any]]:
        if isinstance(value, Mapping) and value.get("compressor", "") in (None, "none"):
            value = {**value, "compressor": "identity"}
        return [sections.mapping(GROUP, value, where)]

    def identity(self, value: list[dict[str, str]]) -> Any:
        # version and source of every compressor, as a user's may change
        return [{**group, "operators": sections.versions(group["compressor"])} for group in value]

    def schema(self) -> Schema:
        return {"type": "array", "items": mapping_schema(GROUP)}


# JSON schema of parameters, of groups of them, and of plug-ins by name ----------------------------


RANGE: Schema = {"type": "string", "pattern": r"^(-?\d+\.\.-?\d+|\d+\^-?\d+(\.\.\d+\^-?\d+)?)$"}
SHARE: Schema = {"type": "string", "pattern": r"^\d+(\.\d+)?%$"}


def or_list(one: Schema) -> Schema:
    """Return the schema of a value, or of a list of at least one: an axis."""
    return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}


def param_schema(param: Param, *, axis: bool = True) -> Schema:
    """Return the schema of a parameter: a value or, as an axis, a list of values; what it means, and its default."""
    out = value_schema(param)
    if axis and param.kind == "list":  # the outer list is the axis
        several = {"type": "array", "items": out, "minItems": 1}
        out = {"anyOf": [several, *out.get("anyOf", [])[1:]]}
    elif axis:
        out = or_list(out)
    out = {**out, **({"description": param.help} if param.help else {})}
    out |= {"runs_code": True} if param.runs_code else {}
    return out if param.default is REQUIRED else {**out, "default": default(param)}


_FORMS: Mapping[str, list[Schema]] = {
    "list": [{"type": "array", "items": {"type": ["number", "string", "null"]}}],
    "flag": [{"type": "boolean"}],
    "text": [{"type": "string"}],
    # written as a short form or as a section
    "operator": [{"type": "string"}, {"$ref": "#/$defs/compressor"}],
    # parts of a clock
    "seconds": [{"type": ["number", "array", "object"]}],
    "jitter": [{"type": "object"}],
    "dropout": [{"type": "object"}],
    "link": [{"type": ["string", "object"]}],
}


def value_schema(param: Param) -> Schema:
    """Return the schema of one value of a parameter, ranges of numbers included."""
    ways = [*_FORMS.get(param.kind, [])]
    if param.kind in NUMERIC_KINDS:
        number: Schema = {"type": "number" if param.kind == "number" else "integer"}
        if param.low > -math.inf:
            number["exclusiveMinimum" if param.open_low else "minimum"] = param.low
        if param.high < math.inf:
            number["maximum"] = param.high
        ways += [number, RANGE]
        if param.kind == "count":
            share = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
            ways += [share, SHARE]
    ways += [{"enum": [*names]} for names in (param.choices, param.words) if names]
    for tag, inner in param.tags.items():
        ways.append(closed({tag: param_schema(inner)}, required=[tag]))
    if param.default is None and param.kind != "choice":
        ways.append({"type": "null"})
    return ways[0] if len(ways) == 1 else {"anyOf": ways}


def closed(properties: Mapping[str, Schema], required: list[str] | None = None) -> Schema:
    """Return the schema of a mapping with these keys and no others."""
    out: Schema = {
        "type": "object",
        "properties": dict(properties),
        "additionalProperties": False,
    }
    return {**out, "required": required} if required else out


def mapping_schema(params: Mapping[str, Param], name: str = "", summary: str = "") -> Schema:
    """Return the schema of a mapping of parameters, with a ``name`` if one is given."""
    properties = {key: param_schema(param) for key, param in params.items()}
    required = [key for key, param in params.items() if param.default is REQUIRED]
    if name:
        properties = {"name": {"const": name}, **properties}
        required = ["name", *required]
    out = closed(properties, required)
    return {**out, "description": summary} if summary else out


def plugins_schema(kind: str, overrides: Mapping[str, Schema]) -> Schema:
    """Return the schema of a section: a plug-in's name, or its mapping; or a list of these.

    overrides: further keys that every entry may carry. Where ``name`` is a list, the parameters are not
    checked: they are those that all of its plug-ins have.
    """
    names = registry.names(kind)
    ways: list[Schema] = [{"enum": names}]
    for name in names:
        entry = registry.lookup(kind, name)
        way = mapping_schema(entry.params, name, entry.summary)
        way["properties"] = {**overrides, **way["properties"]}
        ways.append(way)
    several = {"type": "array", "items": {"enum": names}, "minItems": 1}
    ways.append(
        {"type": "object", "properties": {"name": several, **overrides}, "required": ["name"]}
    )
    return or_list({"anyOf": ways})


# The declaration of a key -------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """One key of a sweep file.

    kind: how it is written, a ``Kind``. help: what it means. name: the key in the file, by default the name of the
    field that holds its value. required: it must be given.

    Of keys that make a cell: override: an entry of ``algorithm`` may set it for itself. heard: whether
    it makes a difference to a method on a problem; where it does not its value is None, and ignored says
    what is wrong with giving it. usual: its default, where problem or method decide it. needs: the role
    of the compressor that a method cannot do without. in_group: it tells groups of cells apart. in_every_id:
    ids hold it even where it is the default, as they have from the beginning.
    """

    kind: Any
    help: str
    name: str = ""
    field: str = ""
    required: bool = False
    override: bool = False
    heard: Callable[[ProblemFacts, AlgorithmFacts], bool] | None = None
    ignored: str = ""
    usual: Callable[[ProblemFacts, AlgorithmFacts], object] | None = None
    needs: Callable[[AlgorithmFacts], Role | None] | None = None
    in_group: bool = True
    in_every_id: bool = False

    def hears(self, problem: ProblemFacts, method: AlgorithmFacts) -> bool:
        """Tell whether the key makes a difference to a method on a problem."""
        return self.heard is None or self.heard(problem, method)


def key(kind: Kind, help: str, **more: Any) -> Any:
    """Return the declaration of a key as the field of a dataclass; ``more`` as in ``Key``."""
    return field(metadata={"key": Key(kind, help, **more)})


@functools.cache
def keys_of(holder: type) -> Mapping[str, Key]:
    """Return the keys declared at the fields of a dataclass, by name, in the order of the fields."""
    named = [(f.name, f.metadata["key"]) for f in fields(holder) if "key" in f.metadata]
    every = [replace(key, field=name, name=key.name or name) for name, key in named]
    return {key.name: key for key in every}
