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
MEASURES = ("cost", "value", "lowest", "highest", "rate", "ended", "column")
COMMON = "common"  # the largest budget that every cell of a comparison has spent
END = "end"
T = TypeVar("T")


@dataclass(frozen=True)
class Measure:
    """What is measured of some cells: one number of each, its median over seeds, the best over what else varies.

    kind: ``cost``, the ``of`` spent when ``y`` first comes down to ``target``, inf if it never does; ``value`` of a
    column at the last row that has spent no more than the budget ``at``; the ``lowest`` or ``highest`` recorded; the
    ``rate``, the slope of the line that fits log10 of the column best over rounds; the share of cells that ``ended``
    so; the median of a ``column`` of a script's table. best: which of several steps or K is meant.
    """

    kind: str
    of: str
    y: str = "grad_norm_sq"
    target: float = math.nan
    at: tuple[str, float | str] = ("round", END)
    best: str = field(default="lowest", metadata={"among": ("lowest", "highest")})

    @property
    def columns(self) -> set[str]:
        """The columns of curves that it reads."""
        if self.kind == "ended":
            return set()
        return {self.of, self.y if self.kind == "cost" else self.at[0]}


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

    ``published`` is what the source says of it; a claim of our ``own``, on which the source says nothing or something
    else, tells why it is asked. Agrees where ``left is below factor * right`` (``above``; ``within``: |left/right - 1|
    <= tolerance) in all comparisons, of which there is one for every combination of the columns ``each``. spread: how
    far a single seed may be from others, as a share of its number; 0 where nothing is drawn, None: not known.
    """

    name: str
    says: str
    left: Side
    relation: str = field(metadata={"among": ("below", "above", "within"), "key": "is"})
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
    kind: str = field(default="convex", metadata={"among": ("convex", "network")})
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
    name, folder = file.name.removesuffix(ENDING), file.parent
    stated = _of_type(dict, yaml.parse(text, str(file)), name)
    for key in ("name", "file", "script"):
        if key in stated:
            raise InputError.of(f"{name}.{key}", "unknown key", "the file's own name tells it")
    sweep, script = folder / str(stated.get("sweep", f"{name}.yaml")), folder / f"{name}.py"
    if not sweep.exists() and not script.exists():
        fix = f"write {name}.yaml or {name}.py, or name a sweep by sweep:"
        raise InputError.of(name, "there is neither a sweep nor a script to run", fix)
    place = f"{name}.claims"
    items = _of_type(list, stated.get("claims", []), place)
    claims = tuple(_claim(item, name, stated.get("spread")) for item in items)
    if not claims:
        raise InputError.of(place, "no claims", "a list of at least one")
    names = [claim.name for claim in claims]
    for taken in (claim for claim in names if names.count(claim) > 1):
        raise InputError.of(f"{name}.{taken}", "the name is taken", "another name")
    drawn = _of_type(list, stated.get("figures", []), f"{name}.figures")
    derived = {
        "name": name,
        "claims": claims,
        "figures": tuple(_of_type(dict, figure, f"{name}.figures") for figure in drawn),
        "file": file,
        "sweep": sweep if sweep.exists() else None,
        "script": script if script.exists() else None,
        "evidence": folder / str(stated["evidence"]) if "evidence" in stated else None,
    }
    return _record(Reproduction, {**stated, **derived}, name)


def _claim(item: Any, where: str, spread: float | None) -> Claim:
    stated = dict(_of_type(dict, item, f"{where}.claims"))
    place = f"{where}.{stated.get('name', 'claims')}"
    for key, fix in (("left", ""), ("right", "a number, or ")):
        side, fix = stated.get(key, 0.0), f"{fix}{{where: ..., measure: ...}}"
        if isinstance(side, Mapping):
            at = f"{place}.{key}"
            cells = _of_type(dict, side.get("where", {}), f"{at}.where")
            measure = _measure(side.get("measure"), f"{at}.measure")
            stated[key] = _record(Side, {**side, "where": cells, "measure": measure}, at)
        elif key in stated and (key == "left" or not isinstance(side, int | float)):
            what = "is no side" if key == "left" else "is neither a number nor a side"
            raise InputError.of(f"{place}.{key}", what, fix)
    claim = _record(Claim, {"spread": spread, **stated}, place)
    if bool(claim.published) == bool(claim.own):
        what = "both published and" if claim.own else "neither published nor"
        fix = "published: what the source says; or own: why it is asked, where it does not"
        raise InputError.of(place, f"is {what} our own", fix)
    return claim


def _measure(stated: Any, place: str) -> Measure:
    values = dict(_of_type(dict, stated, place))
    kinds = [key for key in values if key in MEASURES]
    if len(kinds) != 1:
        wrong = next((key for key in values if key not in MEASURES), "nothing")
        what = f"names {len(kinds)} measures ({wrong})"
        raise InputError.of(place, what, nearest(wrong, MEASURES))
    (kind,) = kinds
    values |= {"kind": kind, "of": values.pop(kind)}
    if kind == "highest":
        values.setdefault("best", "highest")
    at = values.pop("at", END)
    if isinstance(at, Mapping) and len(at) == 1:
        ((x, budget),) = at.items()
        if not isinstance(budget, int | float) and budget != COMMON:
            raise InputError.of(f"{place}.at", f"{budget!r} is no budget", f"a number, or {COMMON}")
        values["at"] = (str(x), budget)
    elif at != END:
        raise InputError.of(f"{place}.at", f"{at!r} is unknown", f"{END}, or {{bits_up: 1.0e+6}}")
    measure = _record(Measure, values, place)
    if kind == "cost" and not measure.target > 0:
        what = f"{measure.target:g} is out of range"
        raise InputError.of(f"{place}.target", what, "a number > 0")
    return measure


def _record(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Return a record of these values. Raises InputError for keys that are unknown or missing, and for wrong values."""
    parts = {part.metadata.get("key", part.name): part for part in fields(kind)}  # type: ignore[arg-type]
    for key in values:
        if key not in parts:
            raise InputError.of(f"{where}.{key}", "unknown key", nearest(key, parts))
    for key, part in parts.items():
        if part.default is MISSING and key not in values:
            raise InputError.of(f"{where}.{key}", "is missing")
    return kind(**{parts[k].name: _typed(parts[k], v, f"{where}.{k}") for k, v in values.items()})


def _typed(part: Field[Any], value: Any, where: str) -> Any:
    """Return the value of a key. Raises InputError where it is not of the key's type, or not one of those allowed."""
    among, below = part.metadata.get("among", (value,)), part.metadata.get("below", math.inf)
    if part.type == "str" and not isinstance(value, str):
        raise InputError.of(where, f"{value!r} is no text", "a text")
    if part.type == "float" or (part.type == "float | None" and value is not None):
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise InputError.of(where, f"{value!r} is no number", "a number")
        if "below" in part.metadata and not 0 <= value < below:
            raise InputError.of(where, "is out of range", "a number from 0, below 1")
    if str(part.type).startswith("tuple[str, ...]"):
        return tuple(map(str, _of_type(list, value, where)))
    if value not in among:
        raise InputError.of(where, f"unknown {value!r}", nearest(value, among))
    return value


def _of_type(kind: type[T], value: Any, where: str) -> T:
    if not isinstance(value, kind):
        what, fix = ("list", "[one, two]") if kind is list else ("mapping", "key: value")
        raise InputError.of(where, f"{value!r} is no {what}", fix)
    return value
