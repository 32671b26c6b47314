"""The verbs that run cells: ``run``, one from flags, here and now; ``plan`` and ``sweep``, those of a sweep file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from raybench.cli import shared
from raybench.cli.shared import Screen, note, pairs, results_of
from raybench.core.errors import InputError, count

if TYPE_CHECKING:
    from raybench.analysis import Frames
    from raybench.execution.batch import Resolved
    from raybench.execution.checks import Skipped
    from raybench.runtime.driver import Outcome
    from raybench.spec import Sweep


def config(
    algorithm: str,
    problem: str | None,
    dataset: str | None,
    clients: int | None,
    compressor: str | None,
    downlink: str | None = None,
    **more: object,
) -> dict[str, Any]:
    """Return the sweep file of one cell; further keys that are None are left out.

    Without a problem the default one is meant; a data set alone replaces that of the default, with
    its features as they are. A problem that wants a number of clients has that of the default where none is given. Raises
    InputError for a malformed short form.
    """
    from raybench.core import registry
    from raybench.spec import sections

    usual = sections.parse_short_form(shared.USUAL_PROBLEM, "problem")
    section = sections.parse_short_form(problem, "problem") if problem is not None else usual
    if problem is None and dataset is not None:
        section = {key: usual[key] for key in ("name", "clients")}
    param = registry.lookup("problem", section["name"]).params.get("clients")
    wanted = param is not None and param.default in (None, registry.REQUIRED)
    by_column = isinstance(section.get("split"), dict) and "column" in section["split"]
    if wanted and clients is None and "clients" not in section and not by_column:
        clients = usual["clients"]
        note(f"{clients} clients: --clients N takes another number")
    flags = {"dataset": dataset, "clients": clients}
    section |= {key: value for key, value in flags.items() if value is not None}
    parts = {"compressor": compressor, "downlink": downlink}
    return {
        "problem": section,
        "algorithm": sections.parse_short_form(algorithm, "algorithm"),
        **{
            key: sections.parse_short_form(text, key)
            for key, text in parts.items()
            if text is not None
        },
        **{key: value for key, value in more.items() if value is not None},
    }


def usual_compressor(algorithm: str) -> str | None:
    """Return the compressor of a method that takes one where none is given; None where it takes none."""
    from raybench.core import registry

    facts = registry.lookup("algorithm", algorithm).facts
    return None if facts.up is None or facts.dense else facts.up.usual_form


def folder_name(sweep: Sweep) -> str:
    """Return the name under which runs on a problem are kept together: ``run-<problem>-<hash>``."""
    import hashlib
    import re

    from raybench.spec.model import canonical

    problem = sweep.cells[0].problem
    digest = hashlib.sha256(canonical(problem.config()).encode()).hexdigest()[:6]
    words = [problem.name, str(problem.params.get("dataset") or "").rsplit("/", 1)[-1], digest]
    plain = (re.sub(r"[^A-Za-z0-9._]+", "_", word)[:40] for word in words if word)
    return "-".join(["run", *plain])


def run(
    problem: shared.ProblemFlag = None,
    dataset: shared.DatasetFlag = None,
    clients: shared.ClientsFlag = None,
    algorithm: Annotated[str, Option(metavar="NAME[:KEY=VALUE,...]", help="The method.")] = "ef21",
    compressor: shared.CompressorFlag = None,
    downlink: shared.DownlinkFlag = None,
    step_multiple: Annotated[
        float | None, Option(metavar="X", help="Step size as a multiple of the theory's.")
    ] = None,
    step_size: Annotated[float | None, Option(metavar="X", help="Step size as a number.")] = None,
    rounds: Annotated[
        float, Option(metavar="T", help="Communication rounds. [default: 1000]", show_default=False)
    ] = 1000,  # a number, so that 1e3 is one
    seed: Annotated[int, Option(help="Drives the algorithm and x0.")] = 0,
    sets: shared.Sets = None,
    plugin: shared.Plugins = None,
    out: shared.Out = None,
    fresh: shared.Fresh = False,
) -> None:
    """Run one cell in this process and save it.

    Runs on one problem share a folder, so that raybench table and raybench report compare them.
    """
    from raybench import spec
    from raybench.spec import sections

    sizes = {"theory": step_multiple, "value": step_size}
    sizes = {kind: size for kind, size in sizes.items() if size is not None}
    if len(sizes) == 2:
        raise InputError.of("--step-multiple", "and --step-size together", "give one of them")
    name = sections.parse_short_form(algorithm, "algorithm")["name"]
    compressor = compressor or usual_compressor(name)
    more = {"step_size": sizes or None, "rounds": rounds, "seed": seed}
    content = config(algorithm, problem, dataset, clients, compressor, downlink, **more)
    planned = spec.load(content, sets=sets or (), plugins=plugin or ())
    if len(planned.cells) != 1:
        what = f"this is a grid of {len(planned.cells)} cells"
        raise InputError.of("run", what, "write a sweep file: raybench sweep FILE")
    if planned.name == "sweep":  # a name given by --set stays
        named = folder_name(planned)
        planned = spec.load(content, sets=sets or (), plugins=plugin or (), name=named)

    from raybench.core.process import Terminated
    from raybench.execution.plan import make_plan
    from raybench.runtime.driver import drive

    made, folder = make_plan(planned), results_of(planned, out)
    for cell in made.skipped:
        raise InputError.of("run", cell.why.text, _way_out(cell))
    outcome = drive(planned, folder, inline=True, fresh=fresh, beside=True)
    note(*outcome.plan.notes[len(planned.notes) :])
    if outcome.interrupted:
        raise Terminated if outcome.terminated else KeyboardInterrupt
    _show(made.cells[0], folder, before=not outcome.plan.batches)
    raise typer.Exit(outcome.exit_code)


def _way_out(skipped: Skipped) -> str:
    """Return the flags that would run what is skipped, or else the keys of a sweep file that would."""
    from raybench.execution.checks import SkipCode

    usual = usual_compressor(skipped.cell.algorithm.name)
    data = shared.USUAL_PROBLEM.partition(":")[2]
    flags = {
        SkipCode.NO_CLOCK: "--set clock.compute=1.0, the seconds of a gradient; docs/clock.md",
        SkipCode.NO_STEP: "--step-size 0.1, or --set step_size.of=gd for multiples of gd's step",
        SkipCode.VERTICAL_METHOD: f"--problem vertical_least_squares:{data}",
        SkipCode.OPERATOR: f"--compressor {usual}; --set allow_unproven=true runs what no theory covers",
    }
    return flags.get(skipped.why.code, skipped.why.fix)


def _show(resolved: Resolved, folder: str, before: bool) -> None:
    import math

    from raybench import store
    from raybench.report import words
    from raybench.store.status import cause

    cells = store.cells(folder)
    row = cells[cells["cell"] == resolved.id].iloc[0]
    out = Screen()
    data = f"{row['dataset']}, " if words.known(row["dataset"]) else ""
    about = f"  {data}{row['clients']:.0f} clients, d = {row['d']:,.0f}"
    out.head(f"{row['label']} on {row['problem']}", about, dim=True)
    if row["status"] == "failed":
        out.print(pairs([("failed", cause(str(row["error"]))), ("saved in", folder)]))
        return

    def sent(way: str) -> str:
        packed = words.bits(8 * row[f"bytes_{way}"])
        return f"{words.bits(row[f'bits_{way}'])}  ({packed} packed)"

    step = words.number(row["step_size"])
    if words.known(row["theory_step"]):
        what = {"theorem": "theory", "borrowed": f"theory of {resolved.cell.step.of}"}
        basis = what.get(str(resolved.basis), str(resolved.basis))
        step += f"  ({row['step_size'] / row['theory_step']:.4g} x {basis})"
    best = words.number(row["best_grad_norm_sq"])
    accuracy = "" if math.isnan(row["accuracy"]) else words.number(row["accuracy"], 4)
    already = "  (was there already: --fresh runs it again)" if before else ""
    rows = [
        ("ended", f"{row['status']} after {row['rounds']:,.0f} rounds, {row['seconds']:.3g} s"),
        ("step size", step),
        ("‖∇f‖²", f"{words.number(row['grad_norm_sq'])}  (best {best})"),
        ("f", words.number(row["loss"], 8)),
        ("accuracy", accuracy),
        ("up", f"{sent('up')} per client"),
        ("down", sent("down")),
        ("saved in", folder + already),
        ("next", f"raybench report {folder}"),
    ]
    out.print(pairs(rows))


# plan, sweep ---------------------------------------------------------------------------------


def plan(
    file: shared.File,
    out: shared.Out = None,
    sets: shared.Sets = None,
    plugin: shared.Plugins = None,
    retry_failed: shared.RetryFailed = False,
    no_code: shared.NoCode = False,
    measure: Annotated[bool, Option(help="Run a few rounds to estimate bits and time.")] = True,
) -> None:
    """Check a sweep file; print its cells, bits and time.

    Nothing is saved. Prints every error at once. Bits and time come from the first rounds of each method.
    """
    from raybench.cli.plan import preview

    planned = shared.read_sweep(file, sets, plugin, no_code)
    preview(planned, file, results_of(planned, out), retry_failed, measure)


def sweep(
    file: shared.File,
    out: shared.Out = None,
    sets: shared.Sets = None,
    plugin: shared.Plugins = None,
    no_code: shared.NoCode = False,
    inline: shared.Inline = False,
    address: shared.Address = None,
    fresh: shared.Fresh = False,
    retry_failed: shared.RetryFailed = False,
    fail_fast: shared.FailFast = False,
    smoke: Annotated[
        bool, Option("--smoke", help="Two rounds of each kind of cells, here; saves nothing.")
    ] = False,
    callback: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help="Tell mlflow, tensorboard, wandb or FILE.py:CLASS of every cell. Repeat.",
        ),
    ] = None,
) -> None:
    """Run a sweep: the cells that its results folder lacks.

    Ends with a table of each method's best K and step, and a report. Interrupted or extended, the
    same command goes on. Exit code 1 if cells failed, or all were skipped.
    """
    from raybench.analysis import BestSteps
    from raybench.runtime.driver import drive

    planned = shared.read_sweep(file, sets, plugin, no_code)
    if smoke:
        from raybench.cli.plan import smoke as try_out

        raise typer.Exit(try_out(planned))
    folder = results_of(planned, out)
    note(*planned.notes)
    outcome = drive(
        planned,
        folder,
        inline=inline,
        address=address,
        fresh=fresh,
        retry_failed=retry_failed,
        fail_fast=fail_fast,
        best=BestSteps(folder),
        callbacks=callback or (),
    )
    note(*outcome.plan.notes[len(planned.notes) :], *outcome.repairs)
    if outcome.interrupted:
        missing = outcome.counts.get("missing", 0)
        how = "stopped by SIGTERM" if outcome.terminated else "interrupted"
        note(f"{how}, {count(missing, 'cell')} left: the same command goes on")
        note(f"raybench table {folder} shows what is there")
        raise typer.Exit(outcome.exit_code)
    close(outcome, file)
    raise typer.Exit(outcome.exit_code)


def close(outcome: Outcome, file: str) -> None:
    """Print what came out of a sweep, and write its report."""
    from rich.text import Text

    from raybench import report
    from raybench.analysis import frames, keep_targets
    from raybench.core.limits import duration

    plan, counts, folder = outcome.plan, outcome.counts, outcome.folder
    out = Screen()
    if not counts.get("ok"):
        said = ", ".join(f"{n:,} {status}" for status, n in counts.items() if n)
        out.print(f"no cell ended ok: {said or 'nothing ran'}")
        out.print(pairs(_why(outcome), indent=0))
        return
    results = frames(folder)
    if not counts.get("missing"):
        results = keep_targets(results)
    said = "  nothing was missing"
    if plan.missing:
        said = f"  {count(plan.missing, 'cell')} run in {duration(outcome.seconds)}"
    said += f", {len(plan.done):,} were there already" if plan.done else ""
    out.head(plan.sweep.name, said)
    out.print(report.table(results))
    command = f"raybench plot {folder}"
    if counts.get("missing") or counts.get("failed"):
        command = f"raybench sweep {file}" + ("" if counts.get("missing") else " --retry-failed")
    rows = [*_why(outcome), *places(results), ("next", Text(command, style="bold"))]
    out.print(pairs(rows, indent=0))


def places(results: Frames) -> list[tuple[str, object]]:
    """Return lines on how firm the order of methods is, and where report and tables lie.

    Writes the report, where it is not there as it would be.
    """
    from raybench import report
    from raybench.report.content import current_report
    from raybench.report.rankings import doubted, firmness

    folder, firm = results.folder, firmness(results)
    return [
        ("order", f"{doubted(results, firm)}: raybench audit {folder}" if firm else ""),
        ("report", current_report(folder) or report.html(results, firm=firm)),
        ("tables", f"{folder}/cells, {folder}/curves  (Parquet)"),
    ]


def _why(outcome: Outcome) -> list[tuple[str, object]]:
    """Return lines on why cells were skipped or failed, the commonest reasons first."""
    from raybench.store.status import status_of

    rows = shared.reasons(outcome.plan.skipped)
    errors = status_of(outcome.folder).errors if outcome.counts.get("failed") else {}
    return rows + [("failed", f"{count(n, 'cell')}: {text}") for text, n in [*errors.items()][:3]]
