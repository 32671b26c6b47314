"""Quantised messages: a small symbol per coordinate, and scales."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from raybench.compressors.messages import bitpack
from raybench.compressors.messages.base import DTYPES, Cost, Message
from raybench.streams import Stream


def linear_levels(codes: Tensor, s: int) -> Tensor:
    """Return the levels -1, .., -1/s, 0, 1/s, .., 1 of standard dithering, coded 0..2s."""
    return (codes.long() - s).double() / s


@lru_cache(maxsize=64)
def _powers(s: int) -> Tensor:
    up = 2.0 ** torch.arange(1 - s, 1, dtype=torch.float64)
    return torch.cat((-up.flip(0), torch.zeros(1, dtype=torch.float64), up))


def power_levels(codes: Tensor, s: int) -> Tensor:
    """Return the levels -1, .., -2^(1-s), 0, 2^(1-s), .., 1 of natural dithering, coded 0..2s."""
    return _powers(s).to(codes.device)[codes.long()]


def sign_levels(codes: Tensor, s: int) -> Tensor:
    """Return the levels -1, 1 of a sign, coded 0, 1."""
    return (codes.long() * 2 - 1).double()


LEVELS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "linear": linear_levels,
    "power": power_levels,
    "sign": sign_levels,
}


def symbol_width(table: str, s: int) -> int:
    """Return the bits of a symbol: 1 for a sign, else ceil(log2(2s + 1))."""
    return 1 if table == "sign" else bitpack.width_of(2 * s + 1)


@dataclass(eq=False)
class LevelsMessage(Message):
    """One of a table's levels per coordinate times a scale: ``codes`` (*lead, d), ``scales`` (*lead, 1).

    Packs to one full-width scale and d symbols of ceil(log2 levels) bits.
    """

    codes: Tensor  # int64 or uint8, indices into the table
    scales: Tensor
    table: str
    s: int
    kind = "levels"
    tensors = ("codes", "scales")
    static = ("table", "s")

    @property
    def lead(self) -> torch.Size:
        return self.codes.shape[:-1]

    @property
    def width(self) -> int:
        """Bits of a symbol."""
        return symbol_width(self.table, self.s)

    def _decode(self) -> Tensor:
        return LEVELS[self.table](self.codes, self.s).to(self.dtype) * self.scales

    def _cost(self) -> Cost:
        return Cost(values=1, raw=self.d * self.width)

    def _size(self) -> int:
        return self.dtype.itemsize + bitpack.bytes_of(self.d * self.width)

    def _payload(self) -> Tensor:
        return torch.cat((bitpack.to_bytes(self.scales), bitpack.pack(self.codes, self.width)), -1)

    @classmethod
    def read(cls, known: dict[str, Any], payload: Tensor, stream: Stream | None) -> LevelsMessage:
        dtype = DTYPES[known["dtype"]]
        scales = bitpack.from_bytes(payload[..., : dtype.itemsize], dtype)
        width = symbol_width(known["table"], known["s"])
        codes = bitpack.unpack(payload[..., dtype.itemsize :], width, known["d"])
        return cls(
            known["d"], dtype, codes, scales, known["table"], known["s"], scale=known["scale"]
        )


@dataclass(eq=False)
class ExponentsMessage(Message):
    """Sign and exponent of every coordinate, no scale: ``codes`` (*lead, d), 9 or 12 bits each."""

    codes: Tensor  # the top bits of the float: sign, exponent
    kind = "exponents"
    tensors = ("codes",)

    @property
    def lead(self) -> torch.Size:
        return self.codes.shape[:-1]

    def _decode(self) -> Tensor:
        bits, mantissa = (torch.int64, 52) if self.dtype == torch.float64 else (torch.int32, 23)
        return (self.codes.to(bits) << mantissa).view(self.dtype)

    @property
    def width(self) -> int:
        """Bits of a symbol: 12 in float64, 9 in float32."""
        return exponent_width(self.dtype)

    def _cost(self) -> Cost:
        return Cost(raw=self.d * self.width)

    def _size(self) -> int:
        return bitpack.bytes_of(self.d * self.width)

    def _payload(self) -> Tensor:
        return bitpack.pack(self.codes, self.width)

    @classmethod
    def read(
        cls, known: dict[str, Any], payload: Tensor, stream: Stream | None
    ) -> ExponentsMessage:
        dtype = DTYPES[known["dtype"]]
        codes = bitpack.unpack(payload, exponent_width(dtype), known["d"])
        return cls(known["d"], dtype, codes, scale=known["scale"])


def exponent_width(dtype: torch.dtype) -> int:
    """Return the bits of sign and exponent: 12 in float64, 9 in float32."""
    return 12 if dtype == torch.float64 else 9
