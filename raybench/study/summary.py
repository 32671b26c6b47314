"""What the study says in a few numbers."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from raybench.study.formulas import KNOWN, TOP_1
from raybench.study.vectors import drawn

RIVALS = ("Top-k", "Top-k + natural", "Top-k + natural dithering", "dithering", "natural dithering")


def against_sign(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the bits a coordinate costs others for the error of scaled sign, family by family.

    Columns: family, error (scaled sign's, with the best factor), scaled sign (its bits a coordinate
    on the wire), and one column per rival: its bits at that error, interpolated along its curve in
    logarithms; inf where its curve does not get there. Where already its first point is better, that
    point's bits, and the name is in ``below``. cheapest: the name of the least.
    """
    found = []
    for family, part in rows.groupby("family", sort=False):
        sign = part[part["curve"] == "scaled sign"]
        if sign.empty:
            continue
        error, bits = float(sign["error_best"].iloc[0]), float(sign["wire_per_coordinate"].iloc[0])
        row = {"family": family, "error": error, "scaled sign": bits}
        curves = {name: part[part["curve"] == name] for name in RIVALS}
        row |= {name: _bits_at(curve, error) for name, curve in curves.items()}
        row["below"] = [n for n, c in curves.items() if len(c) and c["error_best"].max() <= error]
        costs = {name: row[name] for name in ("scaled sign", *RIVALS)}
        found.append({**row, "cheapest": min(costs, key=lambda n: costs[n])})
    return pd.DataFrame(found)


def _bits_at(curve: pd.DataFrame, error: float) -> float:
    curve = curve.sort_values("error_best")
    errors = curve["error_best"].to_numpy(float)
    bits = curve["wire_per_coordinate"].to_numpy(float)
    if not len(errors) or errors[0] > error:
        return np.inf
    if errors[-1] <= error:
        return float(bits[errors <= error].min())
    return float(np.exp(np.interp(error, errors, np.log(bits))))


def top_k_energy(rows: pd.DataFrame) -> pd.DataFrame:
    """Return Top-k's measured residuals beside the formulas: family, share, error, error_se, formula,
    rand_k (1 - k/d, of any vector)."""
    found = []
    for _, row in rows[rows["name"] == "top_k"].iterrows():
        d, k = int(row["d"]), round(row["values"])
        formula = KNOWN[row["family"]](d, k) if row["family"] in KNOWN else np.nan
        kept = {"family": row["family"], "share": k / d, "formula": formula, "rand_k": 1 - k / d}
        found.append({**kept, "error": row["error"], "error_se": row["error_se"]})
    return pd.DataFrame(found)


def top_1_savings(
    dims: tuple[int, ...] = (100, 1_000, 10_000, 100_000), draws: int = 200, seed: int = 0
) -> pd.DataFrame:
    """Return how much more Top-1 keeps than Rand-1 (d max^2/||x||^2), in growing dimension.

    Columns family, d, saving, saving_se, formula (of the ratio of expectations). Top-1 reaches an
    accuracy with so many times fewer coordinates in its first rounds.
    """
    found = []
    for d in dims:
        count = max(8, min(draws, 2_000_000 // d))
        for family, x in drawn(d, count, seed).items():
            squares = x.double().square()
            ratio = d * squares.amax(-1) / squares.sum(-1)
            formula = TOP_1[family](d) if family in TOP_1 else np.nan
            error = float(ratio.std()) / math.sqrt(count)
            row = {"family": family, "d": d, "saving": float(ratio.mean()), "saving_se": error}
            found.append({**row, "formula": formula})
    return pd.DataFrame(found)
