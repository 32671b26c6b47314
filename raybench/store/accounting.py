"""Where counts become bits: the one place that knows what a value and an index cost.

    bits = value_bits * values + index bits + raw bits

A message is booked as counts (number of values, index bits under each code, raw bits); an
``Accounting`` says how wide a value is and which index code is charged. The counts are stored with
every curve, so a finished sweep is re-booked under another paper's accounting without a rerun.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from raybench.core.counts import Counts
from raybench.core.errors import Complaint, InputError, nearest

if TYPE_CHECKING:
    import pandas as pd

VALUE_BITS = ("dtype", 16, 32, 64)
INDEX_BITS = ("auto", "list_or_bitmask", "explicit", "bitmask", "entropy", "none")
PRESETS: dict[str, dict[str, Any]] = {
    # Initial messages are free and Top-k indices are not sent: Richtarik et al. 2021, code.
    "paper:ef21": {"value_bits": 32, "index_bits": "none", "count_init": False},
    # Rand-k indices come from a shared seed: Gorbunov et al. 2021, code.
    "paper:marina": {"value_bits": 32, "index_bits": "none", "count_init": False},
    # 64-bit values, no indices: Richtarik et al. 2022, code.
    "paper:3pc": {"value_bits": 64, "index_bits": "none", "count_init": True},
}
EXTRA_COUNTS = tuple(
    f"index_{code}_{way}"
    for code in ("list_or_bitmask", "bitmask", "entropy")
    for way in ("up", "down")
)
"""Counts without a column of their own: keys of the ``extra`` map, absent where zero."""


@dataclass(frozen=True)
class Accounting:
    """How counts become bits.

    value_bits: width of a value, ``dtype`` for the width of the cell's own dtype. index_bits: the
    code charged for indices, ``auto`` for the one that is packed. count_init: whether
    the messages before the first round (row 0 of a curve) cost anything.
    """

    value_bits: str | int = "dtype"
    index_bits: str = "auto"
    count_init: bool = True

    def __post_init__(self) -> None:
        wrong = []
        if self.value_bits not in VALUE_BITS or isinstance(self.value_bits, bool):
            allowed = ", ".join(str(v) for v in VALUE_BITS)
            wrong.append(
                Complaint(
                    "accounting.value_bits",
                    f"{self.value_bits!r} is no width",
                    f"allowed: {allowed}",
                )
            )
        if self.index_bits not in INDEX_BITS:
            wrong.append(
                Complaint(
                    "accounting.index_bits",
                    f"unknown {self.index_bits!r}",
                    nearest(str(self.index_bits), INDEX_BITS),
                )
            )
        if not isinstance(self.count_init, bool):
            wrong.append(
                Complaint("accounting.count_init", f"{self.count_init!r}", "allowed: true, false")
            )
        if wrong:
            raise InputError(wrong)

    def bits(self, counts: Counts, dtype_bits: Any = 64) -> Any:
        """Return bits, elementwise: ``value_bits * values + index + raw``.

        counts: floats, numpy arrays or torch tensors of shapes that broadcast. dtype_bits is the width
        used for ``value_bits: dtype``.
        """
        width = dtype_bits if self.value_bits == "dtype" else self.value_bits
        total = counts.values * width + counts.raw
        if self.index_bits == "none":
            return total
        return total + getattr(counts, f"index_{self.index_bits}")

    def as_dict(self) -> dict[str, Any]:
        """Return the three settings as a mapping a sweep file accepts."""
        return asdict(self)

    def __str__(self) -> str:
        return ", ".join(f"{key}={_spell(value)}" for key, value in asdict(self).items())


def _spell(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse(source: str | Mapping[str, Any] | Accounting | None) -> Accounting:
    """Return the accounting that ``source`` describes.

    A preset (``paper:ef21``, ``paper:marina``, ``paper:3pc``), a mapping with any of ``value_bits``,
    ``index_bits``, ``count_init`` (and ``preset``), or such settings as text:
    ``value_bits=32,index_bits=none``; settings may follow a preset: ``paper:3pc,count_init=false``.
    Raises InputError with the nearest name.
    """
    if isinstance(source, Accounting):
        return source
    if source is None:
        return Accounting()
    if isinstance(source, str):
        return Accounting(**_from_text(source))
    if not isinstance(source, Mapping):
        raise InputError.of("accounting", f"{source!r} is no accounting", _fix())
    settings = dict(source)
    preset = settings.pop("preset", None)
    _known_keys(settings)
    return Accounting(**{**(_preset(preset) if preset is not None else {}), **settings})


def _fix() -> str:
    return f"presets: {', '.join(PRESETS)}; or value_bits=32,index_bits=none,count_init=false"


def _preset(name: Any) -> dict[str, Any]:
    if not isinstance(name, str) or name not in PRESETS:
        raise InputError.of(
            "accounting", f"unknown preset {name!r}", f"{nearest(str(name), PRESETS)}\n    {_fix()}"
        )
    return PRESETS[name]


def _known_keys(settings: Mapping[Any, Any]) -> None:
    names = list(Accounting.__dataclass_fields__)
    wrong = [
        Complaint("accounting", f"unknown key {key!r}", nearest(str(key), names))
        for key in settings
        if key not in names
    ]
    if wrong:
        raise InputError(wrong)


def _from_text(text: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise InputError.of("accounting", "is empty", _fix())
    for part in parts:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            settings.update(_preset(part))
        elif key == "value_bits":
            settings[key] = int(value) if value.isdecimal() and value.isascii() else value
        elif key == "count_init":
            settings[key] = {"true": True, "false": False}.get(value.lower(), value)
        else:
            settings[key] = value
    _known_keys(settings)
    return settings


def dtype_bits(config: str | None) -> int:
    """Return the width of a value in the cell whose config (JSON) this is: 64 unless it says float32."""
    if not isinstance(config, str) or not config:
        return 64
    problem = json.loads(config).get("problem") or {}
    params = problem.get("params", problem)
    return {"float32": 32, "float16": 16, "bfloat16": 16}.get(str(params.get("dtype")), 64)


def rebook(
    curves: pd.DataFrame, cells: pd.DataFrame, accounting: Accounting
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return copies of curves and cells with ``bits_up``, ``bits_down`` booked under ``accounting``.

    Counts are cumulative means per client. A cell's bits are those of the last row of its curve,
    null where it has none. ``count_init=False`` takes away the counts of the cell's row of round 0.
    """
    curves, cells = curves.copy(), cells.copy()
    widths = cells.set_index("cell")["config"].map(dtype_bits)
    width = curves["cell"].map(widths).fillna(64).to_numpy(float)
    curves.index = range(len(curves))  # type: ignore[assignment]
    first = curves.index[curves["round"] == 0]
    last = curves.groupby("cell")["round"].idxmax() if len(curves) else curves.index
    for way in ("up", "down"):
        names = [
            f"{count}_{way}" for count in ("values", "index_explicit", "index_auto", "raw_bits")
        ]
        values, explicit, auto, raw = (curves[name].to_numpy(float) for name in names)
        counts = Counts(
            values=values,
            index_explicit=explicit,
            index_auto=auto,
            index_list_or_bitmask=_extra(curves, f"index_list_or_bitmask_{way}"),
            index_bitmask=_extra(curves, f"index_bitmask_{way}"),
            index_entropy=_extra(curves, f"index_entropy_{way}"),
            raw=raw,
        )
        booked = accounting.bits(counts, width)
        curves[f"bits_{way}"] = booked
        if not accounting.count_init:
            start = curves.loc[first].set_index("cell")[f"bits_{way}"]
            curves[f"bits_{way}"] = booked - curves["cell"].map(start).fillna(0.0).to_numpy(float)
        ends = curves.loc[last].set_index("cell")[f"bits_{way}"]
        cells[f"bits_{way}"] = cells["cell"].map(ends).astype(float)
    return curves, cells


def _extra(curves: pd.DataFrame, name: str) -> Any:
    """Return one key of the ``extra`` map as a float array, zero where absent."""
    if f"extra.{name}" in curves:  # a frame of raybench.load
        return curves[f"extra.{name}"].fillna(0.0).to_numpy(float)
    if "extra" not in curves:
        return 0.0
    found = curves["extra"].map(lambda pairs: dict(pairs).get(name, 0.0), na_action="ignore")
    return found.fillna(0.0).to_numpy(float)
