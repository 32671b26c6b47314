"""raybench launch, attach, down, logs: a sweep on a cluster that is started for it, and ended."""

from __future__ import annotations

import math
import subprocess
import sys
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from raybench.cli import shared
from raybench.cli.run import places
from raybench.cli.shared import Screen, complain, note, pairs, results_of
from raybench.cluster.states import Launch, begun, clock, ending, last_state, money, spent
from raybench.core.errors import InputError, count
from raybench.core.limits import duration

if TYPE_CHECKING:
    from raybench.cluster.file import ClusterFile, Price
    from raybench.cluster.steps import LaunchSteps
    from raybench.execution.plan import Plan

OLD_DAYS = 90  # of prices, which are then said to be old
Keep = Annotated[bool, Option("--keep", help="Leave the cluster up at the end.")]
MaxCost = Annotated[
    float | None, Option(metavar="AMOUNT", help="The most, in the file's currency.")
]
MaxHours = Annotated[float, Option(metavar="H", help="The cluster ends by itself after so many.")]
Notify = Annotated[str, Option(metavar="CMD", help="Run at the end, with a line on its input.")]
Which = Annotated[str, Argument(metavar="DIR", help="Results folder, sweep's name, or launch id.")]


def launch(
    file: shared.File,
    cluster: Annotated[str, Option(metavar="FILE", help="A cluster file.")] = "cluster.yaml",
    out: shared.Out = None,
    sets: shared.Sets = None,
    plugin: shared.Plugins = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Say what it would take, and stop.")] = False,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask.")] = False,
    max_cost: MaxCost = None,
    max_hours: MaxHours = 12.0,
    keep: Keep = False,
    notify: Notify = "",
    retry_failed: shared.RetryFailed = False,
    fail_fast: shared.FailFast = False,
    no_code: shared.NoCode = False,
) -> None:
    """Run a sweep on a cluster that is started for it.

    Plans and prices it, starts the cluster, runs what is missing, brings the tables home, ends the cluster.

    Says first what it would take. Interrupted, or cut off, the sweep goes on there: `raybench attach DIR` follows
    it again, `raybench down DIR` ends it. The exit code is that of the sweep.

    `raybench launch ls` lists the launches that you began on this machine.
    """
    from raybench.analysis import BestSteps
    from raybench.cluster import file as files
    from raybench.cluster.file import offer
    from raybench.cluster.steps import LaunchSteps, order

    if file == "ls":
        _list()
        return
    sweep = shared.read_sweep(file, sets, plugin, no_code)
    note(*sweep.notes)
    flags = ["--retry-failed"] * retry_failed + ["--fail-fast"] * fail_fast
    remote = out if out and "://" in out else ""
    folder = Path(results_of(sweep, None if remote else out))
    where = remote or str(folder)
    nodes, record = files.read_cluster_file(cluster), Launch(folder)
    if record.state not in ("fetched", "down"):
        note(f"a launch of {folder} is under way: following it")
        raise typer.Exit(_go_on(record, keep))
    if record.state == "fetched":  # its cluster was kept, and its hours go on
        kept, scheme = LaunchSteps(record), remote.partition("://")[0]
        if scheme not in ("", kept.order["remote_out"].partition("://")[0]):
            what = f"the cluster that is up is not set up for {scheme}://"
            raise InputError.of("--out", what, f"raybench down {folder} ends it")
        nodes, left = kept.cluster, max(0.0, kept.left(asking=True)) / 3600
        note(f"the cluster is the one that is up, of the file as it was then, for {left:.3g} hours")
        max_hours = min(max_hours, left)
    plan, cost = offer(sweep, nodes, where, max_hours, max_cost, retry_failed, BestSteps(where))
    _show_offer(plan, cost, nodes, where)
    if not plan.batches:
        note("nothing is missing: nothing was started")
    if dry_run or not plan.batches:
        return
    if not yes and not sys.stdin.isatty():
        raise InputError.of("launch", "nobody is there to say yes", "give --yes")
    if not yes and not typer.confirm("Start it?", default=False):
        return
    order(record, sweep, nodes, cost, flags, remote, keep, notify)
    raise typer.Exit(_go_on(record, keep))


def _list() -> None:
    """Print this user's launches: the last state that each has reached, what it has cost, and when it ends."""
    rows = []
    for key, facts in begun():
        state = last_state(facts)
        bounded = ending(facts.get("provider", "")).bounded
        ends = (clock(facts["deadline"]) if bounded else "raybench down") * (state != "down")
        rows.append((key, facts["name"], state, spent(facts), ends, facts["results"]))
    if not rows:
        note("no launch was begun here")
        return
    head = ("id", "sweep", "state", "cost so far", "ends by", "folder")
    Screen().print(shared.listing(head, rows, fold="folder"))


def attach(folder: Which, keep: Keep = False) -> None:
    """Follow a launch again, to its end.

    Goes on from whatever state it is in: its own process may have been killed.
    """
    raise typer.Exit(_go_on(Launch.of(folder), keep))


def down(
    folder: Which,
    lose: Annotated[bool, Option("--no-fetch", help="Leave results there to be lost.")] = False,
) -> None:
    """Fetch what there is, and end the cluster of a launch.

    Exit code 1 if something is left, or may be.
    """
    from raybench.cluster.steps import LaunchSteps
    from raybench.store import Store

    record = Launch.of(folder)
    with Store(record.results).held():
        raise typer.Exit(_ended(LaunchSteps(record), fetching=not lose))


def logs(folder: Which) -> None:
    """Print what a launched sweep has said on its cluster."""
    from raybench.cluster.steps import LaunchSteps

    said = LaunchSteps(Launch.of(folder)).log()
    if not said:
        note("nothing was heard of it yet")
    print(said, end="")


def _go_on(record: Launch, keep: bool) -> int:
    """Start, submit, follow, and end the cluster whatever happens, unless it is told to stay; return the exit code.

    Takes the steps that are left, as the only process that does.
    """
    from raybench.cluster.steps import LaunchSteps
    from raybench.store import Store

    if record.reached("down"):
        return _ended(LaunchSteps(record))  # which says how it is known
    code, stays, away = 1, False, False
    with Store(record.results).held():
        steps = LaunchSteps(record)
        try:
            steps.up()
            steps.submit()
            code = steps.follow()
            stays = keep or steps.order["keep"]
            _close(steps, code)
        except KeyboardInterrupt:
            stays = away = True
            goes = "the sweep goes on there: " if record.reached("submitted") else ""
            note(f"{goes}raybench attach {record.results} follows it again")
            raise
        except (RuntimeError, OSError) as error:  # of ssh, of Ray's launcher, of the Jobs API
            complain([str(error)])
        finally:
            if stays:
                ends, end = clock(steps.order["deadline"]), f"raybench down {record.results}"
                note(f"the cluster stays up until {end}, {ends} at the latest")
            else:
                code = _ended(steps) or code
            if not away:
                _notify(steps, code)
    return code


def _notify(steps: LaunchSteps, code: int) -> None:
    """Say in one line how it ended, also to the command that the user gave."""
    facts = steps.launch.order()
    up = "" if steps.launch.state == "down" else ", its cluster is up"
    where = facts["remote_out"] or steps.launch.results
    line = f"{facts['name']}: exit code {code}, cost {spent(facts)}{up}, results in {where}"
    note(line)
    if facts["notify"]:
        with suppress(OSError):
            subprocess.run(facts["notify"], shell=True, input=f"{line}\n", text=True, check=False)


def _close(steps: LaunchSteps, code: int) -> None:
    """Print the table of what came home, as after a sweep here; or why there is none."""
    from raybench import report
    from raybench.analysis import frames
    from raybench.store import Store

    folder = str(steps.order["remote_out"] or steps.launch.results)
    if code:
        said = steps.log().rstrip().splitlines()[-12:]
        note(f"the sweep ended with exit code {code}; its last lines:", *said)
    if "ok" not in Store(folder).done().values():
        note(f"no cell has ended well: nothing is in {folder}")
        return
    results, out = frames(folder), Screen()
    out.print(report.table(results))
    out.print(pairs(places(results), indent=0))


def _ended(steps: LaunchSteps, fetching: bool = True) -> int:
    """End the cluster, and say how it is known that nothing is left; return the exit code."""
    try:
        note(*(f"down: {line}" for line in steps.down(fetching)))
    except (RuntimeError, OSError) as error:
        complain([f"NOT DOWN: {error}"])
        note(f"raybench down {steps.launch.results} tries again")
        return 1
    return 0


def _show_offer(plan: Plan, cost: Price, cluster: ClusterFile, results: str) -> None:
    """Print what the launch would take."""
    screen = Screen()
    stage = " in the next stage of a search" if plan.stage else ""
    missing = count(plan.missing, "cell")
    screen.head(plan.sweep.name, f"  {missing} to run{stage}, {len(plan.done):,} there")
    low, high, soon, late = (duration(s) for s in (*cost.seconds, *(3600 * h for h in cost.hours)))
    group = plan.sweep.resources.workers
    slots = f"{cost.slots}" + f" groups of {group} workers" * (group > 1)
    if cost.slots is None:
        slots = "unknown: the file does not say how many CPUs nodes have (metadata.cpus)"
    batches = count(len(plan.batches), "batch", "batches")
    ends = f"after {cost.most_hours:.3g} hours by {cluster.ending.by}"
    if not cluster.ending.bounded:
        ends = f"by {cluster.ending.by}; Ray there after {cost.most_hours:.3g} hours"
    elif cluster.hosts or "://" in results:
        ends += f", or {duration(cluster.lease)} after anything runs"
    else:
        ends += "; what is not fetched by then is lost"
    rows: list[tuple[str, object]] = [
        ("work", f"{low} to {high} on one slot of this machine, in {batches}"),
        ("nodes", ", ".join(map(str, cluster.nodes))),
        ("slots", slots),
        ("time", f"{soon} to {late} with the start, as fast as this machine per slot"),
        *_costs(cost, cluster),
        ("ends", ends),
        ("results", results),
    ]
    screen.print(pairs(rows))


def _costs(cost: Price, cluster: ClusterFile) -> list[tuple[str, object]]:
    """Return lines on what it costs: expected, at most, and how old the prices are."""
    if cluster.hosts:
        return [("cost", "your own machines")]
    if math.isinf(max(cost.most, *cost.cost)):
        bare = f"{', '.join(cluster.unpriced)} in {cluster.region or 'this region'}"
        return [("cost", f"unknown: no price of {bare} (metadata.prices)")]
    cheap, dear, most = (money(c, cluster.currency) for c in (*cost.cost, cost.most))
    limit = f"at most {most}, if all nodes run to the end at list prices"
    if not cluster.ending.bounded:
        limit = f"{cluster.ending.limit} if this machine is lost: see docs/cluster.md"
    expected = f"{cheap} to {dear} at prices of {cluster.priced}"
    rows: list[tuple[str, object]] = [("cost", expected), ("", limit)]
    days = (date.today() - cluster.priced).days if cluster.priced else 0
    if days > OLD_DAYS:
        rows.append(("", f"these prices are {days} days old: look at the provider's"))
    return rows
