"""raybench launch, attach, down: a sweep on a cluster that is started for it, and ended."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from raybench.cli import shared
from raybench.cli.shared import Screen, complain, count, note, pairs, results_of
from raybench.core.errors import InputError

if TYPE_CHECKING:
    from raybench.cluster.begin import Offer
    from raybench.cluster.file import ClusterFile, NodeType
    from raybench.cluster.states import Launch
    from raybench.cluster.steps import Steps
    from raybench.spec import Sweep

Keep = Annotated[bool, Option("--keep", help="Leave the cluster up at the end.")]


def launch(
    file: shared.File,
    cluster: Annotated[
        str | None,
        Option("--cluster", metavar="FILE", help="A cluster file. [default: cluster.yaml]"),
    ] = None,
    address: Annotated[
        str | None,
        Option(metavar="URL", help="A cluster that is there: http://HOST:8265, its Jobs API."),
    ] = None,
    out: shared.Out = None,
    sets: shared.Sets = None,
    plugin: shared.Plugins = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Say what it would take, and stop.")] = False,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask.")] = False,
    max_cost: Annotated[
        float | None,
        Option(metavar="AMOUNT", help="The most that it may cost, in the file's currency."),
    ] = None,
    max_hours: Annotated[
        float, Option(metavar="H", help="The cluster ends by itself after so many hours.")
    ] = 12.0,
    keep: Keep = False,
    retry_failed: shared.RetryFailed = False,
    fail_fast: shared.FailFast = False,
) -> None:
    """Run a sweep on a cluster that is started for it.

    Plans and prices it, starts the cluster, runs what is missing, brings the tables home, ends the cluster.

    Says first what it would take. Interrupted, or cut off, the sweep goes on there: `raybench attach DIR` follows
    it again, `raybench down DIR` ends it. The exit code is that of the sweep.

    `raybench launch ls` lists the launches that you began on this machine.
    """
    from raybench.analysis import BestSteps
    from raybench.cluster import begin, jobs
    from raybench.cluster.render import python_of
    from raybench.cluster.states import Launch

    if file == "ls":
        _list()
        return
    sweep = shared.read(file, sets, plugin)
    note(*sweep.notes)
    flags = ["--retry-failed"] * retry_failed + ["--fail-fast"] * fail_fast
    remote = out if out and "://" in out else ""
    folder = Path(results_of(sweep, None if remote else out))
    cluster_file = _cluster(cluster, address, remote)
    best = BestSteps(remote or folder)
    made = begin.offer(sweep, cluster_file, folder, remote, max_hours, max_cost, retry_failed, best)
    record = Launch(folder)
    if record.order() is not None and record.state not in ("fetched", "down"):
        note(f"a launch of {folder} is under way: following it")
        raise typer.Exit(_go_on(record, keep))
    _show_offer(made, cluster_file, str(remote or folder), record)
    if dry_run:
        raise typer.Exit(0)
    if not made.plan.batches:
        note("nothing is missing: nothing was started")
        raise typer.Exit(0)
    if cluster_file.kind == "rayjob":
        raise typer.Exit(_rayjob(record, sweep, cluster_file, made, flags, remote))
    if not yes:
        if not sys.stdin.isatty():
            raise InputError.of("launch", "nobody is there to say yes", "give --yes")
        if not typer.confirm("Start it?", default=False):
            raise typer.Exit(0)
    jobs.check_installed()
    begin.order(record, sweep, cluster_file, made, flags, remote, keep, python_of(cluster_file))
    raise typer.Exit(_go_on(record, keep))


def _list() -> None:
    """Print the launches that this user began on this machine, with the last state that each has reached."""
    from raybench.cluster.states import Launch

    rows = [
        (record.ordered().get("name", ""), record.state, str(record.results))
        for record in Launch.all()
    ]
    if not rows:
        note("no launch was begun here")
        return
    Screen().print(shared.listing(("sweep", "state", "folder"), rows))


def _cluster(path: str | None, address: str | None, remote: str) -> ClusterFile:
    """Return the cluster that is meant: of a file, or one that is there at an address."""
    from raybench.cluster import file

    if address is None:
        return file.read(path or "cluster.yaml")
    if path is not None:
        raise InputError.of(
            "--address", "a cluster that is there has no --cluster file", "give one"
        )
    if not address.startswith(("http://", "https://")):
        fix = "a Ray of a node is joined by `raybench sweep --address`"
        raise InputError.of("--address", f"{address} is no Jobs API: http://HOST:8265", fix)
    if not remote:
        what = "results of a cluster that is there go where it and this machine both see them"
        raise InputError.of("--out", what, "give s3://..., gs://... or file:///a/shared/folder")
    return file.ClusterFile(Path(), "existing", {}, address=address)


def _rayjob(
    record: Launch,
    sweep: Sweep,
    cluster_file: ClusterFile,
    made: Offer,
    flags: list[str],
    remote: str,
) -> int:
    """Write the documents of a RayJob, and say how they are created; Kubernetes does the rest."""
    from raybench.cluster import begin, kuberay

    begin.order(record, sweep, cluster_file, made, flags, remote, keep=False, python="python")
    name = f"raybench-{record.ordered()['id']}"
    text = kuberay.rendered(cluster_file.path, record.place("stage"), name, record.ordered()["job"])
    target = record.place("rayjob.yaml")
    target.write_text(text)
    target.chmod(0o600)  # it holds the token
    record.reach("down", sure=["it is Kubernetes that starts and ends it"])
    rows: list[tuple[str, object]] = [
        ("written", str(target)),
        ("start", f"kubectl apply --server-side -f {target}"),
        ("follow", f"kubectl get rayjob {name}, kubectl logs -l job-name={name} -f"),
        ("results", remote or f"{kuberay.RESULTS}/{sweep.name}, on the volume raybench-results"),
    ]
    Screen().print(pairs(rows))
    return 0


def attach(folder: shared.Folder, keep: Keep = False) -> None:
    """Follow a launch again, to its end.

    Goes on from whatever state it is in: its own process may have been killed.
    """
    from raybench.cluster.states import Launch

    raise typer.Exit(_go_on(Launch.of(folder), keep))


def down(
    folder: shared.Folder,
    fetch: Annotated[
        bool, Option("--fetch/--no-fetch", help="Bring home what is there first.")
    ] = True,
) -> None:
    """End the cluster of a launch, and make sure.

    Fetches first what there is. Exit code 1 if something is left, or may be.
    """
    from raybench.cluster.states import Launch
    from raybench.store import Store

    record = Launch.of(folder)
    with Store(record.results).held():
        raise typer.Exit(_ended(_steps(record), fetch))


def _go_on(record: Launch, keep: bool) -> int:
    """Take the steps that are left of a launch, as the only process that does; return the exit code."""
    from raybench.store import Store

    ended = record.reached("down")
    if ended is not None:
        note(f"this launch is down: {'; '.join(ended['sure'])}")
        return 0
    steps = _steps(record)
    with Store(record.results).held():
        code = 1
        try:
            code = _run(steps)
            if code is None:  # it goes on there without us
                return 1
            _close(steps, code)
        except (KeyboardInterrupt, InputError):
            raise
        except BaseException:
            _ended(steps)
            raise
        if keep or steps.order.get("keep"):
            until = f"until raybench down {record.results}, or its hours are over"
            note(f"the cluster stays up (--keep) {until}")
            return code
        return _ended(steps) or code


def _run(steps: Steps) -> int | None:
    """Start, submit and follow; return the sweep's exit code, or None where the sweep was lost from sight."""
    from raybench.cluster.hosts import Unreachable
    from raybench.cluster.jobs import JobFailed
    from raybench.cluster.provider import LaunchFailed
    from raybench.cluster.shown import Far
    from raybench.cluster.steps import HeadLost

    record = steps.launch
    again = (
        f"raybench attach {record.results} follows it again, raybench down {record.results} ends it"
    )
    try:
        steps.up()
        steps.submit()
        with Far() as far:
            steps.show = far.show
            code = steps.follow()
    except KeyboardInterrupt:
        if record.reached("submitted") is not None:
            note("the sweep goes on there, and its cluster ends by itself when its hours are over")
        note(again)
        raise
    except InputError:
        if record.state == "ordered":  # nothing was started
            record.reach("down", sure=["nothing was started"])
        raise
    except (HeadLost, LaunchFailed, JobFailed, Unreachable, RuntimeError, OSError) as error:
        complain([str(error)])
        if record.reached("submitted") is None:
            return 1  # nothing runs there: the cluster ends
        note(again)
        return None
    return code


def _close(steps: Steps, code: int) -> None:
    """Print the table of what came home, as after a sweep here; or why there is none."""
    from raybench import report, store
    from raybench.analysis import frames

    out, folder = Screen(), str(steps.order.get("remote_out") or steps.launch.results)
    if code:
        log = steps.log()
        note(*([f"the sweep ended with exit code {code}; its last lines:", log] if log else []))
    try:
        statuses = set(store.cells(folder)["status"])
    except InputError:  # it ended before its first cell
        return
    if "ok" not in statuses:
        return
    results = frames(folder)
    out.print(report.table(results))
    rows: list[tuple[str, object]] = [
        ("report", str(report.html(results))),
        ("tables", f"{folder}/cells, {folder}/curves  (Parquet)"),
    ]
    out.print(pairs(rows, indent=0))


def _ended(steps: Steps, fetching: bool = True) -> int:
    """End the cluster, and say how it is known that nothing is left; return the exit code."""
    from raybench.cluster.end import NotDown

    try:
        sure = steps.down(fetching)
    except NotDown as error:
        complain([f"NOT DOWN: {error}"])
        note(f"raybench down {steps.launch.results} tries again")
        return 1
    for line in sure:
        note(f"down: {line}")
    return 0


def _steps(record: Launch) -> Steps:
    from raybench.cluster.existing import OnExisting
    from raybench.cluster.steps import Steps

    kind = OnExisting if record.ordered().get("address") else Steps
    return kind(record, say=lambda text: print(text, file=sys.stderr, flush=True))


def _show_offer(made: Offer, cluster: ClusterFile, results: str, record: Launch) -> None:
    """Print what the launch would take."""
    from raybench.cluster.price import money
    from raybench.core.clock import duration

    plan, cost, screen = made.plan, made.price, Screen()
    stage = " in the next stage of a search" if plan.stage else ""
    said = f"  {count(plan.missing, 'cell')} to run{stage}, {len(plan.done):,} there"
    screen.head(plan.sweep.name, said)
    batches = count(len(plan.batches), "batch", "batches")
    unknown = "unknown: the file does not say how many CPUs nodes have"
    rows: list[tuple[str, object]] = [
        ("work", f"{cost.cell_hours:.3g} hours on one slot of this machine, in {batches}"),
        ("nodes", ", ".join(_node(n) for n in cluster.nodes)),
        ("slots", unknown if cost.slots is None else str(cost.slots)),
        ("time", f"about {duration(cost.hours * 3600)}, as fast as this machine per slot"),
    ]
    if cluster.kind != "ray":
        rows.append(("cost", "that of the cluster, which this file does not tell"))
    elif cost.cost is None:
        rows.append(("cost", "unknown: the cluster file has no prices (metadata.prices)"))
    elif cluster.own_machines:
        rows.append(("cost", "your own machines"))
    else:
        said = f"about {money(cost.cost, cluster.currency)} at prices of {cluster.priced}"
        if cost.most is not None:
            said += f"; at most {money(cost.most, cluster.currency)}, all nodes at list prices"
        rows.append(("cost", said))
    if cluster.kind == "ray":
        hours = f"after {cost.most_hours:.3g} hours by itself"
        idle = f", or {cluster.idle_minutes:g} minutes after anything runs"
        left = "; what is not fetched by then is lost"
        safe = cluster.own_machines or "://" in results
        rows.append(("ends", hours + (idle if safe else left)))
    rows.append(("results", results))
    if record.order() is not None and record.state == "fetched":
        rows.append(("cluster", "the one that is up"))
    screen.print(pairs(rows))


def _node(node: NodeType) -> str:
    """Return ``up to 4 worker, each 16 CPUs``."""
    parts = [] if node.cpus is None else [count(int(node.cpus), "CPU")]
    parts += [count(int(node.gpus), "GPU")] if node.gpus else []
    size = f" of {' and '.join(parts)}" if parts and (node.cpus or node.gpus) else ""
    return f"{'' if node.most == 1 else 'up to '}{node.most} {node.name}{size}"
