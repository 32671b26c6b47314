"""All that a plug-in file needs: ``from raybench.plugins import compressor, Compressor, Count, ...``.

Decorators: ``compressor``, ``algorithm``, ``problem``, ``metric``. Parameters: ``Count``, ``Number``, ``Integer``,
``Choice``, ``Flag``, ``Text``, ``List``, ``Compressor``. Bases: ``Compressor``, ``Algorithm``, ``Asynchronous``,
``Estimator``, ``Problem``. ``build`` makes the compressor of an ``Compressor`` parameter. Messages for compressors:
``DenseMessage``, ``SparseMessage``, ``SeededMessage``, ``LevelsMessage``, ...; for algorithms: ``Dense``, ``choose``
and the roles ``Contractive``, ``Unbiased``, ``Any_``. ``Callback``: what follows a sweep. See docs/plugins.md.
"""

from torch import where, zeros_like

from raybench import theory
from raybench.algorithms.base import Algorithm, Estimator
from raybench.algorithms.events import Asynchronous
from raybench.compressors import (
    Any_,
    Compressor,
    Contractive,
    Dense,
    Message,
    Unbiased,
    choose,
    count_of,
)
from raybench.compressors.base import build
from raybench.compressors.composed import NestedMessage, nest
from raybench.core.errors import InputError
from raybench.core.registry import (
    Choice,
    Count,
    Flag,
    Integer,
    List,
    Number,
    Operator,
    Text,
    algorithm,
    compressor,
    metric,
    problem,
)
from raybench.core.streams import Sample, Stream
from raybench.problems import Constants, Fact, Layout, Problem
from raybench.problems.networks.build import Network
from raybench.runtime.callbacks import Callback
from raybench.theory import NoTheory, Rate, Setting, contraction
from raybench.wire import (
    DTYPES,
    ConcatMessage,
    Counts,
    DenseMessage,
    ExponentsMessage,
    FactorsMessage,
    FlaggedMessage,
    LevelsMessage,
    RaggedMessage,
    SeededMessage,
    SparseMessage,
    index_cost,
    support_of,
)

__all__ = [
    "DTYPES",
    "Algorithm",
    "Any_",
    "Asynchronous",
    "Callback",
    "Choice",
    "Compressor",
    "ConcatMessage",
    "Constants",
    "Contractive",
    "Count",
    "Counts",
    "Dense",
    "DenseMessage",
    "Estimator",
    "ExponentsMessage",
    "Fact",
    "FactorsMessage",
    "Flag",
    "FlaggedMessage",
    "InputError",
    "Integer",
    "Layout",
    "LevelsMessage",
    "List",
    "Message",
    "NestedMessage",
    "Network",
    "NoTheory",
    "Number",
    "Operator",
    "Problem",
    "RaggedMessage",
    "Rate",
    "Sample",
    "SeededMessage",
    "Setting",
    "SparseMessage",
    "Stream",
    "Text",
    "Unbiased",
    "algorithm",
    "build",
    "choose",
    "compressor",
    "contraction",
    "count_of",
    "index_cost",
    "metric",
    "nest",
    "problem",
    "support_of",
    "theory",
    "where",
    "zeros_like",
]
