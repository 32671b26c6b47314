"""Claims files: what a source has published or we ask of our own, and what counts as agreement, as data.

A file ``NAME.claims.yaml`` stands beside ``NAME.yaml``, a sweep, or ``NAME.py``, a script with a function
``measure(full)`` that returns a table. docs/reproductions.md tells its keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from raybench.core import yaml
from raybench.core.errors import InputError, nearest

ENDING = ".claims.yaml"
KINDS = ("convex", "network")
RELATIONS = ("below", "above", "within")
MEASURES = ("cost", "value", "lowest", "highest", "rate", "ended", "column")
BEST = ("lowest", "highest")
COMMON = "common"  # the largest budget that every cell of a comparison has spent
END = "end"
T = TypeVar("T")


@dataclass(frozen=True)
class Measure:
    """What is measured of some cells: one number of each, its median over seeds, the best over what else varies.

    kind: ``cost``, the ``of`` spent when ``y`` first comes down to ``target``, inf if it never does; ``value`` of a
    column at the last row that has spent no more than the budget ``at``; the ``lowest`` or ``highest`` recorded; the ``rate``,
    the slope of the line that fits log10 of the column best over rounds; the share of cells that ``ended`` so;
    the median of a ``column`` of a script's table. best: which of several steps or K is meant.
    """

    kind: str
    of: str
    y: str = "grad_norm_sq"
    target: float = math.nan
    at: str | tuple[str, float | str] = END
    best: str = field(default="lowest", metadata={"among": BEST})

    @property
    def columns(self) -> set[str]:
        """The columns of curves that it reads."""
        if self.kind == "ended":
            return set()
        other = {"cost": self.y, "rate": "round"}.get(self.kind)
        other = self.at[0] if isinstance(self.at, tuple) else other
        return {self.of} if other is None else {self.of, other}


@dataclass(frozen=True)
class Side:
    """One side of a comparison: which cells, and what is measured of them.

    each: the columns that it is split by where these are not all of the claim's, as a baseline's are.
    """

    where: Mapping[str, Any]
    measure: Measure
    each: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Claim:
    """One statement and what counts as agreement.

    ``published`` is what the source says of it; a claim of our ``own``, on which the source says nothing or something else,
    tells why it is asked. Agrees where ``left is below factor * right`` (``above``; ``within``: |left/right - 1| <=
    tolerance) in all comparisons, of which there is one for every combination of the columns ``each``.
    spread: how far a single seed may be from others, as a share of its number; 0 where nothing is drawn, None: not known.
    """

    name: str
    says: str
    left: Side
    relation: str = field(metadata={"among": RELATIONS})
    right: Side | float
    published: str = ""
    own: str = ""
    each: tuple[str, ...] = ()
    factor: float = 1.0
    tolerance: float = field(default=0.05, metadata={"below": 1.0})
    spread: float | None = field(default=None, metadata={"below": 1.0})
    likely: str = ""


@dataclass(frozen=True)
class Reproduction:
    """A source's published results: how they are run again, its claims, its figures."""

    name: str
    title: str
    source: str
    claims: tuple[Claim, ...]
    file: Path
    sweep: Path | None = None
    script: Path | None = None
    kind: str = field(default="convex", metadata={"among": KINDS})
    full: tuple[str, ...] = ()
    figures: tuple[Mapping[str, Any], ...] = ()
    evidence: Path | None = None
    spread: float | None = None  # of its claims that state none
    notes: str = ""

    @property
    def columns(self) -> set[str]:
        """The columns of curves that its claims and figures read."""
        sides = [s for c in self.claims for s in (c.left, c.right) if isinstance(s, Side)]
        drawn = {str(figure[key]) for figure in self.figures for key in ("x", "y") if key in figure}
        return drawn.union(*(side.measure.columns for side in sides))


@cache
def catalogue() -> dict[str, Path]:
    """Return the claims files that come with raybench, by name: package data, or ``sweeps/paper`` of a checkout."""
    try:
        place = Path(str(resources.files("raybench.sweeps").joinpath("paper")))
    except ImportError:
        place = Path(__file__).resolve().parents[2] / "sweeps" / "paper"
    return {path.name.removesuffix(ENDING): path for path in sorted(place.glob(f"*{ENDING}"))}


def find(name: str) -> Reproduction:
    """Return a reproduction that comes with raybench, or that of a claims file of one's own. Raises InputError."""
    if name.endswith(ENDING):
        return read(Path(name))
    if name not in catalogue():
        raise InputError.of("reproduce", f"unknown {name!r}", nearest(name, catalogue()))
    return read(catalogue()[name])


def read(file: Path) -> Reproduction:
    """Return what a claims file states. Raises InputError, which names the key, for whatever is wrong in it."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError.of(str(file), f"cannot be read: {error.strerror}") from error
    name = file.name.removesuffix(ENDING)
    given = _mapping(yaml.parse(text, str(file)), name)
    for key in ("name", "file", "script"):
        if key in given:
            raise InputError.of(f"{name}.{key}", "unknown key", "the file's own name tells it")
    sweep = file.parent / str(given.get("sweep", f"{name}.yaml"))
    script = file.parent / f"{name}.py"
    if not sweep.exists() and not script.exists():
        fix = f"write {name}.yaml or {name}.py, or name a sweep by sweep:"
        raise InputError.of(name, "there is neither a sweep nor a script to run", fix)
    paths = {
        "file": file,
        "sweep": sweep if sweep.exists() else None,
        "script": script if script.exists() else None,
        "evidence": file.parent / str(given["evidence"]) if "evidence" in given else None,
    }
    items = _list(given.get("claims", []), f"{name}.claims")
    claims = tuple(_claim(item, name, given.get("spread")) for item in items)
    if not claims:
        raise InputError.of(f"{name}.claims", "no claims", "a list of at least one")
    for i, claim in enumerate(claims):
        if claim.name in {other.name for other in claims[:i]}:
            raise InputError.of(f"{name}.{claim.name}", "the name is taken", "another name")
    drawn = _list(given.get("figures", []), f"{name}.figures")
    figures = tuple(_mapping(figure, f"{name}.figures") for figure in drawn)
    values = {**given, **paths, "name": name, "claims": claims, "figures": figures}
    return _made(Reproduction, values, name)


def _claim(item: Any, where: str, spread: Any) -> Claim:
    stated = _mapping(item, f"{where}.claims")
    place = f"{where}.{stated.get('name', 'claims')}"
    values = {} if spread is None else {"spread": spread}
    values |= {("relation" if key == "is" else key): value for key, value in stated.items()}
    for key in ("left", "right"):
        if isinstance(values.get(key), Mapping):
            values[key] = _side(values[key], f"{place}.{key}")
    if not isinstance(values.get("left"), Side | None):
        raise InputError.of(f"{place}.left", "is no side", "{where: ..., measure: ...}")
    if not isinstance(values.get("right", 0), Side | int | float):
        fix = "a number, or {where: ..., measure: ...}"
        raise InputError.of(f"{place}.right", "is neither a number nor a side", fix)
    claim = _made(Claim, values, place)
    if bool(claim.published) == bool(claim.own):
        what = "both published and" if claim.own else "neither published nor"
        fix = "published: what the source says; or own: why it is asked, where it does not"
        raise InputError.of(place, f"is {what} our own", fix)
    return claim


def _side(given: Mapping[str, Any], place: str) -> Side:
    where = _mapping(given.get("where", {}), f"{place}.where")
    measure = _mapping(given.get("measure"), f"{place}.measure")
    parts = {"where": where, "measure": _measure(measure, f"{place}.measure")}
    return _made(Side, {**given, **parts}, place)


def _measure(given: Mapping[str, Any], place: str) -> Measure:
    kinds = [key for key in given if key in MEASURES]
    if len(kinds) != 1:
        wrong = next((key for key in given if key not in MEASURES), "nothing")
        what = f"names {len(kinds)} measures ({wrong})"
        raise InputError.of(place, what, nearest(wrong, MEASURES))
    (kind,) = kinds
    values = {"kind": kind, "of": given[kind], **given}
    del values[kind]
    if kind == "highest":
        values.setdefault("best", "highest")
    at = values.get("at", END)
    if isinstance(at, Mapping) and len(at) == 1:
        ((x, budget),) = at.items()
        if not isinstance(budget, int | float) and budget != COMMON:
            raise InputError.of(f"{place}.at", f"{budget!r} is no budget", f"a number, or {COMMON}")
        values["at"] = (str(x), budget)
    elif at != END:
        raise InputError.of(f"{place}.at", f"{at!r} is unknown", f"{END}, or {{bits_up: 1.0e+6}}")
    measure = _made(Measure, values, place)
    if kind == "cost" and not measure.target > 0:
        what = f"{measure.target:g} is out of range"
        raise InputError.of(f"{place}.target", what, "a number > 0")
    return measure


def _made(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Return a record of these values. Raises InputError for keys that are unknown or missing, and for wrong values."""
    parts = {part.name: part for part in fields(kind)}  # type: ignore[arg-type]
    typed = {}
    for key, value in values.items():
        place = f"{where}.{'is' if key == 'relation' else key}"
        if key not in parts:
            raise InputError.of(place, "unknown key", nearest(key, parts))
        typed[key] = _typed(parts[key], value, place)
    for key, part in parts.items():
        if part.default is MISSING and key not in values:
            raise InputError.of(f"{where}.{'is' if key == 'relation' else key}", "is missing")
    return kind(**typed)


def _typed(part: Field[Any], value: Any, where: str) -> Any:
    """Return the value of a key. Raises InputError where it is not of the key's type, or not one of those allowed."""
    if part.type == "str" and not isinstance(value, str):
        raise InputError.of(where, f"{value!r} is no text", "a text")
    if part.type in ("float", "float | None"):
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise InputError.of(where, f"{value!r} is no number", "a number")
        if not 0 <= value < part.metadata.get("below", math.inf) and "below" in part.metadata:
            raise InputError.of(where, "is out of range", "a number from 0, below 1")
    if part.type in ("tuple[str, ...]", "tuple[str, ...] | None"):
        value = tuple(map(str, _list(value, where)))
    among = part.metadata.get("among", (value,))
    if value not in among:
        raise InputError.of(where, f"unknown {value!r}", nearest(value, among))
    return value


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError.of(where, "is no mapping", "key: value")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError.of(where, f"{value!r} is no list", "[one, two]")
    return value
