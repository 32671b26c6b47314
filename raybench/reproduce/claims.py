"""Claims files: what a source has published or we ask of our own, and what counts as agreement, as data.

A file ``NAME.claims.yaml`` stands beside ``NAME.yaml``, a sweep, or ``NAME.py``, a script with a function
``measure(full)`` that returns a table. docs/reproductions.md tells its keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from raybench.analysis.measures import COMMON, END, Measure
from raybench.core import yaml
from raybench.core.errors import InputError, nearest
from raybench.core.params import REQUIRED, Choice, List, Number, Param, Text, record
from raybench.spec.sections import mapping

ENDING = ".claims.yaml"
MEASURES = ("cost", "value", "lowest", "highest", "rate", "ended", "column")
T = TypeVar("T")


@record
class Side:
    """One side of a comparison: which cells, and what is measured of them.

    each: the columns that it is split by where these are not all of the claim's, as a baseline's are.
    """

    where: Mapping[str, Any]
    measure: Measure
    each: tuple[str, ...] | None = List(None)


@record
class Claim:
    """One statement and what counts as agreement.

    ``published`` is what the source says of it; a claim of our ``own``, on which the source says nothing or something
    else, tells why it is asked. Agrees where ``left is below factor * right`` (``above``; ``within``: |left/right - 1|
    <= tolerance) in all comparisons, of which there is one for every combination of the columns ``each``. spread: how
    far a single seed may be from others, as a share of its number; 0 where nothing is drawn, None: not known.
    """

    relation: str
    left: Side
    right: Side | float
    name: str = Text()
    says: str = Text()
    published: str = Text("")
    own: str = Text("")
    each: tuple[str, ...] = List(())
    factor: float = Number(1.0)
    tolerance: float = Number(0.05, low=0, high=1)
    spread: float | None = Number(None, low=0, high=1)
    likely: str = Text("")


RELATION = {"is": Choice("below", "above", "within", default=REQUIRED)}


@record
class Reproduction:
    """A source's published results: how they are run again, its claims, its figures."""

    claims: tuple[Claim, ...]
    file: Path
    script: Path | None
    sweep: Path | None
    evidence: Path | None
    figures: tuple[Mapping[str, Any], ...]
    title: str = Text()
    source: str = Text()
    kind: str = Choice("convex", "network")
    full: tuple[str, ...] = List(())
    spread: float | None = Number(None, low=0, high=1)  # of its claims that state none
    notes: str = Text("")

    @property
    def name(self) -> str:
        """What it is called: as its file."""
        return self.file.name.removesuffix(ENDING)

    @property
    def columns(self) -> set[str]:
        """The columns of curves that its claims and figures read."""
        sides = [s for c in self.claims for s in (c.left, c.right) if isinstance(s, Side)]
        drawn = {str(figure[key]) for figure in self.figures for key in ("x", "y") if key in figure}
        return drawn.union(*(side.measure.columns for side in sides))


@cache
def catalogue() -> dict[str, Path]:
    """Return the claims files that come with raybench, by name: package data, or ``sweeps/paper`` of a checkout."""
    places = [parent / "sweeps" / "paper" for parent in Path(__file__).resolve().parents[1:3]]
    files = [file for place in places for file in sorted(place.glob(f"*{ENDING}"))]
    return {file.name.removesuffix(ENDING): file for file in files}


def find(name: str) -> Reproduction:
    """Return a reproduction that comes with raybench, or that of a claims file of one's own. Raises InputError."""
    if name.endswith(ENDING):
        return read_claims(Path(name))
    if name not in catalogue():
        raise InputError.of("reproduce", f"unknown {name!r}", nearest(name, catalogue()))
    return read_claims(catalogue()[name])


def read_claims(file: Path) -> Reproduction:
    """Return what a claims file states. Raises InputError, which names the key, for whatever is wrong in it."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError.of(str(file), f"cannot be read: {error.strerror}") from error
    name = file.name.removesuffix(ENDING)
    stated = _of_type(dict, yaml.parse(text, str(file)), name)
    lists = {key: stated.pop(key, []) for key in ("claims", "figures")}
    items, figures = (
        [_of_type(dict, item, f"{name}.{key}") for item in _of_type(list, held, f"{name}.{key}")]
        for key, held in lists.items()
    )
    beside = {"sweep": Text(f"{name}.yaml"), "evidence": Text("")}
    values = mapping({**beside, **_params(Reproduction)}, stated, name)
    paths = {key: values.pop(key) for key in beside} | {"script": f"{name}.py"}
    files = {key: file.parent / path if path else None for key, path in paths.items()}
    there: Any = {key: path if path and path.exists() else None for key, path in files.items()}
    if not (there["sweep"] or there["script"]):
        fix = f"write {name}.yaml or {name}.py, or name a sweep by sweep:"
        raise InputError.of(name, "there is neither a sweep nor a script to run", fix)
    claims = tuple(_claim(item, name, values["spread"]) for item in items)
    if not claims:
        raise InputError.of(f"{name}.claims", "no claims", "a list of at least one")
    names = [claim.name for claim in claims]
    for taken in (claim for claim in names if names.count(claim) > 1):
        raise InputError.of(f"{name}.{taken}", "the name is taken", "another name")
    return Reproduction(claims, file, figures=tuple(figures), **there, **values)


def _params(kind: type) -> dict[str, Param]:
    return dict(vars(kind)["__params__"])


def _claim(stated: dict[str, Any], where: str, spread: float | None) -> Claim:
    place = f"{where}.{stated.get('name', 'claims')}"
    left, right = (stated.pop(key, None) for key in ("left", "right"))
    if not isinstance(right, int | float):
        right = _side(right, f"{place}.right", "a number, or ")
    values = mapping({**RELATION, **_params(Claim)}, {"spread": spread, **stated}, place)
    left = _side(left, f"{place}.left")
    claim = Claim(values.pop("is"), left, right, **values)
    if bool(claim.published) == bool(claim.own):
        fix = "published: what the source says; or own: why it is asked, where it does not"
        raise InputError.of(place, "is either published or our own", fix)
    return claim


def _side(stated: Any, place: str, other: str = "") -> Side:
    if not isinstance(stated, dict):
        raise InputError.of(place, "is no side", f"{other}{{where: ..., measure: ...}}")
    where = _of_type(dict, stated.get("where", {}), f"{place}.where")
    measure = _measure(stated.get("measure"), f"{place}.measure")
    rest = {key: value for key, value in stated.items() if key not in ("where", "measure")}
    return Side(where, measure, **mapping(_params(Side), rest, place))


def _measure(stated: Any, place: str) -> Measure:
    values = _of_type(dict, stated, place)
    kinds = [key for key in values if key in MEASURES]
    if len(kinds) != 1:
        wrong = next((key for key in values if key not in MEASURES), "nothing")
        what = f"names {len(kinds)} measures ({wrong})"
        raise InputError.of(place, what, nearest(wrong, MEASURES))
    (kind,) = kinds
    of, at = str(values.pop(kind)), values.pop("at", END)
    budgets = [("round", END)] if at == END else [*_of_type(dict, at, f"{place}.at").items()]
    if [isinstance(most, int | float) or most in (COMMON, END) for _, most in budgets] != [True]:
        fix = f"{END}, {{bits_up: 1.0e+6}}, or {{bits_up: {COMMON}}}"
        raise InputError.of(f"{place}.at", f"{at!r} is no budget", fix)
    params = _params(Measure)
    if kind == "cost":
        params["target"] = Number(low=0, open_low=True)
    if kind == "highest":
        params["best"] = Choice("highest", "lowest")
    return Measure(kind, of, budgets[0], **mapping(params, values, place))


def _of_type(kind: type[T], value: Any, where: str) -> T:
    """Return a copy of a value. Raises InputError where it is no mapping, or no list."""
    if not isinstance(value, kind):
        what, fix = ("list", "[one, two]") if kind is list else ("mapping", "key: value")
        raise InputError.of(where, f"{value!r} is no {what}", fix)
    return copy(value)
