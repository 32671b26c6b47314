"""Compressors that keep all coordinates or none: identity, zero, and casts to floats of two bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.formats import HALVES, nonzero, shared_max, small_codes
from raybench.core.params import record
from raybench.core.registry import Choice, compressor
from raybench.core.streams import Stream
from raybench.wire import Dense, Message, SparseMessage
from raybench.wire.base import Additive
from raybench.wire.fields import (
    Field,
    Header,
    Numbers,
    dtype_of,
    natural,
    yes_or_no,
)


@compressor("identity")
@dataclass(frozen=True)
class Identity(Compressor):
    """C(x) = x: omega = 0, alpha = 1, all d values; turns every method into its uncompressed form."""

    deterministic = True
    selection = True
    additive = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        return Dense(x)

    def omega(self, d: int) -> float:
        return 0.0

    def alpha(self, d: int) -> float:
        return 1.0


@compressor("aggregate")
@dataclass(frozen=True)
class Aggregate(Identity):
    """For the downlink: the server passes on the sum of what it receives, as sparse as it is.

    Every client then steps itself. Charged by the union of the clients' supports: values and indices
    of at most n K coordinates (no indices where they come from seeds), d values at most. As an
    uplink compressor it is the identity.
    """

    relay = True


@compressor("zero")
@dataclass(frozen=True)
class Zero(Compressor):
    """C(x) = 0 and no bits: neither unbiased nor contractive; only where full synchronisations exist."""

    deterministic = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        empty = x.new_zeros(*x.shape[:-1], 0)
        return SparseMessage(x.shape[-1], x.dtype, empty.to(torch.int64), empty)


TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
SCALE = Choice("none", "max", help="max: x / max|x_j| is cast, one number of full width is sent")


@dataclass(eq=False)
class HalfMessage(Additive):
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

    @classmethod
    def fields(cls, head: Header, width: int) -> Sequence[Field]:
        half, scales = Numbers(TYPES[head["format"]], raw=True), yes_or_no(head, "scaled_by_max")
        full, d = Numbers(dtype_of(head)), natural(head, "d")
        return [Field("scales", full, (int(scales),)), Field("values", half, (d,))]

    def _write(self, out: Tensor) -> None:
        out.copy_(self.values)
        if self.scaled_by_max:
            out.mul_(self.scales)
        if self.scale != 1.0:
            out.mul_(self.scale)

    @property
    def additive(self) -> bool:
        return not self.scaled_by_max

    def of_summands(self, values: Tensor) -> HalfMessage:
        none = self.scales.new_empty(*values.shape[:-1], 0)
        return HalfMessage(self.d, self.dtype, values, none, self.format, False, scale=self.scale)


@record
class Half(Compressor):
    """Round to nearest even in two bytes; finite numbers beyond the range become the largest finite."""

    scale: str = SCALE
    deterministic = True
    format: ClassVar[str]

    @property
    def additive(self) -> bool:  # type: ignore[override]
        return self.scale == "none"

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d, form, by_max = x.shape[-1], HALVES[self.format], self.scale == "max"
        scales = shared_max(x, d) if by_max else x.new_empty(*x.shape[:-1], 0)
        codes = small_codes(x, form, nonzero(scales) if by_max else None)
        values = codes.view(TYPES[self.format])
        return HalfMessage(d, x.dtype, values, scales, self.format, by_max)


@compressor("fp16")
class FP16(Half):
    """C(x)_j = x_j rounded to float16 (nearest even): 16 bits a number, deterministic.

    Relative error at most 2^-11 for |x_j| in [2^-14, 65504], absolute at most 2^-25 below; finite
    numbers beyond are sent as +-65504, NaN stays NaN, infinity infinity. No class: x = 2^-26 becomes
    0, 1e9 becomes 65504. With ``scale: max`` x / max|x_j| is rounded (16 bits a number and one of full
    width) and alpha = 1 - max(2^-22, D/(1 + D)), D = (d - 1) 2^-50: the largest entry is exact, the
    others err by 2^-11 |x_j| or, relative to the largest, by 2^-25. A row of scale max with a NaN or
    infinity is NaN throughout. Source: IEEE 754-2008.
    """

    format = "float16"

    def alpha(self, d: int) -> float | None:
        if self.scale == "none":
            return None
        small = (d - 1) * 2.0**-50
        return 1 - max(2.0**-22, small / (1 + small))


@compressor("bf16")
class BF16(Half):
    """C(x)_j = x_j rounded to bfloat16 (nearest even): 16 bits a number, alpha = 1 - 2^-16.

    Relative error at most 2^-8: alpha holds where every x_j is 0 or of magnitude 2^-126 to 3.38e38,
    the normal numbers of float32. Smaller ones have an absolute error up to 2^-134, so that a vector
    of nothing else may become 0; larger ones (float64 has them) are sent as +-3.39e38, NaN stays NaN,
    infinity infinity. With ``scale: max`` (x / max|x_j| is rounded, one number of full width is sent
    too) alpha holds for every finite x; a row with a NaN or infinity is then NaN throughout.
    Source: Kalamkar et al. 2019.
    """

    format = "bfloat16"

    def alpha(self, d: int) -> float:
        return 1 - 2.0**-16
