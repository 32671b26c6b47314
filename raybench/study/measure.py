"""Measure ||C(x) - x||^2 / ||x||^2 and the bits of C(x), operator by operator, vector by vector."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from raybench.compressors import Compressor
from raybench.core import registry
from raybench.core.errors import InputError
from raybench.core.streams import Stream, stream
from raybench.spec import short
from raybench.study.vectors import drawn, gradients
from raybench.testing.claims import relative_error

SHARES = ("0.1%", "0.3%", "1%", "3%", "5%", "10%", "20%", "30%", "50%")


def _over(name: str, key: str, values: Sequence[Any], more: str = "") -> list[str]:
    return [f"{name}:{key}={value}{more}" for value in values]


GRIDS: dict[str, list[str]] = {
    "Top-k": _over("top_k", "k", SHARES),
    "Top-k + natural": _over("top_k_natural", "k", SHARES),
    "Top-k + natural dithering": _over("top_k_natural_dithering", "k", SHARES, ",s=3,p=inf"),
    "Top-k + dithering": _over("top_k_dithering", "k", SHARES, ",s=7,p=inf"),
    "Rand-k": _over("rand_k", "k", SHARES),
    "dithering": _over("dithering", "s", (1, 3, 7, 31, 127), ",p=inf"),
    "QSGD, buckets": _over("qsgd", "s", (1, 3, 7, 31, 127)),
    "natural dithering": _over("natural_dithering", "s", (1, 3, 7, 15), ",p=inf"),
    "natural dithering, entropy coded": [
        f"entropy_coded:of=(natural_dithering:s={s},p=inf)" for s in (1, 3, 7, 15)
    ],
    "SVD": _over("svd", "rank", (1, 3, 10, 30)),
    "scaled sign": ["scaled_sign"],
    "1-bit, two means": ["one_bit"],
    "TernGrad": ["terngrad"],
    "natural": ["natural"],
    "NF4": ["nf4"],
    "MXFP4": ["mxfp4"],
    "MXFP8": ["mxfp8"],
    "int8": ["int8"],
}
"""The operators of the study by the name of their curve: short forms of increasing precision.

Dithering is scaled by the largest entry (p = inf): by the Euclidean norm, as in QSGD, nearly all
levels of a long vector are zero; QSGD's answer is buckets.
"""


def measure(
    vectors: Mapping[str, Tensor], operators: Mapping[str, Sequence[str]], seed: int = 0
) -> pd.DataFrame:
    """Return one row per family of vectors (draws, d) and operator.

    error: mean of ||C(x) - x||^2 / ||x||^2, error_se its standard error. error_scaled: of factor C(x),
    the factor that makes it contractive (``Compressor.b3``); bound: 1 - 1/delta, what theory allows
    there. error_best: of the best factor for each x, 1 - cos^2. Counts, bits (full-width values of
    32 bits, indices as packed) and bytes as packed are means per vector;
    bits_per_coordinate and wire_per_coordinate (8 bytes/d) the same per coordinate.
    """
    rows = []
    for family, x in vectors.items():
        own = stream(seed).fold("study operators").each(range(len(x)))
        for curve, texts in operators.items():
            for text in texts:
                section = short.section("compressor", text)
                operator = registry.lookup("compressor", section.name).target(**section.params)
                row = {"family": family, "curve": curve, "operator": text, "name": section.name}
                rows.append(row | _one(operator, x, own))
    return pd.DataFrame(rows)


def _one(operator: Compressor, x: Tensor, own: Stream) -> dict[str, Any]:
    draws, d = x.shape
    fitted = operator.bind(d).operator
    message = fitted.compress(x, own)
    value, x = message.decode().double(), x.double()
    size = x.square().sum(-1)
    known = fitted.b3(d)
    delta, factor = known if known is not None else (math.nan, 1.0)
    along, square = (value * x).sum(-1), value.square().sum(-1)
    best = 1 - (along.square() / (square * size)).nan_to_num(0.0)
    cost = message.cost._asdict()
    counts = {name: _mean(torch.as_tensor(count)) for name, count in cost.items()}
    bits, size_bytes = _mean(message.bits), _mean(torch.as_tensor(message.nbytes))
    found: dict[str, Any] = {"d": d, "draws": draws}
    for name, error in (
        ("error", relative_error(value, x)),
        ("error_scaled", relative_error(factor * value, x)),
        ("error_best", best),
    ):
        found[name] = _mean(error)
        found[f"{name}_se"] = float(error.std()) / math.sqrt(draws) if draws > 1 else math.nan
    return {
        **found,
        "factor": factor,
        "bound": 1 - 1 / delta,
        "omega": fitted.omega(d),
        "alpha": fitted.alpha(d),
        **counts,
        "bits": bits,
        "bytes": size_bytes,
        "bits_per_coordinate": bits / d,
        "wire_per_coordinate": 8 * size_bytes / d,
    }


def _mean(x: Tensor) -> float:
    return float(x.double().mean())


def compressors(
    out: str | Path,
    d: int = 10_000,
    draws: int = 20,
    operators: Mapping[str, Sequence[str]] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Run the study and return its rows, written to ``<out>/study.parquet`` too.

    d: of the drawn vectors. operators: curve -> short forms, by default ``GRIDS``. Raises InputError
    for sizes below 1 and for operators that do not exist or do not fit.
    """
    for key, number in (("d", d), ("draws", draws)):
        if number < 1:
            raise InputError.of(key, f"{number} is out of range", "an integer >= 1")
    rows = measure({**drawn(d, draws, seed), **gradients(draws, seed)}, operators or GRIDS, seed)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    rows.to_parquet(folder / "study.parquet", index=False)
    return rows
