"""Times of codecs on a GPU, as ``benchmarks/gpu.py`` wrote them, for ``advise``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raybench.core.errors import InputError

if TYPE_CHECKING:
    from raybench.measure.advise import Candidate

FORMAT = "raybench gpu 1"
LARGEST = 1 << 26  # bytes of a file
TIMES = ("encode", "decode", "feedback")
KEY = "--gpu"


@dataclass(frozen=True)
class Codecs:
    """The device, and by compressor the (numbers, seconds to encode, to decode, of error feedback), smallest first."""

    device: str
    times: dict[str, list[tuple[float, ...]]]

    def at(self, compressor: str, d: int) -> tuple[float, ...]:
        """Return the seconds for d numbers: between two sizes along a power of d, beyond them in proportion."""
        rows = self.times[compressor]
        low = max((row for row in rows if row[0] <= d), default=rows[0])
        high = min((row for row in rows if row[0] >= d), default=rows[-1])
        if low[0] >= high[0]:
            return tuple(seconds * max(1.0, d / low[0]) for seconds in low[1:])
        part = math.log(d / low[0]) / math.log(high[0] / low[0])
        return tuple(a ** (1 - part) * b**part for a, b in zip(low[1:], high[1:], strict=True))

    def served(self, rows: Iterable[Candidate], d: int) -> list[Candidate]:
        """Return candidates with these times; one that the file lacks is left out with a note."""
        result = []
        for row in rows:
            if row.left_out:
                result.append(row)
            elif row.compressor not in self.times:
                result.append(replace(row, left_out=f"{KEY} has no times of {row.compressor}"))
            else:
                encode, decode, feedback = self.at(row.compressor, d)
                kept = feedback if row.dropped == "kept" else 0.0
                result.append(replace(row, encode=encode + kept, decode=decode))
        return result


def read(path: str) -> Codecs:
    """Return the times of a file. Raises InputError that names the key for any other file."""
    try:
        file = Path(path)
        if file.stat().st_size > LARGEST:
            raise ValueError(f"it has more than {LARGEST:,} bytes")
        document = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _wrong(path, f"is not read: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _wrong(path, f"format is not {FORMAT!r}")
    device = _get(path, document, "machine", "device")
    if not isinstance(device, str):
        raise _wrong(path, "machine.device is no text")
    rows = _get(path, document, "parts", "codecs", "rows")
    times: dict[str, list[tuple[float, ...]]] = {}
    if not isinstance(rows, list):
        raise _wrong(path, "parts.codecs.rows is no list")
    for i, row in enumerate(rows):
        where = f"parts.codecs.rows[{i}]"
        if not isinstance(row, dict) or not isinstance(row.get("compressor"), str):
            raise _wrong(path, f"{where}.compressor is no text")
        if "said" in row or row["compressor"] == "copy":
            continue
        for key in ("numbers", *TIMES):
            value: Any = row.get(key)
            if type(value) not in (int, float) or not 0 < value < 1e15:
                raise _wrong(path, f"{where}.{key} is no number > 0")
        at = tuple(float(row[key]) for key in ("numbers", *TIMES))
        times.setdefault(row["compressor"], []).append(at)
    if not times:
        raise _wrong(path, "parts.codecs.rows has no times")
    return Codecs(device, {name: sorted(several) for name, several in times.items()})


def _get(path: str, part: Any, *keys: str) -> Any:
    for i, key in enumerate(keys):
        if not isinstance(part, dict) or key not in part:
            raise _wrong(path, f"{'.'.join(keys[: i + 1])} is missing")
        part = part[key]
    return part


def _wrong(path: str, what: str) -> InputError:
    return InputError.of(KEY, f"{path}: {what}", "a gpu.json that benchmarks/gpu.py wrote")
