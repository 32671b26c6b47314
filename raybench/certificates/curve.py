"""The worst case against the step, the theorem above it, and below it what a sweep has measured: one figure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from raybench import store
from raybench.certificates.certify import Certificate
from raybench.certificates.program import MEASURES
from raybench.core.errors import InputError
from raybench.report import plots

FORMATS = ("png", "pdf", "svg")
NAMES = {
    "mean_grad": r"mean $\|\nabla f(x^t)\|^2$, $t<{T}$",
    "last_grad": r"$\|\nabla f(x^{T})\|^2$",
    "gap": r"$f(x^{T})-\inf f$",
    "distance": r"$\|x^{T}-x^*\|^2$",
    "lyapunov": r"$V(x^{T})$",
}
BLUE, RED, GREY = "#0072B2", "#D55E00", "#777777"
SIZE = (3.3, 2.7)  # inches: a column of a paper


def measured(folder: str | Path, about: Certificate) -> pd.DataFrame:
    """Return what runs of the method in a results folder ended at: step and value, in the units of the certificate.

    Steps times L, and gradients over L, for runs whose f(x^0) - inf f is known; that is what they begin with. Raises
    InputError where there is none with so many rounds, and for measures that are not recorded.
    """
    if about.measure not in MEASURES[:3]:
        raise InputError.of(
            "beside", f"{about.measure} is not recorded", f"--measure {MEASURES[0]}"
        )
    T, scale = about.rounds, float(np.mean(about.L))
    curves, cells = store.reader.frames(folder)
    least = {
        row.cell: row.f_star if row.f_star == row.f_star else json.loads(row.constants).get("f_inf")
        for row in cells.itertuples()
        if row.algorithm == about.method and row.constants
    }
    rows = []
    for cell, curve in curves[curves["cell"].isin([*least])].groupby("cell"):
        low, first = least[cell], curve[curve["round"] <= T].sort_values("round")
        if low is None or list(first["round"]) != [*range(T + 1)]:
            continue
        start, L = first["loss"].iloc[0] - low, first["L"].iloc[0] / scale
        values = {
            "mean_grad": first["grad_norm_sq"].iloc[:T].mean() / L,
            "last_grad": first["grad_norm_sq"].iloc[T] / L,
            "gap": first["loss"].iloc[T] - low,
        }
        rows.append((first["step_size"].iloc[0] * L, values[about.measure] / start))
    if not rows:
        fix = f"a sweep of it with {T} rounds, each of them recorded, and a known f_star"
        raise InputError.of("beside", f"{folder} has no such run of {about.method}", fix)
    return pd.DataFrame(rows, columns=["step_size", "value"]).assign(series="measured")


def figure(
    curve: Sequence[Certificate], runs: pd.DataFrame | None = None
) -> tuple[Canvas, pd.DataFrame]:
    """Return the figure of certificates at several steps, and the rows behind it."""
    first = curve[0]
    worst = [(c.step_size, c.worst, "worst case") for c in curve if np.isfinite(c.worst)]
    bound = [(c.step_size, c.bound, "theorem") for c in curve if c.bound is not None]
    data = pd.DataFrame(worst + bound, columns=["step_size", "value", "series"])
    canvas = Canvas(figsize=SIZE, layout="constrained")
    axis = canvas.add_subplot()
    if bound:
        axis.plot(*zip(*[row[:2] for row in bound]), "--", color=RED, label="theorem")
    axis.plot(*zip(*[row[:2] for row in worst]), color=BLUE, label="worst case")
    if first.theory_step is not None:
        axis.axvline(first.theory_step, color=GREY, lw=0.7, ls=":", label="theorem's step")
    if runs is not None:
        data = pd.concat([data, runs], ignore_index=True)
        axis.plot(runs["step_size"], runs["value"], ".", ms=4, color=GREY, label="measured")
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="step size",
        ylabel=NAMES[first.measure].replace("{T}", f"{{{first.rounds}}}"),
    )
    canvas.legend(loc="outside lower center", ncols=2, frameon=False)
    return canvas, data


def ending(path: str | Path) -> str:
    """Return the format of a figure's file. Raises InputError for none."""
    kind = Path(path).suffix.removeprefix(".")
    if kind not in FORMATS:
        fix = f"a file that ends in .{', .'.join(FORMATS)}"
        raise InputError.of("curve", f"{path} is no figure", fix)
    return kind


def save(
    path: str | Path, curve: Sequence[Certificate], runs: pd.DataFrame | None = None
) -> list[Path]:
    """Write the figure and, as CSV beside it, the rows behind it; return the paths. Raises InputError as ``ending``."""
    goal, kind = Path(path), ending(path)
    with plots.styled(None):
        canvas, data = figure(curve, runs)
        return plots.save(goal.with_suffix(""), canvas, data, (kind, "csv"))
