"""The plain binary files that MNIST and CIFAR are published in, whose sizes are checked as they are read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from raybench.core.errors import InputError
from raybench.core.limits import check_fits, decompressed

DATASET_KEY = "problem.dataset"
AGAIN = "fetch the file again"
UNSIGNED_BYTES = 8  # the type that MNIST's files have, of those that IDX knows
SIDE, CHANNELS = 32, 3  # of CIFAR's images


def idx(path: Path, axes: int) -> np.ndarray:
    """Return the uint8 array with so many axes of an IDX file, plain or compressed.

    The header is two zeros, the type, the number of axes, and the length of each as a big-endian
    32-bit integer; the values follow. Raises InputError where that is not what the file holds: a
    header that promises too much is refused before anything is allocated for it.
    """
    chunks, start = decompressed(path, DATASET_KEY), b""
    size = 4 + 4 * axes
    while len(start) < size:
        more = next(chunks, b"")
        if not more:
            raise _wrong(path, f"ends after {len(start)} bytes, within its header")
        start += more
    if start[:4] != bytes((0, 0, UNSIGNED_BYTES, axes)):
        what = f"is no IDX file of bytes with {axes} axes: it starts with {start[:4].hex()}"
        raise _wrong(path, what)
    shape = tuple(int(n) for n in np.frombuffer(start, ">u4", axes, 4))
    count = math.prod(shape)
    shown = " x ".join(f"{n:,}" for n in shape)
    check_fits(DATASET_KEY, f"{path}: a header of {shown} bytes", count, AGAIN)
    values = _exactly(path, count, bytearray(start[size:]), chunks)
    return values.reshape(shape)


def cifar(path: Path, rows: int, labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (images (rows, 3, 32, 32), labels (rows)) in uint8 of a CIFAR file in the binary version.

    A row is ``labels`` bytes, of which the last is the label that is meant (CIFAR-100 has a coarse one
    before it), and the image's red, green and blue. Raises InputError for a file of another size.
    """
    width = labels + CHANNELS * SIDE * SIDE
    values = _exactly(path, rows * width, bytearray(), decompressed(path, DATASET_KEY))
    table = values.reshape(rows, width)
    images = np.ascontiguousarray(table[:, labels:]).reshape(rows, CHANNELS, SIDE, SIDE)
    return images, table[:, labels - 1].copy()


def _exactly(path: Path, count: int, held: bytearray, chunks: Iterator[bytes]) -> np.ndarray:
    """Return ``count`` bytes, ``held`` and those of the chunks; InputError for fewer or for more."""
    for chunk in chunks:
        held += chunk
        if len(held) > count:
            break
    if len(held) != count:
        found = "more" if len(held) > count else f"{len(held):,}"
        raise _wrong(path, f"should have {count:,} bytes of values and has {found}")
    # A bytearray can be written to, and torch wants arrays that can.
    return np.frombuffer(held, np.uint8)


def _wrong(path: Path, what: str) -> InputError:
    return InputError.of(DATASET_KEY, f"{path} {what}", AGAIN)
