"""How numbers, units and columns are spelled in tables and figures."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from functools import partial

from raybench.analysis import ranks
from raybench.analysis.methods import compressor_name

UNITS_OF_BITS = ((1e12, "Tbit"), (1e9, "Gbit"), (1e6, "Mbit"), (1e3, "kbit"), (1.0, "bit"))
TIMES = ("seconds", "seconds_simulated", "clock_seconds")
"""Columns that targets are paid in which hold seconds."""
UNITS_OF_TIME = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
EDGE_MARKS = {"high": "↑", "low": "↓", "only": "·", "": ""}
EDGE_NOTE = {
    "high": "↑ the best step is the largest of its grid",
    "low": "↓ the best step is the smallest of its grid",
    "only": "· the grid has one step",
}
GREW_MARK = "▲"
GREW_NOTE = (
    "▲ f ended at twice its value at the start or more: a small gradient is no minimum there"
)
COLUMNS = {
    "grad_norm_sq": "‖∇f‖²",
    "loss": "f",
    "suboptimality": "f − f*",
    "test_loss": "test loss",
    "accuracy": "accuracy",
    "bits_up": "bits up",
    "round": "round",
    "seconds": "seconds",
    "seconds_simulated": "simulated seconds",
    "clock_seconds": "simulated seconds",
}

AXES = {
    "bits_down": "Downlink",
    "bytes_up": "Uplink per client (bytes)",
    "bytes_down": "Downlink (bytes)",
    "bits_up": "Uplink per client",
    "bits": "Uplink and downlink per client",
    "round": "Communication round",
    "epoch": "Epoch",
    "grad_evals": "Gradient evaluations per client",
    "seconds": "Wall-clock time (s)",
    "seconds_simulated": "Simulated time",
    "clock_seconds": "Simulated time",
    "grad_norm_sq": r"$\Vert\nabla f(x^t)\Vert^2$",
    "loss": r"$f(x^t)$",
    "suboptimality": r"$f(x^t) - f^\ast$",
    "test_loss": "Test loss",
    "accuracy": "Accuracy",
    "consensus_error": "Consensus error",
    "estimator_error_sq": r"$\Vert g^t - \nabla f(x^t)\Vert^2$",
    "mean_client_grad_norm_sq": r"mean $\Vert\nabla f_i(x^t)\Vert^2$",
}
"""How the axes of figures name the columns of curves."""

FORMULA = {
    **{r"\Vert": "‖", r"\nabla ": "∇", r"^\ast": "*", "^2": "²", " - ": " − "},
    **{"^t": "<sup>t</sup>", "^T": "<sup>T</sup>", "_i": "<sub>i</sub>"},
}
"""Signs of TeX in the formulas of labels, as Plotly takes markup."""


Unit = Callable[[float], tuple[float, str]]
"""Which unit a number reads best in: (its size, its name)."""


def known(value: object) -> bool:
    """Return whether a value is neither None nor NaN."""
    return value is not None and value == value


def unit_of(bits: float) -> tuple[float, str]:
    """Return (size in bits, name) of the unit in which ``bits`` reads best."""
    return next(((size, name) for size, name in UNITS_OF_BITS if bits >= size), UNITS_OF_BITS[-1])


def bits(value: float) -> str:
    """Return bits with their unit, three digits: ``11.5 kbit``; a dash where not known."""
    return _amount(value, unit_of)


def seconds(value: float) -> str:
    """Return seconds with their unit, three digits: ``11.5 ms``; a dash where not known."""
    return _amount(value, time_unit_of)


SPELLED = {"bit": bits, "s": seconds}  # by the unit of an axis


def spelling(
    column: str,
) -> tuple[Callable[[float], str], Callable[[float, float, float], str], Unit | None]:
    """Return how numbers of a column are spelled, how with their interval, and in which unit."""
    if column.startswith("bits"):
        return bits, interval, unit_of
    if column in TIMES:
        return seconds, partial(interval, unit=time_unit_of), time_unit_of

    def digits(value: float) -> str:
        return f"{value:,.0f}" if 1e4 <= value < 1e9 else number(value, 4)

    def plain(value: float) -> str:
        return "not reached" if math.isinf(value) else digits(value)

    def with_ends(middle: float, low: float, high: float) -> str:
        if not known(low) or math.isinf(low):
            return plain(middle)
        return f"{plain(middle)} [{digits(low)}, {digits(high)}]"

    return plain, with_ends, None


def time_unit_of(value: float) -> tuple[float, str]:
    """Return (size in seconds, name) of the unit in which a time reads best."""
    return next(((size, name) for size, name in UNITS_OF_TIME if value >= size), UNITS_OF_TIME[-1])


def _amount(value: float, unit: Unit) -> str:
    if not known(value):
        return "–"
    if math.isinf(value):
        return "not reached"
    size, name = unit(value)
    return f"{_digits(value / size)} {name}"


def interval(middle: float, low: float, high: float, unit: Unit = unit_of) -> str:
    """Return a median of bits, or of seconds, and its interval in one unit: ``11.5 [11.4, 12.0] kbit``.

    Where the median seed did not reach the target but another did: ``not reached [11.4 kbit, ∞]``.
    """
    if not known(middle) or not known(low):
        return _amount(middle, unit)
    if math.isinf(middle):
        return _amount(middle, unit) + ("" if math.isinf(low) else f" [{_amount(low, unit)}, ∞]")
    size, name = unit(middle)
    ends = ["∞" if math.isinf(v) else _digits(v / size) for v in (low, high)]
    return f"{_digits(middle / size)} [{', '.join(ends)}] {name}"


def _digits(value: float) -> str:
    """Return three digits, of large numbers all before the point: 1,234 seconds have no larger unit."""
    return f"{value:,.0f}" if 1000 <= value < 1e9 else f"{value:.3g}"


def intervals(seeds: Iterable[int]) -> str:
    """Return between what seeds an interval lies and its coverage: ``75 % (range of 3 seeds)``.

    seeds: the numbers of seeds of all medians shown; empty where each is that of one seed.
    """
    several = sorted({n for n in seeds if n > 1})
    return ", ".join(f"{percent(ranks(n)[1])} ({_ends(n)})" for n in several)


def band(seeds: Iterable[int]) -> str:
    """Return what a figure shows: ``median and range of 3 seeds, pointwise coverage 75 %``.

    seeds: as for ``intervals``. Lines of one seed have no band, which is said too.
    """
    counts = {int(n) for n in seeds}
    lines = [
        f"{_ends(n)}, pointwise coverage {percent(ranks(n)[1])}" for n in sorted(counts - {0, 1})
    ]
    alone = ["a single seed"] if 1 in counts else []
    return "; ".join([f"median and {'; '.join(lines)}"] * bool(lines) + alone)


def _ends(count: int) -> str:
    rank = ranks(count)[0]
    if rank == 1:
        return f"range of {count} seeds"
    place = {2: "2nd", 3: "3rd"}.get(rank, f"{rank}th")
    return f"{place} smallest to {place} largest of {count} seeds"


def spoken(series: str) -> str:
    """Return how a legend names a series, without the spelling of sweep files.

    ``EF21 per tensor (of=top_k:k=1%)`` is ``EF21 Top-1% per tensor``, ``DCGD identity`` is ``DCGD uncompressed``, and
    ``Rennala SGD (collect=20)`` is ``Rennala SGD, collect 20``.
    """
    series = re.sub(r" identity\b", " uncompressed", series)
    series = re.sub(r"(\w+) per tensor \(of=(\w+)(?::\w+=([^(),]*))?", _of_tensors, series)
    return re.sub(
        r" \((?:, )?([^()]*=[^()]*|)\)", lambda told: f", {_settings(told[1])}".rstrip(", "), series
    )


def _of_tensors(told: re.Match[str]) -> str:
    algorithm, name, value = told[1], compressor_name(told[2]), (told[3] or "").strip("[]")
    name = "" if name.casefold() == algorithm.casefold() else name  # DGC's own selection
    own = f"{name}{value}" if name.endswith("-") else f"{name} {value}".strip()
    return f"{algorithm} {own} per tensor ("


def _settings(text: str) -> str:
    """Return ``a=1, b=True`` as ``a 1, b``."""
    pairs = [part.partition("=") for part in text.split(", ")]
    flags = {"True": "{}", "False": "not {}"}
    return ", ".join(
        flags.get(value, f"{{}} {value}").format(name).strip() for name, _, value in pairs
    )


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with so many digits, a dash where not known."""
    if value is None or not known(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.{digits}g}"


def whole(value: float) -> str:
    """Return a whole number with its thousands apart, a dash where not known."""
    return f"{value:,.0f}" if known(value) else "–"


def step(multiple: float, size: float) -> str:
    """Return a step: ``8×`` for a multiple of the theoretical step, else its value."""
    return f"{times(multiple)}×" if known(multiple) else number(size)


def grid_step(step: str) -> str:
    """Return a step of the grid, as the column ``step`` has it: ``x8 paper`` is ``8× paper``."""
    multiple, space, theory = step.partition(" ")
    return f"{multiple[1:]}×{space}{theory}" if multiple.startswith("x") else step


def times(multiple: float) -> str:
    """Return a multiple of a step, six digits; a power of two that has more as such: ``2^20``."""
    text = f"{multiple:.6g}"
    exponent = math.log2(multiple) if multiple > 0 else math.nan
    return f"2^{exponent:.0f}" if "e" in text and exponent.is_integer() else text


def ticks(values: Iterable[float], power: str, sign: str = "") -> list[str]:
    """Return the numbers at an axis: all as powers of two, where they are such and some have many digits, else in short.

    power: how a power of two is written, with ``{}`` for the exponent. sign: that follows any other number.
    """
    numbers = [float(v) for v in values]
    exponents = [math.log2(v) if v > 0 else math.nan for v in numbers]
    doubling = all(e.is_integer() for e in exponents)
    if doubling and numbers and not (min(numbers) >= 0.01 and max(numbers) < 1000):
        return [power.format(int(e)) for e in exponents]
    short = [_short(v) for v in numbers]
    if len(set(short)) < len(set(numbers)):
        short = [f"{v:.6g}" for v in numbers]
    return [f"{text}{sign}" for text in short]


def _short(value: float) -> str:
    """Return three digits, of large numbers all before the point; beyond a million and below 1e-4 with an exponent."""
    if 1000 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    mantissa, e, power = f"{value:.3g}".partition("e")
    return f"{mantissa}e{int(power)}" if e else mantissa


def targets(pairs: Iterable[tuple[str, float]]) -> str:
    """Return the target of (facet, target) pairs; each with its facet where they differ."""
    goals = {facet: target for facet, target in pairs if known(target)}
    if len(set(goals.values())) < 2:
        return next((f"{target:g}" for target in goals.values()), "–")
    return ", ".join(f"{t:g} ({f})" if f else f"{t:g}" for f, t in goals.items())


def axis(column: str, unit: str = "") -> str:
    """Return how an axis names a column of curves, with its unit if it has one."""
    label = AXES.get(column, column.removeprefix("extra.").replace("_", " "))
    return f"{label} ({unit})" if unit else label


def column_of(paid: str) -> str:
    """Return how heads name what a target is paid in: ``Bits``, ``Grad evals``."""
    return sentence(paid.replace("_", " "))


def column(name: str) -> str:
    """Return how a text names a column of curves."""
    return COLUMNS.get(name, AXES.get(name, name.removeprefix("extra.").replace("_", " ")))


def markup(label: str) -> str:
    """Return a label with formulas in TeX as Plotly takes markup; what looks like markup in it stays text."""
    parts = label.replace("&", "&amp;").replace("<", "&lt;").split("$")
    for sign, mark in FORMULA.items():
        parts[1::2] = [part.replace(sign, mark) for part in parts[1::2]]
    return "".join(parts)


def sentence(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def one_line(text: object, width: int = 160) -> str:
    """Return the first line of a text, cut to ``width``."""
    line = (str(text).strip().splitlines() or [""])[0]
    return line if len(line) <= width else line[: width - 1] + "…"
