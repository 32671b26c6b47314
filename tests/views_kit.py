"""Views of made samples: what tests of vertical networks share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from raybench.testing.trial import TrialMethod

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


ARRAYS = made()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of an npz of these views."""
    path = tmp_path_factory.mktemp("views") / "three.npz"
    np.savez(path, **ARRAYS)
    return str(path)


DECAY = 0.05
DEEP = ["mlp:hidden=[6],activation=tanh", "identity", "mlp:hidden=[4]"]
NETS = {  # name: parameters of the problem
    "linear": {},
    "deep": {"encoders": DEEP},
    "partly frozen": {"encoders": DEEP, "freeze": ["image.encoder.1.weight", "text.encoder.*"]},
}
TOP = {"name": "top_k", "k": 5}
EVERY = {"name": "top_k", "k": "100%"}


def problem_of(file: str, **params) -> dict:
    more = {"dtype": "float64", "weight_decay": DECAY, **params}
    return {"name": "vertical_network", "dataset": file, **more}


def in_a_file(params: dict) -> dict:
    """Return parameters as a sweep file has them, where a flat list would be an axis."""
    return {k: [v] if isinstance(v, list) else v for k, v in params.items()}


def on(file: str, name: str, compressor=None, params=None, net=None, **more) -> TrialMethod:
    args = {"step": 0.5, "rounds": 30, **more}
    problem = in_a_file(problem_of(file, **(net or {})))
    return TrialMethod(name, params or {}, compressor, problem, more={"x0": "problem"}, **args)


def standard(view: str, prefix: str = "") -> Tensor:
    train = torch.from_numpy(ARRAYS[view].astype(np.float32)).double()
    values = torch.from_numpy(ARRAYS[f"{prefix}{view}"].astype(np.float32)).double()
    return (values - train.mean(0)) / train.std(0, correction=0)
