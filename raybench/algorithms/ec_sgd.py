"""EC-SGD: error feedback on minibatches."""

from raybench.algorithms.base import Contractive, Integer, algorithm
from raybench.algorithms.ef14 import EF14, STEPS


@algorithm(
    "ec_sgd",
    up=Contractive,
    broadcast=Contractive,
    robust=True,
    theory=STEPS,
    stochastic=True,
    batch=Integer(1, low=1, help="samples per client and round"),
)
class ECSGD(EF14):
    """EF14 on minibatch gradients: error-compensated SGD.

    Floor: gradient noise and heterogeneity, growing with gamma. Up: one message. Down: d values.
    Source: Stich et al. 2018, Sparsified SGD with Memory.
    """
