"""Examples for networks: images, token sequences or features in memory, with a target for each."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from raybench.data.files import data_error

CHUNK = 1 << 22  # values that are taken to float64 at a time


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs (N, ...) in the type they are stored in, and targets, classes in int64 (N,) or (N, T), or floats (N, ...).

    kind ``image``: inputs (N, C, H, W), uint8 where 255 is full intensity, or float32 in [0, 1].
    kind ``text``: tokens (N, T), uint8 or int64, and as targets the tokens one place later.
    kind ``features``: floats (N, ...).

    ``classes`` is the number of classes, the size of the vocabulary, or how many floats a target has. ``checksum`` is
    the SHA-256 of the arrays as they were read, before rows were chosen; ``source`` says where they came from.
    """

    name: str
    inputs: np.ndarray
    targets: np.ndarray
    classes: int
    source: str
    checksum: str
    kind: str

    @classmethod
    def of(cls, name: str, inputs: np.ndarray, targets: np.ndarray, **rest: Any) -> Examples:
        """Return examples with the checksum of these arrays; targets that are whole numbers become int64."""
        if targets.dtype.kind != "f":
            targets = targets.astype(np.int64, copy=False)
        return cls(name, inputs, targets, checksum=digest(inputs, targets), **rest)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, rows: Any) -> Examples:
        """Return the examples of a slice, of an array of indices or of booleans, or of one index."""
        chosen: Any = [rows] if isinstance(rows, int | np.integer) else rows
        return replace(self, inputs=self.inputs[chosen], targets=self.targets[chosen])

    def first(self, n: int) -> Examples:
        """Return the first n examples; raises InputError unless there are as many."""
        if not 1 <= n <= len(self):
            fix = f"{self.name} has {len(self):,} of them"
            raise data_error(f"cannot take the first {n} examples", fix)
        return self[:n]

    @property
    def mean(self) -> np.ndarray:
        """The mean of each channel of images in [0, 1], float64 (C,); ValueError for other kinds."""
        return self._channels(np.zeros(1), 1)

    @property
    def std(self) -> np.ndarray:
        """The standard deviation of each channel about ``mean``, float64 (C,) (divided by N H W)."""
        return np.sqrt(self._channels(self.mean, 2))

    def _channels(self, center: np.ndarray, power: int) -> np.ndarray:
        """Return the mean over images and pixels of (value - center)^power, float64 (C,)."""
        if self.kind != "image":
            raise ValueError(f"{self.name} holds {self.kind}, which has no channels")
        full = 255.0 if self.inputs.dtype == np.uint8 else 1.0
        total, step = np.zeros(self.inputs.shape[1]), max(1, CHUNK // self.inputs[0].size)
        for start in range(0, len(self), step):
            part = self.inputs[start : start + step].astype(np.float64) / full
            total += ((part - center[:, None, None]) ** power).sum(axis=(0, 2, 3))
        return total / self.inputs[:, 0].size


class Pair(NamedTuple):
    """The training part of a data set, and its test part where it comes with one."""

    train: Examples
    test: Examples | None


def digest(*arrays: np.ndarray) -> str:
    """Return the SHA-256 (hex) of arrays: of their types, shapes and values.

    The same numbers have the same checksum whatever file, compression or layout they come from.
    """
    whole = hashlib.sha256()
    for array in arrays:
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        whole.update(f"{little.dtype.str} {little.shape}\n".encode())
        whole.update(little.data)
    return whole.hexdigest()
