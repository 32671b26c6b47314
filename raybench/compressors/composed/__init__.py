"""Operators made of operators; what they rest on is in ``raybench.compressors.compose``."""

from raybench.compressors.composed.chain import Chain, Induced, TwoShot
from raybench.compressors.composed.per_tensor import PerTensor
from raybench.compressors.composed.quantised_top_k import (
    TopKDithering,
    TopKNatural,
    TopKNaturalDithering,
)
from raybench.compressors.composed.rescale import AsContractive, OptimalRescale

__all__ = [
    "AsContractive",
    "Chain",
    "Induced",
    "OptimalRescale",
    "PerTensor",
    "TopKDithering",
    "TopKNatural",
    "TopKNaturalDithering",
    "TwoShot",
]
