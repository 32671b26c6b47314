"""The pages of reproductions: published beside measured, from the results alone, never typed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment

from raybench.analysis.frames import framed
from raybench.report.content import PALETTE
from raybench.report.custom import drawn, figure
from raybench.report.plots import size_of, styled
from raybench.reproduce.claims import Reproduction
from raybench.reproduce.evidence import Evidence
from raybench.reproduce.judge import (
    DISAGREES,
    SHOWN,
    UNDECIDED,
    WORDS,
    Verdict,
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
    verdicts: Sequence[Verdict]
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
    environment = Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"cell": _cell, "link": _link, "measured": measured_words}
    environment.tests["explained"] = _explained
    environment.globals |= {
        "words": WORDS,
        "totals": lambda verdicts: [*totals(verdicts, True), *totals(verdicts, False)],
        "details": details,
    }

    def rendered(template: str, **values: Any) -> str:
        source = (resources.files("raybench.reproduce") / template).read_text("utf-8")
        return environment.from_string(source).render(**values).rstrip() + "\n"

    verdicts = [verdict for entry in every for verdict in entry.verdicts]
    pages = {name: rendered("page.md", every=every, all_verdicts=verdicts, folder=folder)}
    return pages | {
        f"{folder}/{entry.what.name}.md": rendered("one.md", entry=entry) for entry in every
    }


def _explained(verdict: Verdict) -> bool:
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
        paths.append(folder / f"{entry.what.name}_{number}.png")
        with styled(None):
            _canvas(entry, asked).savefig(paths[-1], dpi=DPI)
    return paths


def _canvas(entry: Judged, asked: Mapping[str, Any]) -> Canvas:
    assert entry.evidence is not None
    if entry.evidence.curves.empty:
        return _of_table(entry.evidence, asked)
    meant = entry.evidence.meant(asked.get("where", {}), f"{entry.what.name}.figures")["cell"]
    curves, cells = (
        part[part["cell"].isin(meant)] for part in (entry.evidence.curves, entry.evidence.cells)
    )
    options = {key: asked[key] for key in OPTIONS if key in asked}
    return drawn(figure(framed(curves, cells), **options), size_of("text"))


def _of_table(evidence: Evidence, asked: Mapping[str, Any]) -> Canvas:
    """Draw two columns of a script's table against each other, a line for each value of ``by``."""
    from matplotlib.figure import Figure as Canvas

    rows = evidence.meant(asked.get("where", {}), "figures")
    canvas = Canvas(figsize=(6.8, 4.0), layout="constrained")
    axis = canvas.add_subplot()
    by, x, y = asked.get("by"), str(asked["x"]), str(asked["y"])
    looks = zip(cycle("osv^D<>Pp*XhH8"), cycle(PALETTE))
    lines = rows.groupby(by, sort=False) if by else [("", rows)]
    for (mark, colour), (name, part) in zip(looks, lines):
        part = part.sort_values(x)
        axis.plot(part[x], part[y], marker=mark, color=colour, label=str(name))
    for side in asked.get("log", []):
        getattr(axis, f"set_{side}scale")("log")
    axis.set_xlabel(asked.get("x_label", x))
    axis.set_ylabel(asked.get("y_label", y))
    if by:
        canvas.legend(loc="outside right upper")
    return canvas
