"""What the study says in a few numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd

from raybench.study.formulas import KNOWN

RIVALS = ("Top-k", "Top-k + natural", "Top-k + natural dithering", "dithering", "natural dithering")


def against_sign(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the bits a coordinate costs others for the error of scaled sign, family by family.

    Columns: family, error (scaled sign's, with the best factor), scaled sign (its bits a coordinate
    on the wire), and one column per rival: its bits at that error, interpolated along its curve in
    logarithms; inf where its curve does not get there, and less than its first point where that is
    already better. cheapest: the name of the least.
    """
    found = []
    for family, part in rows.groupby("family", sort=False):
        sign = part[part["curve"] == "scaled sign"]
        if sign.empty:
            continue
        error, bits = float(sign["error_best"].iloc[0]), float(sign["wire_per_coordinate"].iloc[0])
        row = {"family": family, "error": error, "scaled sign": bits}
        row |= {name: _bits_at(part[part["curve"] == name], error) for name in RIVALS}
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
