"""What the tests of the methods of practice share: problems, a method on the first, its iterates."""

from __future__ import annotations

import numpy as np
from toys import path

from raybench.testing.trial import DATA, Method, started
from raybench.wire.ledger import COLUMNS

P1 = {"name": "quadratic", "dim": 12, "clients": 7, "mu": 0.05, "seed": 3}
MATRIX = {"name": "quadratic", "shape": [[5, 4]], "clients": 3, "mu": 0.05}
SAMPLES = {"name": "least_squares", **DATA}
TOP = {"name": "top_k", "k": 3}
FAR = {"x0": {"normal": 2.0}}
VALUES, RAW = COLUMNS.index("values"), COLUMNS.index("raw")


def on_p1(name, compressor=None, rounds=60, step=0.1, **params) -> Method:
    return Method(name, params, compressor, P1, step=step, rounds=rounds, more=FAR)


def largest(a, b) -> float:
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())


def paths(*methods: Method) -> list[np.ndarray]:
    return [path(started(m.batch((1.0, 0.5), (0, 1)))) for m in methods]
