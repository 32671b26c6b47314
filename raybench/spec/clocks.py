"""What ``clock:`` of a sweep file says: how long clients compute, when they vanish, what links they have.

Typed here into plain values, which make the id of a cell; ``raybench.clock.clients`` draws from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raybench.clock import links
from raybench.core.errors import InputError, nearest
from raybench.core.params import Number, Param
from raybench.spec import sections
from raybench.spec.values import Complaints

EXAMPLE = "{compute: {lognormal: {median: 1.0, sigma: 0.5}}, jitter: {exponential: 0.1}, link: '1Gbit,server'}"
KEYS = ("compute", "per", "jitter", "dropout", "link")
PER = ("call", "sample")
POSITIVE, ZERO = Number(low=0, open_low=True), Number(low=0)
PARAMETERS: Mapping[str, Mapping[str, Param]] = {
    "lognormal": {"median": POSITIVE, "sigma": ZERO},
    "uniform": {"low": ZERO, "high": POSITIVE},
    "exponential": {"mean": POSITIVE},
    "pareto": {"scale": POSITIVE, "shape": POSITIVE},
    "power": {"exponent": Number()},
}
"""The parameters of each distribution of seconds."""
JITTERS = ("exponential", "lognormal", "uniform", "pareto")
COMPUTES = ("fixed", *PARAMETERS, "trace")
DROPOUT = {"p": Number(low=0, high=0.99), "back_after": ZERO}  # a call is tried again until it ends


def typed(value: object, where: str = "clock") -> dict[str, Any]:
    """Return a clock as plain values with its defaults filled in: ``KEYS``, None where there is none.

    compute: ``{"fixed": seconds}``, a number or a list of them; a distribution of ``PARAMETERS`` with all of its
    parameters; or ``{"trace": path}``. per: ``call`` or ``sample``. jitter: a distribution, or None. dropout:
    ``{"p", "back_after"}`` or None. link: ``{"up", "down"}``, rates or lists of them in bytes per second (down None where
    it is free), ``latency`` in seconds, and ``shared``, whether the one link of the server carries what all clients send;
    or None. Raises InputError naming the key.
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
        "dropout": None
        if dropout is None
        else sections.mapping(DROPOUT, dropout, f"{where}.dropout"),
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


def _number(value: object, where: str, param: Param = POSITIVE) -> float:
    complaints: Complaints = []
    numbers = sections.single(param, value, where, complaints)
    if complaints:
        raise InputError(complaints)
    (number,) = numbers
    assert isinstance(number, float)
    return number


def _each(
    value: object, where: str, read: Callable[[object, str], float] = _number
) -> float | list[float]:
    """Return what ``read`` makes of one value, or of each of a list of them, one for each client."""
    if not isinstance(value, list | tuple):
        return read(value, where)
    if not value:
        raise InputError.of(where, "an empty list", "a number for each client")
    return [read(item, f"{where}[{i}]") for i, item in enumerate(value)]


def _distribution(value: object, where: str, allowed: Sequence[str]) -> dict[str, Any]:
    """Return ``{name: parameters}`` of seconds; a bare number or list is ``fixed``."""
    if not isinstance(value, Mapping) and "fixed" in allowed:
        return {"fixed": _each(value, where)}
    if not isinstance(value, Mapping) or len(value) != 1:
        fix = f"one of {', '.join(allowed)}, such as {{lognormal: {{median: 1.0, sigma: 0.5}}}}"
        raise InputError.of(where, f"expected one distribution, not {value!r}"[:80], fix)
    ((name, inner),) = value.items()
    if name not in allowed:
        raise InputError.of(f"{where}.{name}", "unknown distribution", nearest(str(name), allowed))
    at = f"{where}.{name}"
    if name == "fixed":
        return {"fixed": _each(inner, at)}
    if name == "trace":
        if not isinstance(inner, str) or not inner.endswith(".parquet"):
            fix = "a Parquet file with the columns client and seconds"
            raise InputError.of(at, f"{inner!r} is no trace", fix)
        return {"trace": inner}
    params = PARAMETERS[name]
    if isinstance(inner, list | tuple) and len(inner) == len(params):
        inner = dict(zip(params, inner, strict=True))
    elif not isinstance(inner, Mapping) and len(params) == 1:
        inner = dict.fromkeys(params, inner)
    numbers = sections.mapping(params, inner, at)
    if name == "uniform" and numbers["high"] < numbers["low"]:
        what = f"from {numbers['low']:g} to {numbers['high']:g}"
        raise InputError.of(at, what, "low before high")
    return {name: numbers}


def _link(value: object, where: str) -> dict[str, Any]:
    if isinstance(value, str):
        network, words = _network(value, where), value.lower().replace(" ", "").split(",")
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
        "up": _each(given["up"], f"{where}.up", _rate),
        "down": None if down is None else _each(down, f"{where}.down", _rate),
        "latency": _number(given.get("latency", 0.0), f"{where}.latency", ZERO),
        "shared": False,
    }


def _rate(value: object, where: str) -> float:
    """Return a rate in bytes per second of a number (bytes per second) or a text such as 10Mbit."""
    if not isinstance(value, str):
        return _number(value, where)
    return _network(value if "," in value else f"{value},0s", where).link.bandwidth


def _network(text: str, where: str) -> links.Network:
    try:
        return links.parse(text)
    except InputError as error:
        first = error.complaints[0]
        raise InputError.of(where, first.what, first.fix) from None
