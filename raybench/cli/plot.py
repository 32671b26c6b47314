"""raybench plot: the figures of a results folder, or one of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from raybench.cli.shared import (
    Accounting,
    All,
    Folder,
    Link,
    Target,
    TuningSeeds,
    goal,
    note,
    seeds_of,
)

FORMATS = ("png", "pdf", "svg", "csv")


def plot(
    folder: Folder,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where to. [default: DIR/figures]")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="curves|steps|k|heatmap|profile|trials",
            help="One figure: curves, the final y by step, what the target costs by K, by K and step, as a profile, or "
            "after m random trials of the grid.",
        ),
    ] = None,
    x: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="One figure, against this.")
    ] = None,
    y: Annotated[str | None, typer.Option(metavar="COLUMN", help="One figure, of this.")] = None,
    methods: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="One figure, of these methods alone, in this order."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="method|k|step", help="One figure, with a line for each of these."),
    ] = None,
    best: Annotated[
        str | None,
        typer.Option(
            metavar="step_size|theory", help="One figure, at the tuned step or at theory's."
        ),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="METHOD=NAME", help="What to call a method. Repeat.")
    ] = None,
    label_lines: Annotated[
        bool,
        typer.Option("--label-lines", help="Names at the ends of lines instead of a legend."),
    ] = False,
    size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="column, text, slide, or inches: 3.3x2.5.")
    ] = None,
    style: Annotated[
        str | None, typer.Option(metavar="FILE", help="A matplotlib style, over raybench's own.")
    ] = None,
    format: Annotated[
        str, typer.Option(metavar="A,B", help="Of png, pdf, svg and csv, the rows behind a figure.")
    ] = "png,pdf,csv",
    accounting: Accounting = None,
    link: Link = None,
    target: Target = None,
    tuning_seeds: TuningSeeds = None,
    every: All = False,
) -> None:
    """Draw the figures of a sweep, with the CSV behind each, or one figure of your own."""
    from raybench.core.errors import InputError, nearest
    from raybench.report.content import chosen, default_out, open_frames

    kinds = [one.strip() for one in format.split(",")]
    for one in kinds:
        if one not in FORMATS:
            raise InputError.of("--format", f"unknown {one!r}", nearest(one, FORMATS))
    names = {}
    for text in label or ():
        key, equals, name = text.partition("=")
        if not (key and equals and name):
            raise InputError.of("--label", f"{text!r} names no method", "ef21=EF21 (ours)")
        names[key] = name
    asked = {"kind": kind, "x": x, "y": y, "by": by, "best": best}
    own: dict[str, Any] = {key: value for key, value in asked.items() if value is not None}
    chosen_methods = [one.strip() for one in methods.split(",")] if methods else []
    found = open_frames(folder, accounting, link, goal(target), seeds_of(tuning_seeds), every)
    note(*found.earlier)
    if not (own or chosen_methods or names):
        from raybench.report.plots import figures

        paths = figures(found, out, kinds=kinds, size=size, style=style, label_lines=label_lines)
        note(
            *(
                f"{text}; --methods A,B draws others"
                for text in chosen(found)[1]
                if "not drawn" in text
            )
        )
    else:
        from raybench.report.own import behind, drawn, figure
        from raybench.report.plots import save, size_of, styled

        with styled(style):
            made = figure(found, methods=chosen_methods, labels=names, **own)
            canvas = drawn(made, size_of(size), label_lines)
            place = Path(out) if out is not None else default_out(found.folder, "figures")
            place.mkdir(parents=True, exist_ok=True)
            paths = save(place / made.name, canvas, behind(made), kinds)
    endings: dict[str, list[str]] = {}
    for path in paths:
        endings.setdefault(str(path.with_suffix("")), []).append(path.suffix.removeprefix("."))
    for stem, ends in endings.items():
        print(f"{stem}.{{{','.join(ends)}}}" if len(ends) > 1 else f"{stem}.{ends[0]}")
