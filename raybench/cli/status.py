"""raybench status: how a sweep stands, from its results folder alone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from raybench.cli.shared import Folder, console, count, listing, pairs

if TYPE_CHECKING:
    from raybench.store.status import Status

MOST = 12  # methods that are shown


def status(
    folder: Folder,
    json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Show how a sweep stands: who works on it, what is done, how fast, what is best so far.

    Reads DIR, a folder or s3://bucket/path, and changes nothing. Exit code 1 if cells failed, or are missing
    while nobody works on them.
    """
    from raybench.core.errors import InputError
    from raybench.store.status import status_of

    try:
        found = status_of(folder)
    except InputError:
        from raybench.cluster.states import Launch

        if "://" in folder or Launch(folder).order() is None:  # raises where it was begun elsewhere
            raise
        lines = launch_lines(folder)
        console().print(pairs([("folder", folder), *lines]))  # nothing was fetched yet
        raise typer.Exit(0) from None
    if json:
        print(_as_json(found))
    else:
        _show(found)
    raise typer.Exit(found.exit_code)


def launch_lines(folder: str) -> list[tuple[str, str]]:
    """Return what `raybench launch` noted of this folder: the states that it reached, and how long ago."""
    from raybench.cluster.states import STATES, Launch
    from raybench.core.errors import InputError

    one = Launch(folder)
    try:
        if "://" in folder or one.order() is None:
            return []
    except InputError as error:  # begun elsewhere; what the folder holds can be read all the same
        return [("launch", error.complaints[0].what), ("", error.complaints[0].fix)]
    reached = [(state, one.reached(state)) for state in STATES]
    said = [f"{state} {_ago(float(facts['at']))}" for state, facts in reached if facts is not None]
    lines = [("launch", ", ".join(said) or "ordered, not up yet")]
    if one.state != "down":
        lines.append(("", f"raybench attach {folder} follows it, raybench down {folder} ends it"))
    return lines


def _show(found: Status) -> None:
    from rich.text import Text

    out = console()
    counts = found.counts
    planned = sum(counts.values())
    ended = planned - found.missing
    head = Text(str(found.sweep.get("name") or found.folder), style="bold")
    out.print(head.append(f"  {ended:,} of {count(planned, 'cell')} ended", style="not bold"))
    rows: list[tuple[str, object]] = [("folder", found.folder)]
    problem = _problem(found)
    if problem:
        rows.append(("problem", problem))
    ends = [f"{n:,} {kind}" for kind, n in counts.items() if kind != "missing"]
    if found.missing:
        ends.append(
            f"{found.missing:,} missing" + (f" ({found.begun:,} begun)" if found.begun else "")
        )
    rows.append(("cells", ", ".join(ends) or "none yet"))
    if found.holder is not None:
        since = f", since {_ago(found.holder.since)}" if found.holder.since else ""
        rows.append(("running", f"{found.holder.who}{since}"))
    elif found.missing:
        rows.append(("running", "nobody: the sweep's own command goes on"))
    else:
        rows.append(("running", "nobody, and nothing is missing"))
    if found.last is not None:
        rows.append(("last result", _ago(found.last)))
    if found.rate is not None and found.holder is not None:
        left = f", {_span(60 * found.left)} left" if found.left else ""
        rows.append(("rate", f"{found.rate:,.1f} cells a minute{left}"))
    rows += launch_lines(found.folder)
    if found.earlier:
        said = f"{count(found.earlier, 'cell')} of earlier versions of this sweep: raybench table {found.folder} --all"
        rows.append(("besides", said))
    if found.damaged:
        said = f"{count(found.damaged, 'file')} not as written: raybench verify {found.folder}"
        rows.append(("damaged", said))
    for i, (error, n) in enumerate(list(found.errors.items())[:3]):
        rows.append(("" if i else "failed", f"{count(n, 'cell')}: {error[:200]}"))
    out.print(pairs(rows))
    if found.best:
        table = listing("best so far", "K", "step", "‖∇f‖²", right=("K", "step", "‖∇f‖²"))
        for best in found.best[:MOST]:
            step = "–"
            if best.step_multiple is not None:
                step = f"{best.step_multiple:g}×"
            elif best.step_size is not None:
                step = f"{best.step_size:.3g}"
            table.add_row(
                best.label, "–" if best.k is None else str(best.k), step, f"{best.value:.2e}"
            )
        out.print(table)
        if len(found.best) > MOST:
            out.print(f"{len(found.best) - MOST} methods more: raybench table {found.folder}")


def _problem(found: Status) -> str:
    problem = found.sweep.get("problem")
    if not isinstance(problem, dict):
        return str(problem or "")
    name = str(problem.get("name", ""))
    data = problem.get("dataset")
    clients = problem.get("clients")
    parts = [f"{name} on {data}" if data else name, f"{clients} clients" if clients else ""]
    return ", ".join(part for part in parts if part)


def _ago(when: float) -> str:
    seconds = max(0.0, time.time() - when)
    return (
        f"{_span(seconds)} ago"
        if seconds < 86400
        else time.strftime("%Y-%m-%d %H:%M", time.localtime(when))
    )


def _span(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _as_json(found: Status) -> str:
    import dataclasses
    import json

    said = dataclasses.asdict(found)
    more = {"missing": found.missing, "minutes_left": found.left, "exit_code": found.exit_code}
    return json.dumps({**said, **more}, indent=1, default=str)
