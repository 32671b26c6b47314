"""The study of compressors by themselves: how well they keep a vector, for how many bits.

``compressors(out)`` measures every compressor of ``GRIDS`` on drawn vectors and gradients and writes ``study.parquet``
and a figure with the CSV behind it (the empirical comparison of Beznosikov et al., On Biased Compression for Distributed
Learning).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from raybench import api
from raybench.core.errors import InputError
from raybench.core.streams import stream
from raybench.report.content import DASHES, PALETTE, Figure, Look
from raybench.report.plots import draw, save, styled
from raybench.testing.claims import relative_error
from raybench.testing.vectors import drawn, gradients

SHARES = ("0.1%", "0.3%", "1%", "3%", "5%", "10%", "20%", "30%", "50%")
LEAST = 1e-7  # an error that a logarithmic axis has a place for


def _over(form: str, values: Sequence[Any]) -> list[str]:
    return [form.format(value) for value in values]


GRIDS: dict[str, list[str]] = {
    "Top-k": _over("top_k:k={}", SHARES),
    "Top-k + natural": _over("top_k_natural:k={}", SHARES),
    "Top-k + natural dithering": _over("top_k_natural_dithering:k={},s=3,p=inf", SHARES),
    "Top-k + dithering": _over("top_k_dithering:k={},s=7,p=inf", SHARES),
    "Rand-k": _over("rand_k:k={}", SHARES),
    "dithering": _over("dithering:s={},p=inf", (1, 3, 7, 31, 127)),
    "QSGD, buckets": _over("qsgd:s={}", (1, 3, 7, 31, 127)),
    "natural dithering": _over("natural_dithering:s={},p=inf", (1, 3, 7, 15)),
    "SVD": _over("svd:rank={}", (1, 3, 10, 30)),
    "scaled sign": ["scaled_sign"],
    "1-bit, two means": ["one_bit"],
    "TernGrad": ["terngrad"],
    "natural": ["natural"],
    "NF4": ["nf4"],
    "MXFP4": ["mxfp4"],
    "MXFP8": ["mxfp8"],
    "int8": ["int8"],
}
"""The compressors of the study by the name of their curve: short forms of increasing precision.

Dithering is scaled by the largest entry (p = inf): by the Euclidean norm, as in QSGD, nearly all
levels of a long vector are zero; QSGD's answer is buckets.
"""
SHOWN = (
    "Top-k",
    "Top-k + natural dithering",
    "Rand-k",
    "dithering",
    "QSGD, buckets",
    "natural dithering",
    "SVD",
    "scaled sign",
)
"""The curves that the figure draws in colour where there are more of them: as many as it has colours."""


# Rows ----------------------------------------------------------------------------------------


def measure(
    vectors: Mapping[str, Tensor], operators: Mapping[str, Sequence[str]], seed: int = 0
) -> pd.DataFrame:
    """Return one row per family of vectors (draws, d) and compressor.

    error: mean of ||C(x) - x||^2 / ||x||^2, error_se its standard error. error_best: of the best
    factor for each x, 1 - cos^2. Counts, bits (full-width values of 32 bits, indices as packed) and
    bytes as packed are means per vector; bits_per_coordinate and wire_per_coordinate (8 bytes/d) the
    same per coordinate.
    """
    pairs = [(curve, text) for curve, texts in operators.items() for text in texts]
    return pd.DataFrame(
        {"family": family, "curve": curve, "operator": text, "name": text.partition(":")[0]}
        | _figures(text, x, seed)
        for (family, x), (curve, text) in product(vectors.items(), pairs)
    )


def _figures(text: str, x: Tensor, seed: int) -> dict[str, Any]:
    draws, d = x.shape
    op = api.compressor(text).bind(d).compressor
    message = op.compress(x, stream(seed).fold("study compressors").each(range(draws)))
    value, x = message.decode().double(), x.double()
    along, square = (value * x).sum(-1), value.square().sum(-1)
    errors = {
        "error": relative_error(value, x),
        "error_best": 1 - (along.square() / (square * x.square().sum(-1))).nan_to_num(0.0),
    }
    counts = {**message.cost._asdict(), "bits": message.bits, "bytes": message.nbytes}
    means = {name: float(torch.as_tensor(n).double().mean()) for name, n in counts.items()}
    row: dict[str, Any] = {"d": d, "draws": draws, **means}
    for name, error in errors.items():
        row[name] = float(error.mean())
        row[f"{name}_se"] = float(error.std()) / math.sqrt(draws) if draws > 1 else math.nan
    row["bits_per_coordinate"] = means["bits"] / d
    row["wire_per_coordinate"] = 8 * means["bytes"] / d
    return row


def compressors(
    out: str | Path,
    d: int = 10_000,
    draws: int = 20,
    operators: Mapping[str, Sequence[str]] | None = None,
    seed: int = 0,
) -> tuple[pd.DataFrame, list[Path]]:
    """Run the study and return its rows, and the files in ``out``: the rows as Parquet; their figure as PNG, PDF and CSV.

    d: of the drawn vectors. compressors: curve -> short forms, by default ``GRIDS``. Raises InputError
    for sizes below 1 and for compressors that do not exist or do not fit.
    """
    for key, number in (("d", d), ("draws", draws)):
        if number < 1:
            raise InputError.of(key, f"{number} is out of range", "an integer >= 1")
    rows = measure({**drawn(d, draws, seed), **gradients(draws, seed)}, operators or GRIDS, seed)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    rows.to_parquet(folder / "study.parquet", index=False)
    columns = ["family", "curve", "operator", "wire_per_coordinate", "error_best", "error_best_se"]
    with styled(None):
        canvas = draw(against_bits(rows), (9.8, None))
    pictures = save(folder / "error_against_bits", canvas, rows[columns], ("png", "pdf", "csv"))
    return rows, [folder / "study.parquet", *pictures]


def against_bits(rows: pd.DataFrame) -> Figure:
    """Return the figure of error (best factor) against bits a coordinate, one panel per family."""
    y = rows["error_best"].clip(lower=LEAST)
    data = rows.assign(panel=rows["family"], series=rows["curve"], x=rows["wire_per_coordinate"])
    data = data.assign(y=y, low=y, high=y).sort_values(["panel", "series", "x"], kind="stable")
    names = list(dict.fromkeys(rows["curve"]))
    lit = [name for name in names if name in SHOWN or len(names) <= len(SHOWN)]
    dull = Look("#BBBBBB", DASHES[0], "others, in the CSV")
    return Figure(
        name="error_against_bits",
        x="wire_per_coordinate",
        y="error_best",
        title="Error against bits",
        x_label="Bits per coordinate, as packed",
        y_label=r"$\min_c\,\|cC(x)-x\|^2\,/\,\|x\|^2$",
        data=data,
        looks={
            **{name: dull for name in names if name not in lit},
            **{name: Look(PALETTE[i], DASHES[i % len(DASHES)], name) for i, name in enumerate(lit)},
        },
        panels=list(dict.fromkeys(rows["family"])),
        log_x=True,
        x_from=float(data["x"].min()) / 1.2,
    )
