"""raybench study: what operators do to vectors by themselves, as tables and figures."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from raybench.cli.shared import RESULTS_FOLDER, Plugins, console, listing

if TYPE_CHECKING:
    import pandas as pd

    from raybench.cli.shared import Screen

STUDIES = ("compressors",)


def study(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="compressors.")],
    operators: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OPERATOR]...", help="top_k:k=1% ... [default: all of the study]"),
    ] = None,
    d: Annotated[
        int, typer.Option("--d", metavar="D", help="Length of the drawn vectors.")
    ] = 10_000,
    draws: Annotated[int, typer.Option(metavar="N", help="Vectors of each family.")] = 20,
    seed: Annotated[int, typer.Option(metavar="S", help="Of vectors and operators.")] = 0,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="[default: results/compressor-study]"),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Measure error against bits of operators on random vectors and gradients.

    Writes study.parquet and figures: Gaussian, Laplace, uniform, exponential and heavy-tailed
    vectors, and gradients of a network at the start and in training.
    """
    from raybench import study as studies
    from raybench.core import registry
    from raybench.core.errors import InputError, nearest

    if what not in STUDIES:
        raise InputError.of("study", f"no study is named {what!r}", nearest(what, STUDIES))
    for file in plugin or ():
        registry.load_plugin(file)
    grids = {text: [text] for text in operators} if operators else None
    folder = out or str(RESULTS_FOLDER / "compressor-study")
    rows = studies.compressors(folder, d, draws, grids, seed)
    paths = studies.figures(rows, folder)
    screen = console()
    if grids:
        _errors(screen, rows)
    else:
        _sign(screen, studies.against_sign(rows))
        _energy(screen, studies.top_k_energy(rows), d)
    screen.print(f"\nrows     {folder}/study.parquet")
    for path in paths:
        if path.suffix == ".png":
            screen.print(f"figure   {path.with_suffix('')}.{{png,pdf,csv}}")


_HEADS = {
    "scaled sign": "sign",
    "Top-k + natural": "+ nat.",
    "Top-k + natural dithering": "+ nat. dith.",
    "dithering": "dith.",
    "natural dithering": "nat. dith.",
}


def _number(value: float) -> str:
    return "–" if not math.isfinite(value) else f"{value:.3g}"


def _errors(out: Screen, rows: pd.DataFrame) -> None:
    """Print every operator's error and bits a coordinate, family by family."""
    from rich.text import Text

    families = list(rows["family"].unique())
    table = listing("operator", "bits", *families, right=("bits", *families))
    for operator, part in rows.groupby("operator", sort=False):
        errors = part.set_index("family")["error_best"]
        bits = f"{part['wire_per_coordinate'].mean():.3g}"
        table.add_row(operator, bits, *(_number(errors[f]) for f in families))
    out.print(
        Text("‖c C(x) − x‖² / ‖x‖² with the best c; bits a coordinate as packed", style="bold")
    )
    out.print(table)


def _sign(out: Screen, found: pd.DataFrame) -> None:
    """Print what others pay for scaled sign's error."""
    from rich.text import Text

    names = [c for c in found.columns if c not in ("family", "error", "below", "cheapest")]
    heads = [_HEADS.get(n, n) for n in names]
    table = listing("vectors", "error", *heads, right=("error", *heads))
    for _, row in found.iterrows():
        cells = [
            Text(
                ("< " if n in row["below"] else "") + _number(row[n]),
                style="bold" if n == row["cheapest"] else "",
            )
            for n in names
        ]
        table.add_row(row["family"], _number(row["error"]), *cells)
    out.print(
        Text("Bits a coordinate for the error of scaled sign (bold: the least)", style="bold")
    )
    out.print(table)
    wins = list(found.loc[found["cheapest"] == "scaled sign", "family"])
    if wins:
        out.print(Text(f"Nothing here beats scaled sign at its own error on: {', '.join(wins)}."))


def _energy(out: Screen, energy: pd.DataFrame, d: int) -> None:
    """Print Top-k's residuals beside the formulas of order statistics."""
    from rich.text import Text

    shares = sorted(energy["share"].round(4).unique())
    shares = [s for s in shares if s in (0.01, 0.03, 0.1, 0.3)]
    heads = [f"{s:.0%}" for s in shares]
    table = listing("vectors", *heads, right=heads)
    for family, part in energy.groupby("family", sort=False):
        kept = part.set_index(part["share"].round(4))
        cells = []
        for share in shares:
            near = kept.loc[share] if share in kept.index else None
            text = "–" if near is None else f"{near['error']:.4f}"
            if near is not None and math.isfinite(near["formula"]):
                text += f" ({near['formula']:.4f})"
            cells.append(text)
        table.add_row(family, *cells)
    table.add_row("Rand-k, any", *(f"{1 - s:.4f}" for s in shares))
    out.print(Text("\nWhat Top-k leaves of ‖x‖², by k/d (in brackets: the formula)", style="bold"))
    out.print(table)
