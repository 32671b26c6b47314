"""How numbers, units and columns are spelled in tables and figures."""

from __future__ import annotations

import math
from collections.abc import Iterable

from raybench.analysis import ranks

UNITS_OF_BITS = ((1e12, "Tbit"), (1e9, "Gbit"), (1e6, "Mbit"), (1e3, "kbit"), (1.0, "bit"))
EDGE_MARKS = {"high": "↑", "low": "↓", "only": "·", "": ""}
EDGE_NOTE = {
    "high": "↑ the best step is the largest of its grid",
    "low": "↓ the best step is the smallest of its grid",
    "only": "· the grid has one step",
}
COLUMNS = {
    "grad_norm_sq": "‖∇f‖²",
    "loss": "f",
    "suboptimality": "f − f*",
    "test_loss": "test loss",
    "accuracy": "accuracy",
    "bits_up": "bits up",
    "round": "round",
    "seconds": "seconds",
}


def known(value: object) -> bool:
    """Return whether a value is neither None nor NaN."""
    return value is not None and value == value


def unit_of(bits: float) -> tuple[float, str]:
    """Return (size in bits, name) of the unit in which ``bits`` reads best."""
    return next(((size, name) for size, name in UNITS_OF_BITS if bits >= size), UNITS_OF_BITS[-1])


def bits(value: float) -> str:
    """Return bits with their unit, three digits: ``11.5 kbit``; a dash where not known."""
    if not known(value):
        return "–"
    if math.isinf(value):
        return "not reached"
    size, name = unit_of(value)
    return f"{value / size:.3g} {name}"


def bits_interval(middle: float, low: float, high: float) -> str:
    """Return a median of bits and its interval in one unit: ``11.5 [11.4, 12.0] kbit``.

    Where the median seed did not reach the target but another did: ``not reached [11.4 kbit, ∞]``.
    """
    if not known(middle) or not known(low):
        return bits(middle)
    if math.isinf(middle):
        return bits(middle) + ("" if math.isinf(low) else f" [{bits(low)}, ∞]")
    size, name = unit_of(middle)
    ends = ["∞" if math.isinf(v) else f"{v / size:.3g}" for v in (low, high)]
    return f"{middle / size:.3g} [{', '.join(ends)}] {name}"


def intervals(seeds: Iterable[int]) -> str:
    """Return between what seeds an interval lies and its coverage: ``75 % (range of 3 seeds)``.

    seeds: the numbers of seeds of all medians shown; empty where each is that of one seed.
    """
    several = sorted({n for n in seeds if n > 1})
    return ", ".join(f"{_percent(ranks(n)[1])} ({_ends(n)})" for n in several)


def band(seeds: Iterable[int]) -> str:
    """Return what a figure shows: ``median and range of 3 seeds, pointwise coverage 75 %``.

    seeds: as for ``intervals``; empty where no series has several.
    """
    several = sorted({n for n in seeds if n > 1})
    said = [f"{_ends(n)}, pointwise coverage {_percent(ranks(n)[1])}" for n in several]
    return f"median and {'; '.join(said)}" if said else ""


def _ends(count: int) -> str:
    rank = ranks(count)[0]
    if rank == 1:
        return f"range of {count} seeds"
    place = {2: "2nd", 3: "3rd"}.get(rank, f"{rank}th")
    return f"{place} smallest to {place} largest of {count} seeds"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


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


def one_line(text: object, width: int = 160) -> str:
    """Return the first line of a text, cut to ``width``."""
    line = (str(text).strip().splitlines() or [""])[0]
    return line if len(line) <= width else line[: width - 1] + "…"
