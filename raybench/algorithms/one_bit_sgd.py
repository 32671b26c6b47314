"""1-bit SGD: error feedback with the two-mean one-bit quantiser."""

from raybench.algorithms.base import Choice, Contractive, Integer, algorithm
from raybench.algorithms.ef14 import EF14, STEPS


@algorithm(
    "one_bit_sgd",
    title="1-bit SGD",
    own="one_bit",
    up=None,
    broadcast=Contractive,
    blocks=True,
    theory=STEPS,
    stochastic=True,
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
    memory=Choice("gradient", "step", help="the error is of grad, or of gamma grad"),
)
class OneBit(EF14):
    """EF14 with a memory of gradients and the operator ``one_bit``: the two means of the signs.

    The means are over all of v; the paper takes them per column of each matrix. Up: d signs and two
    values. Down: d values. Source: Seide et al. 2014.
    """
