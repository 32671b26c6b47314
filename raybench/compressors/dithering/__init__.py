"""Dithering: each |x_j| over the norm of its row or bucket is rounded to one of a few levels."""

from raybench.compressors.dithering.operators import (
    Dithering,
    ExponentialDithering,
    Int8,
    NaturalDithering,
    Qsgd,
    TernGrad,
)

__all__ = ["Dithering", "ExponentialDithering", "Int8", "NaturalDithering", "Qsgd", "TernGrad"]
