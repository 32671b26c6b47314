"""How numbers, units and columns are spelled in tables and figures."""

from __future__ import annotations

import math
from typing import Any

UNITS = ((1e12, "Tbit"), (1e9, "Gbit"), (1e6, "Mbit"), (1e3, "kbit"), (1.0, "bit"))
EDGES = {"high": "↑", "low": "↓", "only": "·", "": ""}
EDGE_NOTE = {
    "high": "↑ the best step is the largest of its grid",
    "low": "↓ the best step is the smallest of its grid",
    "only": "· the grid has one step",
}
COLUMNS = {
    "grad_norm_sq": "‖∇f‖²",
    "loss": "f",
    "suboptimality": "f − f*",
    "accuracy": "accuracy",
    "bits_up": "bits up",
    "round": "round",
    "seconds": "seconds",
}


def known(value: Any) -> bool:
    """Return whether a value is neither None nor NaN."""
    return value is not None and value == value


def unit_of(bits: float) -> tuple[float, str]:
    """Return (size in bits, name) of the unit in which ``bits`` reads best."""
    return next(((size, name) for size, name in UNITS if bits >= size), UNITS[-1])


def bits(value: float) -> str:
    """Return bits with their unit, three digits: ``11.5 kbit``; a dash where not known."""
    if not known(value):
        return "–"
    if math.isinf(value):
        return "not reached"
    size, name = unit_of(value)
    return f"{value / size:.3g} {name}"


def bits_interval(middle: float, low: float, high: float) -> str:
    """Return bits and their interval in one unit: ``11.5 [11.4, 12.0] kbit``."""
    if not known(middle) or math.isinf(middle) or not known(low):
        return bits(middle)
    size, name = unit_of(middle)
    ends = ["∞" if math.isinf(v) else f"{v / size:.3g}" for v in (low, high)]
    return f"{middle / size:.3g} [{', '.join(ends)}] {name}"


def number(value: float, digits: int = 3) -> str:
    """Return a number with so many digits, a dash where not known."""
    if not known(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.{digits}g}"


def step(multiple: float, size: float) -> str:
    """Return a step: ``8×`` for a multiple of the theoretical step, else its value."""
    if known(multiple):
        return f"{multiple:.6g}×"
    return number(size)


def count(amount: int, word: str) -> str:
    """Return ``1 cell``, ``1,248 cells``."""
    return f"{amount:,} {word}" + ("" if amount == 1 else "s")


def one_line(text: Any, width: int = 160) -> str:
    """Return the first line of a text, cut to ``width``."""
    line = (str(text).strip().splitlines() or [""])[0]
    return line if len(line) <= width else line[: width - 1] + "…"
