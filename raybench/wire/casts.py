"""Messages of narrower floats: two bytes a number, or a float cut to a few significant bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybench.core.compiled import compiled
from raybench.core.counts import Counts
from raybench.core.parallel import run_tiled
from raybench.core.streams import Stream
from raybench.wire import bitpack
from raybench.wire.base import DTYPES, Message

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
NARROW = ((8, torch.uint8), (16, torch.int16), (32, torch.int32), (64, torch.int64))
FLOATS = {  # dtype: same bits as integers, as unsigned numpy, mantissa bits, exponent bits
    torch.float32: (torch.int32, np.uint32, 23, 8),
    torch.float64: (torch.int64, np.uint64, 52, 11),
}


def code_dtype(width: int) -> torch.dtype:
    """Return the narrowest integer dtype with so many bits (the highest may be its sign)."""
    return next(dtype for bits, dtype in NARROW if width <= bits)


def pack_codes(codes: Tensor, width: int, out: Tensor, at: int = 0) -> Tensor:
    """Write codes (*lead, m) of ``width`` bits into bytes out (*lead, P) from column ``at``; return out.

    Codes that fill their dtype are written as they lie in memory.
    """
    if codes.dtype.itemsize * 8 != width:
        return bitpack.pack_into(codes, width, out, at)
    data = bitpack.to_bytes(codes)
    out[..., at : at + data.shape[-1]] = data
    return out


def unpack_codes(data: Tensor, width: int, count: int, at: int = 0) -> Tensor:
    """Return the codes (*lead, count) that ``pack_codes`` was given, of the narrowest dtype."""
    dtype = code_dtype(width)
    if dtype.itemsize * 8 != width:
        return bitpack.unpack(data, width, count, dtype, at)
    if data.shape[-1] < at + count * dtype.itemsize:
        raise ValueError("the packed codes are cut short")
    return bitpack.from_bytes(data[..., at : at + count * dtype.itemsize], dtype)


def unsigned(codes: Tensor) -> Tensor:
    """Return codes as int64, the sign bit of a narrow dtype read as its highest bit."""
    wide = codes.long()
    bits = codes.dtype.itemsize * 8
    return wide if bits == 64 or codes.dtype == torch.uint8 else wide & ((1 << bits) - 1)


@dataclass(eq=False)
class HalfMessage(Message):
    """Two bytes a number: ``values`` (*lead, d) float16 or bfloat16, times ``scales`` (*lead, 1).

    Without a scale, ``scales`` is of shape (*lead, 0) and nothing is sent for it.
    """

    values: Tensor
    scales: Tensor
    format: str
    scaled_by_max: bool
    kind = "half"
    tensors = ("values", "scales")
    static = ("format", "scaled_by_max")

    @property
    def lead(self) -> torch.Size:
        return self.values.shape[:-1]

    def _write(self, out: Tensor) -> None:
        out.copy_(self.values)
        if self.scaled_by_max:
            out.mul_(self.scales)
        if self.scale != 1.0:
            out.mul_(self.scale)

    def _cost(self) -> Counts:
        return Counts(values=int(self.scaled_by_max), raw=16 * self.d)

    def _size(self) -> int:
        return self.scales.shape[-1] * self.dtype.itemsize + 2 * self.d

    def _payload(self) -> Tensor:
        values = bitpack.to_bytes(self.values)
        if not self.scaled_by_max:
            return values
        return torch.cat((bitpack.to_bytes(self.scales), values), -1)

    @classmethod
    def read(cls, known: dict[str, Any], payload: Tensor, stream: Stream | None) -> HalfMessage:
        d, dtype, by_max = known["d"], DTYPES[known["dtype"]], known["scaled_by_max"]
        cut = dtype.itemsize if by_max else 0
        scales = bitpack.from_bytes(payload[..., :cut], dtype)
        values = bitpack.from_bytes(payload[..., cut : cut + 2 * d], HALVES[known["format"]])
        return cls(d, dtype, values, scales, known["format"], by_max, scale=known["scale"])


@dataclass(eq=False)
class TruncatedMessage(Message):
    """Sign, exponent and ``p`` - 1 bits of mantissa: ``codes`` (*lead, d), the top bits of the floats."""

    codes: Tensor  # of the narrowest signed dtype; its sign bit is a bit like any other
    p: int
    kind = "truncated"
    tensors = ("codes",)
    static = ("p",)

    @property
    def lead(self) -> torch.Size:
        return self.codes.shape[:-1]

    @property
    def width(self) -> int:
        """Bits of a code: 8 + p in float32, 11 + p in float64."""
        return truncated_width(self.dtype, self.p)

    def _write(self, out: Tensor) -> None:
        shift = self.dtype.itemsize * 8 - self.width
        if out.device.type == "cpu":
            widen(self.codes, shift, out)
        else:
            out.copy_(widen_torch(self.codes, shift, self.dtype))
        if self.scale != 1.0:
            out.mul_(self.scale)

    def _cost(self) -> Counts:
        return Counts(raw=self.d * self.width)

    def _size(self) -> int:
        return bitpack.bytes_of(self.d * self.width)

    def _payload(self) -> Tensor:
        if self.codes.dtype.itemsize * 8 == self.width:
            return bitpack.to_bytes(self.codes)
        return bitpack.pack(self.codes, self.width)

    @classmethod
    def read(
        cls, known: dict[str, Any], payload: Tensor, stream: Stream | None
    ) -> TruncatedMessage:
        dtype = DTYPES[known["dtype"]]
        codes = unpack_codes(payload, truncated_width(dtype, known["p"]), known["d"])
        return cls(known["d"], dtype, codes, known["p"], scale=known["scale"])


def truncated_width(dtype: torch.dtype, p: int) -> int:
    """Return the bits of sign, exponent and p - 1 bits of mantissa."""
    return 1 + FLOATS[dtype][3] + p - 1


@compiled
def _widen32(codes, shift, r0, r1, lo, hi, out):
    by = np.uint32(shift)
    for r in range(r0, r1):
        row = codes[r, lo:hi]
        o = out[r, lo:hi]
        for j in range(row.shape[0]):
            o[j] = np.uint32(np.uint32(row[j]) << by)


@compiled
def _widen64(codes, shift, r0, r1, lo, hi, out):
    by = np.uint64(shift)
    for r in range(r0, r1):
        row = codes[r, lo:hi]
        o = out[r, lo:hi]
        for j in range(row.shape[0]):
            o[j] = np.uint64(row[j]) << by


def widen(codes: Tensor, shift: int, out: Tensor) -> None:
    """Write the floats whose top bits are the codes into out (*lead, d), both on the CPU."""
    d = out.shape[-1]
    unsigned_type = FLOATS[out.dtype][1]
    rows = codes.contiguous().view(-1, d).numpy()
    rows = rows.view(f"u{rows.itemsize}")
    into = out.view(-1, d).numpy().view(unsigned_type)
    kernel = _widen32 if unsigned_type is np.uint32 else _widen64
    run_tiled(lambda *tile: kernel(rows, shift, *tile, into), len(rows), d, 0.3)


def widen_torch(codes: Tensor, shift: int, dtype: torch.dtype) -> Tensor:
    """Return the floats whose top bits are the codes (the reference; any device)."""
    return (unsigned(codes) << shift).to(FLOATS[dtype][0]).view(dtype)
