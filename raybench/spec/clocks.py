"""What ``clock:`` of a sweep file says: how long clients compute, when they vanish, what links they have.

Typed here into plain values, which make the id of a cell; ``raybench.clock.clients`` draws from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raybench.clock import links
from raybench.core.errors import InputError, nearest
from raybench.core.params import Choice, Number, Param
from raybench.spec import sections
from raybench.spec.values import Complaints, locate, show

EXAMPLE = "{compute: {lognormal: {median: 1.0, sigma: 0.5}}, jitter: {exponential: 0.1}, link: '1Gbit,server'}"
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
KEYS: Mapping[str, Param] = {
    "compute": Param("seconds", help=f"such as {EXAMPLE}"),
    "per": Choice("call", "sample", help="what takes these seconds"),
    "jitter": Param("jitter", None, help=", ".join(JITTERS)),
    "dropout": Param("dropout", None, help="{p: .., back_after: ..}"),
    "link": Param("link", None, help="1Gbit,server or {up: 10Mbit, down: 100Mbit}"),
}
"""The keys of a clock; what is no plain value has a kind of its own, which ``_part`` reads."""
LINK: Mapping[str, Param] = {
    "up": Param("rates", help="write {up: 10Mbit, down: 100Mbit}"),
    "down": Param("rates", None),
    "latency": Number(0.0, low=0),
}


def typed(value: object, where: str = "clock") -> dict[str, Any]:
    """Return a clock as plain values with its defaults filled in: ``KEYS``, None where there is none.

    compute: ``{"fixed": seconds}``, a number or a list of them; a distribution of ``PARAMETERS`` with all of its
    parameters; or ``{"trace": path}``. per: ``call`` or ``sample``. jitter: a distribution, or None. dropout:
    ``{"p", "back_after"}`` or None. link: ``{"up", "down"}``, rates or lists of them in bytes per second (down None where
    it is free), ``latency`` in seconds, and ``shared``, whether the one link of the server carries what all clients send;
    or None. Raises InputError naming the key.
    """
    return sections.mapping(KEYS, value, where, read=_part)


def _part(param: Param, value: Any, where: str, complaints: Complaints) -> list[Any]:
    """Return a part of a clock, or of its link, alone in a list, as ``sections.single`` does of plain values."""
    if value is None and param.default is None:
        return [None]
    match param.kind:
        case "seconds":
            return [_distribution(value, where, COMPUTES, complaints)]
        case "jitter":
            return [_distribution(value, where, JITTERS, complaints)]
        case "dropout":
            return [sections.mapping(DROPOUT, value, where)]
        case "link" if isinstance(value, str):
            return [links.to_server(value, where)]
        case "link":
            return [{**sections.mapping(LINK, value, where, read=_part), "shared": False}]
        case "rates" if isinstance(value, list):
            read = (_rate(rate, f"{where}[{i}]", complaints) for i, rate in enumerate(value))
            return [[rate for one in read for rate in one]]
        case "rates":
            return _rate(value, where, complaints)
    return sections.single(param, value, where, complaints)


def _rate(value: object, where: str, complaints: Complaints) -> list[float]:
    """Return the bytes per second of a text such as 10Mbit, or of a number of them, alone in a list."""
    if isinstance(value, str):
        return [links.rate(value, where)]
    return sections.single(POSITIVE, value, where, complaints)


def _each(value: object, where: str, complaints: Complaints) -> float | list[float] | None:
    """Return a positive number, or a list of them, one for each client."""
    if isinstance(value, list):
        return sections.options(POSITIVE, value, where, complaints) if value else []
    return next(iter(sections.single(POSITIVE, value, where, complaints)), None)


def _distribution(
    value: object, where: str, allowed: Sequence[str], complaints: Complaints
) -> dict[str, Any]:
    """Return ``{name: parameters}`` of seconds; a bare number or list is ``fixed``."""
    if "fixed" in allowed and not isinstance(value, Mapping | None):
        return {"fixed": _each(value, where, complaints)}
    if not isinstance(value, Mapping) or len(value) != 1:
        fix = f"one of {', '.join(allowed)}, such as {{lognormal: {{median: 1.0, sigma: 0.5}}}}"
        raise InputError.of(where, f"expected one distribution, not {show(value)}", fix)
    ((name, inner),) = value.items()
    at = f"{where}.{name}"
    if name not in allowed:
        raise InputError.of(at, "unknown distribution", nearest(str(name), allowed))
    if name == "fixed":
        return {"fixed": _each(inner, at, complaints)}
    if name == "trace":
        if not isinstance(inner, str) or not inner.endswith(".parquet"):
            fix = "a Parquet file with the columns client and seconds"
            raise InputError.of(at, f"{inner!r} is no trace", fix)
        if locate(inner) is None:
            raise InputError.of(at, f"no file {inner}", "give its path")
        return {"trace": inner}
    params = PARAMETERS[name]
    if isinstance(inner, list) and len(inner) == len(params):
        inner = dict(zip(params, inner, strict=True))
    elif not isinstance(inner, Mapping) and len(params) == 1:
        inner = dict.fromkeys(params, inner)
    numbers = sections.mapping(params, inner, at)
    if name == "uniform" and numbers["high"] < numbers["low"]:
        what = f"from {numbers['low']:g} to {numbers['high']:g}"
        raise InputError.of(at, what, "low before high")
    return {name: numbers}
