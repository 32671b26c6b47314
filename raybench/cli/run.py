"""The verb ``run``: one cell from flags, here and now; and those flags, which ``show`` has too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from raybench.cli import shared
from raybench.cli.shared import Screen, load_plugins, note, pairs, results_of
from raybench.core.errors import InputError
from raybench.core.facts import Role

if TYPE_CHECKING:
    from raybench.execution.batch import Resolved
    from raybench.execution.checks import Skipped
    from raybench.spec import Sweep

Number = dict[str, object]
USUAL_PROBLEM = "logistic:dataset=breast_cancer,scale=columns,clients=10"

ProblemFlag = Annotated[
    str | None,
    Option(metavar="NAME[:KEY=VALUE,...]", help=f"The problem. [default: {USUAL_PROBLEM}]"),
]
DatasetFlag = Annotated[
    str | None, Option(metavar="NAME|PATH", help="Its data set; raybench ls datasets.")
]
ClientsFlag = Annotated[int | None, Option(metavar="N", help="How many clients share it.")]
CompressorFlag = Annotated[
    str | None,
    Option(
        metavar="NAME[:KEY=VALUE,...]",
        help=f"The compressor. [default: {' or '.join(sorted({r.usual_form for r in Role}))}]",
    ),
]
DownlinkFlag = Annotated[
    str | None, Option(metavar="NAME[:KEY=VALUE,...]", help="The server's compressor.")
]


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
    its features as they are. Raises InputError for a malformed short form.
    """
    from raybench.spec import short

    section = short.parse(problem or USUAL_PROBLEM, "problem")
    if problem is None and dataset is not None:
        section = {"name": section["name"], "clients": section["clients"]}
    flags = {"dataset": dataset, "clients": clients}
    section |= {key: value for key, value in flags.items() if value is not None}
    parts = {"compressor": compressor, "downlink": downlink}
    return {
        "problem": section,
        "algorithm": short.parse(algorithm, "algorithm"),
        **{key: short.parse(text, key) for key, text in parts.items() if text is not None},
        **{key: value for key, value in more.items() if value is not None},
    }


def usual_operator(algorithm: str) -> str | None:
    """Return the compressor of a method that takes one where none is given; None where it takes none."""
    from raybench.core import registry

    role = registry.lookup("algorithm", algorithm).facts.up
    return None if role is None else role.usual_form


def folder_name(sweep: Sweep) -> str:
    """Return the name under which runs on a problem are kept together: ``run-<problem>-<hash>``."""
    import hashlib
    import re

    from raybench.spec.parts import canonical

    problem = sweep.cells[0].problem
    digest = hashlib.sha256(canonical(problem.config()).encode()).hexdigest()[:6]
    words = [problem.name, str(problem.params.get("dataset") or "").rsplit("/", 1)[-1], digest]
    plain = (re.sub(r"[^A-Za-z0-9._]+", "_", word)[:40] for word in words if word)
    return "-".join(["run", *plain])


def run(
    problem: ProblemFlag = None,
    dataset: DatasetFlag = None,
    clients: ClientsFlag = None,
    algorithm: Annotated[str, Option(metavar="NAME[:KEY=VALUE,...]", help="The method.")] = "ef21",
    compressor: CompressorFlag = None,
    downlink: DownlinkFlag = None,
    step: Annotated[
        float | None, Option(metavar="X", help="Step size as a multiple of the theory's.")
    ] = None,
    step_value: Annotated[float | None, Option(metavar="X", help="Step size as a number.")] = None,
    rounds: Annotated[
        float, Option(metavar="T", help="Communication rounds. [default: 1000]", show_default=False)
    ] = 1000,  # a number, so that 1e3 is one
    seed: Annotated[int, Option(help="Drives the algorithm and x0.")] = 0,
    sets: shared.Sets = None,
    plugin: shared.Plugins = None,
    out: shared.Out = None,
    fresh: shared.Fresh = False,
) -> None:
    """Run one cell, without Ray, and save it.

    Runs on one problem share a folder, so that raybench table and raybench report compare them.
    """
    from raybench import spec
    from raybench.spec import short

    if step is not None and step_value is not None:
        raise InputError.of("--step", "and --step-value together", "give one of them")
    steps: Number | None = None if step is None else {"theory": step}
    steps = {"value": step_value} if step_value is not None else steps
    name = short.parse(algorithm, "algorithm")["name"]
    if compressor is None:
        load_plugins(plugin)
        compressor = usual_operator(name)
    given = config(
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
        named = folder_name(sweep)
        sweep = spec.load(given, sets=sets or (), plugins=plugin or (), name=named)
    _work(sweep, results_of(sweep, out), fresh)


def _work(sweep: Sweep, folder: str, fresh: bool) -> None:
    from raybench.core.process import Terminated
    from raybench.execution.plan import make_plan
    from raybench.runtime.driver import drive

    plan = make_plan(sweep)
    for cell in plan.skipped:
        raise InputError.of("run", cell.why.text, _way_out(cell))
    outcome = drive(sweep, folder, inline=True, fresh=fresh, beside=True)
    note(*outcome.plan.notes[len(sweep.notes) :])
    if outcome.interrupted:
        raise Terminated if outcome.terminated else KeyboardInterrupt
    _show(plan.cells[0], folder, before=not outcome.plan.batches)
    raise typer.Exit(outcome.exit_code)


def _way_out(skipped: Skipped) -> str:
    """Return the flags that would run what is skipped, or else the keys of a sweep file that would."""
    from raybench.execution.checks import SkipCode

    usual = usual_operator(skipped.cell.algorithm.name)
    flags = {
        SkipCode.NO_STEP: "--step-value 0.1, or --set step_size.of=gd for multiples of gd's step",
        SkipCode.VERTICAL_METHOD: f"--problem vertical_least_squares:{USUAL_PROBLEM.partition(':')[2]}",
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

    from raybench import store
    from raybench.report import words

    cells = store.cells(folder)
    row = cells[cells["cell"] == resolved.id].iloc[0]
    out = Screen()
    data = [row["dataset"]] if words.known(row["dataset"]) else []
    size = f"{row['clients']:.0f} clients, d = {row['d']:,.0f}"
    about = f"  {', '.join([*data, size])}"
    out.head(f"{row['label']} on {row['problem']}", about, dim=True)
    if row["status"] == "failed":
        out.print(pairs([("failed", _cause(str(row["error"]))), ("saved in", folder)]))
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
    rows: list[tuple[str, object]] = [
        ("ended", f"{row['status']} after {row['rounds']:,.0f} rounds, {row['seconds']:.3g} s"),
        ("step size", step),
        ("‖∇f‖²", f"{words.number(row['grad_norm_sq'])}  (best {best})"),
        ("f", words.number(row["loss"], 8)),
    ]
    if not math.isnan(row["accuracy"]):
        rows.append(("accuracy", words.number(row["accuracy"], 4)))
    rows += [("up", f"{sent('up')} per client"), ("down", sent("down"))]
    already = "  (was there already: --fresh runs it again)" if before else ""
    rows.append(("saved in", folder + already))
    rows.append(("next", f"raybench report {folder}"))
    out.print(pairs(rows))
