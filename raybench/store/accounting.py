"""Where counts become bits: the one place that knows what a value and an index cost.

    bits = value_bits * values + index bits + raw bits

A message is booked as counts (number of values, index bits under each code, raw bits); an
``Accounting`` says how wide a value is and which index code is charged. The counts are stored with
every curve, so a finished sweep is re-booked under another paper's accounting without a rerun.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from raybench.core.counts import Counts
from raybench.core.errors import Complaint, InputError, nearest
from raybench.core.params import Choice, Flag, Integer, record

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

MOST_VALUE_BITS = 64  # no number type is wider
INDEX_BITS = (*(n.removeprefix("index_") for n in Counts._fields if n.startswith("index_")), "none")
PRESETS: dict[str, dict[str, object]] = {
    "default": {},
    # Initial messages are free and Top-k indices are not sent: Richtarik et al. 2021, code.
    "paper:ef21": {"value_bits": 32, "index_bits": "none", "count_init": False},
    # Rand-k indices come from a shared seed: Gorbunov et al. 2021, code.
    "paper:marina": {"value_bits": 32, "index_bits": "none", "count_init": False},
    # 64-bit values, no indices: Richtarik et al. 2022, code.
    "paper:3pc": {"value_bits": 64, "index_bits": "none", "count_init": True},
}
FIX = f"presets: {', '.join(PRESETS)}; or value_bits=32,index_bits=none,count_init=false"


@record
class Accounting:
    """How counts become bits.

    value_bits: width of a value, 1 to 64, or ``dtype`` for the width of the cell's own dtype.
    index_bits: the code charged for indices: ``auto`` is the one that is packed,
    ``list_or_bitmask`` the shorter of these two, ``entropy`` a lower bound for any code.
    count_init: whether the messages before the first round (row 0 of a curve) cost anything.
    Raises InputError for other values.
    """

    value_bits: str | int = Integer("dtype", 1, MOST_VALUE_BITS, ("dtype",))
    index_bits: str = Choice(*INDEX_BITS, default="auto")
    count_init: bool = Flag(True)

    def __post_init__(self) -> None:
        width, code, flag = self.value_bits, self.index_bits, self.count_init
        is_width = width == "dtype" or (type(width) is int and 1 <= width <= MOST_VALUE_BITS)
        widths = f"allowed: dtype, or an integer from 1 to {MOST_VALUE_BITS}"
        table = (
            (is_width, "value_bits", f"{width!r} is no width", widths),
            (code in INDEX_BITS, "index_bits", f"unknown {code!r}", nearest(str(code), INDEX_BITS)),
            (isinstance(flag, bool), "count_init", f"{flag!r}", "allowed: true, false"),
        )
        wrong = [
            Complaint(f"accounting.{key}", *words) for holds, key, *words in table if not holds
        ]
        if wrong:
            raise InputError(wrong)

    def bits(
        self, counts: Counts, dtype_bits: int | np.ndarray = 64, start: Counts | None = None
    ) -> Any:
        """Return bits, elementwise: ``value_bits * values + index + raw``.

        counts: floats, numpy arrays or torch tensors of shapes that broadcast. dtype_bits is the width used for
        ``value_bits: dtype``. start: counts of the messages before the first round, free by ``count_init: false``.
        """
        if start is not None and not self.count_init:
            counts = Counts(*(now - before for now, before in zip(counts, start, strict=True)))
        width = dtype_bits if self.value_bits == "dtype" else self.value_bits
        total = counts.values * width + counts.raw
        if self.index_bits == "none":
            return total
        return total + getattr(counts, f"index_{self.index_bits}")

    def as_dict(self) -> dict[str, object]:
        """Return the three settings as a mapping a sweep file accepts."""
        return asdict(self)

    def __str__(self) -> str:
        init = str(self.count_init).lower()
        return f"value_bits={self.value_bits}, index_bits={self.index_bits}, count_init={init}"


def parse_accounting(source: str | Mapping[str, Any] | Accounting | None) -> Accounting:
    """Return the accounting that ``source`` describes.

    A preset (``default``, ``paper:ef21``, ``paper:marina``, ``paper:3pc``), a mapping with any of ``value_bits``,
    ``index_bits``, ``count_init`` (and ``preset``), or such settings as text:
    ``value_bits=32,index_bits=none``; settings may follow a preset: ``paper:3pc,count_init=false``.
    Raises InputError with the nearest name.
    """
    if isinstance(source, Accounting):
        return source
    if source is None:
        return Accounting()
    if isinstance(source, str):
        pairs = [_pair(word) for word in source.split(",") if word.strip()]
    elif isinstance(source, Mapping):
        # settings of one's own come after those of a preset
        pairs = sorted(source.items(), key=lambda pair: pair[0] != "preset")
    else:
        raise InputError.of("accounting", f"{source!r} is no accounting", FIX)
    if not pairs and isinstance(source, str):
        raise InputError.of("accounting", "is empty", FIX)
    settings: dict[str, Any] = {}
    wrong = []
    for key, value in pairs:
        if key != "preset":
            settings[key] = value
        elif isinstance(value, str) and value in PRESETS:
            settings |= PRESETS[value]
        elif value is not None:
            fix = f"{nearest(str(value), PRESETS)}\n    {FIX}"
            wrong.append(Complaint("accounting", f"unknown preset {value!r}", fix))
    names = list(Accounting.__dataclass_fields__)
    for key in settings.keys() - names:
        fix = nearest(str(key), names)
        wrong.append(Complaint("accounting", f"unknown key {key!r}", fix))
    if wrong:
        raise InputError(wrong)
    return Accounting(**settings)


def _pair(word: str) -> tuple[str, object]:
    """Return the key and the value that a word gives; one that is none is left for ``Accounting`` to refuse."""
    key, is_set, text = (piece.strip() for piece in word.partition("="))
    if not is_set:
        return "preset", key
    if key == "value_bits" and text.isdecimal() and text.isascii():
        return key, int(text)
    flags = {"true": True, "false": False} if key == "count_init" else {}
    return key, flags.get(text.lower(), text)


# Finished sweeps, booked anew -----------------------------------------------------------------


def rebook(
    curves: pd.DataFrame, cells: pd.DataFrame, accounting: Accounting
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return copies of curves and cells (``value_bits`` among them) with bits booked under ``accounting``.

    Counts are cumulative means per client. A cell's bits are those of the last row of its curve,
    null where it has none. ``count_init=False`` takes away the counts of the cell's row of round 0.
    """
    import pandas as pd

    from raybench.store.schema import SIDES, column

    curves, cells = curves.copy(deep=False), cells.copy(deep=False)
    width = curves["cell"].map(cells.set_index("cell")["value_bits"]).to_numpy(float)
    curves.index = pd.RangeIndex(len(curves))
    first = curves.index[curves["round"] == 0]
    last = curves.groupby("cell")["round"].idxmax() if len(curves) else curves.index
    for side in SIDES:
        counts = Counts(*(_count(curves, column(count, side)) for count in Counts._fields))
        booked = accounting.bits(counts, width)
        curves[f"bits_{side}"] = booked
        if not accounting.count_init:
            start = curves.loc[first].set_index("cell")[f"bits_{side}"]
            curves[f"bits_{side}"] = booked - curves["cell"].map(start).fillna(0.0).to_numpy(float)
        ends = curves.loc[last].set_index("cell")[f"bits_{side}"]
        cells[f"bits_{side}"] = cells["cell"].map(ends).astype(float)
    return curves, cells


def _count(curves: pd.DataFrame, name: str) -> np.ndarray:
    """Return a count as a float array; one that is kept in the map ``extra`` is zero where absent."""
    import pandas as pd

    if name in curves:
        return curves[name].to_numpy(float)
    counts = pd.Series(0.0, curves.index)
    if f"extra.{name}" in curves:  # a frame that ``raybench.load`` returned
        counts = curves[f"extra.{name}"]
    elif "extra" in curves:
        counts = curves["extra"].map(lambda pairs: dict(pairs).get(name), na_action="ignore")
    return counts.astype(float).fillna(0.0).to_numpy()
