"""The end of ``raybench sweep``: the table of each method's best K and step, the report, what to do next."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from raybench.cli import shared
from raybench.cli.leaving import leaving
from raybench.core.terminal import terminal

if TYPE_CHECKING:
    from raybench.cli.shared import Screen
    from raybench.execution.checks import Why


@dataclass(frozen=True)
class Ending:
    """How a sweep ended. counts: planned cells by status; before: cells that were there, run: those that ran."""

    name: str
    folder: str
    counts: Mapping[str, int]
    skipped: Mapping[Why, int]
    exit_code: int
    before: int
    run: int = 0
    seconds: float = 0.0


def hand_over(ending: Ending, file: str) -> NoReturn:
    """Become a new process that closes the sweep, with neither torch nor Ray nor the plan in its memory.

    What it has to know reaches it through a file without a name, whose descriptor it inherits.
    """
    said = dataclasses.asdict(ending)
    said["skipped"] = [[*why, cells] for why, cells in ending.skipped.items()]
    with tempfile.TemporaryFile("w+") as handed:
        json.dump({"ending": said, "file": file}, handed)
        handed.flush()
        handed.seek(0)
        os.set_inheritable(handed.fileno(), True)
        sys.stdout.flush()
        sys.stderr.flush()
        go_on = (
            "import sys; from raybench.cli.closing import take_over; take_over(int(sys.argv[1]))"
        )
        os.execv(sys.executable, [sys.executable, "-c", go_on, str(handed.fileno())])


def take_over(descriptor: int) -> None:
    """Close a sweep that another process has run (``hand_over``), and leave with its exit code."""
    with terminal(), leaving():
        with open(descriptor) as handed:
            said = json.load(handed)
        skipped = {(code, text, fix): n for code, text, fix, n in said["ending"].pop("skipped")}
        ending = Ending(**said["ending"], skipped=skipped)
        close(ending, said["file"])
        sys.exit(ending.exit_code)


def close(ending: Ending, file: str) -> None:
    """Print what came out of a sweep, and write its report."""
    from rich.text import Text

    from raybench import report
    from raybench.analysis import frames, keep_targets
    from raybench.report.audit import firmness

    counts, folder = ending.counts, ending.folder
    out = shared.console()
    if not counts.get("ok"):
        said = ", ".join(f"{n:,} {status}" for status, n in counts.items() if n)
        out.print(f"no cell ended ok: {said or 'nothing ran'}")
        _why(out, ending)
        return
    results = frames(folder)
    if not counts.get("missing"):
        results = keep_targets(results)
    head = Text(ending.name, style="bold")
    said = "  nothing was missing"
    if ending.run:
        from raybench.core.durations import clock

        said = f"  {shared.count(ending.run, 'cell')} run in {clock(ending.seconds)}"
    head.append(said, style="not bold")
    before = f", {ending.before:,} were there already" if ending.before else ""
    head.append(before, style="not bold")
    out.print(head)
    out.print(report.table(results))
    _why(out, ending)
    said = firmness(results)
    rows: list[tuple[str, object]] = [
        *([("order", said)] if said else []),
        ("report", str(report.html(results))),
        ("tables", f"{folder}/cells, {folder}/curves  (Parquet)"),
    ]
    if counts.get("missing"):
        rows.append(("next", Text(f"raybench sweep {file}", style="bold")))
    elif counts.get("failed"):
        rows.append(("next", Text(f"raybench sweep {file} --retry-failed", style="bold")))
    else:
        rows.append(("next", Text(f"raybench plot {folder}", style="bold")))
    out.print(shared.pairs(rows, indent=0))


def _why(out: Screen, ending: Ending) -> None:
    """Print why cells were skipped or failed, the commonest reasons first."""
    from collections import Counter

    rows = shared.reasons(ending.skipped)
    if ending.counts.get("failed"):
        from raybench import store

        cells = store.cells(ending.folder)
        errors = cells.loc[cells["status"] == "failed", "error"].fillna("").str.strip()
        said = Counter((text.splitlines() or ["?"])[-1] for text in errors)
        rows += [
            ("failed", f"{shared.count(n, 'cell')}: {text}") for text, n in said.most_common(3)
        ]
    if rows:
        out.print(shared.pairs(rows, indent=0))
