"""LIBSVM text files: reading them (plain or compressed), fetching them, naming a corrupt line."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path

import numpy as np
import scipy.sparse

from raybench.core.errors import InputError
from raybench.core.limits import check_fits, decompressed
from raybench.data.download import download
from raybench.data.known import KNOWN, folder

DATASET_KEY = "problem.dataset"
VECTORS = 8  # of d numbers that the smallest run holds: iterate, gradients, memory, messages
NO_TEXT = (b"PAR1", b"ARROW1", b"SQLite format 3")  # how files begin that people have tables in
MOST_SEARCHED = 1 << 24  # bytes of a file that are looked through for the line that is wrong


def content(path: Path) -> bytes:
    """Return the decompressed bytes of a file (.gz, .bz2, .xz by its ending).

    Raises InputError if the file cannot be read, is not what its ending says, or is too large.
    """
    return b"".join(decompressed(path, DATASET_KEY))


def parse(
    text: bytes, where: str, d: int | None = None
) -> tuple[scipy.sparse.csr_array, np.ndarray]:
    """Return (features, labels) of LIBSVM text: ``label index:value ...``, indices from 1.

    Rows without features are kept. ``d`` is the number of features where it is known: a file may
    lack the last ones. Raises InputError that names the first corrupt line.
    """
    from sklearn.datasets import load_svmlight_file

    if text.startswith(NO_TEXT):
        what = f"{where} is no text" + (", but Parquet" if text.startswith(b"PAR1") else "")
        fix = "a LIBSVM file is text, label index:value ...; others by their ending: .parquet, .csv, .npz"
        raise InputError.of(DATASET_KEY, what, fix)
    if not text.strip():
        raise InputError.of(
            DATASET_KEY, f"{where} is empty", "give a LIBSVM file: label index:value ..."
        )
    try:
        features, labels = load_svmlight_file(io.BytesIO(text), n_features=d, zero_based=False)
    except (ValueError, OverflowError) as error:
        raise _complaint(text, where, d, error) from error
    if len(labels) == 0:
        raise InputError.of(
            DATASET_KEY, f"{where} has no rows", "give a LIBSVM file: label index:value ..."
        )
    if not (np.isfinite(labels).all() and np.isfinite(features.data).all()):
        raise _complaint(text, where, d, ValueError("a value is not finite"))
    what = f"{where} has {features.shape[1]:,} features: the {VECTORS} vectors of a run"
    fix = "is the last index right? Else number the features from 1 without gaps"
    check_fits(DATASET_KEY, what, 8 * VECTORS * features.shape[1], fix)
    return scipy.sparse.csr_array(features), labels


def _complaint(text: bytes, where: str, d: int | None, error: Exception) -> InputError:
    for number, raw in enumerate(text[:MOST_SEARCHED].split(b"\n"), 1):
        line = raw.decode("utf-8", "replace").split("#")[0].strip()
        what = _wrong(line, d)
        if what:
            shown = _short(line, 80)
            fix = "a line is: label index:value index:value ... (indices rise from 1)"
            return InputError.of(DATASET_KEY, f"{where}, line {number}: {what}: {shown!r}", fix)
    return InputError.of(
        DATASET_KEY, f"{where}: {error}", "give a LIBSVM file: label index:value ..."
    )


def _wrong(line: str, d: int | None) -> str:
    if not line:
        return ""
    label, *pairs = line.split()
    if not _finite(label):
        return f"the label {_short(label)!r} is not a finite number"
    last = 0
    for pair in pairs:
        match = re.fullmatch(r"(\d{1,20}):(\S+)", pair)
        if match is None or not _finite(match[2]):
            return f"{_short(pair)!r} is not index:value"
        index = int(match[1])
        if index <= last:
            return "indices start at 1" if index == 0 else "indices do not rise"
        if index > 2**31 - 1:
            return f"index {index} is too large"
        if d is not None and index > d:
            return f"index {index} exceeds the {d} features of this data set"
        last = index
    return ""


def _short(text: str, most: int = 40) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def fetch(name: str) -> Path:
    """Return the path of the known set ``name`` after downloading it into the data folder.

    The file appears by an atomic rename. Raises InputError naming the folder and the file to put
    there where it cannot be fetched.
    """
    url = KNOWN[name].url
    target = folder() / "libsvm" / url.rsplit("/", 1)[1]
    try:
        return download(url, target, name)
    except (OSError, ValueError) as error:
        kind = type(error).__name__
        fix = f"put the file {target.name} into {target.parent} (from {url})"
        raise InputError.of(DATASET_KEY, f"cannot download {name} ({kind})", fix) from error
