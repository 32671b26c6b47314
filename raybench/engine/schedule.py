"""Step sizes that change over the rounds: the factor on gamma in round t."""

from __future__ import annotations

import math


def factor(schedule: str, warmup: int, t: int, rounds: int) -> float:
    """Return the factor of round t = 1..rounds: the schedule's, times t/warmup while that is below 1.

    constant: 1. sqrt: 1/sqrt(t). inverse: 1/t. cosine: (1 + cos(pi (t-1)/rounds))/2, from 1 towards
    0. linear: 1 - (t-1)/rounds.
    """
    past = (t - 1) / rounds
    shape = {
        "constant": 1.0,
        "sqrt": 1 / math.sqrt(t),
        "inverse": 1 / t,
        "cosine": (1 + math.cos(math.pi * past)) / 2,
        "linear": 1 - past,
    }[schedule]
    return shape * min(1.0, t / warmup) if warmup else shape
