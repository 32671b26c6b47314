"""The study of compressors by themselves: how well they keep a vector, for how many bits.

``compressors(out)`` measures every operator of ``GRIDS`` on drawn vectors and gradients and writes ``study.parquet``;
``figures`` draws it, with the CSV behind each figure (the empirical comparison of Beznosikov et al., On Biased
Compression for Distributed Learning).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, product
from pathlib import Path
from statistics import NormalDist
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from torch import Tensor

from raybench import api
from raybench.core.errors import InputError
from raybench.core.streams import stream
from raybench.report.formats import separated
from raybench.report.plots import STYLE
from raybench.testing.claims import relative_error

SHARES = ("0.1%", "0.3%", "1%", "3%", "5%", "10%", "20%", "30%", "50%")
COLOURS = ("#0B559F", "#D95F02", "#1B9E77", "#7A4EA8", "#B8860B", "#C2185B", "#4D4D4D", "#2CA9C4")
MARKS = "osD^vPX*h"
PANELS = 4  # beside each other


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
    "natural dithering, entropy coded": _over(
        "entropy_coded:of=(natural_dithering:s={},p=inf)", (1, 3, 7, 15)
    ),
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
"""The operators of the study by the name of their curve: short forms of increasing precision.

Dithering is scaled by the largest entry (p = inf): by the Euclidean norm, as in QSGD, nearly all
levels of a long vector are zero; QSGD's answer is buckets.
"""
RIVALS = ("Top-k", "Top-k + natural", "Top-k + natural dithering", "dithering", "natural dithering")
"""The curves that scaled sign is compared with."""


# Vectors -------------------------------------------------------------------------------------


def drawn(d: int, draws: int, seed: int = 0) -> dict[str, Tensor]:
    """Return vectors (draws, d), float32, with i.i.d. entries of each family.

    gaussian; laplace; uniform on (0, 1); exponential; student t2 (two degrees of freedom: no
    variance, heavy tails); lognormal (of sigma 2, random signs).
    """
    root = stream(seed).fold("study").each(range(draws))

    def normals(name: str) -> Tensor:
        return root.fold(name).normal(d)

    def uniforms(name: str) -> Tensor:
        return root.fold(name).uniform(d)

    def signs(name: str) -> Tensor:
        return 1 - 2 * (uniforms(name) < 0.5).double()

    def exponentials(name: str) -> Tensor:
        return -torch.log1p(-uniforms(name))

    vectors = {
        "gaussian": normals("gaussian"),
        "laplace": exponentials("laplace") * signs("laplace sign"),
        "uniform": uniforms("uniform"),
        "exponential": exponentials("exponential"),
        "student t2": normals("t2") / exponentials("t2 scale").clamp_min(1e-12).sqrt(),
        "lognormal": torch.exp(2 * normals("lognormal")) * signs("lognormal sign"),
    }
    return {name: value.float() for name, value in vectors.items()}


def gradients(draws: int, seed: int = 0, steps: int = 300) -> dict[str, Tensor]:
    """Return minibatch gradients (draws, 51946), float32, of a convolutional network on digits.

    At the initial weights and after ``steps`` steps of SGD with momentum, batches of 32 images of
    scikit-learn's digits (8 x 8 pixels).
    """
    from sklearn.datasets import load_digits
    from torch.nn import Conv2d, Flatten, Linear, MaxPool2d, ReLU, Sequential
    from torch.nn.functional import cross_entropy

    data = load_digits()
    images = torch.tensor(data.images[:, None] / 16, dtype=torch.float32)
    labels = torch.tensor(data.target)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = (Conv2d(1, 32, 3, padding=1), ReLU(), Conv2d(32, 64, 3, padding=1), ReLU())
        head = (MaxPool2d(2), Flatten(), Linear(1024, 32), ReLU(), Linear(32, 10))
        net = Sequential(*body, *head)

        def gradient() -> Tensor:
            net.zero_grad()
            batch = torch.randint(len(labels), (32,))
            cross_entropy(net(images[batch]), labels[batch]).backward()
            return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])

        first = torch.stack([gradient() for _ in range(draws)])
        sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        for _ in range(steps):
            gradient()
            sgd.step()
        last = torch.stack([gradient() for _ in range(draws)])
    return {"gradient, start": first, "gradient, trained": last}


# Order statistics ----------------------------------------------------------------------------
#
# For i.i.d. entries the expected residual of Top-k, E||x - C(x)||^2 / E||x||^2, tends to the share of E x^2 below the
# (1 - k/d)-quantile of |x|. Rand-k leaves 1 - k/d of any vector.


def uniform(d: int, k: int) -> float:
    """Return the residual for entries uniform on (0, 1), exactly for every d:
    (1 - k/d)(1 - k/(d+1))(1 - k/(d+2)), as E u_(j)^2 = j(j+1)/((d+1)(d+2)) for the j-th smallest."""
    return (1 - k / d) * (1 - k / (d + 1)) * (1 - k / (d + 2))


def laplace(d: int, k: int) -> float:
    """Return the limit for Laplace or exponential entries: 1 - q (1 + t + t^2/2), q = k/d = e^-t."""
    t = -math.log(k / d)
    return 1 - k / d * (1 + t + t * t / 2)


def gaussian(d: int, k: int) -> float:
    """Return the limit for Gaussian entries: 1 - q - 2 t phi(t), where P(|x| > t) = q = k/d."""
    if k == d:
        return 0.0
    normal = NormalDist()
    t = normal.inv_cdf(1 - k / d / 2)
    return 1 - k / d - 2 * t * normal.pdf(t)


def top_1_uniform(d: int) -> float:
    """Return d E max^2 / E||x||^2 for entries uniform on (0, 1): 3d/(d + 2), so 3 in high dimension."""
    return 3 * d / (d + 2)


def top_1_exponential(d: int) -> float:
    """Return d E max^2 / E||x||^2 for exponential (or Laplace) entries: (H_d^2 + H_d^(2))/2.

    The maximum has mean H_d = 1 + 1/2 + .. + 1/d and variance H_d^(2) = 1 + 1/4 + .. + 1/d^2: it
    grows like (log d)^2 / 2.
    """
    j = np.arange(1.0, d + 1)
    return float((1 / j).sum() ** 2 + (1 / j**2).sum()) / 2


Formulas = dict[str, Callable[..., float]]
KNOWN: Formulas = {
    "uniform": uniform,
    "laplace": laplace,
    "exponential": laplace,
    "gaussian": gaussian,
}
"""What Top-k leaves, by family of vectors that has a formula, of (d, k)."""
TOP_1: Formulas = {
    "uniform": top_1_uniform,
    "laplace": top_1_exponential,
    "exponential": top_1_exponential,
}
"""What Top-1 keeps over what Rand-1 keeps, of d."""


def _formula(formulas: Formulas, family: str, *at: int) -> float:
    return formulas[family](*at) if family in formulas else math.nan


# Rows ----------------------------------------------------------------------------------------


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
    pairs = [(curve, text) for curve, texts in operators.items() for text in texts]
    return pd.DataFrame(
        {"family": family, "curve": curve, "operator": text, "name": text.partition(":")[0]}
        | _figures(text, x, seed)
        for (family, x), (curve, text) in product(vectors.items(), pairs)
    )


def _figures(text: str, x: Tensor, seed: int) -> dict[str, Any]:
    draws, d = x.shape
    op = api.compressor(text).bind(d).operator
    message = op.compress(x, stream(seed).fold("study operators").each(range(draws)))
    value, x = message.decode().double(), x.double()
    delta, factor = op.b3(d) or (math.nan, 1.0)
    along, square = (value * x).sum(-1), value.square().sum(-1)
    errors = {
        "error": relative_error(value, x),
        "error_scaled": relative_error(factor * value, x),
        "error_best": 1 - (along.square() / (square * x.square().sum(-1))).nan_to_num(0.0),
    }
    counts = {**message.cost._asdict(), "bits": message.bits, "bytes": message.nbytes}
    means = {name: float(torch.as_tensor(n).double().mean()) for name, n in counts.items()}
    row: dict[str, Any] = {"d": d, "draws": draws}
    for name, error in errors.items():
        row[name] = float(error.mean())
        row[f"{name}_se"] = float(error.std()) / math.sqrt(draws) if draws > 1 else math.nan
    return {
        **row,
        "factor": factor,
        "bound": 1 - 1 / delta,
        "omega": op.omega(d),
        "alpha": op.alpha(d),
        **means,
        "bits_per_coordinate": means["bits"] / d,
        "wire_per_coordinate": 8 * means["bytes"] / d,
    }


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


def against_sign(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the bits a coordinate costs others for the error of scaled sign, family by family.

    Columns: family, error (scaled sign's, with the best factor), scaled sign (its bits a coordinate
    on the wire), and one column per rival: its bits at that error, interpolated along its curve in
    logarithms; inf where its curve does not get there. Where already its first point is better, that
    point's bits, and the name is in ``below``. cheapest: the name of the least.
    """
    table = []
    for family, part in rows.groupby("family", sort=False):
        curves = {name: part[part["curve"] == name] for name in ("scaled sign", *RIVALS)}
        if curves["scaled sign"].empty:
            continue
        error = float(curves["scaled sign"]["error_best"].iloc[0])
        bits = {name: _bits_at(curve, error) for name, curve in curves.items()}
        below = [n for n in RIVALS if len(curves[n]) and curves[n]["error_best"].max() <= error]
        cheapest = min(bits, key=lambda name: bits[name])
        table.append(
            {"family": family, "error": error, **bits, "below": below, "cheapest": cheapest}
        )
    return pd.DataFrame(table)


def _bits_at(curve: pd.DataFrame, error: float) -> float:
    curve = curve.sort_values("error_best")
    errors, bits = (curve[c].to_numpy(float) for c in ("error_best", "wire_per_coordinate"))
    if not len(errors) or errors[0] > error:
        return math.inf
    if errors[-1] <= error:
        return float(bits[errors <= error].min())
    return float(np.exp(np.interp(error, errors, np.log(bits))))


def top_k_energy(rows: pd.DataFrame) -> pd.DataFrame:
    """Return Top-k's measured residuals beside the formulas: family, share, error, error_se, formula,
    rand_k (1 - k/d, of any vector)."""
    table = rows.loc[rows["name"] == "top_k", ["family", "d", "values", "error", "error_se"]]
    table = table.reset_index(drop=True)
    k = table.pop("values").round().astype(int)
    d = table.pop("d")
    table.insert(1, "share", k / d)
    table.insert(2, "formula", [_formula(KNOWN, *at) for at in zip(table["family"], d, k)])
    table.insert(3, "rand_k", 1 - k / d)
    return table


def top_1_savings(
    dims: tuple[int, ...] = (100, 1_000, 10_000, 100_000), draws: int = 200, seed: int = 0
) -> pd.DataFrame:
    """Return how much more Top-1 keeps than Rand-1 (d max^2/||x||^2), in growing dimension.

    Columns family, d, saving, saving_se, formula (of the ratio of expectations). Top-1 reaches an
    accuracy with so many times fewer coordinates in its first rounds.
    """
    table = []
    for d in dims:
        count = max(8, min(draws, 2_000_000 // d))
        for family, x in drawn(d, count, seed).items():
            squares = x.double().square()
            ratio = d * squares.amax(-1) / squares.sum(-1)
            row = {"family": family, "d": d, "saving": float(ratio.mean())}
            row["saving_se"] = float(ratio.std()) / math.sqrt(count)
            table.append(row | {"formula": _formula(TOP_1, family, d)})
    return pd.DataFrame(table)


# Figures -------------------------------------------------------------------------------------


def figures(rows: pd.DataFrame, out: str | Path) -> list[Path]:
    """Draw the study's rows into ``out``; return the paths: per figure a PNG, a PDF and its CSV."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    columns = ["family", "curve", "operator", "wire_per_coordinate", "error_best", "error_best_se"]
    energy, paths = top_k_energy(rows), []
    with mpl.rc_context(STYLE):
        drawings = {"error_against_bits": (against_bits(rows), rows[columns])}
        if len(energy):
            savings = top_1_savings()
            both = pd.concat((energy, savings), ignore_index=True)
            drawings["top_k_against_rand_k"] = (residual(energy, savings), both)
        for name, (canvas, table) in drawings.items():
            for kind, plain in (("png", "Software"), ("pdf", "CreationDate")):
                paths.append(folder / f"{name}.{kind}")
                canvas.savefig(paths[-1], metadata={plain: None})
            paths.append(folder / f"{name}.csv")
            paths[-1].write_text(separated(table), encoding="utf-8")
    return paths


def against_bits(rows: pd.DataFrame) -> Figure:
    """Return the figure of error (best factor) against bits a coordinate, one panel per family."""
    families, bits = list(rows["family"].unique()), rows["wire_per_coordinate"]
    columns = min(PANELS, len(families))
    lines = math.ceil(len(families) / columns)
    canvas = Figure(figsize=(2.35 * columns + 0.4, 2.15 * lines + 0.9), layout="constrained")
    axes = canvas.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).flatten()
    looks = dict(zip(rows["curve"].unique(), cycle(product(MARKS, COLOURS))))
    handles: dict[str, Any] = {}
    for j, (axis, family) in enumerate(zip(axes, families)):
        for curve, part in rows[rows["family"] == family].groupby("curve", sort=False):
            part = part.sort_values("wire_per_coordinate")
            marker, colour = looks[curve]
            handles[str(curve)] = axis.plot(
                part["wire_per_coordinate"],
                part["error_best"].clip(lower=1e-7),
                color=colour,
                ls="-" if len(part) > 1 else "none",
                marker=marker,
                ms=3.4 if len(part) > 1 else 5,
                lw=1.1,
                mec="white",
                mew=0.4,
            )[0]
        axis.set_title(family, pad=4)
        axis.set(xscale="log", yscale="log")
        axis.set_ylim(max(3e-6, min(float(rows["error_best"].min()) / 2, 0.1)), 1.4)
        if bits.max() < 100 * bits.min():  # too few decades for ticks of whole ones alone
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_locator(LogLocator(numticks=8))
        for side in (axis.xaxis, axis.yaxis):
            side.set_minor_locator(NullLocator())
        if j + columns >= len(families):
            axis.set_xlabel("bits a coordinate, as packed")
        if j % columns == 0:
            axis.set_ylabel(r"$\min_c\,\|cC(x)-x\|^2\,/\,\|x\|^2$")
    for axis in axes[len(families) :]:
        axis.set_visible(False)
    return _with_legend(canvas, axes, handles, min(6, len(handles)))


def residual(energy: pd.DataFrame, savings: pd.DataFrame) -> Figure:
    """Return the figure of Top-k beside Rand-k: what it leaves of x by k/d, what Top-1 saves by d.

    Points are measured, lines are the formulas of order statistics (dashes join points without one).
    """
    canvas = Figure(figsize=(7.2, 2.9), layout="constrained")
    panels = canvas.subplots(1, 2)
    shares = np.geomspace(energy["share"].min(), 1, 200)
    dims = np.unique(np.geomspace(savings["d"].min(), savings["d"].max(), 40).round())
    (rand_k,) = panels[0].plot(shares, 1 - shares, color="#888888", ls=":")
    handles = {"Rand-k, any vector": rand_k}
    families = dict.fromkeys([*energy["family"], *savings["family"]])
    colours, d = dict(zip(families, COLOURS)), 10**6
    left = [(KNOWN, (d, max(1, round(d * share)))) for share in shares]
    kept = [(TOP_1, (int(dim),)) for dim in dims]
    for axis, table, x, y, grid, curve in (
        (panels[0], energy, "share", "error", shares, left),
        (panels[1], savings, "d", "saving", dims, kept),
    ):
        for family, part in table.groupby("family", sort=False):
            (points,) = axis.plot(part[x], part[y], "o", ms=3.6, color=colours[family])
            handles.setdefault(str(family), points)
            if str(family) in curve[0][0]:
                heights = [_formula(formulas, str(family), *at) for formulas, at in curve]
                axis.plot(grid, heights, color=colours[family], lw=1)
            else:
                axis.plot(part[x], part[y], color=colours[family], lw=0.7, ls=(0, (2, 2)))
        axis.set_xscale("log")
    panels[0].set(
        xlabel="share of coordinates kept, k/d",
        ylabel=r"Top-k: $\|C(x)-x\|^2\,/\,\|x\|^2$",
        ylim=(0, 1.03),
    )
    panels[1].axhline(1, color="#888888", ls=":")
    panels[1].set(yscale="log", xlabel="d", ylabel="Top-1 keeps, times Rand-1")
    return _with_legend(canvas, panels, handles, 5)


def _with_legend(canvas: Figure, axes: Any, handles: Mapping[str, Any], columns: int) -> Figure:
    for axis in axes:
        axis.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    canvas.legend(
        handles.values(),
        handles,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        columnspacing=1.3,
    )
    return canvas
