"""Message kinds and their packing: bytes in, the same message out, bit for bit."""

from raybench.compressors.messages.base import DTYPES, KINDS, Cost, Message, unpack
from raybench.compressors.messages.compound import (
    CasesMessage,
    ConcatMessage,
    FlaggedMessage,
    choose,
)
from raybench.compressors.messages.dense import Dense, DenseMessage
from raybench.compressors.messages.factors import FactorsMessage
from raybench.compressors.messages.levels import ExponentsMessage, LevelsMessage, exponent_width
from raybench.compressors.messages.sparse import (
    RaggedMessage,
    SeededMessage,
    SparseMessage,
    index_cost,
    support_of,
)

__all__ = [
    "DTYPES",
    "KINDS",
    "CasesMessage",
    "ConcatMessage",
    "Cost",
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
