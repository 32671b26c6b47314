"""Rounding every number by itself: to floats of few significant bits, or to a grid of levels."""

from raybench.compressors.rounding.exponents import Natural, StochasticRounding
from raybench.compressors.rounding.grids import ExponentialRounding, Rounding
from raybench.compressors.rounding.levels import RoundedMessage

__all__ = [
    "ExponentialRounding",
    "Natural",
    "RoundedMessage",
    "Rounding",
    "StochasticRounding",
]
