"""Messages of exponents: sign, exponent and the first bits of the mantissa of every number, no scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from raybench.core.compiled import compiled
from raybench.core.counts import Counts
from raybench.core.parallel import run_shared
from raybench.core.streams import Stream
from raybench.wire import bitpack
from raybench.wire.base import DTYPES, HALVES, Header, Message, natural


class FloatFormat(NamedTuple):
    """How a float lies in memory: the integers of its width, its bits of mantissa and of exponent."""

    integer: torch.dtype
    mantissa: int
    exponent: int


FLOATS = {
    torch.float64: FloatFormat(torch.int64, 52, 11),
    torch.float32: FloatFormat(torch.int32, 23, 8),
}
FLOATS |= dict.fromkeys(HALVES, FLOATS[torch.float32])
"""A number of 16 bits is coded as the float32 that it is: rounded up, the largest float16 becomes 2^16,
which float16 does not hold."""


def exponent_width(dtype: torch.dtype, p: int = 1) -> int:
    """Return the bits of sign, exponent and the p - 1 first bits of the mantissa.

    8 + p in float32 and for numbers of 16 bits, 11 + p in float64.
    """
    form = FLOATS[dtype]
    return 1 + form.exponent + min(p - 1, form.mantissa)


def integers_of(width: int) -> torch.dtype:
    """Return the narrowest integer type that holds ``width`` bits (the highest may be its sign)."""
    types = (torch.uint8, torch.int16, torch.int32, torch.int64)
    return next(dtype for dtype in types if width <= 8 * dtype.itemsize)


@dataclass(eq=False)
class ExponentsMessage(Message):
    """Floats cut to ``p`` significant bits: ``codes`` (*lead, d), the top bits of every number.

    p = 1, the leading 1 alone, leaves sign and exponent: 9 bits a number in float32, 12 in float64; every
    further bit of the mantissa takes one more. Codes of any integer type are made the narrowest one.
    """

    codes: Tensor
    p: int = 1
    kind = "exponents"
    tensors = ("codes",)
    static = ("p",)

    def __post_init__(self) -> None:
        self.codes = self.codes.to(integers_of(self.width))

    @property
    def lead(self) -> torch.Size:
        return self.codes.shape[:-1]

    @property
    def width(self) -> int:
        """Bits of a code."""
        return exponent_width(self.dtype, self.p)

    def _write(self, out: Tensor) -> None:
        bits, by = out.view(FLOATS[self.dtype].integer), 8 * self.dtype.itemsize - self.width
        if self.device.type == "cpu":
            codes, to = self.codes.reshape(-1).numpy(), bits.view(-1).numpy()
            run_shared(lambda a, b: _shift(codes[a:b], by, to[a:b]), len(to), float(len(to)))
        else:
            bits.copy_(self.codes)
            bits.bitwise_left_shift_(by)
        if self.scale != 1.0:
            out.mul_(self.scale)

    def _cost(self) -> Counts:
        return Counts(raw=self.d * self.width)

    def _payload(self) -> Tensor:
        return bitpack.pack(self.codes, self.width)

    @classmethod
    def read(cls, known: Header, payload: Tensor, stream: Stream | None) -> ExponentsMessage:
        d, dtype, p = known["d"], DTYPES[known["dtype"]], natural(known, "p", 1)
        width = exponent_width(dtype, p)
        codes = bitpack.unpack(payload, width, d, integers_of(width))
        return cls(d, dtype, codes, p, scale=known["scale"])


@compiled
def _shift(codes, by, out):  # in one pass over memory; torch makes two
    for j in range(out.shape[0]):
        out[j] = out.dtype.type(codes[j]) << out.dtype.type(by)
