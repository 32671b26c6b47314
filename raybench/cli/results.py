"""The verbs that read results: status, table, rank, compare, report, plot, audit, merge, verify; reproduce judges them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from raybench.cli import shared
from raybench.cli.shared import Screen, check_word, grid, listing, note, pairs
from raybench.core.errors import InputError, count
from raybench.core.limits import duration

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from raybench.analysis import Frames
    from raybench.reproduce import ClaimVerdict, Reproduction
    from raybench.reproduce.evidence import Evidence
    from raybench.store.status import Status

FIGURE_FORMATS = ("png", "pdf", "svg", "csv")


@shared.reading
def table(
    folder: shared.Folder,
    read: shared.Reader,
    by: Annotated[
        str,
        Option(
            metavar="method|series|k|step",
            help="The best K of each method, every K of each, the methods at each K, or every K and step, with why it "
            "was not chosen.",
        ),
    ] = "method",
    format: shared.Format = "terminal",
    columns: Annotated[
        str | None,
        Option(
            metavar="NAME,NAME",
            help="Which columns, in this order: step, and those of --format csv.",
        ),
    ] = None,
    out: shared.Written = None,
) -> None:
    """Print each method's best K and step, and the cost of the target."""
    check_word("--by", by, ("method", "series", "k", "step"))
    names = None if columns is None else columns.split(",")
    if by == "step":
        from raybench.report.choices import choices

        if names is not None:
            raise InputError.of("--columns", "candidates have columns of their own", "leave it out")
        shared.show(lambda: choices(read(folder)), format, out)
        return
    from raybench.report.tables import closing

    shared.show(lambda: closing(read(folder), by=by, names=names), format, out)


@shared.reading
def rank(
    folder: shared.Folder,
    read: shared.Reader,
    by: Annotated[
        str,
        Option(
            metavar="method|series",
            help="The best K of each method, or every K; with --trials also algorithm.",
        ),
    ] = "method",
    trials: Annotated[
        int | None,
        Option(
            metavar="M",
            help="What the target costs after M random trials of each method's own grid.",
        ),
    ] = None,
    format: shared.Format = "terminal",
    out: shared.Written = None,
) -> None:
    """Rank methods over problems and seeds by what the target costs."""
    check_word("--by", by, ("method", "series", *(["algorithm"] if trials is not None else [])))
    from raybench.report.rankings import after_trials, ranking

    if trials is None:
        shared.show(lambda: ranking(read(folder), by=by), format, out)
    else:
        shared.show(lambda: after_trials(read(folder), trials, by=by), format, out)


@shared.reading
def compare(
    a: Annotated[str, Argument(metavar="A", help="A results folder.")],
    b: Annotated[str, Argument(metavar="B", help="The results folder to compare it with.")],
    read: shared.Reader,
    by: Annotated[
        str,
        Option(
            metavar="step|series|method",
            help="Every step of every method and K, the best step, or the best K and step.",
        ),
    ] = "series",
    format: shared.Format = "terminal",
    out: shared.Written = None,
) -> None:
    """Compare two results folders, with significance tests.

    Prints the ratio of what the target costs, method by method.
    """
    check_word("--by", by, ("step", "series", "method"))
    from raybench.report.rankings import comparison

    shared.show(lambda: comparison(read(a), read(b), by=by), format, out)


@shared.reading
def report(
    folder: shared.Folder,
    read: shared.Reader,
    out: Annotated[
        str | None, Option(metavar="FILE", help="Where to. [default: DIR/report.html]")
    ] = None,
) -> None:
    """Write the report, one HTML file that needs no network."""
    from raybench.report import html

    print(html(read(folder), out))


@shared.reading
def plot(
    folder: shared.Folder,
    read: shared.Reader,
    out: shared.Figures = None,
    kind: Annotated[
        str | None,
        Option(
            metavar="curves|steps|k|heatmap|profile|trials|timeline",
            help="One figure: curves, the final y by step, what the target costs by K, by K and step, as a profile, "
            "after m random trials of the grid, or what simulated clients do in their first rounds.",
        ),
    ] = None,
    x: Annotated[str | None, Option(metavar="COLUMN", help="One figure, against this.")] = None,
    y: Annotated[str | None, Option(metavar="COLUMN", help="One figure, of this.")] = None,
    methods: Annotated[
        str | None, Option(metavar="A,B", help="One figure, of these methods alone, in this order.")
    ] = None,
    by: Annotated[
        str | None,
        Option(metavar="method|k|step", help="One figure, with a line for each of these."),
    ] = None,
    best: Annotated[
        str | None,
        Option(metavar="step_size|theory", help="One figure, at the tuned step or at theory's."),
    ] = None,
    label: Annotated[
        list[str] | None,
        Option(metavar="METHOD=NAME", help="What to call a method, or a panel. Repeat."),
    ] = None,
    label_lines: Annotated[
        bool, Option("--label-lines", help="Names at the ends of lines instead of a legend.")
    ] = False,
    size: Annotated[
        str | None, Option(metavar="SIZE", help="column, text, slide, or inches: 3.3x2.5.")
    ] = None,
    style: Annotated[
        str | None, Option(metavar="FILE", help="A matplotlib style, over raybench's own.")
    ] = None,
    format: Annotated[
        str, Option(metavar="A,B", help="Of png, pdf, svg and csv, the rows behind a figure.")
    ] = "png,pdf,csv",
) -> None:
    """Draw figures as PNG and PDF, with the CSV behind each.

    All figures of a sweep, or one of your own.
    """
    from raybench.report.content import drawn_series, place_of

    kinds = [kind.strip() for kind in format.split(",")]
    for ending in kinds:
        check_word("--format", ending, FIGURE_FORMATS)
    flags = {"kind": kind, "x": x, "y": y, "by": by, "best": best}
    asked: dict[str, Any] = {key: value for key, value in flags.items() if value is not None}
    drawn_methods = shared.names_in(methods)
    frames = read(folder)
    note(*frames.absent)
    names = {}
    for text in label or ():
        panel = next((p for p in frames.cells["facet"].unique() if text.startswith(f"{p}=")), "")
        key, equals, name = (panel, "=", text[len(panel) + 1 :]) if panel else text.partition("=")
        if not (key and equals and name):
            raise InputError.of("--label", f"{text!r} names no method", "ef21=EF21 (ours)")
        names[key] = name
    if not (asked or drawn_methods or names):
        from raybench.report.plots import figures

        paths = figures(frames, out, kinds=kinds, size=size, style=style, label_lines=label_lines)
        others = [text for text in drawn_series(frames)[1] if "not drawn" in text]
        note(*(f"{text}; --methods A,B draws others" for text in others))
    else:
        from raybench.report.custom import behind, drawn, figure
        from raybench.report.plots import save, size_of, styled

        with styled(style):
            if kind == "timeline":
                stem, (canvas, rows) = "timeline", _timeline(frames, size)
            else:
                drawing = figure(frames, methods=drawn_methods, labels=names, **asked)
                canvas = drawn(drawing, size_of(size), label_lines)
                stem, rows = drawing.name, behind(drawing)
            paths = save(place_of(frames.folder, "figures", out) / stem, canvas, rows, kinds)
    shared.show_files(paths)


def _timeline(frames: Frames, size: str | None) -> tuple[Figure, pd.DataFrame]:
    """Return a figure of what the clients of each method do, of several clocks on the last by name, and its rows."""
    from raybench import spec
    from raybench.execution.timeline import timeline
    from raybench.report.plots import size_of
    from raybench.report.timeline import timeline as drawn

    if not frames.texts:
        fix = "a folder of raybench sweep"
        raise InputError.of("--kind", "the folder keeps no sweep file", fix)
    shown = frames.cells.dropna(subset=["step_size"]).sort_values("seed", kind="stable")
    shown = shown[shown["facet"] == shown["facet"].max()].drop_duplicates("series")
    names = shown.set_index("cell")["series"]
    sweep = spec.load([*frames.texts.values()][-1], no_code=True)
    cells = {names[c.id]: c for c in sweep.cells if c.id in names.index}
    spans = timeline(cells, sweep.allow_unproven)
    if spans.empty:
        raise InputError.of("--kind", "no cell of the folder has a clock", "a sweep with clock:")
    width = size_of(size)
    return drawn(spans, *([width[0]] if width else [])), spans


def audit(
    folder: shared.Folder,
    out: shared.Figures = None,
    accounting: shared.HowFlag = None,
    target: shared.Target = None,
    every: shared.All = False,
) -> None:
    """Say which rankings depend on the bit-cost model or step rule.

    Reads DIR under every accounting of values, indices and first messages, with and without the downlink, at tuned and
    theoretical steps; prints what turns the order of two methods round, and draws how often a method has which rank.
    Costs and orders are those of the folder's own accounting, or of the one that is given.
    """
    from raybench.analysis import frames, readings
    from raybench.core.safe_files import replacement
    from raybench.report.charts import audit_figure
    from raybench.report.content import place_of
    from raybench.report.formats import separated
    from raybench.report.plots import save, styled
    from raybench.report.rankings import audit_lines

    read = frames(folder, accounting, target=shared.goal(target), every=every)
    audited = readings.audit(read)
    print(*audit_lines(audited), *(f"\n{line}" for line in read.absent), sep="\n")
    place = place_of(folder, "figures", out)
    with styled(None):
        figure = audit_figure(audited)
        paths = save(place / "audit", figure, audited.readings, ("png", "pdf", "csv"))
    orders = place / "audit_pairs.csv"
    with replacement(orders) as fresh:
        fresh.write_text(separated(audited.pairs), encoding="utf-8")
    print()
    shared.show_files([*paths, orders])


def merge(
    first: Annotated[str, Argument(metavar="A", help="A results folder.")],
    second: Annotated[str, Argument(metavar="B", help="Another of the same problem.")],
    out: Annotated[str, Option("--out", metavar="C", help="A new folder for both.")],
) -> None:
    """Merge two results folders into a new one.

    A cell in both is taken from where it ended better.
    """
    from raybench import store
    from raybench.spec.grid import problems_meant

    store.merge(first, second, out, problems_meant)
    print(f"{out}\nnext: raybench table {out}")


def verify(folder: shared.Folder) -> None:
    """Compare the files of a results folder with their digests.

    Changes nothing. Exit code 1 if a file is damaged, missing, or not this folder's.
    """
    from rich.text import Text

    from raybench.store import reader
    from raybench.store.log import HARMLESS, verified

    files = reader.open_results(folder)
    state = verified(files)
    out = Screen()
    shards, cells = count(len(state.shards), "shard"), count(len(state.statuses()), "cell")
    out.head(files.name, f"  {shards} with {cells} as they were written")
    for kind in sorted(dict.fromkeys(f.kind for f in state.findings), key=HARMLESS.__contains__):
        findings = state.of(kind)
        mark = Text(kind, style="dim" if kind in HARMLESS else "red")
        out.print()
        out.print(grid([(mark, finding.rel, finding.what) for finding in findings], gap=2))
        out.print(Text(findings[0].fix, style="bold"))
    raise typer.Exit(1 if state.harm else 0)


def status(folder: shared.Folder, json: shared.Json = False) -> None:
    """Show how far a sweep is, and how fast.

    Reads DIR, a folder or s3://bucket/path, and changes nothing. Exit code 1 if cells failed, or are missing
    while nobody works on them. What is best so far: raybench table DIR.
    """
    from dataclasses import asdict
    from json import dumps

    from raybench.store.status import status_of

    try:
        state = status_of(folder)
    except InputError:
        from raybench.cluster.states import Launch

        if "://" in folder or not Launch(folder).order():  # raises where it was begun elsewhere
            raise
        lines = launch_lines(folder)
        Screen().print(pairs([("folder", folder), *lines]))  # nothing was fetched yet
        raise typer.Exit(0) from None
    if json:
        more = {"missing": state.missing, "minutes_left": state.left, "exit_code": state.exit_code}
        print(dumps({**asdict(state), **more}, indent=1, default=str))
    else:
        _show(state)
    raise typer.Exit(state.exit_code)


def launch_lines(folder: str) -> list[tuple[str, str]]:
    """Return what `raybench launch` noted of this folder: the states that it reached, and how long ago."""
    from raybench.cluster.states import STATES, Launch

    begun = Launch(folder)
    try:
        if "://" in folder or not begun.order():
            return []
    except InputError as error:  # begun elsewhere; what the folder holds can be read all the same
        return [("launch", error.complaints[0].what), ("", error.complaints[0].fix)]
    reached = [(state, begun.reached(state)) for state in STATES]
    said = [f"{state} {_ago(float(facts['at']))}" for state, facts in reached if facts is not None]
    lines = [("launch", ", ".join(said) or "ordered, not up yet")]
    if begun.state != "down":
        lines.append(("", f"raybench attach {folder} follows it, raybench down {folder} ends it"))
    return lines


def _show(state: Status) -> None:
    out, planned = Screen(), sum(state.counts.values())
    ended = f"  {planned - state.missing:,} of {count(planned, 'cell')} ended"
    out.head(str(state.sweep.get("name") or state.folder), ended)
    cells = ", ".join(f"{n:,} {kind}" for kind, n in state.counts.items()) or "none yet"
    begun = f" ({state.begun:,} begun)" if state.begun else ""
    rate = ""
    if state.holder is None:
        more = ": the sweep's own command goes on" if state.missing else ", and nothing is missing"
        running = f"nobody{more}"
    else:
        since = f", since {_ago(state.holder.since)}" if state.holder.since else ""
        running = f"{state.holder.who}{since}"
        left = f", {duration(60 * state.left)} left" if state.left else ""
        rate = f"{state.rate:,.1f} cells a minute{left}" if state.rate is not None else ""
    earlier = f"{count(state.earlier, 'cell')} of earlier versions of this sweep"
    damaged = f"{count(state.damaged, 'file')} not as written"
    errors = [f"{count(n, 'cell')}: {error[:200]}" for error, n in state.errors.items()]
    rows = [
        ("folder", state.folder),
        ("problem", _problem(state)),
        ("cells", cells + begun),
        ("running", running),
        ("last result", _ago(state.last) if state.last is not None else ""),
        ("rate", rate),
        *launch_lines(state.folder),
        ("besides", f"{earlier}: raybench table {state.folder} --all" if state.earlier else ""),
        ("damaged", f"{damaged}: raybench verify {state.folder}" if state.damaged else ""),
        *(("" if i else "failed", line) for i, line in enumerate(errors[:3])),
    ]
    out.print(pairs(rows))


def _problem(state: Status) -> str:
    problem = state.sweep.get("problem")
    if not isinstance(problem, dict):
        return str(problem or "")
    name, data, clients = (problem.get(key) for key in ("name", "dataset", "clients"))
    parts = [f"{name} on {data}" if data else name, f"{clients} clients" if clients else ""]
    return ", ".join(part for part in parts if part)


def _ago(when: float) -> str:
    seconds = max(0.0, time.time() - when)
    if seconds < 86400:
        return f"{duration(seconds)} ago"
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(when))


# reproduce -----------------------------------------------------------------------------------

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
    out: Annotated[
        Path, Option("--out", metavar="DIR", help="Where results go.")
    ] = shared.RESULTS_FOLDER / "paper",
    page: Annotated[
        Path | None, Option(metavar="FILE.md", help="Write what came out as a page, with figures.")
    ] = None,
    inline: shared.Inline = False,
    address: shared.Address = None,
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
        there = [(name, find(name)) for name in catalogue()]
        rows = [(name, what.kind, f"{what.title}. {what.source}") for name, what in there]
        Screen().print(listing(("name", "kind", "what"), rows, fold="what"))
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
        _tell(what, verdicts, evidence)
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


def _tell(what: Reproduction, verdicts: list[ClaimVerdict], evidence: Evidence | None) -> None:
    """Print the verdicts of a reproduction, with their figures."""
    from rich.text import Text

    from raybench.reproduce.judge import AGREES, DISAGREES, details, measured_words

    styles = {AGREES: "green", DISAGREES: "bold red"}
    screen = Screen()
    origin = f" (judged on {evidence.origin})" if evidence is not None else ""
    screen.print(Text(f"{what.name}: {what.title}{origin}", style="bold"))
    rows = []
    for verdict in verdicts:
        lines = [verdict.claim.says, measured_words(verdict), *details(verdict)]
        if verdict.word == DISAGREES and verdict.claim.likely:
            lines.append(f"likely: {verdict.claim.likely.strip()}")
        word = Text(verdict.word, style=styles.get(verdict.word, "yellow"))
        kind = "published" if verdict.claim.published else "own"
        rows.append((word, kind, verdict.claim.name, Text("\n".join(lines))))
    table = listing(("", "", "claim", "measured"), rows, fold="measured")
    table.show_header = False
    screen.print(table)
