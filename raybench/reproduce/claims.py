"""Claims files: what a source has published or we ask of our own, and what counts as agreement, as data.

A file ``NAME.claims.yaml`` stands beside ``NAME.yaml``, a sweep, or ``NAME.py``, a script with a function
``measure(full)`` that returns a table. docs/reproductions.md tells its keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
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
    the slope of the line that fits log10 of the column best, ``per`` round; the share of cells that ``ended`` so;
    the median of a ``column`` of a script's table. best: which of several steps or K is meant.
    """

    kind: str
    of: str
    y: str = "grad_norm_sq"
    target: float = math.nan
    at: str | tuple[str, float | str] = END
    per: str = "round"
    best: str = "lowest"

    @property
    def columns(self) -> set[str]:
        """The columns of curves that it reads."""
        own = {"cost": {self.of, self.y}, "ended": set(), "rate": {self.of, self.per}}
        spent = {self.at[0]} if isinstance(self.at, tuple) else set()
        return own.get(self.kind, {self.of} | spent)


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
    tolerance) in ``needed`` of the comparisons, one for every combination of the columns ``each``; all of them by default.
    spread: how far a single seed may be from others, as a share of its number; 0 where nothing is drawn, None: not known.
    """

    name: str
    says: str
    left: Side
    relation: str
    right: Side | float
    published: str = ""
    own: str = ""
    each: tuple[str, ...] = ()
    needed: int | None = None
    factor: float = 1.0
    tolerance: float = 0.05
    spread: float | None = None
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
    kind: str = "convex"
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


def folder() -> Path | None:
    """Return where the reproductions are: package data of an installed raybench, ``sweeps/paper`` of a checkout."""
    try:
        found = Path(str(resources.files("raybench.sweeps").joinpath("paper")))
    except ImportError:
        found = Path(__file__).resolve().parents[2] / "sweeps" / "paper"
    return found if found.is_dir() else None


@cache
def catalogue() -> dict[str, Path]:
    """Return the claims files that come with raybench, by name."""
    place = folder()
    files = sorted(place.glob(f"*{ENDING}")) if place else []
    return {file.name.removesuffix(ENDING): file for file in files}


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
    own = {"name": name, "file": file, **_paths(file, name, given)}
    if taken := [key for key in ("name", "file", "script") if key in given]:
        raise InputError.of(f"{name}.{taken[0]}", "unknown key", "the file's own name tells it")
    plain = {key: value for key, value in given.items() if key not in ("sweep", "evidence")}
    claims = tuple(_claims(plain.get("claims"), name, plain.get("spread")))
    figures = tuple(_mapping(one, f"{name}.figures") for one in _list(plain, "figures", name))
    full = tuple(str(one) for one in _list(plain, "full", name))
    more = {"claims": claims, "figures": figures, "full": full}
    found = _made(Reproduction, {**plain, **own, **more}, name)
    _among(found.kind, KINDS, f"{name}.kind")
    return found


def _paths(file: Path, name: str, given: Mapping[str, Any]) -> dict[str, Path | None]:
    """Return what is run, the sweep or the script, and where committed results are."""
    sweep = file.parent / str(given.get("sweep", f"{name}.yaml"))
    script = file.parent / f"{name}.py"
    if not sweep.exists() and not script.exists():
        fix = f"write {name}.yaml or {name}.py, or name a sweep by sweep:"
        raise InputError.of(name, "there is neither a sweep nor a script to run", fix)
    evidence = file.parent / str(given["evidence"]) if "evidence" in given else None
    run = {
        "sweep": sweep if sweep.exists() else None,
        "script": script if script.exists() else None,
    }
    return {**run, "evidence": evidence}


def _claims(given: Any, where: str, spread: Any) -> Iterator[Claim]:
    if not isinstance(given, list) or not given:
        raise InputError.of(f"{where}.claims", "no claims", "a list of at least one")
    seen: set[str] = set()
    for one in given:
        stated = _mapping(one, f"{where}.claims")
        place = f"{where}.{stated.get('name', 'claims')}"
        if stated.get("name") in seen:
            raise InputError.of(place, "the name is taken", "another name")
        seen.add(str(stated.get("name")))
        values = {("relation" if key == "is" else key): value for key, value in stated.items()}
        if "spread" not in values and spread is not None:
            values["spread"] = spread
        for key in ("left", "right"):
            if isinstance(values.get(key), Mapping):
                values[key] = _side(values[key], f"{place}.{key}")
        if not isinstance(values.get("left"), Side | None):
            raise InputError.of(f"{place}.left", "is no side", "{where: ..., measure: ...}")
        if not isinstance(values.get("right", 0), Side | int | float):
            fix = "a number, or {where: ..., measure: ...}"
            raise InputError.of(f"{place}.right", "is neither a number nor a side", fix)
        values["each"] = tuple(_list(values, "each", place))
        claim = _made(Claim, values, place)
        _among(claim.relation, RELATIONS, f"{place}.is")
        if bool(claim.published) == bool(claim.own):
            what = (
                "is both published and our own" if claim.own else "is neither published nor our own"
            )
            raise InputError.of(
                place,
                what,
                "published: what the source says; or own: why it is asked, where it does not",
            )
        for key, limit in (("tolerance", 1.0), ("spread", 1.0)):
            if not 0 <= (getattr(claim, key) or 0.0) < limit:
                raise InputError.of(f"{place}.{key}", "is out of range", "a number from 0, below 1")
        yield claim


def _side(given: Mapping[str, Any], place: str) -> Side:
    values = dict(given)
    values["where"] = _mapping(values.get("where", {}), f"{place}.where")
    values["measure"] = _measure(
        _mapping(values.get("measure"), f"{place}.measure"), f"{place}.measure"
    )
    if "each" in values:
        values["each"] = tuple(_list(values, "each", place))
    return _made(Side, values, place)


def _measure(given: Mapping[str, Any], place: str) -> Measure:
    kinds = [key for key in given if key in MEASURES]
    if len(kinds) != 1:
        wrong = next((key for key in given if key not in MEASURES), "nothing")
        raise InputError.of(
            place, f"names {len(kinds)} measures ({wrong})", nearest(wrong, MEASURES)
        )
    values = {key: value for key, value in given.items() if key != kinds[0]}
    at = values.get("at", END)
    if isinstance(at, Mapping) and len(at) == 1:
        ((x, budget),) = at.items()
        number = isinstance(budget, int | float)
        if not number and budget != COMMON:
            raise InputError.of(f"{place}.at", f"{budget!r} is no budget", f"a number, or {COMMON}")
        values["at"] = (str(x), budget)
    elif at != END:
        raise InputError.of(f"{place}.at", f"{at!r} is unknown", f"{END}, or {{bits_up: 1.0e+6}}")
    default = {"best": "highest"} if kinds[0] == "highest" else {}
    found = _made(Measure, {**default, **values, "kind": kinds[0], "of": given[kinds[0]]}, place)
    _among(found.best, BEST, f"{place}.best")
    if found.kind == "cost" and not found.target > 0:
        raise InputError.of(f"{place}.target", f"{found.target:g} is out of range", "a number > 0")
    return found


def _made(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Return a record of these values. Raises InputError for unknown and missing keys and for texts that are no text."""
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    for key, value in values.items():
        shown = "is" if key == "relation" else key
        if key not in known:
            raise InputError.of(f"{where}.{shown}", "unknown key", nearest(key, known))
        if known[key].type == "str" and not isinstance(value, str):
            raise InputError.of(f"{where}.{shown}", f"{value!r} is no text", "a text")
        if known[key].type in ("float", "float | None", "int | None"):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number:
                raise InputError.of(f"{where}.{shown}", f"{value!r} is no number", "a number")
    for key, one in known.items():
        if one.default is MISSING and one.default_factory is MISSING and key not in values:
            raise InputError.of(f"{where}.{'is' if key == 'relation' else key}", "is missing")
    return kind(**values)


def _among(value: str, allowed: tuple[str, ...], where: str) -> None:
    if value not in allowed:
        raise InputError.of(where, f"unknown {value!r}", nearest(value, allowed))


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError.of(where, "is no mapping", "key: value")
    return value


def _list(values: Mapping[str, Any], key: str, where: str) -> list[Any]:
    found = values.get(key, [])
    if not isinstance(found, list | tuple):
        raise InputError.of(f"{where}.{key}", f"{found!r} is no list", "[one, two]")
    return list(found)
