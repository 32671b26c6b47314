"""Views of made samples: what tests of vertical networks share."""

from __future__ import annotations

import numpy as np

SAMPLES, TESTED, CLASSES = 40, 12, 3
WIDTHS = {"image": 5, "sound": 3, "text": 4}


def made(seed: int = 0, classes: int = CLASSES) -> dict[str, np.ndarray]:
    """Return three views of samples whose classes differ, with a test part: float64, labels from 1."""
    random = np.random.default_rng(seed)
    arrays = {}
    for prefix, count in (("", SAMPLES), ("test_", TESTED)):
        labels = np.arange(count) % classes
        arrays[f"{prefix}labels"] = labels + 1
        for view, width in WIDTHS.items():
            centre = np.random.default_rng(width).standard_normal((classes, width))
            arrays[f"{prefix}{view}"] = centre[labels] + random.standard_normal((count, width))
    return arrays
