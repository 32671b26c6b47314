"""Low-rank operators: the vector is read as a matrix, and a product of two thin factors is sent."""

from raybench.compressors.low_rank.operators import SVD, PowerStep

__all__ = ["SVD", "PowerStep"]
