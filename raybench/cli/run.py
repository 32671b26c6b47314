"""raybench run: one cell from flags, here and now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from raybench.cli import cell
from raybench.cli.shared import Fresh, Out, Plugins, Sets, console, note, pairs, results_of

if TYPE_CHECKING:
    from raybench.execution.batch import Resolved
    from raybench.execution.checks import Skipped
    from raybench.spec import Sweep

Number = dict[str, object]


def run(
    problem: cell.Problem = None,
    dataset: cell.Dataset = None,
    clients: cell.Clients = None,
    algorithm: Annotated[
        str, typer.Option(metavar="NAME[:KEY=VALUE,...]", help="The method.")
    ] = "ef21",
    compressor: cell.Compressor = None,
    downlink: cell.Downlink = None,
    step: Annotated[
        float | None, typer.Option(metavar="X", help="Step size as a multiple of the theory's.")
    ] = None,
    step_value: Annotated[
        float | None, typer.Option(metavar="X", help="Step size as a number.")
    ] = None,
    rounds: Annotated[
        float,
        typer.Option(metavar="T", help="Communication rounds. [default: 1000]", show_default=False),
    ] = 1000,  # a number, so that 1e3 is one
    seed: Annotated[int, typer.Option(help="Drives the algorithm and x0.")] = 0,
    sets: Sets = None,
    plugin: Plugins = None,
    out: Out = None,
    fresh: Fresh = False,
) -> None:
    """Run one cell, without Ray, and save it.

    Runs on one problem share a folder, so that raybench table and raybench report compare them.
    """
    from raybench import spec
    from raybench.core import registry
    from raybench.core.errors import InputError
    from raybench.spec import short

    if step is not None and step_value is not None:
        raise InputError.of("--step", "and --step-value together", "give one of them")
    steps: Number | None = None if step is None else {"theory": step}
    steps = {"value": step_value} if step_value is not None else steps
    name = short.parse(algorithm, "algorithm")["name"]
    if compressor is None:
        for file in plugin or ():
            registry.load_plugin(file)
        compressor = cell.usual_operator(name)
    given = cell.config(
        algorithm,
        problem,
        dataset,
        clients,
        compressor,
        downlink,
        step_size=steps,
        rounds=rounds,
        seed=seed,
    )
    sweep = spec.load(given, sets=sets or (), plugins=plugin or ())
    if len(sweep.cells) != 1:
        what = f"this is a grid of {len(sweep.cells)} cells"
        raise InputError.of("run", what, "write a sweep file: raybench sweep FILE")
    if sweep.name == "sweep":  # a name given by --set stays
        named = cell.folder_name(sweep)
        sweep = spec.load(given, sets=sets or (), plugins=plugin or (), name=named)
    _work(sweep, results_of(sweep, out), fresh)


def _work(sweep: Sweep, folder: str, fresh: bool) -> None:
    from raybench.core.endings import Terminated
    from raybench.core.errors import InputError
    from raybench.execution.plan import make_plan
    from raybench.runtime.driver import drive

    plan = make_plan(sweep)
    for one in plan.skipped:
        raise InputError.of("run", one.why.text, _way_out(one))
    outcome = drive(sweep, folder, inline=True, fresh=fresh, beside=True)
    note(*outcome.plan.notes[len(sweep.notes) :])
    if outcome.interrupted:
        raise Terminated if outcome.terminated else KeyboardInterrupt
    _show(plan.cells[0], folder, before=not outcome.plan.batches)
    raise typer.Exit(outcome.exit_code)


def _way_out(skipped: Skipped) -> str:
    """Return the flags that would run what is skipped, or else the keys of a sweep file that would."""
    from raybench.execution.checks import SkipCode

    usual = cell.usual_operator(skipped.cell.algorithm.name)
    flags = {
        SkipCode.NO_STEP: "--step-value 0.1, or --set step_size.of=gd for multiples of gd's step",
        SkipCode.VERTICAL_METHOD: f"--problem vertical_least_squares:{cell.USUAL_PROBLEM.partition(':')[2]}",
        SkipCode.OPERATOR: f"--compressor {usual}; "
        "--set allow_unproven=true runs what no theory covers",
    }
    return flags.get(skipped.why.code, skipped.why.fix)


def _cause(error: str) -> str:
    """Return the message at the end of a traceback; of a user's mistake without the class."""
    lines = error.strip().splitlines()
    first = max(i for i, line in enumerate(lines) if line[:1] != " ")
    text = "; ".join(line.strip() for line in lines[first:])
    return text.removeprefix("raybench.core.errors.InputError: ")


def _show(resolved: Resolved, folder: str, before: bool) -> None:
    import math

    from rich.text import Text

    from raybench import store
    from raybench.report import words

    cells = store.cells(folder)
    row = cells[cells["cell"] == resolved.id].iloc[0]
    out = console()
    head = Text(f"{row['label']} on {row['problem']}", style="bold")
    known = [row["dataset"] if words.known(row["dataset"]) else "", f"{row['clients']:.0f} clients"]
    head.append(f"  {', '.join(k for k in known if k)}, d = {row['d']:,.0f}", style="not bold dim")
    out.print(head)
    if row["status"] == "failed":
        out.print(pairs([("failed", _cause(str(row["error"]))), ("saved in", folder)]))
        return

    def sent(way: str) -> str:
        packed = words.bits(8 * row[f"bytes_{way}"])
        return f"{words.bits(row[f'bits_{way}'])}  ({packed} packed)"

    step = words.number(row["step_size"])
    if words.known(row["theory_step"]):
        what = {"theorem": "theory", "borrowed": f"theory of {resolved.cell.step.of}"}
        one = what.get(str(resolved.basis), str(resolved.basis))
        step += f"  ({row['step_size'] / row['theory_step']:.4g} x {one})"
    rows: list[tuple[str, object]] = [
        ("ended", f"{row['status']} after {row['rounds']:,.0f} rounds, {row['seconds']:.3g} s"),
        ("step size", step),
        (
            "‖∇f‖²",
            f"{words.number(row['grad_norm_sq'])}  (best {words.number(row['best_grad_norm_sq'])})",
        ),
        ("f", words.number(row["loss"], 8)),
    ]
    if not math.isnan(row["accuracy"]):
        rows.append(("accuracy", words.number(row["accuracy"], 4)))
    rows += [("up", f"{sent('up')} per client"), ("down", sent("down"))]
    rows.append(
        ("saved in", folder + ("  (was there already: --fresh runs it again)" if before else ""))
    )
    rows.append(("next", f"raybench report {folder}"))
    out.print(pairs(rows))
