"""The report: one HTML file that needs nothing else, not even a network."""

from __future__ import annotations

import base64
import gzip
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment

from raybench.analysis import SECONDS, Frames, closing_table
from raybench.analysis.methods import k_order, k_words
from raybench.core.safe_files import replacement
from raybench.report import words
from raybench.report.charts import every
from raybench.report.content import open_frames, place_of, state_of
from raybench.report.interactive import panels
from raybench.report.rankings import firmness, headline
from raybench.report.sheet import Sheet
from raybench.report.tables import FINAL, closing, growth_notes, spelled

CONSTANTS = {
    "d": "d",
    "L": "L",
    "L_tilde": "L̃",
    "L_pm": "L±",
    "mu": "μ",
    "f_star": "f*",
    "heterogeneity": "mean ‖∇fᵢ(x*)‖²",
}
MOST_ROWS = 2000
"""Rows a page has room for; of more cells those are left out that have least to tell."""
ENDINGS = {e: e for e in ("failed", "grew", "diverged", "pruned", "skipped", "ok")}
ENDINGS["grew"] = "ok, but f grew"
"""How cells end, in the order in which they stand, and in which words."""
MOST_REASONS, MOST_LETTERS = 20, 6000  # of distinct reasons for each status, and of one of them


def html(
    source: str | os.PathLike[str] | Frames,
    out: str | os.PathLike[str] | None = None,
    firm: str | None = None,
    **asked: Any,
) -> Path:
    """Write a results folder's report to ``out`` (default ``<folder>/report.html``); return its path.

    One self-contained file, which loads nothing: problem and constants, how cells ended and why, the tuned table,
    curves with a menu of axes, a table of all cells to sort and filter, how to
    reproduce. Without JavaScript the tables are complete. firm: what ``rankings.firmness`` says, which takes some
    seconds, where it is known. asked: of a folder, as for ``analysis.frames``. Raises
    InputError as that does.
    """
    results = open_frames(source, **asked)
    goal = place_of(results.folder, "report.html", out)
    here = resources.files("raybench.report")
    # Everything is escaped, as labels, errors and paths are texts of the user.
    template = Environment(autoescape=True).from_string((here / "report.html").read_text("utf-8"))
    css, script = ((here / f"report.{kind}").read_text("utf-8") for kind in ("css", "js"))
    shown = content(results, firm)
    page = template.render(css=css, script=script, plotly=packed(_plotly()), **shown)
    goal.parent.mkdir(parents=True, exist_ok=True)
    with replacement(goal) as fresh:
        fresh.write_text(page, encoding="utf-8")
    return goal


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def packed(text: str) -> str:
    """Return a text as gzip in base64, which the page unpacks by itself: Plotly takes 2.0 MB instead of 4.8."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def content(results: Frames, firm: str | None = None) -> dict[str, object]:
    """Return what the template shows, all spelled for reading."""
    sheet, grown = closing(results), results.growth
    figures = every(results, extras=True)
    drawn: dict[str, dict[str, Any]] = {}
    for figure in figures:
        drawn |= {f"{figure.name}-{i}": panel for i, panel in enumerate(panels(figure))}
    columns, endings, count = cell_table(results)
    return {
        # that of a sweep that has ended; others may be of another accounting, target or link
        "state": "" if firm is None else state_of(results.folder),
        "name": results.sweep.get("name") or Path(results.folder).name or "raybench",
        "headline": headline(results),
        "firmness": firmness(results) if firm is None else firm,
        "facts": _facts(results),
        "constants": _constants(results.cells),
        "status": _status(results.cells, int((grown != "").sum())),
        "reasons": _reasons(results.cells),
        "closing": sheet,
        "grown": growth_notes(results),
        "final": _final(results),
        "figures": figures,
        "drawn": drawn,
        "columns": columns,
        "endings": endings,
        "cell_count": count,
        "said": ENDINGS,
        "notes": sorted({note for figure in figures for note in figure.notes}),
        "data": packed(json.dumps(drawn, separators=(",", ":"), allow_nan=False)),
        "accounting": results.accounting,
        "folder": results.folder,
        "link": results.link_text,
        "texts": results.texts,
        "versions": _versions(results.cells),
    }


def _facts(results: Frames) -> list[tuple[str, str]]:
    cells = results.cells
    section = results.sweep.get("problem") or {}
    section = section if isinstance(section, dict) else {"name": section}
    params = {**section, **section.get("params", {})}
    facts = {"problem": _values(cells["problem"]), "dataset": _values(cells["dataset"])}
    facts |= {"clients": _values(cells["clients"]), "split": _values(cells["split"])}
    for key, value in params.items():
        if key not in ("name", "params", *facts):
            facts[key] = value if isinstance(value, str) else json.dumps(value)
    facts["seeds"] = str(cells["seed"].nunique())
    if results.link is not None:
        facts["simulated link"] = str(results.link)
    return [(k, v) for k, v in facts.items() if v and v != "null"]


def _values(column: pd.Series) -> str:
    results = column.dropna().drop_duplicates().sort_values()
    return ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in results)


def _constants(cells: pd.DataFrame) -> dict[str, object]:
    """Return the problem's constants, a row per facet."""
    words_of = {c: word for c, word in CONSTANTS.items() if cells[c].notna().any()}
    rows = []
    for facet, part in cells.groupby("facet"):
        first = part[list(words_of)].bfill().iloc[0]
        rows.append([facet, *(words.number(first[c], 4) for c in words_of)])
    several = len(rows) > 1
    head = (["problem"] if several else []) + list(words_of.values())
    return {"head": head, "rows": [r if several else r[1:] for r in rows]} if words_of else {}


def _status(cells: pd.DataFrame, grown: int) -> list[tuple[str, str]]:
    """Return how many cells ended how; ``grew``: of those that ended ok, how many with a larger f."""
    count = cells["status"].value_counts().to_dict() | {"grew": grown}
    names = ("ok", "grew", "diverged", "pruned", "skipped", "failed")
    return [(s, f"{count[s]:,}") for s in names if count.get(s)]


def _reasons(cells: pd.DataFrame) -> list[dict[str, object]]:
    """Return why cells did not run to the end: status, text (a line), whole (all of it), count, which methods."""
    results = []
    for status, column in (("failed", "error"), ("skipped", "reason"), ("pruned", "reason")):
        part = cells[cells["status"] == status]
        reasons = part[column].fillna(part["reason"]).fillna("no reason given")
        for text, amount in Counter(reasons).most_common(MOST_REASONS):
            which = sorted(part.loc[reasons == text, "series"].unique())
            listing = ", ".join(which[:6]) + (
                f" and {len(which) - 6} more" if len(which) > 6 else ""
            )
            line, whole = last_line(text), str(text).strip()[-MOST_LETTERS:]
            whole = "" if whole == line else whole
            results.append(
                {"status": status, "text": line, "whole": whole, "count": amount, "which": listing}
            )
    return results


def _final(results: Frames) -> Sheet:
    """Return the table of final values: every method at every K with its tuned step."""
    table = closing_table(results, by="series")
    names = ["facet"] * (table["facet"].nunique() > 1) + ["method", "step", "step_size", "seeds"]
    names += [n for n in (*FINAL, "bits_up", "rounds", "seconds") if table[n].notna().any()]
    fields = spelled(results, table, names)
    digits = [words.number(value, 6) for value in table["loss"]]  # f has an offset
    fields = [replace(f, texts=digits) if f.name == "loss" else f for f in fields]
    return Sheet(fields=fields, sections=[], data=table)


def _versions(cells: pd.DataFrame) -> list[tuple[str, str]]:
    names = ["raybench_version", "git_commit", "ray_version", "torch_version", "python_version"]
    names += ["host", "device", "mode", "workers"]
    spelled = [(n.removesuffix("_version").replace("_", " "), _values(cells[n])) for n in names]
    started = cells["started"].dropna()
    when = [("started", f"{started.min():%Y-%m-%d %H:%M} UTC")] if len(started) else []
    return [(n, v) for n, v in [*spelled, *when] if v]


# -- the table of cells: every cell with how it ended, those that did not end well first ---------


@dataclass(frozen=True)
class Column:
    """A column of the table: its title and texts. numbers: to sort by, None where unknown; () for words.

    options: (value, text) of a filter; keys: what the filter compares where that is not the text.
    """

    title: str
    texts: Sequence[str]
    numbers: Sequence[float | None] = ()
    options: Sequence[tuple[str, str]] = ()
    keys: Sequence[str] = ()


def cell_table(results: Frames) -> tuple[list[Column], list[str], int]:
    """Return the columns for the template, how each row's cell ended, and how many cells there are.

    Cells that failed, were skipped, diverged, were pruned or whose f grew come first. Of more than ``MOST_ROWS`` the
    last are left out.
    """
    cells = results.cells.assign(grew=results.growth, word=k_words(results.cells))
    cells["ending"] = cells["status"].where(
        (cells["grew"] == "") | (cells["status"] != "ok"), "grew"
    )
    cells["place"] = cells["ending"].map({name: i for i, name in enumerate(ENDINGS)})
    order = ["place", "facet", "method", "k", "step_multiple", "step_size", "seed"]
    rows = cells.sort_values(order, kind="stable").head(MOST_ROWS)
    columns: list[Column] = []

    def add(
        title: str,
        texts: pd.Series,
        numbers: pd.Series | None = None,
        key: Callable[[str], Any] | None = None,
        **more: Any,
    ) -> None:
        if key is not None:
            more["options"] = [(value, value) for value in sorted({*texts} - {"–"}, key=key)]
        values = [] if numbers is None else numbers.astype(float).tolist()
        plain = [value if words.known(value) else None for value in values]
        columns.append(Column(title, texts.tolist(), plain, **more))

    def amount(title: str, name: str, spell: Callable[[float], str]) -> None:
        if name in rows and rows[name].notna().any():
            add(title, rows[name].map(spell), rows[name])

    if cells["facet"].nunique() > 1:
        add("Problem", rows["facet"], key=str)
    add("Method", rows["method"], key=str)
    add("K", rows["word"].replace("", "–"), rows["k"], key=k_order)
    steps = [
        " ".join(filter(None, (words.step(multiple, size), str(step).partition(" ")[2])))
        for multiple, size, step in zip(rows["step_multiple"], rows["step_size"], rows["step"])
    ]
    add("Step", pd.Series(steps), rows["step_multiple"].fillna(rows["step_size"]))
    add("Seed", rows["seed"].map(words.whole), rows["seed"])
    count = cells["ending"].value_counts()
    options = [(e, f"{text} ({count[e]})") for e, text in ENDINGS.items() if e in count]
    add("Status", rows["status"], options=options, keys=rows["ending"].tolist())
    if set(count.index) != {"ok"}:
        reasons = _reason(rows).where(rows["grew"] == "", rows["grew"])
        add("What happened", reasons)
    amount("Rounds", "rounds", words.whole)
    for name in ("grad_norm_sq", "loss", "test_loss", "accuracy"):
        title = words.COLUMNS[name]
        title = title if len(title) == 1 else words.sentence(title)
        amount(title, name, lambda value: words.number(value, 4))
    amount("Bits up", "bits_up", words.bits)
    amount("Seconds", "seconds", words.seconds)
    amount("Simulated", SECONDS, words.seconds)
    return columns, rows["ending"].tolist(), len(cells)


def _reason(cells: pd.DataFrame) -> pd.Series:
    """Return why each cell ended as it did, one line, empty where there is nothing to say."""
    reasons = cells["reason"].where(
        (cells["status"] != "failed") | cells["error"].isna(), cells["error"]
    )
    return reasons.astype(object).where(reasons.notna(), "").map(last_line)


def last_line(text: object) -> str:
    """Return the last line of a text that is not empty, cut: that of a traceback names the error."""
    lines = [line for line in str(text).splitlines() if line.strip()]
    return words.one_line(lines[-1] if lines else "")
