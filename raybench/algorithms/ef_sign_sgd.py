"""EF-signSGD: error feedback with scaled signs."""

from raybench.algorithms.base import Contractive, Integer, algorithm
from raybench.algorithms.ef14 import EF14, STEPS


@algorithm(
    "ef_sign_sgd",
    title="EF-signSGD",
    own="scaled_sign",
    up=None,
    broadcast=Contractive,
    blocks=True,
    theory=STEPS,
    stochastic=True,
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class EFSignSGD(EF14):
    """EF14 whose operator is ``scaled_sign``, (||v||_1/d) sign(v).

    Up: d signs and a value. Down: d values. Source: Karimireddy et al. 2019, Error Feedback Fixes
    SignSGD, algorithm 1.
    """
