"""Numbers rounded to a geometric grid of levels: sign and level of every coordinate, no scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from raybench.core.counts import Counts
from raybench.core.streams import Stream
from raybench.wire import bitpack
from raybench.wire.base import DTYPES, Message
from raybench.wire.levels import code_dtype, decode_levels

MOST = 2**15 - 2  # levels: with 0, infinity and the sign 16 bits


@lru_cache(maxsize=16)
def grid(levels: tuple[float, ...], base: float, dtype: torch.dtype) -> Tensor:
    """Return the numbers base^q l, q any integer and l one of the levels, that a type holds, ascending.

    Only its normal numbers. float64, of those values that the type has. Raises ValueError where they
    are more than 32766.
    """
    info = torch.finfo(dtype)
    if len(levels) * (math.log(info.max) - math.log(info.tiny)) / math.log(base) > MOST:
        raise ValueError(f"more than {MOST} levels in the range of {dtype}")
    low, high = (int(math.log(end) / math.log(base)) for end in (info.tiny, info.max))
    powers = torch.arange(low - 2, high + 2, dtype=torch.float64)
    powers = torch.as_tensor(base, dtype=torch.float64) ** powers
    found = (powers[:, None] * torch.tensor(levels, dtype=torch.float64)).to(dtype).unique()
    return found[(found >= info.tiny) & (found <= info.max)].double()


def rounded_width(levels: tuple[float, ...], base: float, dtype: torch.dtype) -> int:
    """Return the bits of a symbol: a sign, and which of 0, the levels and infinity."""
    return 1 + bitpack.width_of(len(grid(levels, base, dtype)) + 2)


@lru_cache(maxsize=16)
def _values(levels: tuple[float, ...], base: float, dtype: torch.dtype) -> Tensor:
    """Return what every code stands for, (2^width,), at least 256."""
    held, width = grid(levels, base, dtype), rounded_width(levels, base, dtype)
    half = torch.full((2 ** (width - 1),), math.inf, dtype=torch.float64)
    half[0], half[1 : len(held) + 1] = 0.0, held
    both = torch.cat((half, -half)).to(dtype)
    return torch.nn.functional.pad(both, (0, max(256 - len(both), 0)))


@dataclass(eq=False)
class RoundedMessage(Message):
    """A level of a geometric grid, or 0, per coordinate with its sign: ``codes`` (*lead, d).

    The levels are base^q l for the numbers l of ``levels``, within the normal numbers of the dtype; a
    code is a sign bit over 0 for zero, 1, 2, .. for the levels ascending, then infinity. ceil(log2(2 +
    levels)) + 1 bits each: with levels (1) and base 2 the 9 bits of sign and exponent in float32.
    """

    codes: Tensor
    levels: tuple[float, ...]
    base: float
    kind = "rounded"
    tensors = ("codes",)
    static = ("levels", "base")

    def __post_init__(self) -> None:
        self.levels = tuple(self.levels)
        self.codes = self.codes.to(code_dtype(2**self.width))

    @property
    def lead(self) -> torch.Size:
        return self.codes.shape[:-1]

    @property
    def width(self) -> int:
        """Bits of a symbol."""
        return rounded_width(self.levels, self.base, self.dtype)

    def _decode(self) -> Tensor:
        """Return the values by plain torch (the reference; any device)."""
        return _values(self.levels, self.base, self.dtype).to(self.device)[self.codes.long()]

    def _write(self, out: Tensor) -> None:
        if self.device.type != "cpu" or not out.numel():
            return super()._write(out)
        scales = out.new_full((*self.lead, 1), self.scale)
        return decode_levels(
            self.codes, _values(self.levels, self.base, self.dtype), scales, 0, out
        )

    def _cost(self) -> Counts:
        return Counts(raw=self.d * self.width)

    def _size(self) -> int:
        return bitpack.bytes_of(self.d * self.width)

    def _payload(self) -> Tensor:
        return bitpack.pack(self.codes, self.width)

    @classmethod
    def read(cls, known: dict[str, Any], payload: Tensor, stream: Stream | None) -> RoundedMessage:
        dtype, levels, base = DTYPES[known["dtype"]], tuple(known["levels"]), known["base"]
        width = rounded_width(levels, base, dtype)
        codes = bitpack.unpack(payload, width, known["d"], code_dtype(2**width))
        return cls(known["d"], dtype, codes, levels, base, scale=known["scale"])
