"""Read the sweep's own axes: step size, start, seed, rounds, stopping, graph, prox, participation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raybench.core import registry
from raybench.core.errors import Complaint, InputError, nearest
from raybench.core.registry import Choice, Integer, Number, Param, Text
from raybench.spec.files import locate
from raybench.spec.parts import Section, Step
from raybench.spec.sections import options, product
from raybench.spec.values import Found, show

SEED = Integer(0, low=0, help="drives the algorithm and x0")
ROUNDS = Integer(1000, low=1, help="rounds of a cell")
PARTICIPATION = Number(
    1.0, low=0, high=1, open_low=True, help="probability that a client joins a round"
)
F_STAR = Number(None, help="minimum of f, where it is known and the problem does not know it")
ITERATE = Choice("last", "average", "weighted", help="the point at which f is recorded")
PROX = Choice("none", help="a problem's nonsmooth term is its regularizer, for example l1")
X0 = Param(
    "text",
    default="zeros",
    tags={"normal": Number(low=0, open_low=True)},
    help="zeros, problem (the problem's own start), {normal: scale}, or an .npy file",
)
STOP: dict[str, Param] = {
    "grad_norm_sq": Number(None, low=0, help="stop at or below"),
    "loss": Number(None, help="stop at or below"),
    "suboptimality": Number(None, low=0, help="stop at or below"),
    "bits_up": Number(None, low=0, open_low=True, help="stop at or above, per client"),
    "bits_down": Number(None, low=0, open_low=True, help="stop at or above"),
    "seconds": Number(None, low=0, open_low=True, help="stop at or above"),
}
STEP: dict[str, Param] = {
    "theory": Number(None, low=0, open_low=True, help="multiples of the theoretical step"),
    "value": Number(None, low=0, open_low=True, help="step sizes"),
    "rule": Choice("nonconvex", "pl", "paper", help="which theory"),
    "of": Text(None, help="the algorithm whose theory is meant, the cell's own if null"),
    "schedule": Choice(
        "constant", "sqrt", "inverse", "cosine", "linear", help="factor on the step in round t"
    ),
    "warmup": Integer(0, low=0, help="rounds over which the step grows to its size"),
}
_WEIGHTS = {"weights": Choice("metropolis", "laplacian", help="mixing weights")}
GRAPHS: dict[str, dict[str, Param]] = dict.fromkeys(
    ("ring", "complete", "star", "path", "grid", "torus", "exponential"), _WEIGHTS
)
GRAPHS["erdos_renyi"] = {
    "p": Number(0.5, low=0, high=1, open_low=True, help="probability of an edge"),
    "seed": Integer(0, low=0, help="of the graph; the first connected one is taken"),
    **_WEIGHTS,
}


def steps(value: Any, where: str, found: Found) -> list[Step]:
    """Return the steps of ``{theory: ...}``, ``{value: ...}``, bare numbers (values) or a list."""
    if value is None:
        return [Step()]
    if isinstance(value, list):
        if not value:
            found.append(Complaint(where, "an empty list leaves no cells", "write {theory: 1}"))
        return [s for i, item in enumerate(value) for s in steps(item, f"{where}[{i}]", found)]
    if not isinstance(value, Mapping):
        if isinstance(value, str) and value in STEP:
            found.append(Complaint(where, f"{value} needs a number", f"write {{{value}: 1}}"))
            return []
        return [Step("value", number) for number in options(STEP["value"], value, where, found)]
    kinds = [kind for kind in ("theory", "value") if value.get(kind) is not None]
    if len(kinds) == 2:
        found.append(Complaint(where, "theory and value together", "write a list of two mappings"))
        return []
    kind = kinds[0] if kinds else "theory"
    value = {kind: 1, **value}
    out = []
    for one in product(STEP, value, where, found):
        if kind == "value":  # a number needs no theory
            out.append(Step("value", one["value"], schedule=one["schedule"], warmup=one["warmup"]))
            continue
        if one["of"] is not None:
            try:
                registry.lookup("algorithm", one["of"], f"{where}.of")
            except InputError as error:
                found.extend(c for c in error.complaints if c not in found)
                continue
        shape = (one["schedule"], one["warmup"])
        out.append(Step("theory", one["theory"], one["rule"], one["of"], *shape))
    return out


def stops(value: Any, where: str, found: Found) -> list[dict[str, float]]:
    """Return the stopping thresholds by column name; those that are null are left out."""
    if value is None:
        return [{}]
    if not isinstance(value, Mapping):
        what = f"expected a mapping, not {show(value)}"
        found.append(Complaint(where, what, f"keys: {', '.join(STOP)}"))
        return []
    every = product(STOP, value, where, found, also=("rounds",) if "rounds" in value else ())
    return [{k: v for k, v in one.items() if v is not None} for one in every]


def starts(value: Any, where: str, found: Found) -> list[Any]:
    """Return the starting points: words, ``{"normal": scale}``, or the paths of .npy files."""
    out = []
    for start in options(X0, value, where, found):
        if isinstance(start, str) and start not in ("zeros", "problem"):
            if start == "normal":
                found.append(Complaint(where, "normal needs a scale", "write {normal: 1.0}"))
            elif not start.endswith(".npy"):
                fix = nearest(start, ["zeros", "problem", "{normal: 1.0}", "FILE.npy"])
                found.append(Complaint(where, f"unknown start {start!r}", fix))
            elif locate(start) is None:
                found.append(Complaint(where, f"no file {start}", "save x0 with numpy.save"))
        out.append(start)
    return out


def proxes(value: Any, where: str, found: Found) -> list[dict[str, float] | None]:
    """Return the nonsmooth terms added to a problem; None is the only one so far."""
    if isinstance(value, Mapping) or (isinstance(value, str) and value in ("l1", "l2")):
        fix = "give the problem its term: problem: {regularizer: l1, lambda: 0.1}"
        found.append(Complaint(where, f"{show(value)} is not known here", fix))
        return []
    if value is None:
        return [None]
    return [None if one == "none" else one for one in options(PROX, value, where, found)]


def graphs(value: Any, where: str, found: Found) -> list[Section]:
    """Return the communication graphs of decentralised methods; a ring by default."""
    if value is None:
        value = "ring"
    if isinstance(value, list):
        if not value:
            found.append(Complaint(where, "an empty list leaves no cells", "write ring"))
        return [s for i, item in enumerate(value) for s in graphs(item, f"{where}[{i}]", found)]
    given = dict(value) if isinstance(value, Mapping) else {"name": value}
    names = given.pop("name", None)
    out = []
    for name in names if isinstance(names, list) else [names]:
        if not isinstance(name, str) or name not in GRAPHS:
            found.append(
                Complaint(where, f"unknown graph {show(name)}", nearest(str(name), GRAPHS))
            )
            continue
        out += [Section(name, params) for params in product(GRAPHS[name], given, where, found)]
    return out


def scalars(param: Param, value: Any, where: str, found: Found) -> list[Any]:
    """Return the values of one of the plain axes, its default where the key is not given."""
    return [param.default] if value is None else options(param, value, where, found)
