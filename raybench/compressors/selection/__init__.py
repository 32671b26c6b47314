"""Operators that keep entries for their size; ``largest`` is how all of them find the largest."""

from raybench.compressors.selection.block_top_k import BlockTopK
from raybench.compressors.selection.by_size import largest
from raybench.compressors.selection.dct_top_k import DCTTopK
from raybench.compressors.selection.dgc import DGC
from raybench.compressors.selection.masking import Masking
from raybench.compressors.selection.pos_neg_top_k import PosNegTopK
from raybench.compressors.selection.threshold import AdaptiveThreshold, HardThreshold
from raybench.compressors.selection.top_k import RTopK, TopK

__all__ = [
    "DGC",
    "AdaptiveThreshold",
    "BlockTopK",
    "DCTTopK",
    "HardThreshold",
    "Masking",
    "PosNegTopK",
    "RTopK",
    "TopK",
    "largest",
]
