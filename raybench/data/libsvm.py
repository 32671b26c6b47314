"""LIBSVM text: ``label index:value ...``, read by scikit-learn, with the line that is wrong where it cannot."""

from __future__ import annotations

import io
import math
import re

import numpy as np
import scipy.sparse

from raybench.core.errors import InputError, cut
from raybench.core.limits import check_fits
from raybench.data.files import DATASET_KEY, MAGIC, data_error

VECTORS = 8  # of d numbers that the smallest run holds: iterate, gradients, memory, messages
LIBSVM_FIX = "give a LIBSVM file: label index:value ..."
MOST_SEARCHED = 1 << 24  # bytes of a file that are looked through for the line that is wrong
MARK = b"\xef\xbb\xbf"  # what some editors write before UTF-8 text


def libsvm(
    text: bytes, where: str, d: int | None = None
) -> tuple[scipy.sparse.csr_array, np.ndarray]:
    """Return (features, labels) of LIBSVM text: ``label index:value ...``, indices from 1.

    Rows without features are kept. ``d`` is the number of features where it is known: a file may
    lack the last ones. Raises InputError that names the first corrupt line.
    """
    from sklearn.datasets import load_svmlight_file

    text = text.removeprefix(MARK)
    start = next((kind for magic, kind in MAGIC.items() if text.startswith(magic)), None)
    if start:
        what = f"{where} is no text, but {start}"
        fix = "a LIBSVM file is text, label index:value ...; others by their ending: .parquet, .csv, .npz"
        raise data_error(what, fix)
    if not text.strip():
        raise data_error(f"{where} is empty", LIBSVM_FIX)
    try:
        features, labels = load_svmlight_file(io.BytesIO(text), n_features=d, zero_based=False)
    except (ValueError, OverflowError) as error:
        raise _complaint(text, where, d, error) from error
    if len(labels) == 0:
        raise data_error(f"{where} has no rows", LIBSVM_FIX)
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
            excerpt = cut(line, 80)
            fix = "a line is: label index:value index:value ... (indices rise from 1)"
            return data_error(f"{where}, line {number}: {what}: {excerpt!r}", fix)
    return data_error(f"{where}: {error}", LIBSVM_FIX)


def _wrong(line: str, d: int | None) -> str:
    if not line:
        return ""
    label, *pairs = line.split()
    if not math.isfinite(_number(label)):
        return f"the label {cut(label, 40)!r} is not a finite number"
    last = 0
    for pair in pairs:
        match = re.fullmatch(r"(\d{1,20}):(\S+)", pair)
        if match is None or not math.isfinite(_number(match[2])):
            return f"{cut(pair, 40)!r} is not index:value"
        index = int(match[1])
        if index <= last:
            return "indices start at 1" if index == 0 else "indices do not rise"
        if index > 2**31 - 1:
            return f"index {index} is too large"
        if d is not None and index > d:
            return f"index {index} exceeds the {d} features of this data set"
        last = index
    return ""


def _number(text: str) -> float:
    """Return the number that a text is, not a number where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
