"""The verb ``advise``: whether compression pays for a model on a network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from typer import Argument, Option

from raybench.cli import shared
from raybench.cli.shared import Screen, digits, listing, note, pairs
from raybench.core.errors import InputError, count, nearest

if TYPE_CHECKING:
    from rich.table import Table

    from raybench.clock.clients import WaitingServer
    from raybench.measure.advise import Candidate, Gradients
    from raybench.measure.payoff import Case, Compute

GPUS = ("2", "8", "64")
MODELS = (
    *("autoencoder", "causal_lm", "mlp", "mnist_cnn"),
    *("resnet18", "resnet20", "transformer", "vgg11"),
)
LINKS = ("100Mbit", "1Gbit", "10Gbit", "100Gbit")
MOST_WORKERS = 1_000_000
FORWARD_SHARE = 0.5  # of the backward pass, which takes about twice the operations
LINKS_AT_ONCE = 4
FIGURES = ("pays", "speedup", "pays_below", "speedup_free", "pays_below_free")  # in JSON
CPU_TIMES = "encode and decode: times of a CPU, measured on this machine's CPU"
METHODS = ("diloco", "diloco_int8", "float32", "power_sgd", "sparseloco")  # that are no compressors
LEGEND = (
    "* pays: saves 5 % of the step or more. pays below: up to which rate of the link, at the latency of the "
    "fastest link shown; free codec: the same if encoding and decoding took no time. Errors are "
    "‖C(g) − g‖²/‖g‖², kept by error feedback and sent later, or lost. via: messages are gathered, summed on "
    "the way (reduce), or either gathered or averaged in parts (all_to_all), by what is faster. "
    "Local steps change the optimization itself, so they have no such error: only training tells what they lose. "
    "Casts to 16 bits are not charged; as float32 they travel in buckets behind the backward pass. "
    "In bytes alone, k of d entries that are gathered, c bytes each, beat a bf16 ring of n workers only if k/d < 4/(c n)."
)

LATE = (
    "Late gradients help less than fresh ones, and the more noise, the more of them are worth their wait: "
    "raybench sweep stragglers compares methods to a target; docs/clock.md."
)


class Advice(NamedTuple):
    """What is printed. passes, codecs: whose the seconds of the passes are, and those of the codecs."""

    source: Gradients
    compute: Compute
    passes: str
    codecs: str
    rows: Sequence[Candidate]
    cases: Sequence[Case]
    waits: Mapping[int, list[WaitingServer]]


def advise(
    model: Annotated[
        str,
        Argument(
            metavar="MODEL|FOLDER",
            help="resnet18, transformer, torchvision:NAME, my_module:function, or recorded gradients.",
        ),
    ],
    gpus: Annotated[
        list[str] | None, Option(metavar="N", help="Workers; 2,8,64 or repeat. [default: 2,8,64]")
    ] = None,
    link: Annotated[
        list[str] | None,
        Option(
            metavar="LINK",
            help="1Gbit, 10Gbit,20ms,server, 31MB/s,80us; repeat. [default: 100Mbit to 100Gbit]",
        ),
    ] = None,
    batch: Annotated[int, Option(metavar="B", min=1, help="Samples of a worker's gradient.")] = 16,
    backward: Annotated[
        float | None, Option(metavar="SECONDS", help="Your backward pass. [default: measured here]")
    ] = None,
    forward: Annotated[
        float | None,
        Option(metavar="SECONDS", help="Your forward pass. [default: half the backward]"),
    ] = None,
    dataset: shared.DatasetFlag = None,
    compressor: Annotated[
        list[str] | None,
        Option(metavar="OP", help="top_k:k=5%, ..; repeat. [default: a catalogue]"),
    ] = None,
    clock: Annotated[
        str | None,
        Option(
            metavar="FILE|{..}",
            help="Workers of different speed, '{compute: {lognormal: {median: 0.1, sigma: 0.5}}}': what waiting costs.",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        Option(metavar="FILE", help="Codecs' times of a GPU: gpu.json of benchmarks/gpu.py."),
    ] = None,
    json: shared.Json = False,
    plugin: shared.Plugins = None,
) -> None:
    """Say whether compression pays for a model on a network.

    Replays compressors on real gradients, times their codecs here, and compares a step with that of
    data-parallel training in bfloat16 by a model of the network.
    """
    from raybench.clock.links import parse_network
    from raybench.core.registry import check_name

    # what needs no torch is checked before it is imported, which takes seconds
    workers = _workers(gpus or GPUS)
    networks = {text: parse_network(text) for text in link or LINKS}
    for key, seconds in (("--forward", forward), ("--backward", backward)):
        if seconds is not None and not 0 < seconds < math.inf:
            raise InputError.of(key, f"{seconds:g} is out of range", "seconds > 0, such as 0.12")
    if not {":", "/"} & {*model} and model not in MODELS and not Path(model).exists():
        fix = f"{nearest(model, MODELS)}; or torchvision:NAME, my_module:function, or a folder"
        raise InputError.of("model", f"unknown model {model!r}", fix)
    for text in () if plugin else compressor or ():
        name = text.partition(":")[0]
        if name not in METHODS:
            check_name("compressor", name, "--compressor.name")

    from raybench.measure.payoff import case_of, gpu_codecs

    codecs = None if gpu is None else gpu_codecs(gpu)

    from raybench.clock.clients import waiting
    from raybench.measure.advise import baseline, candidates, gradients, on_gpu, replay
    from raybench.measure.timing import busy

    timed = None if clock is None else shared.typed_clock(clock)
    asked = candidates(compressor)
    doubt = busy()
    source = gradients(model, dataset, batch)
    compute, passes = _compute(source, forward, backward)
    rows, times = replay(asked, source.layout, source.vectors), CPU_TIMES
    if codecs is not None:
        rows = on_gpu(rows, codecs, source.layout.dim)
        times = f"encode and decode: times of {codecs.device}"
    base = baseline(source.layout.dim)
    measured = [row for row in rows if not row.left_out]
    cases = [
        case_of(name, network, n, compute, base, measured)
        for n in workers
        for name, network in networks.items()
    ]
    waits = {} if timed is None else {n: waiting(timed, n) for n in workers}
    advice = Advice(source, compute, passes, times, rows, cases, waits)
    if json:
        _print_json(advice)
    else:
        _print(Screen(), advice)
    note(source.note, doubt)


def _workers(texts: Sequence[str]) -> list[int]:
    words = [word.strip() for text in texts for word in text.split(",")]
    for word in words:
        if not word.isdigit() or not 2 <= int(word) <= MOST_WORKERS:
            fix = "an integer >= 2, or several: 2,8,64; one worker has nothing to exchange"
            raise InputError.of("--gpus", f"{word!r} is out of range", fix)
    return list(dict.fromkeys(map(int, words)))


def _compute(
    source: Gradients, forward: float | None, backward: float | None
) -> tuple[Compute, str]:
    """Return the seconds of a step's passes, and whose they are."""
    from raybench.measure.payoff import Compute

    back = backward if backward is not None else source.backward
    if back is None:
        what = "is missing: the record does not tell how long a backward pass takes"
        raise InputError.of("--backward", what, "such as --backward 0.12")
    if backward is None and source.forward is not None:
        return Compute(forward or source.forward, back), "measured on this machine's CPU"
    whose = "backward as the run recorded it" if backward is None else "backward as given"
    whose += ", forward taken to be half of it" if forward is None else ", forward as given"
    return Compute(forward or FORWARD_SHARE * back, back), whose


def _print_json(advice: Advice) -> None:
    """Print everything as JSON: seconds, bytes, bytes per second; infinite and unknown numbers are null.

    What pays at any bandwidth pays below null, at none below 0.
    """
    from dataclasses import asdict
    from json import dumps, loads

    figures = {
        "gradients": advice.source.about,
        "parameters": advice.source.layout.dim,
        "steps": advice.source.steps,
        **asdict(advice.compute),
        "passes": advice.passes,
        "codecs": advice.codecs,
        "operators": [asdict(row) for row in advice.rows],
        "networks": [
            {
                "gpus": case.n,
                "link": case.link,
                "network": str(case.network),
                "baseline": asdict(case.baseline),
                "methods": [
                    {"name": v.exchange.name, "step": asdict(v.step)}
                    | {key: getattr(v, key) for key in FIGURES}
                    for v in case.verdicts
                ],
                "recommendation": _sentence(case),
            }
            for case in advice.cases
        ],
        "waiting": [{"gpus": n, **asdict(row)} for n, rows in advice.waits.items() for row in rows],
        "steps_to_target": None,
    }
    finite = loads(dumps(figures), parse_constant=lambda word: None)
    print(dumps(finite, indent=1))


def _print(out: Screen, advice: Advice) -> None:
    """Print the figures, the seconds of a step, the advice, and what waiting costs."""
    from raybench.clock.links import time_word

    forward, backward = time_word(advice.compute.forward), time_word(advice.compute.backward)
    out.head(advice.source.about)
    out.dim(f"  {count(advice.source.layout.dim, 'parameter')}")
    out.dim(f"  forward {forward}, backward {backward}: {advice.passes}")
    out.dim(f"  {advice.codecs}")
    workers = list(dict.fromkeys(case.n for case in advice.cases))
    out.head("\nWhat compressors do to these gradients")
    out.print(_compressors(advice.rows))
    for row in advice.rows:
        if row.left_out:
            out.dim(f"  left out: {row.name}: {row.left_out}")
    for n in workers:
        every = [case for case in advice.cases if case.n == n]
        for first in range(0, len(every), LINKS_AT_ONCE):
            out.head(f"\nSeconds a step, {n} workers")
            out.print(_steps(every[first : first + LINKS_AT_ONCE]))
    for case in [case for case in advice.cases if case.n == workers[0]]:
        out.dim(f"  {case.link}: {str(case.network).removeprefix(f'{case.network.link.name}: ')}")
    out.dim(LEGEND)
    out.head("\nAdvice")
    out.print(pairs([(f"{c.n} workers, {c.link}", _sentence(c)) for c in advice.cases]))
    out.print("\nHow many steps a method needs to a target is unknown: only training tells.")
    for n, waiting in advice.waits.items():
        out.head(f"\n  {n} workers of different speed")
        out.print(_waiting(waiting))
    if advice.waits:
        out.set_in(LATE, "dim")


def _compressors(rows: Sequence[Candidate]) -> Table:
    lines = [
        (
            row.name,
            row.collectives[0] if len(row.collectives) == 1 else "either",
            f"{row.size / 1e6:.3g}",
            f"{1e3 * row.encode:.3g}",
            f"{1e3 * row.decode:.3g}",
            f"{'' if row.error is None else f'{row.error:.2g}'} {row.dropped}".strip(),
        )
        for row in rows
        if not row.left_out
    ]
    heads = ("compressor", "via", "MB", "enc. ms", "dec. ms", "error")
    return listing(heads, lines, right=heads[2:], fold="compressor")


def _waiting(rows: list[WaitingServer]) -> Table:
    most = max(row.rate for row in rows)
    cells = [
        (f"  {row.who}", f"{row.rate:.3g}", f"{row.rate / most:.0%}", f"{row.wasted:.0%}")
        for row in rows
    ]
    heads = ("  the server waits for", "gradients used a second", "of the most", "time wasted")
    return listing(heads, cells, right=heads[1:])


def _steps(cases: list[Case]) -> Table:
    """Return the seconds of a step by link; break-even is that at the latency of the fastest of them."""
    reference = max(cases, key=lambda case: case.network.link.bandwidth)
    base = (f"{digits(case.baseline.seconds)} " for case in cases)
    rows = [("bf16, the baseline", "", "", *base)]
    for i, verdict in enumerate(reference.verdicts):
        limits = map(_rate, (verdict.pays_below, verdict.pays_below_free))
        here = [case.verdicts[i] for case in cases]
        steps = (f"{digits(v.step.seconds)}{'*' if v.pays else ' '}" for v in here)
        rows.append((verdict.exchange.name, *limits, *steps))
    heads = ("compressor", "pays below", "free codec", *(c.link.replace(",", ",\n") for c in cases))
    return listing(heads, rows, right=heads[1:], fold="compressor")


def _sentence(case: Case) -> str:
    """Return what to do on a network, in one sentence."""
    from raybench.clock.links import time_word
    from raybench.measure.payoff import MOST_ERROR

    base = time_word(case.baseline.seconds)
    best, gentle, near = case.best(), case.gentlest, case.best(paying=False)
    clauses = []
    if best is not None:
        clauses.append(
            f"{best.exchange.name} takes {time_word(best.step.seconds)} a step, bf16 {base}: it "
            f"pays unless it needs {digits(best.speedup)} times the steps"
        )
        if gentle is not None and gentle is not best:
            faster = f"{gentle.exchange.name}, {digits(gentle.speedup)} times as fast"
            clauses.append(f"with the least error {faster}")
    elif near is None:
        clauses.append(f"nothing to compare with an error below {MOST_ERROR:g}")
        clauses.append(f"bf16 takes {base} a step")
    else:
        saved = " (less than 5 % saved)" if near.speedup > 1 else ""
        clauses.append(
            f"none pays; bf16 takes {base} a step, the next best with an error below "
            f"{MOST_ERROR:g}, {near.exchange.name}, {time_word(near.step.seconds)}{saved}"
        )
        free = max(case.verdicts, key=lambda v: v.speedup_free if v.near else 0.0)
        if 1 / free.speedup_free > 0.95:
            clauses.append("a codec that takes no time would not change that")
        else:
            faster = f"{free.exchange.name} would be {digits(free.speedup_free)} times as fast"
            clauses.append(f"with a codec that takes no time {faster}")
    if local := case.best(local=True):
        clauses.append(
            f"with {local.exchange.every} local steps between exchanges {local.exchange.name} is "
            f"{digits(local.speedup)} times as fast, if it needs no more steps"
        )
    return "; ".join(clauses) + "."


def _rate(bandwidth: float) -> str:
    """Return bytes per second as bit/s: 350 Mbit/s, any, never."""
    from raybench.clock.links import rate_word

    if math.isinf(bandwidth) or bandwidth == 0:
        return "any" if bandwidth else "never"
    return rate_word(bandwidth)
