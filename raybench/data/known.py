"""The data sets known by name: their true shapes, and where each lies or is fetched from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

SITE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
ENDINGS = ("", ".bz2", ".gz", ".xz")
EMBEDDED = ("breast_cancer", "digits")


@dataclass(frozen=True)
class Known:
    """A LIBSVM data set: rows, features, and the file's address."""

    rows: int
    d: int
    url: str


def _table() -> dict[str, Known]:
    plain = {
        "a1a": (1605, 123), "a2a": (2265, 123), "a3a": (3185, 123), "a4a": (4781, 123),
        "a5a": (6414, 123), "a6a": (11220, 123), "a7a": (16100, 123), "a8a": (22696, 123),
        "a9a": (32561, 123), "a9a.t": (16281, 123),
        "w1a": (2477, 300), "w2a": (3470, 300), "w3a": (4912, 300), "w4a": (7366, 300),
        "w5a": (9888, 300), "w6a": (17188, 300), "w7a": (24692, 300), "w8a": (49749, 300),
        "w8a.t": (14951, 300),
        "mushrooms": (8124, 112), "phishing": (11055, 68), "australian": (690, 14),
        "australian_scale": (690, 14), "diabetes": (768, 8), "german.numer": (1000, 24),
        "heart": (270, 13), "ionosphere_scale": (351, 34), "sonar_scale": (208, 60),
        "splice": (1000, 60), "svmguide1": (3089, 4), "madelon": (2000, 500),
        "cod-rna": (59535, 8),
    }  # fmt: skip
    packed = {
        "covtype.libsvm.binary.scale": (581012, 54), "duke": (44, 7129),
        "gisette_scale": (6000, 5000), "ijcnn1": (49990, 22), "news20.binary": (19996, 1355191),
        "rcv1_train.binary": (20242, 47236), "real-sim": (72309, 20958),
    }  # fmt: skip
    table = {name: Known(*shape, SITE + name) for name, shape in plain.items()}
    table |= {name: Known(*shape, SITE + name + ".bz2") for name, shape in packed.items()}
    return dict(sorted(table.items()))


KNOWN = _table()


def folder() -> Path:
    """Return the data folder: $RAYBENCH_DATA, or the user's cache where it is unset."""
    given = os.environ.get("RAYBENCH_DATA", "")
    return Path(given).expanduser() if given else Path(platformdirs.user_cache_dir("raybench"))


def find(name: str) -> Path | None:
    """Return the file of the LIBSVM set ``name`` in the data folder, None where there is none."""
    for ending in ENDINGS:
        file = folder() / "libsvm" / f"{name}{ending}"
        if file.is_file():
            return file
    return None
