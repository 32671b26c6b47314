"""raybench reproduce: run published results again and judge them by criteria that are data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from raybench.cli.shared import RESULTS_FOLDER, Address, Inline, Screen, listing, note
from raybench.core.errors import InputError

if TYPE_CHECKING:
    from raybench.reproduce import Reproduction, Verdict
    from raybench.reproduce.evidence import Evidence

KEPT = Path(__file__).resolve().parents[2] / "docs" / "reproductions"  # in a checkout


def reproduce(
    names: Annotated[
        list[str] | None,
        Argument(metavar="[NAME]...", help="Reproductions, or claims files of your own."),
    ] = None,
    every: Annotated[bool, Option("--all", help="All that are no networks.")] = False,
    networks: Annotated[
        bool, Option("--networks", help="Run those that train networks, too: hours.")
    ] = False,
    full: Annotated[bool, Option("--full", help="At the published scale.")] = False,
    no_run: Annotated[
        bool, Option("--no-run", help="Judge the results that are there, run nothing.")
    ] = False,
    details: Annotated[bool, Option("--details", help="Show every comparison.")] = False,
    out: Annotated[Path, Option("--out", metavar="DIR", help="Where results go.")] = RESULTS_FOLDER
    / "paper",
    page: Annotated[
        Path | None, Option(metavar="FILE.md", help="Write what came out as a page, with figures.")
    ] = None,
    inline: Inline = False,
    address: Address = None,
) -> None:
    """Run published results again and judge each claim.

    A claim AGREES, DISAGREES, is UNDECIDED or NOT RUN, with the figures. Without a name, lists what there is. Interrupted, the same command goes on. Networks run where
    --networks is given; else their kept results are judged. Exit code 1 if a claim DISAGREES or a
    cell failed.
    """
    from raybench.reproduce import catalogue, find, judge
    from raybench.reproduce.evidence import keep, kept, of_folder
    from raybench.reproduce.judge import DISAGREES, WORDS, totals
    from raybench.store.status import status_of

    if not (names or every):
        _list()
        return
    if names and every:
        raise InputError.of("--all", "stands beside names", "give names, or --all")
    judged, wrong = [], False
    for what in [find(name) for name in names or catalogue()]:
        folder = out / (f"{what.name}-full" if full else what.name)
        if not no_run and (networks or what.kind == "convex"):
            _run(what, folder, full, inline, address)
        here = of_folder(folder)
        if here is not None and what.sweep is not None and status_of(folder).missing:
            note(f"{what.name}: its sweep has not ended, what is there is judged")
        evidence = here if here is not None or full else kept(what, KEPT)
        verdicts = judge(what, evidence)
        _tell(what, verdicts, evidence, details)
        failed = 0
        if evidence is not None and not evidence.curves.empty:
            failed = int((evidence.cells["status"] == "failed").sum())
        if failed:
            more = f": raybench status {folder}" if here is not None else ""
            note(f"{what.name}: {failed} cells failed{more}")
        wrong = wrong or failed > 0 or any(verdict.word == DISAGREES for verdict in verdicts)
        judged.append((what, verdicts, evidence))
        if page is not None and here is not None:
            keep(what, here, page.with_suffix(""))
    every_verdict = [verdict for _, verdicts, _ in judged for verdict in verdicts]
    for kind in ("published", "own"):
        counts = zip(totals(every_verdict, kind == "published"), WORDS, strict=True)
        print(f"{kind}: {', '.join(f'{count} {word}' for count, word in counts)}")
    if page is not None:
        from raybench.reproduce.page import Judged, write

        print(*write([Judged(*parts) for parts in judged], page), sep="\n")
    raise typer.Exit(int(wrong))


def _run(what: Reproduction, folder: Path, full: bool, inline: bool, address: str | None) -> None:
    """Run what the folder lacks; leave with its exit code where that is interrupted."""
    import raybench
    from raybench.reproduce.evidence import measured

    note(f"{what.name}: {what.title}")
    if what.sweep is None:
        assert what.script is not None, "a claims file without either is refused"
        measured(what.script, folder, full)
        return
    sets = what.full if full else ()
    outcome = raybench.sweep(what.sweep, folder, sets=sets, inline=inline, address=address)
    if outcome.interrupted:
        note("interrupted: the same command goes on")
        raise typer.Exit(outcome.exit_code)


def _tell(
    what: Reproduction, verdicts: list[Verdict], evidence: Evidence | None, details: bool
) -> None:
    """Print the verdicts of a reproduction, with their figures."""
    from rich.text import Text

    from raybench.reproduce.judge import AGREES, DISAGREES, measured_words
    from raybench.reproduce.judge import details as lines_of

    styles = {AGREES: "green", DISAGREES: "bold red"}
    screen = Screen()
    origin = f" (judged on {evidence.origin})" if evidence is not None else ""
    screen.print(Text(f"{what.name}: {what.title}{origin}", style="bold"))
    rows = []
    for verdict in verdicts:
        lines = [verdict.claim.says, measured_words(verdict), *lines_of(verdict, details)]
        if verdict.word == DISAGREES and verdict.claim.likely:
            lines.append(f"likely: {verdict.claim.likely.strip()}")
        word = Text(verdict.word, style=styles.get(verdict.word, "yellow"))
        kind = "published" if verdict.claim.published else "own"
        rows.append((word, kind, verdict.claim.name, Text("\n".join(lines))))
    table = listing(("", "", "claim", "measured"), rows, fold="measured")
    table.show_header = False
    screen.print(table)


def _list() -> None:
    """Print which reproductions there are."""
    from raybench.reproduce import catalogue, find

    kinds = [(name, find(name)) for name in catalogue()]
    rows = [(name, what.kind, f"{what.title}. {what.source}") for name, what in kinds]
    Screen().print(listing(("name", "kind", "what"), rows, fold="what"))
