"""Which examples a network is fed, and how images are scaled."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raybench import data
from raybench.data import Examples

TEXTS = ("shakespeare", "wikitext2_valid", "wikitext2_test")


def examples_of(dataset: str, model: str, length: int, level: str) -> data.Pair:
    """Return a data set for networks: a text for transformers and known texts, else images."""
    text = model.partition(":")[0] == "transformer" or dataset in TEXTS or ".txt" in dataset
    return data.text(dataset, length, level) if text else data.images(dataset)


def scaling(train: Examples, scale: str) -> tuple[Tensor, Tensor]:
    """Return what is subtracted from images in [0, 1], and what they are multiplied by, (C, 1, 1) each."""
    if train.kind != "image" or scale == "unit" or (scale == "auto" and train.inputs.shape[1] == 1):
        return torch.zeros(()), torch.ones(())
    std = np.where(train.std > 0, train.std, 1.0)
    shift, factor = (torch.from_numpy(v)[:, None, None] for v in (train.mean, 1 / std))
    return shift, factor
