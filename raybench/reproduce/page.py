"""The pages of reproductions: published beside measured, from the results alone, never typed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader

from raybench.report.content import BASELINE_COLOUR, PALETTE
from raybench.report.custom import drawn, figure
from raybench.report.plots import size_of, styled
from raybench.reproduce.claims import Reproduction
from raybench.reproduce.evidence import Evidence
from raybench.reproduce.judge import (
    DISAGREES,
    SHOWN,
    UNDECIDED,
    WORDS,
    ClaimVerdict,
    details,
    measured_words,
    totals,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

DPI = 120
OPTIONS = ("kind", "x", "y", "methods", "by", "best")  # of `raybench plot`, that a figure may set


@dataclass(frozen=True)
class Judged:
    """A reproduction with its verdicts and what they rest on."""

    what: Reproduction
    verdicts: Sequence[ClaimVerdict]
    evidence: Evidence | None

    @property
    def figures(self) -> tuple[Mapping[str, Any], ...]:
        """What there is to draw."""
        return self.what.figures if self.evidence is not None else ()


def write(judged: Iterable[Judged], page: Path) -> list[Path]:
    """Write the summary and, into the folder named as it, a page and figures for each reproduction; return the paths."""
    every, folder = list(judged), page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in texts(every, page.name).items():
        paths.append(page.parent / name)
        paths[-1].write_text(text, encoding="utf-8")
    return [*paths, *(path for entry in every for path in draw(entry, folder))]


def texts(every: Sequence[Judged], name: str) -> dict[str, str]:
    """Return the pages in Markdown, by their paths: the summary, and one of each reproduction with its figures beside it."""
    folder = Path(name).stem
    templates = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=templates, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"cell": _cell, "link": _link, "measured": measured_words}
    environment.tests["explained"] = _explained
    environment.globals |= {
        "words": WORDS,
        "totals": lambda verdicts: [*totals(verdicts, True), *totals(verdicts, False)],
        "details": details,
    }
    verdicts = [verdict for entry in every for verdict in entry.verdicts]
    summary, one = (environment.get_template(file) for file in ("page.md", "one.md"))
    pages = {name: summary.render(every=every, all_verdicts=verdicts, folder=folder)}
    pages |= {f"{folder}/{entry.what.name}.md": one.render(entry=entry) for entry in every}
    return {path: text.rstrip() + "\n" for path, text in pages.items()}


def _explained(verdict: ClaimVerdict) -> bool:
    """Return whether a verdict is told comparison by comparison, with its cause."""
    told = len(verdict.compared) <= SHOWN and not verdict.claim.likely
    return verdict.word == DISAGREES or (verdict.word == UNDECIDED and not told)


def _link(file: Path) -> str:
    """Return the way from ``docs/reproductions/`` to a file in ``sweeps/``, of any other file the name."""
    parts = file.resolve().parts
    inside = "sweeps" in parts
    return "/".join(("..", "..", *parts[parts.index("sweeps") :])) if inside else file.name


def _cell(words: str) -> str:
    """Return a text on one line, in which a bar is no border of a table."""
    return " ".join(words.split()).replace("|", "\\|")


def draw(entry: Judged, folder: Path) -> list[Path]:
    """Draw the figures of a reproduction into a folder; return their paths, in the order of the claims file."""
    paths = []
    for number, asked in enumerate(entry.figures, 1):
        assert entry.evidence is not None
        place, curves = f"{entry.what.name}.figures", entry.evidence.curves
        cells = entry.evidence.meant(asked.get("where", {}), place)
        paths.append(folder / f"{entry.what.name}_{number}.png")
        with styled(None):
            if curves.empty:
                canvas = _of_table(cells, asked)
            else:
                options = {key: asked[key] for key in OPTIONS if key in asked}
                tables = curves[curves["cell"].isin(cells["cell"])], cells
                canvas = drawn(figure(tables, **options), size_of("text"))
            canvas.savefig(paths[-1], dpi=DPI)
    return paths


def _of_table(rows: pd.DataFrame, asked: Mapping[str, Any]) -> Canvas:
    """Draw two columns of a script's table against each other, a line for each value of ``by``."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(6.8, 4.0), layout="constrained")
    axis = canvas.add_subplot()
    by, x, y = asked.get("by"), str(asked["x"]), str(asked["y"])
    looks = zip(cycle("osv^D<>Pp*XhH8"), cycle((*PALETTE, BASELINE_COLOUR)))
    lines = rows.groupby(by, sort=False) if by else [("", rows)]
    for (mark, colour), (name, part) in zip(looks, lines):
        part = part.sort_values(x)
        axis.plot(part[x], part[y], marker=mark, color=colour, label=str(name))
    for side in asked.get("log", []):
        getattr(axis, f"set_{side}scale")("log")
    axis.set_xlabel(asked.get("x_label", x))
    axis.set_ylabel(asked.get("y_label", y))
    if by:
        canvas.legend(loc="outside right upper", title=str(by))
    return canvas
