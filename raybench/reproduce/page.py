"""The page of reproductions: published beside measured, from the results alone, never typed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

INTRO = """\
# Reproductions

This page states what the papers and programs that raybench builds on have published, beside what raybench
measures. It is for readers who want to know how far to trust a figure made with raybench. Nobody types it:
`raybench reproduce --all --page docs/reproductions.md` writes it, with its figures, from the results.

A claim is either **published**, and then stands beside what its source says, or our **own**: a question on which the source
says nothing, or a control. The two are counted apart. Each is judged by a criterion that stands as data beside the
sweep that measures it, and its verdict is one of four:

* **AGREES** and **DISAGREES**: the criterion holds, or it does not, and the seeds say so too. Of six seeds or more Wilcoxon's
  signed-rank test, in pairs of seeds, has p <= 0.05 (each claim by itself, no correction for their number); of fewer, the ranges of the two sides
  do not overlap; of one seed, the sides are further apart than the file says that a seed may move them.
* **UNDECIDED**: the order lies within what the seeds differ by, or there is one seed of which nothing else is known.
* **NOT RUN**: results are missing or failed, or end before they could tell. A target that was not reached costs *more than*
  what was spent, and no more is made of it.

What disagrees stays as it is and is shown with its likely cause. Where two methods are compared, the first number belongs
to the one that the sentence begins with. [How to judge a claim of your own](how-to.md#judge-a-published-claim) tells what a
criterion may say.

"""
DPI = 120
OPTIONS = ("kind", "x", "y", "by", "best")  # of `raybench plot`, that a figure may set


@dataclass(frozen=True)
class Judged:
    """A reproduction with its verdicts and what they rest on."""

    what: Reproduction
    verdicts: Sequence[Verdict]
    evidence: Evidence | None


def write(judged: Iterable[Judged], page: Path) -> list[Path]:
    """Write the page and its figures, which go into the folder named as the page; return the paths."""
    every, folder = list(judged), page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    page.write_text(text(every, folder.name), encoding="utf-8")
    return [page, *(path for entry in every for path in draw(entry, folder))]


def text(every: Sequence[Judged], folder: str) -> str:
    """Return the page, in Markdown, whose figures lie in a folder beside it."""
    sections = (_section(entry, folder) for entry in every)
    return "\n".join([INTRO + "\n".join(_summary(every)), *sections])


def draw(entry: Judged, folder: Path) -> list[Path]:
    """Draw the figures of a reproduction into a folder; return their paths, in the order of the claims file."""
    if entry.evidence is None:
        return []
    paths = [folder / _figure(entry.what, number) for number in range(len(entry.what.figures))]
    for path, asked in zip(paths, entry.what.figures, strict=True):
        with styled(None):
            _canvas(entry, asked).savefig(path, dpi=DPI)
    return paths


def _figure(what: Reproduction, number: int) -> str:
    return f"{what.name}_{number + 1}.png"


def _canvas(entry: Judged, asked: Mapping[str, Any]) -> Canvas:
    assert entry.evidence is not None
    if entry.evidence.curves.empty:
        return _of_table(entry.evidence, asked)
    meant = entry.evidence.meant(asked.get("where", {}), f"{entry.what.name}.figures")["cell"]
    curves, cells = (
        part[part["cell"].isin(meant)] for part in (entry.evidence.curves, entry.evidence.cells)
    )
    options = {key: asked[key] for key in OPTIONS if key in asked}
    labels = dict(text.split("=", 1) for text in asked.get("label", []))
    made = figure(
        framed(curves, cells), methods=list(asked.get("methods", [])), labels=labels, **options
    )
    return drawn(made, size_of(asked.get("size", "text")))


def _of_table(evidence: Evidence, asked: Mapping[str, Any]) -> Canvas:
    """Draw two columns of a script's table against each other, a line for each value of ``by``."""
    from matplotlib.figure import Figure as Canvas

    rows = evidence.meant(asked.get("where", {}), "figures")
    canvas = Canvas(figsize=(6.8, 4.0), layout="constrained")
    axis = canvas.add_subplot()
    by, x, y = asked.get("by"), str(asked["x"]), str(asked["y"])
    marks = "osv^D<>Pp*XhH8"
    for number, (name, part) in enumerate(rows.groupby(by, sort=False) if by else [("", rows)]):
        lines = part.sort_values(x)
        mark, colour = marks[number % len(marks)], PALETTE[number % len(PALETTE)]
        axis.plot(lines[x], lines[y], marker=mark, color=colour, label=str(name))
    for side in asked.get("log", []):
        getattr(axis, f"set_{side}scale")("log")
    axis.set_xlabel(asked.get("x_label", x))
    axis.set_ylabel(asked.get("y_label", y))
    if by:
        canvas.legend(loc="outside right upper")
    return canvas


def _summary(every: Sequence[Judged]) -> Iterator[str]:
    """Yield the table of all reproductions."""
    heads = [f"{kind} {word}" for kind in ("published:", "own:") for word in WORDS]
    yield f"| reproduction | {' | '.join(heads)} |"
    yield "|---" * (1 + len(heads)) + "|"
    for entry in every:
        yield f"| [{_cell(entry.what.title)}](#{entry.what.name}) | {_counts(entry.verdicts)} |"
    yield f"| **all** | {_counts([verdict for entry in every for verdict in entry.verdicts], '**')} |"
    yield ""


def _counts(verdicts: Sequence[Verdict], mark: str = "") -> str:
    counts = (*totals(verdicts, True), *totals(verdicts, False))
    return " | ".join(f"{mark}{count}{mark}" for count in counts)


def _section(entry: Judged, folder: str) -> str:
    what = entry.what
    command = f"raybench reproduce {what.name}" + " --networks" * (what.kind == "network")
    files = {"criteria": what.file, "sweep": what.sweep, "script": what.script}
    links = ", ".join(f"[{word}]({_link(path)})" for word, path in files.items() if path)
    lines = [
        f"## {what.name}",
        "",
        f"**{what.title}.** {what.source}. Repeat it by `{command}`; {links}.",
        "",
    ]
    if what.notes:
        lines += [what.notes.strip(), ""]
    for kind, head in (
        ("published", "published claim | the source says"),
        ("own", "own claim | why it is asked"),
    ):
        claims = [verdict for verdict in entry.verdicts if getattr(verdict.claim, kind)]
        if claims:
            lines += [f"| {head} | measured | verdict |", "|---|---|---|---|"]
        for verdict in claims:
            said = (verdict.claim.says, getattr(verdict.claim, kind), measured_words(verdict))
            lines.append("| " + " | ".join(map(_cell, said)) + f" | **{verdict.word}** |")
        lines += [""] if claims else []
    for verdict in entry.verdicts:
        told = len(verdict.compared) <= SHOWN and not verdict.claim.likely
        if verdict.word == DISAGREES or (verdict.word == UNDECIDED and not told):
            lines += [f"*{_cell(verdict.claim.says)}* {verdict.word}:", ""]
            lines += [f"- {_cell(line)}" for line in details(verdict, every=True)]
            unknown = "The cause is not known." if verdict.word == DISAGREES else ""
            lines += ["", verdict.claim.likely.strip() or unknown, ""]
    for number, asked in enumerate(what.figures if entry.evidence is not None else ()):
        caption = _cell(str(asked.get("caption", what.title)))
        lines += [f"![{caption}]({folder}/{_figure(what, number)})", "", f"*{caption}*", ""]
    return "\n".join(lines)


def _link(file: Path) -> str:
    """Return the way from ``docs/`` to a file of ``sweeps/``."""
    parts = file.resolve().parts
    return "/".join(("..", *parts[parts.index("sweeps") :])) if "sweeps" in parts else file.name


def _cell(words: str) -> str:
    """Return a text on one line, in which a bar is no border of a table."""
    return " ".join(words.split()).replace("|", "\\|")
