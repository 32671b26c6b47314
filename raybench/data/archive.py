"""Arrays of an ``.npz`` file that anybody may have made: measured by their headers before they are read."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from raybench.core.errors import InputError
from raybench.core.room import check_fits, check_growth

DATASET_KEY = "problem.dataset"
FIX = "save it with numpy.savez(file, features=..., labels=...)"
NUMBERS = "biuf"  # kinds of dtype that become float64 without loss of meaning
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def arrays(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return (features (rows, d), labels (rows)) in float64 of an ``.npz`` with ``features`` or ``images``.

    Raises InputError where an array is missing, is not of real finite numbers, does not fit the other,
    or takes more memory than a data set may.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            key = "features" if "features.npy" in names else "images"
            for name in (key, "labels"):
                if f"{name}.npy" not in names:
                    raise InputError.of(DATASET_KEY, f"{path.name} lacks the array {name}", FIX)
            raw, labels = (_array(archive, path.name, name) for name in (key, "labels"))
            features = raw.reshape(len(raw), -1)
    except InputError:
        raise
    except Exception as error:  # zipfile and numpy raise a dozen kinds on files that are damaged
        what = f"cannot read {path.name}: {str(error) or type(error).__name__}"
        raise InputError.of(DATASET_KEY, what[:300], FIX) from error
    if labels.shape != (len(features),) or features.size == 0:
        what = f"{path.name} has {features.shape[0]} rows and labels of shape {labels.shape}"
        raise InputError.of(DATASET_KEY, what, "give one label per row")
    if not (np.isfinite(features).all() and np.isfinite(labels).all()):
        raise InputError.of(
            DATASET_KEY, f"{path.name} holds values that are not finite", "clean them first"
        )
    return features, labels


def _array(archive: zipfile.ZipFile, file: str, name: str) -> np.ndarray:
    """Return an array of an archive in float64, once its header has been found to be sound."""
    info = archive.getinfo(f"{name}.npy")
    whole = f"{file}: {name}"
    check_growth(DATASET_KEY, whole, info.compress_size, info.file_size)
    check_fits(DATASET_KEY, whole, info.file_size, "save fewer rows")
    with archive.open(info) as stream:
        count, dtype = _header(stream, info, whole)
    check_fits(DATASET_KEY, f"{whole} in float64", 8 * count, "save fewer rows")
    if dtype.kind not in NUMBERS:
        kind = {"c": "complex numbers", "O": "Python objects"}.get(dtype.kind, f"{dtype}")
        raise InputError.of(DATASET_KEY, f"{whole} holds {kind}, not real numbers", FIX)
    with archive.open(info) as stream:
        return np.asarray(npy.read_array(stream, allow_pickle=False), dtype=float)


def _header(stream: IO[bytes], info: zipfile.ZipInfo, whole: str) -> tuple[int, np.dtype]:
    """Return how many numbers an array has, and of what dtype; both are only what its header says.

    Raises InputError where they do not take the bytes that are there.
    """
    version = npy.read_magic(stream)
    if version not in HEADERS:
        raise InputError.of(DATASET_KEY, f"{whole} is in npy format {version}", FIX)
    shape, _, dtype = HEADERS[version](stream)
    count = math.prod(shape)
    if not dtype.hasobject and count * dtype.itemsize != info.file_size - stream.tell():
        what = f"{whole} has a header of {count:,} values, and {info.file_size:,} bytes"
        raise InputError.of(DATASET_KEY, what, FIX)
    return count, dtype
