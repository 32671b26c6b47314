"""LIBSVM text: ``label index:value ...``, read by scikit-learn, with the line that is wrong where it cannot."""

from __future__ import annotations

import io

import numpy as np
import scipy.sparse

from raybench.core.errors import cut
from raybench.core.limits import check_fits
from raybench.data.files import DATASET_KEY, as_text, data_error

VECTORS = 8  # of d numbers that the smallest run holds: iterate, gradients, memory, messages
FIX = "a line is: label index:value index:value ... (finite numbers, indices rise from 1)"


def libsvm(
    text: bytes, where: str, d: int | None = None
) -> tuple[scipy.sparse.csr_array, np.ndarray]:
    """Return (features, labels) of LIBSVM text, of ``d`` features where that is known: a file may lack the last ones.

    Rows without features are kept. Raises InputError that names the first corrupt line.
    """
    text = as_text(text, where, FIX)
    try:
        features, labels = _parsed(text, d)
    except (ValueError, OverflowError) as whole:
        error: Exception = whole
        lines = text.splitlines(keepends=True)
        sound, broken = 0, len(lines)  # so many lines can be read, and so many cannot
        while broken - sound > 1:
            middle = (sound + broken) // 2
            try:
                _parsed(b"".join(lines[sound:middle]), d)
                sound = middle
            except (ValueError, OverflowError) as earlier:
                broken, error = middle, earlier
        line = cut(lines[broken - 1].decode("utf-8", "replace").strip(), 80)
        raise data_error(
            f"{where}, line {broken}: {cut(str(error), 120)}: {line!r}", FIX
        ) from whole
    if len(labels) == 0:
        raise data_error(f"{where} has no rows", FIX)
    what = f"{where} has {features.shape[1]:,} features: the {VECTORS} vectors of a run"
    fix = "is the last index right? Else number the features from 1 without gaps"
    check_fits(DATASET_KEY, what, 8 * VECTORS * features.shape[1], fix)
    return scipy.sparse.csr_array(features), labels


def _parsed(text: bytes, d: int | None) -> tuple[scipy.sparse.csr_matrix, np.ndarray]:
    """Return what scikit-learn reads; raises ValueError for what it cannot read, and for what is not finite."""
    from sklearn.datasets import load_svmlight_file

    features, labels = load_svmlight_file(io.BytesIO(text), n_features=d, zero_based=False)
    if not (np.isfinite(labels).all() and np.isfinite(features.data).all()):
        raise ValueError("a number is not finite")
    return features, labels
