"""What ``clock:`` of a sweep file says: how long clients compute, when they vanish, what links they have.

Typed here into plain values, which make the id of a cell; ``raybench.clock.clients`` draws from them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raybench.clock import links
from raybench.core.errors import InputError, nearest

EXAMPLE = "{compute: {lognormal: {median: 1.0, sigma: 0.5}}, jitter: {exponential: 0.1}, link: '1Gbit,server'}"
KEYS = ("compute", "per", "jitter", "dropout", "link")
PER = ("call", "sample")
MOST_DROPOUT = 0.99

# the parameters of each distribution, with what they must be above and whether they may equal it
_POSITIVE, _ZERO = (0.0, False), (0.0, True)
PARAMETERS: Mapping[str, Mapping[str, tuple[float, bool]]] = {
    "lognormal": {"median": _POSITIVE, "sigma": _ZERO},
    "uniform": {"low": _ZERO, "high": _POSITIVE},
    "exponential": {"mean": _POSITIVE},
    "pareto": {"scale": _POSITIVE, "shape": _POSITIVE},
    "power": {"exponent": (-math.inf, False)},
}
JITTERS = ("exponential", "lognormal", "uniform", "pareto")
COMPUTES = ("fixed", *PARAMETERS, "trace")
_SCIENTIFIC = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")


def typed(value: object, where: str = "clock") -> dict[str, Any]:
    """Return a clock as plain values with its defaults filled in: ``KEYS``, None where there is none.

    compute: ``{"fixed": seconds}``, a number or a list of them; a distribution of ``PARAMETERS`` with all of its
    parameters; or ``{"trace": path}``. per: ``call`` or ``sample``. jitter: a distribution, or None. dropout:
    ``{"p", "back_after"}`` or None. link: the text of a link, ``{"up", "down"}`` of rates or lists of them in
    bytes per second with ``latency`` in seconds, or None. Raises InputError naming the key.
    """
    given = _mapping(value, where, KEYS, f"such as {EXAMPLE}")
    if given.get("compute") is None:
        raise InputError.of(f"{where}.compute", "required", f"such as {EXAMPLE}")
    per = given.get("per", "call")
    if per not in PER:
        raise InputError.of(f"{where}.per", f"{per!r} is not allowed", f"one of {', '.join(PER)}")
    jitter, dropout, link = (given.get(name) for name in ("jitter", "dropout", "link"))
    return {
        "compute": _distribution(given["compute"], f"{where}.compute", COMPUTES),
        "per": per,
        "jitter": None if jitter is None else _distribution(jitter, f"{where}.jitter", JITTERS),
        "dropout": None if dropout is None else _dropout(dropout, f"{where}.dropout"),
        "link": None if link is None else _link(link, f"{where}.link"),
    }


def _mapping(value: object, where: str, keys: Sequence[str], fix: str) -> dict[str, Any]:
    """Return a mapping with these keys alone. Raises InputError."""
    if not isinstance(value, Mapping):
        raise InputError.of(where, f"expected a mapping, not {value!r}"[:80], fix)
    for key in value:
        if key not in keys:
            raise InputError.of(f"{where}.{key}", "unknown key", nearest(str(key), keys))
    return dict(value)


def _number(value: object, where: str, low: float = 0.0, equal: bool = False) -> float:
    """Return a finite number above ``low``, or ``equal`` to it. Raises InputError."""
    if isinstance(value, str) and _SCIENTIFIC.fullmatch(value):  # YAML reads 1e-3 as text
        value = float(value)
    number = float(value) if type(value) in (int, float) else math.nan  # type: ignore[arg-type]
    if not math.isfinite(number) or not (number > low or (equal and number == low)):
        least = "a number" if low == -math.inf else f"a number {'>=' if equal else '>'} {low:g}"
        raise InputError.of(where, f"{value!r} is not allowed"[:80], least)
    return number


def _numbers(value: object, where: str) -> float | list[float]:
    """Return one positive number, or a list of them."""
    if not isinstance(value, list | tuple):
        return _number(value, where)
    if not value:
        raise InputError.of(where, "an empty list", "a number for each client")
    return [_number(item, f"{where}[{i}]") for i, item in enumerate(value)]


def _distribution(value: object, where: str, allowed: Sequence[str]) -> dict[str, Any]:
    """Return ``{name: parameters}`` of seconds; a bare number or list is ``fixed``."""
    if not isinstance(value, Mapping) and "fixed" in allowed:
        return {"fixed": _numbers(value, where)}
    if not isinstance(value, Mapping) or len(value) != 1:
        fix = f"one of {', '.join(allowed)}, such as {{lognormal: {{median: 1.0, sigma: 0.5}}}}"
        raise InputError.of(where, f"expected one distribution, not {value!r}"[:80], fix)
    ((name, inner),) = value.items()
    if name not in allowed:
        raise InputError.of(f"{where}.{name}", "unknown distribution", nearest(str(name), allowed))
    at = f"{where}.{name}"
    if name == "fixed":
        return {"fixed": _numbers(inner, at)}
    if name == "trace":
        if not isinstance(inner, str) or not inner.endswith(".parquet"):
            fix = "a Parquet file with the columns client and seconds"
            raise InputError.of(at, f"{inner!r} is no trace", fix)
        return {"trace": inner}
    limits = PARAMETERS[name]
    if isinstance(inner, list | tuple) and len(inner) == len(limits):
        inner = dict(zip(limits, inner, strict=True))
    elif not isinstance(inner, Mapping) and len(limits) == 1:
        inner = dict.fromkeys(limits, inner)
    form = f"{name}: {{{', '.join(f'{p}: ..' for p in limits)}}}"
    params = _mapping(inner, at, tuple(limits), f"write {form}")
    for param in limits:
        if param not in params:
            raise InputError.of(f"{at}.{param}", "required", f"write {form}")
    params = {p: _number(params[p], f"{at}.{p}", *limits[p]) for p in limits}
    if name == "uniform" and params["high"] < params["low"]:
        raise InputError.of(at, f"from {params['low']:g} to {params['high']:g}", "low before high")
    return {name: params}


def _dropout(value: object, where: str) -> dict[str, float]:
    given = _mapping(value, where, ("p", "back_after"), "write {p: 0.01, back_after: 50}")
    p = _number(given.get("p"), f"{where}.p", equal=True)
    if p > MOST_DROPOUT:  # a call is tried again until it ends
        raise InputError.of(f"{where}.p", f"{p:g} is too much", f"at most {MOST_DROPOUT:g}")
    return {
        "p": p,
        "back_after": _number(given.get("back_after"), f"{where}.back_after", equal=True),
    }


def _link(value: object, where: str) -> dict[str, Any]:
    """Return ``{up, down, latency, shared}``: rates in bytes per second, one or a list; down None where it is free.

    shared: whether the one link of the server carries what all clients send.
    """
    if isinstance(value, str):
        network, words = _rate(value, where), value.lower().replace(" ", "").split(",")
        shared = network.form == "server"
        if not shared and any(form in words for form in links.FORMS):
            what = f"clients that talk to a server form no {network.form}"
            raise InputError.of(where, what, f"{words[0]}, or {words[0]},server")
        rate, latency = network.link.bandwidth, network.link.latency
        return {"up": rate, "down": rate, "latency": latency, "shared": shared}
    given = _mapping(value, where, ("up", "down", "latency"), "write {up: 10Mbit, down: 100Mbit}")
    if given.get("up") is None:
        raise InputError.of(f"{where}.up", "required", "write {up: 10Mbit, down: 100Mbit}")
    down = given.get("down")
    return {
        "up": _rates(given["up"], f"{where}.up"),
        "down": None if down is None else _rates(down, f"{where}.down"),
        "latency": _number(given.get("latency", 0.0), f"{where}.latency", equal=True),
        "shared": False,
    }


def _rates(value: object, where: str) -> float | list[float]:
    """Return rates in bytes per second of numbers (bytes per second) and texts such as 10Mbit."""

    def one(item: object, at: str) -> float:
        if not isinstance(item, str):
            return _number(item, at)
        return _rate(item if "," in item else f"{item},0s", at).link.bandwidth

    if isinstance(value, list | tuple) and value:
        return [one(item, f"{where}[{i}]") for i, item in enumerate(value)]
    return one(value, where)


def _rate(text: str, where: str) -> links.Network:
    try:
        return links.parse(text)
    except InputError as error:
        first = error.complaints[0]
        raise InputError.of(where, first.what, first.fix) from None


Hash = Callable[[str], str]


def identity(clock: Mapping[str, Any], content: Hash) -> dict[str, Any]:
    """Return what identifies a typed clock: parts that are given, and the hash of a trace in place of its path."""
    said = {key: value for key, value in clock.items() if value is not None}
    if said["per"] == "call":
        del said["per"]
    if "trace" in said["compute"]:
        said["compute"] = {"trace": f"sha256:{content(said['compute']['trace'])}"}
    return said
