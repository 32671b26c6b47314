"""Entropy coding: the symbols of another operator's messages by a range coder."""

from raybench.compressors.entropy.message import CodedMessage
from raybench.compressors.entropy.operator import EntropyCoded

__all__ = ["CodedMessage", "EntropyCoded"]
