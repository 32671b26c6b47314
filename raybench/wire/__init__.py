"""Message kinds and their packing: bytes in, the same message out, bit for bit."""

from raybench.core.counts import Counts
from raybench.wire.base import DTYPES, HALVES, KINDS, Message
from raybench.wire.compound import (
    CasesMessage,
    ConcatMessage,
    FlaggedMessage,
    choose,
)
from raybench.wire.dense import Dense, DenseMessage, FactorsMessage
from raybench.wire.levels import ExponentsMessage, LevelsMessage, exponent_width
from raybench.wire.sparse import (
    RaggedMessage,
    SeededMessage,
    SparseMessage,
    index_cost,
    support_of,
)
from raybench.wire.unpacking import unpack

__all__ = [
    "DTYPES",
    "HALVES",
    "KINDS",
    "CasesMessage",
    "ConcatMessage",
    "Counts",
    "Dense",
    "DenseMessage",
    "ExponentsMessage",
    "FactorsMessage",
    "FlaggedMessage",
    "LevelsMessage",
    "Message",
    "RaggedMessage",
    "SeededMessage",
    "SparseMessage",
    "choose",
    "exponent_width",
    "index_cost",
    "support_of",
    "unpack",
]
