"""What waiting for slow workers costs: gradients that are used per second, by how many the server waits for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from raybench.clock.clients import Clients

SEEDS, ROUNDS = 32, 32  # draws of the workers, and rounds of each
MOST_DRAWS = 4_000_000
SHARES = {"all": 1.0, "the fastest 90 %": 0.9, "the fastest half": 0.5}


@dataclass(frozen=True)
class Waiting:
    """A server that waits for so many of n workers in each round; for ``nobody``: a step for each gradient.

    rate: gradients per second that the server uses, mean over draws. wasted: the share of the workers' seconds in which
    they wait or compute what is thrown away.
    """

    who: str
    rate: float
    wasted: float


def waiting(clock: Mapping[str, Any], n: int) -> list[Waiting]:
    """Return what the server gets by waiting for all of n workers, for the fastest ones, and for nobody.

    clock: typed; its links are left out. A worker takes a gradient a round, stopped when the round ends.
    """
    seeds = min(SEEDS, max(1, MOST_DRAWS // n))
    rounds = min(ROUNDS, max(1, MOST_DRAWS // (n * seeds)))
    clients = Clients({**clock, "link": None}, n, range(seeds), [1] * n)
    each = np.stack([clients.call(np.full((seeds, n), k), 1.0) for k in range(rounds)], 1)
    ordered = np.sort(each, -1)  # (seeds, rounds, n)
    out = []
    for who, share in SHARES.items():
        count = max(1, math.ceil(share * n - 1e-9))
        ends = ordered[..., count - 1]
        used = ordered[..., :count].sum()
        out.append(
            Waiting(who, float((count / ends.mean(1)).mean()), float(1 - used / (n * ends.sum())))
        )
    free = (1 / each.mean(1)).sum(1).mean()
    return [*out, Waiting("nobody", float(free), 0.0)]
