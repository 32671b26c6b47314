"""From raw YAML to typed choices: a parameter's axis, the product of several, and sections by name.

``options`` is the one way from raw values to typed ones, for parameters of plug-ins and for the
sweep's own keys alike, so that every key takes lists, ranges, shares and tags in the same form. It
stands beside ``read`` because a parameter may itself be a compressor: a section with parameters.
``section`` reads one plug-in outside of sweep files, ``top_k:k=1%`` on the command line.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

from raybench.core import registry, yaml
from raybench.core.counts import COLLECTIVES
from raybench.core.errors import Complaint, InputError, nearest
from raybench.core.parts import BUCKET_OF_SWEEPS
from raybench.core.registry import REQUIRED, Choice, Integer, Number, Param
from raybench.spec.model import CompressorForm, Section, StepSize, canonical
from raybench.spec.values import (
    FILES,
    NUMERIC_KINDS,
    Complaints,
    Wrong,
    allowed,
    is_path,
    locate,
    parse_range,
    parted,
    scalar,
    show,
    tags_of,
    tidy,
)

MAX_CELLS = 200_000


GLOBAL = "global"
GRANULARITY: Param = Choice(GLOBAL, "tensor", "bucket", help="what is compressed apart")
COLLECTIVE: Mapping[str, Param] = {
    "collective": Choice(*COLLECTIVES, help="how messages become the mean that all step along")
}

_WEIGHTS: Mapping[str, Param] = {
    "weights": Choice("metropolis", "laplacian", help="mixing weights")
}
GRAPHS: Mapping[str, Mapping[str, Param]] = {
    **dict.fromkeys(("ring", "complete", "star", "path", "grid", "torus", "exponential"), _WEIGHTS),
    "erdos_renyi": {
        "p": Number(0.5, low=0, high=1, open_low=True, help="probability of an edge"),
        "seed": Integer(0, low=0, help="of the graph; the first connected one is taken"),
        **_WEIGHTS,
    },
}
"""The communication graphs there are, with their parameters; ``raybench.execution.build`` makes them."""


# A parameter and its axis --------------------------------------------------------------------------


def axis(
    value: object,
    where: str,
    complaints: Complaints,
    points: Callable[[Any, str], list[Any]],
    form: str,
) -> list[Any]:
    """Return the points of an axis, those of a single item or of each of a list; ``form`` is what may be written.

    What is wrong with an item, raised as Wrong or InputError, is appended to ``complaints``.
    """
    items = [(where, value)]
    if isinstance(value, list):
        items = [(f"{where}[{i}]", item) for i, item in enumerate(value)]
    if not items:
        complaints.append(Complaint(where, "an empty list leaves no cells", form))
    out: list[Any] = []
    for at, item in items:
        try:
            out += points(item, at)
        except Wrong as wrong:
            complaints.append(Complaint(at, wrong.what, wrong.fix or form))
        except InputError as error:
            complaints.extend(error.complaints)
    return out


def options(param: Param, value: object, where: str, complaints: Complaints) -> list[Any]:
    """Return the typed values that ``value`` stands for: one, or several where it is an axis.

    What is wrong is appended to ``complaints`` with its key path.
    """
    if param.kind == "list":
        return _lists(param, value, where, complaints)
    if param.kind == "count" and isinstance(value, list):
        numbers = [v for v in value if type(v) in (int, float)]
        if 1 in numbers and any(0 < v < 1 for v in numbers):
            what = f"{show(value)} mixes shares with 1, which is one alone, not all of {param.of}"
            fix = "write 100% for all; or 1 for one, and shares in percent, such as 10%"
            complaints.append(Complaint(where, what, fix))
            return []
    return axis(
        value, where, complaints, lambda v, at: _spread(param, v, at, complaints), allowed(param)
    )


def _spread(param: Param, value: object, where: str, complaints: Complaints) -> list[object]:
    """Return the typed values of one entry of an axis: a scalar, a range, a tag, or a compressor. Raises Wrong."""
    if isinstance(value, list):
        raise Wrong("a list inside a list", f"one value is {allowed(param)}")
    if param.kind == "operator" and value is not None:
        return list(compressor_forms(value, where, complaints))
    if isinstance(value, Mapping):
        return _tagged(param, value, where, complaints)
    if isinstance(value, str) and param.kind in NUMERIC_KINDS and value not in param.words:
        numbers = parse_range(value)
        if numbers is not None:
            return [scalar(param, number) for number in numbers]
    return [scalar(param, value)]


def _tagged(
    param: Param, value: Mapping[str, object], where: str, complaints: Complaints
) -> list[object]:
    """Return the typed values of a one-key mapping such as ``{dirichlet: [0.1, 1]}``."""
    if not param.tags:
        raise Wrong("a mapping is not allowed here")
    if len(value) != 1:
        raise Wrong(f"a mapping with {len(value)} keys", f"write one of {tags_of(param)}")
    ((tag, inner),) = value.items()
    if tag not in param.tags:
        raise Wrong(f"unknown key {tag!r}", nearest(tag, param.tags))
    return [{tag: item} for item in options(param.tags[tag], inner, f"{where}.{tag}", complaints)]


def _lists(param: Param, value: object, where: str, complaints: Complaints) -> list[object]:
    """Return the axis of a list-valued parameter, whose outer list is the axis."""
    key = where.rsplit(".", 1)[-1]

    def is_word(item: object) -> bool:
        return item is None or (isinstance(item, str) and item in param.words)

    def entry(item: Any, at: str) -> list[object]:
        if not isinstance(item, list):
            return [scalar(param, item)]
        if all(isinstance(part, (str, int, float)) or part is None for part in item):
            return [[tidy(part) for part in item]]
        raise Wrong("an entry that is neither number nor text", "lists hold numbers and text")

    items = value if isinstance(value, list) else [value]
    if not all(isinstance(v, list) or is_word(v) for v in items):
        fix = f"write {key}: [{show(items, bare=True)}]; the outer list is the axis"
        complaints.append(Complaint(where, f"expected a list of lists, not {show(value)}", fix))
        return []
    form = f"write {key}: [[]]" if value == [] else allowed(param)
    return axis(value, where, complaints, entry, form)


def default(param: Param) -> object:
    """Return the default of ``param``, typed as a value of a sweep file would be."""
    complaints: Complaints = []
    value = param.default
    if param.kind == "list" and isinstance(value, (list, tuple)):
        value = [list(value)]
    typed = options(param, value, "", complaints)
    return typed[0] if len(typed) == 1 and not complaints else param.default


def beside_defaults(params: Mapping[str, Param], given: Mapping[str, object]) -> dict[str, Any]:
    """Return the values that are no defaults; required ones always stay."""
    return {
        name: value
        for name, value in given.items()
        if params[name].default is REQUIRED or canonical(value) != canonical(default(params[name]))
    }


def product(
    params: Mapping[str, Param],
    given: Mapping[str, object],
    where: str,
    complaints: Complaints,
    *,
    also: Sequence[str] = (),
    read: Callable[..., list[Any]] = options,
) -> list[dict[str, Any]]:
    """Return every combination of the values given for ``params``, defaults filled in.

    Combinations come in the order in which the parameters are declared, the last one fastest.
    ``also`` are further names that may be meant by an unknown key; ``read`` is ``options`` or ``single``.
    """
    before = len(complaints)
    for key in given:
        if key not in params:
            fix = nearest(key, [*params, *also]) or "it takes no parameters"
            complaints.append(Complaint(f"{where}.{key}", "unknown key", fix))
    meant = {complaint.fix for complaint in complaints[before:]}
    axes: list[list[Any]] = []
    for name, param in params.items():
        at = f"{where}.{name}"
        if name in given:
            axes.append(read(param, given[name], at, complaints))
        elif param.default is REQUIRED and f"did you mean {name}?" in meant:
            continue
        elif param.default is REQUIRED:
            words = allowed(param)
            fix = param.help if words in ("", "text") and param.help else words
            complaints.append(Complaint(at, "required", fix))
        else:
            axes.append([default(param)])
    if len(complaints) > before:
        return []
    if (size := math.prod(len(axis) for axis in axes)) > MAX_CELLS:
        complaints.append(Complaint(where, f"{size:,} combinations", f"at most {MAX_CELLS:,}"))
        return []
    return [dict(zip(params, values)) for values in itertools.product(*axes)]


# How a key is written -------------------------------------------------------------------------------


Schema = dict[str, Any]


@dataclass(frozen=True)
class SectionEntry:
    """A section with its key path and the keys that its entry sets for itself, raw."""

    section: Section
    where: str
    overrides: Mapping[str, object]


class Kind:
    """How keys of a kind are written, and what of their values makes an id."""

    named: ClassVar[bool] = False  # whether a bare name stands for a section
    merges: ClassVar[bool] = True  # whether mappings laid over one another are merged key by key
    either: tuple[str, ...] = ()  # keys that exclude each other: giving one removes the others

    def long_form(self, value: object) -> object:
        """Return the mapping that a short form stands for, any other value as it is."""
        return {"name": value} if self.named and isinstance(value, str) else value

    def schema(self) -> Schema:
        """Return the JSON schema of what may be written."""
        raise NotImplementedError

    def absent(self) -> Any:
        """Return the value where the key is not given."""
        return None

    def written(self) -> object:
        """Return what a sweep file would say for that value."""
        return self.absent()

    def read(self, value: Any, where: str, complaints: Complaints) -> Any:
        """Return what a raw value, not None, stands for: the points of an axis, or the value of a setting.

        What is wrong is appended to ``complaints``, or raised as InputError.
        """
        return axis(
            value, where, complaints, lambda v, at: self.points(v, at, complaints), self.form()
        )

    def form(self) -> str:
        """Return what may be written, for complaints."""
        return f"write {show(self.written() or {}, bare=True)}"

    def points(self, value: Any, where: str, complaints: Complaints) -> list[Any]:
        """Return the values that one item of an axis stands for, whose own entries may be axes; errors as of ``read``."""
        raise NotImplementedError

    def plain(self, value: Any) -> Any:
        """Return a value of a cell as plain JSON."""
        return value.config() if isinstance(value, Section | StepSize) else value

    def identity(self, value: Any) -> Any:
        """Return what identifies a value, as plain JSON: what is a default does not."""
        return self.plain(value)

    def in_group(self, value: Any, name: str) -> dict[str, Any]:
        """Return what identifies a value among the cells that differ in seed and step only."""
        return {name: self.identity(value)}

    def settings(self, value: Any) -> Mapping[str, tuple[Param, Any]]:
        """Return the parameters of a value and what it sets them to, by name."""
        return {}


# A plug-in by name ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sections(Kind):
    """A section: a name, ``{name: ..., parameters}``, or a list of either as an axis.

    kind: the registry's, or ``graph``. overrides: keys that an entry may carry besides the section's
    parameters; with some, points are entries. optional: whether the section may be left out, written as null
    or none. beside: parameters that every section has here; it holds those that are not their defaults.
    """

    kind: str
    overrides: Sequence[str] = ()
    optional: bool = False
    beside: Mapping[str, Param] = field(default_factory=dict)
    named = True

    def parameters(self, name: object, where: str = "") -> Mapping[str, Param]:
        """Return the parameters of the section of a name; raises InputError with the nearest name."""
        if not isinstance(name, str):
            what = f"expected the name of {a(self.kind)}, not {show(name)}"
            raise InputError.of(where, what, choices(self.kind))
        if self.kind != "graph":
            return registry.lookup(self.kind, name, where).params
        if name not in GRAPHS:
            raise InputError.of(where, f"unknown graph {show(name)}", nearest(name, GRAPHS))
        return GRAPHS[name]

    def form(self) -> str:
        return f"name {a(self.kind)}"

    def points(self, value: object, where: str, complaints: Complaints) -> list[Any]:
        if value is None or value == "none":
            if not self.optional:
                raise InputError.of(where, f"{a(self.kind)} is needed", choices(self.kind))
            return [None]
        if isinstance(value, str) and ":" in value:
            what = f"{show(value)} is the short form of command lines and of Python"
            raise Wrong(what, f"write {show(parse_short_form(value, where), bare=True)}")
        at = where if isinstance(value, str) else f"{where}.name"
        value = self.long_form(value)
        if not isinstance(value, Mapping):
            what = f"expected {a(self.kind)} by name or as a mapping, not {show(value)}"
            raise Wrong(what, choices(self.kind))
        if "name" not in value:
            raise InputError.of(at, "required", choices(self.kind))
        grain = {"granularity": GRANULARITY} if self.kind == "compressor" else {}
        beside = {**grain, **self.beside}
        given = {k: v for k, v in value.items() if k != "name" and k not in self.overrides}
        names = value["name"] if isinstance(value["name"], list) else [value["name"]]
        out: list[Section] = []
        for name in names:
            try:
                params = self.parameters(name, at)
            except InputError as error:
                complaints.extend(error.complaints)
                continue
            for key in FILES:
                if self.kind == "problem" and key in params:
                    _files(given.get(key), f"{where}.{key}", complaints)
            # Where parameters are wrong, an empty stand-in lets the other keys of the entry be checked too.
            shared = {key: param for key, param in beside.items() if key not in params}
            both = {**params, **shared}
            every = product(both, given, where, complaints, also=self.overrides) or [{}]
            out += [_with(name, settings, shared) for settings in every]
        if not self.overrides:
            return out
        extra = {k: v for k, v in value.items() if k in self.overrides}
        return [SectionEntry(section, where, extra) for section in out]

    def settings(self, value: Section | None) -> Mapping[str, tuple[Param, Any]]:
        if value is None:
            return {}
        params = {**self.beside, **self.parameters(value.name)}
        usual = {name: default(param) for name, param in self.beside.items()}
        return {name: (params[name], one) for name, one in {**usual, **value.params}.items()}


def _with(name: str, settings: Mapping[str, Any], shared: Mapping[str, Param]) -> Section:
    """Return the section of a name; of the parameters that it shares with others, defaults are left out."""
    given = Section(name, {k: v for k, v in settings.items() if k not in shared})
    told = beside_defaults(shared, {k: v for k, v in settings.items() if k in shared})
    given = grained(given, told.pop("granularity", GLOBAL))
    return Section(given.name, {**given.params, **told}) if told else given


def grained(given: Section, grain: str) -> Section:
    """Return a compressor on the whole vector, on every tensor, or on buckets of tensors."""
    if grain == GLOBAL:
        return given
    params = registry.lookup("compressor", "per_tensor").params
    plain = {name: default(param) for name, param in params.items()}
    bucket = {"bucket": BUCKET_OF_SWEEPS} if grain == "bucket" else {}
    return Section("per_tensor", {**plain, "of": spell(given), **bucket})


def _files(value: object, where: str, complaints: Complaints) -> None:
    """Complain about data sets, weights and models that are given by paths where no file is."""
    for i, text in enumerate(value if isinstance(value, list) else [value]):
        if isinstance(text, list):  # a list-valued parameter, on an axis
            _files(text, f"{where}[{i}]", complaints)
        file, _ = parted(text) if isinstance(text, str) else ("", "")
        if file and is_path(file) and locate(file) is None:
            at = f"{where}[{i}]" if isinstance(value, list) else where
            fix = "give a known name, or the path of a file on this machine"
            complaints.append(Complaint(at, f"no file {file}", fix))


def a(kind: str) -> str:
    """Return ``an algorithm``, ``a compressor``."""
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def choices(kind: str) -> str:
    """Return which sections there are; of many only some, and where the others are listed."""
    names = [*GRAPHS] if kind == "graph" else registry.names(kind)
    text = nearest("", names)
    return f"{text}; raybench ls {kind}s lists all" if text.endswith("...") else text


# Compressors as parameters ---------------------------------------------------------------------------


def compressor_forms(
    value: object, where: str, complaints: Complaints
) -> tuple[CompressorForm, ...]:
    """Return the compressors that a value stands for.

    value: a short form, or a mapping {name, parameters}, whose parameters may be axes. Equal
    compressors have equal texts: names sorted, values typed, defaults left out. What is wrong is
    appended to ``complaints``, or raised as InputError where it is no compressor at all.
    """
    if isinstance(value, str):
        return _spelled(value, where, registry.state())
    if not isinstance(value, Mapping):
        what = f"expected a compressor by name or as a mapping, not {show(value)}"
        raise InputError.of(where, what, "such as top_k:k=1%")
    name = value.get("name")
    if isinstance(name, str) and ":" in name:
        # {name: "top_k:k=1%", k: 5}: what an override of one parameter makes
        value = {**parse_short_form(name, where), **{k: v for k, v in value.items() if k != "name"}}
    before = len(complaints)
    choices = Sections("compressor", optional=True).read(value, where, complaints)
    if len(complaints) > before:
        return ()
    return tuple(dict.fromkeys(spell(choice) for choice in choices if choice))


@functools.lru_cache(maxsize=4096)
def _spelled(text: str, where: str, state: tuple[int, int]) -> tuple[CompressorForm, ...]:
    """Return ``compressors`` of a text; ``state`` is the registry's, on which it depends."""
    complaints: Complaints = []
    try:
        out = compressor_forms(parse_short_form(text, where), where, complaints)
    except RecursionError as error:
        fix = f"at most {MAX_DEPTH} levels"
        raise InputError.of(where[:60], "nested too deeply", fix) from error
    if complaints:
        raise InputError(complaints)
    return out


def spell(given: Section) -> CompressorForm:
    """Return the canonical short form of a typed compressor; ``section`` gives the same one back."""
    params = registry.lookup("compressor", given.name).params
    said = beside_defaults(params, given.params)
    pairs = [f"{key}={write(params[key], value)}" for key, value in sorted(said.items())]
    text = f"{given.name}:{','.join(pairs)}" if pairs else given.name
    return CompressorForm.of(text, given)


# The short form ``top_k:k=1%``: to the mapping of a sweep file, and back --------------------------


_PAIR = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)", re.DOTALL)
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./%+-]*", re.ASCII)
_OPEN, _CLOSED = "[{(", "]})"
MAX_DEPTH = 20


def parse_short_form(text: str, where: str) -> dict[str, Any]:
    """Return ``name:key=value,key=value`` as the mapping a sweep file would hold.

    Values are YAML, so ``split={dirichlet: 0.5}`` works, or compressors in parentheses, which stay
    text; commas inside brackets and quotes do not separate. Raises InputError where a part is no
    ``key=value``.
    """
    if not isinstance(text, str):
        raise InputError.of(where, f"expected a name, not {show(text)}", "such as top_k:k=1%")
    text = _bare(text, where)
    name, _, rest = text.partition(":")
    section: dict[str, Any] = {"name": name.strip()}
    for part in _split(rest) if rest.strip() else []:
        match = _PAIR.fullmatch(part)
        if match is None:
            fix = f"write {where} as name:key=value,key=value, such as top_k:k=1%"
            raise InputError.of(where, f"{part.strip()!r} is not key=value", fix)
        if match[1] in section:
            raise InputError.of(f"{where}.{match[1]}", "given twice", "leave one out")
        section[match[1]] = _value(match[2].strip(), f"{where}.{match[1]}")
    return section


def _value(text: str, where: str) -> object:
    if text.startswith("("):
        return f"({_bare(text, where)})"
    if text.startswith("[") and text.endswith("]"):
        items = [item.strip() for item in _split(text[1:-1])]
        if any(item.startswith("(") for item in items):  # several compressors make an axis
            return [_value(item, f"{where}[{i}]") for i, item in enumerate(items)]
    return yaml.parse(text, where)


def _bare(text: str, where: str) -> str:
    """Return the text without the parentheses around it."""
    inner = text.strip()
    if not inner.startswith("("):
        return text
    for _ in range(MAX_DEPTH):
        if not inner.startswith("("):
            return inner
        ends = [i for i, depth, _ in _scan(inner) if not depth]
        if not ends or ends[0] != len(inner) - 1 or inner[-1] != ")":
            fix = "write (name:key=value,key=value)"
            raise InputError.of(where, f"{show(text)}: parentheses do not match", fix)
        inner = inner[1:-1].strip()
    raise InputError.of(where, "nested too deeply", f"at most {MAX_DEPTH} levels")


def _scan(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield (place, depth of brackets after it, character) of what is not in quotes."""
    depth, quote, before, escaped = 0, "", "", False
    for i, char in enumerate(text):
        if quote:
            if not escaped and char == quote:
                quote = ""
            escaped = not escaped and quote == '"' and char == "\\"
            continue
        # elsewhere it is an apostrophe, not a quotation
        if char in "\"'" and before in ("", "=", ",", ":", *_OPEN):
            quote = char
        depth += (char in _OPEN) - (char in _CLOSED)
        before = before if char.isspace() else char
        yield i, depth, char


def _split(text: str) -> list[str]:
    commas = [i for i, depth, char in _scan(text) if char == "," and depth <= 0]
    ends = [-1, *commas, len(text)]
    return [text[a + 1 : b] for a, b in pairwise(ends)]


def write(param: Param, value: object) -> str:
    """Return a typed value of a parameter as a short form holds it."""
    if param.kind == "operator" and isinstance(value, str):
        return f"({value})" if ":" in value else value
    if param.kind == "list" and isinstance(value, list):
        return f"[{_yaml(value)}]"  # two brackets: the outer list would be an axis
    return _yaml(value)


def _yaml(value: object) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_yaml, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_yaml(key)}: {_yaml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and yaml.parse(f"[{value}]") == [value]:
            return value
        safe = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in value)
        return f'"{"".join(safe)}"'
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return repr(tidy(value))


# Plug-ins and settings outside of axes -------------------------------------------------------------


def section(
    kind: str, text: str, params: Mapping[str, object] | None = None, where: str = ""
) -> Section:
    """Return the one section that a short form and further parameters describe, typed and checked.

    kind is the registry's; where is what complaints call it, the kind by default. Raises InputError
    with everything that is wrong, also where a value is an axis.
    """
    if isinstance(text, CompressorForm) and not params:
        return text.section
    where = where or kind
    given = parse_short_form(text, where)
    # from Python a tuple is one list-valued parameter, while a list is an axis
    lists = {k: [list(v)] if isinstance(v, tuple) else v for k, v in (params or {}).items()}
    more = yaml.plain(lists, where)
    for key in sorted(given.keys() & more.keys()):
        raise InputError.of(f"{where}.{key}", "given twice", "leave one out")
    given |= more
    complaints: Complaints = []
    every = Sections(kind, optional=True).read(given, where, complaints)
    if complaints:
        raise InputError(list(dict.fromkeys(complaints)))
    first = every[0]
    if len(every) > 1 or first is None:
        what = f"{text} stands for {len(every)} of them" if first else "none is none"
        raise InputError.of(where, what, "give one name and single values")
    return first


def mapping(
    params: Mapping[str, Param],
    given: object,
    where: str,
    read: Callable[..., list[Any]] | None = None,
) -> dict[str, Any]:
    """Return the typed settings of a mapping, defaults filled in, none of them an axis.

    A list is one value of a list-valued parameter. read: what reads a setting, ``single`` by default. Raises
    InputError with all that is wrong.
    """
    if not isinstance(given, Mapping):
        what = f"expected a mapping, not {show(given)}"
        raise InputError.of(where, what, f"keys: {', '.join(params)}")
    complaints: Complaints = []
    every = product(params, yaml.plain(dict(given), where), where, complaints, read=read or single)
    if complaints:
        raise InputError(list(dict.fromkeys(complaints)))
    return {key: tuple(v) if isinstance(v, list) else v for key, v in every[0].items()}


def single(param: Param, value: object, where: str, complaints: Complaints) -> list[Any]:
    """Return the typed value of a setting that is no axis, alone in a list; errors as of ``options``."""
    if param.kind == "list" and value is not None:
        entries = value if isinstance(value, list) else [value]
        value = entries if any(isinstance(entry, list) for entry in entries) else [entries]
    every = options(param, value, where, complaints)
    if len(every) > 1:
        complaints.append(
            Complaint(where, "several values", "this key is no axis: give single values")
        )
    return every


def inside(given: Section, kind: str = "compressor") -> dict[str, list[str]]:
    """Return version and source of every compressor that a section's parameters hold, by name."""
    out: dict[str, list[str]] = {}
    params = registry.lookup(kind, given.name).params
    for key, value in given.params.items():
        if key in params and params[key].kind == "operator" and isinstance(value, str):
            out |= versions(value, key)
    return dict(sorted(out.items()))


def versions(text: str, where: str = "") -> dict[str, list[str]]:
    """Return version and source of a compressor and of every one inside it, by name."""
    held = section("compressor", text, where=where)
    entry = registry.lookup("compressor", held.name)
    return {held.name: [entry.version, entry.source], **inside(held)}
