"""Narrow number formats: two-byte floats, and blocks of small numbers that share a scale."""

from raybench.compressors.formats.blocks import MXFP4, MXFP8, NF4
from raybench.compressors.formats.casts import BF16, FP16

__all__ = ["BF16", "FP16", "MXFP4", "MXFP8", "NF4"]
