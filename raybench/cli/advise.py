"""The verb ``advise``: whether compression pays for a model on a network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from raybench.cli import shared
from raybench.cli.shared import Screen, count, listing, load_plugins, note, pairs
from raybench.core.errors import InputError, nearest

if TYPE_CHECKING:
    from rich.table import Table

    from raybench.clock.clients import Waiting
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
RULE_BY = "top_k:k=1%"
LEGEND = (
    "* pays: saves 5 % of the step or more. pays below: up to which rate of the link, at the latency of the "
    "fastest link shown; free codec: the same if encoding and decoding took no time. Errors are "
    "‖C(g) − g‖²/‖g‖², kept by error feedback and sent later, or lost. via: messages are gathered, summed on "
    "the way (reduce), or either gathered or averaged in parts (all_to_all), by what is faster. "
    "Local steps change the optimization itself, so they have no such error: only training tells what they lose. "
    "Casts to 16 bits are not charged; as float32 they travel in buckets behind the "
    "backward pass."
)


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
    batch: Annotated[
        int | None, Option(metavar="B", help="Samples of a worker's gradient. [default: 16]")
    ] = None,
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
    from raybench.clock.links import parse
    from raybench.core.registry import check_name
    from raybench.measure import gpu_file

    # what needs no torch is checked before it is imported, which takes seconds
    workers, networks = _workers(gpus or GPUS), {text: parse(text) for text in link or LINKS}
    codecs = None if gpu is None else gpu_file.read(gpu)
    for key, seconds in (("--forward", forward), ("--backward", backward)):
        if seconds is not None and not 0 < seconds < math.inf:
            raise InputError.of(key, f"{seconds:g} is out of range", "seconds > 0, such as 0.12")
    if batch is not None and batch < 1:
        raise InputError.of("--batch", f"{batch} is out of range", "an integer >= 1")
    if not {":", "/"} & {*model} and model not in MODELS and not Path(model).exists():
        fix = f"{nearest(model, MODELS)}; or torchvision:NAME, my_module:function, or a folder"
        raise InputError.of("model", f"unknown model {model!r}", fix)
    for text in () if plugin else compressor or ():
        name = text.partition(":")[0]
        if name not in METHODS:
            check_name("compressor", name, "--compressor.name")

    from raybench.clock.clients import waiting
    from raybench.measure.advise import BATCH, baseline, chosen, gradients, replay
    from raybench.measure.payoff import case_of
    from raybench.measure.timing import busy

    load_plugins(plugin)
    timed = None if clock is None else shared.typed_clock(clock)
    asked = chosen(compressor)
    doubt = busy()
    source = gradients(model, dataset, BATCH if batch is None else batch)
    compute, whose = _compute(source, forward, backward)
    rows = replay(asked, source.layout, source.vectors)
    if codecs is not None:
        rows = codecs.served(rows, source.layout.dim)
    whose_codecs = CPU_TIMES if codecs is None else f"encode and decode: times of {codecs.device}"
    base = baseline(source.layout.dim)
    measured = [row for row in rows if not row.left_out]
    cases = [
        case_of(name, network, n, compute, base, measured)
        for n in workers
        for name, network in networks.items()
    ]
    waits = {} if timed is None else {n: waiting(timed, n) for n in workers}
    if json:
        _print_json(source, compute, (whose, whose_codecs), rows, cases, waits)
    else:
        _print(Screen(), source, compute, (whose, whose_codecs), rows, cases)
        _print_waiting(Screen(), waits)
    note(*filter(None, (source.note, doubt)))


def _workers(texts: Sequence[str]) -> list[int]:
    words = [word.strip() for text in texts for word in text.split(",")]
    for word in words:
        if not word.isdigit() or not 2 <= int(word) <= MOST_WORKERS:
            few = f"{word!r} workers have nothing to exchange"
            what = few if word in ("0", "1") else repr(word)
            raise InputError.of("--gpus", what, "an integer >= 2, or several: 2,8,64")
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
        return Compute(forward or source.forward or 0.0, back), "measured on this machine's CPU"
    whose = "backward as given" if backward is not None else "backward as the run recorded it"
    if forward is None:
        whose += ", forward taken to be half of it"
    elif backward is not None:
        whose = "as given"
    return Compute(forward or FORWARD_SHARE * back, back), whose


def _print_json(
    source: Gradients,
    compute: Compute,
    whose: tuple[str, str],
    rows: list[Candidate],
    cases: list[Case],
    waits: Mapping[int, list[Waiting]],
) -> None:
    """Print everything as JSON: seconds, bytes, bytes per second; infinite and unknown numbers are null.

    What pays at any bandwidth pays below null, at none below 0.
    """
    from dataclasses import asdict
    from json import dumps, loads

    figures = {
        "gradients": source.about,
        "parameters": source.layout.dim,
        "steps": source.steps,
        **asdict(compute),
        "passes": whose[0],
        "codecs": whose[1],
        "operators": [asdict(row) for row in rows],
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
            for case in cases
        ],
        "waiting": [{"gpus": n, **asdict(row)} for n, rows in waits.items() for row in rows],
        "steps_to_target": None,
    }
    finite = loads(dumps(figures), parse_constant=lambda word: None)
    print(dumps(finite, indent=1))


def _print_waiting(out: Screen, waits: Mapping[int, list[Waiting]]) -> None:
    """Print what waiting for slow workers costs, a table for each number of them."""
    for n, rows in waits.items():
        out.head(f"\n  {n} workers of different speed")
        most = max(row.rate for row in rows)
        cells = [
            (f"  {row.who}", f"{row.rate:.3g}", f"{row.rate / most:.0%}", f"{row.wasted:.0%}")
            for row in rows
        ]
        heads = ("  the server waits for", "gradients used a second", "of the most", "time wasted")
        out.print(listing(heads, cells, right=heads[1:]))
    if waits:
        out.set_in(
            "Late gradients help less than fresh ones, and the more noise, the more of them are worth their wait: "
            "raybench sweep sweeps/stragglers.yaml compares methods to a target; docs/clock.md.",
            "dim",
        )


def _print(
    out: Screen,
    source: Gradients,
    compute: Compute,
    whose: tuple[str, str],
    rows: list[Candidate],
    cases: list[Case],
) -> None:
    """Print the rule for sparse messages, the figures, the seconds of a step, and the advice."""
    from raybench.clock.links import time_word

    out.head(source.about)
    out.dim(f"  {count(source.layout.dim, 'parameter')}")
    passes = f"forward {time_word(compute.forward)}, backward {time_word(compute.backward)}"
    out.dim(f"  {passes}: {whose[0]}")
    out.dim(f"  {whose[1]}")
    workers = list(dict.fromkeys(case.n for case in cases))
    out.print(f"\n{_rule(rows, workers)}")
    out.head("\nWhat compressors do to these gradients")
    out.print(_compressors(rows))
    for row in rows:
        if row.left_out:
            out.dim(f"  left out: {row.name}: {row.left_out}")
    for n in workers:
        every = [case for case in cases if case.n == n]
        for first in range(0, len(every), LINKS_AT_ONCE):
            out.head(f"\nSeconds a step, {n} workers")
            out.print(_steps(every[first : first + LINKS_AT_ONCE]))
    for case in [case for case in cases if case.n == workers[0]]:
        out.dim(f"  {case.link}: {str(case.network).removeprefix(f'{case.network.link.name}: ')}")
    out.dim(LEGEND)
    out.head("\nAdvice")
    out.print(pairs([(f"{c.n} workers, {c.link}", _sentence(c)) for c in cases]))
    out.print("\nHow many steps a method needs to a target is unknown: only training tells.")


def _rule(rows: list[Candidate], workers: list[int]) -> str:
    """Return the rule that says from bytes alone when gathered sparse messages are fewer than a ring's."""
    from raybench.measure.payoff import GATHER, sparse_share

    sparse = {
        row.name: row.size / row.entries
        for row in rows
        if not row.left_out and row.entries > 0
        if GATHER in row.collectives and row.operator.selection
    }
    text = "In bytes alone, k of d entries that are gathered beat a bf16 ring only if k/d < 4/(c n)"
    if not sparse:
        return f"{text}, with c bytes an entry and n workers."
    label = RULE_BY if RULE_BY in sparse else next(iter(sparse))
    c = sparse[label]
    limits = [(n, sparse_share(n, c)) for n in workers]
    shares = [f"{f'{s:.3g}' if s >= 1 else f'{100 * s:.2g} %'} for {n}" for n, s in limits]
    return f"{text}: here, with c = {c:.2f} bytes ({label}), below {', '.join(shares)} workers."


def _compressors(rows: list[Candidate]) -> Table:
    lines = []
    for row in [row for row in rows if not row.left_out]:
        error = row.dropped if row.error is None else f"{row.error:.2g} {row.dropped}"
        lines.append(
            (
                row.name,
                row.collectives[0] if len(row.collectives) == 1 else "either",
                f"{row.size / 1e6:.3g}",
                f"{1e3 * row.encode:.3g}",
                f"{1e3 * row.decode:.3g}",
                "0" if row.dropped == "none" else error,
            )
        )
    heads = ("compressor", "via", "MB", "enc. ms", "dec. ms", "error")
    return listing(heads, lines, right=heads[2:], fold="compressor")


def _steps(cases: list[Case]) -> Table:
    """Return the seconds of a step by link; break-even is that at the latency of the fastest of them."""
    reference = max(cases, key=lambda case: case.network.link.bandwidth)
    base = (f"{_digits(case.baseline.seconds)} " for case in cases)
    rows = [("bf16, the baseline", "", "", *base)]
    for i, verdict in enumerate(reference.verdicts):
        limits = map(_rate, (verdict.pays_below, verdict.pays_below_free))
        here = [case.verdicts[i] for case in cases]
        steps = (f"{_digits(v.step.seconds)}{'*' if v.pays else ' '}" for v in here)
        rows.append((verdict.exchange.name, *limits, *steps))
    heads = ("compressor", "pays below", "free codec", *(c.link.replace(",", ",\n") for c in cases))
    return listing(heads, rows, right=heads[1:], fold="compressor")


def _sentence(case: Case) -> str:
    """Return what to do on a network, in one sentence."""
    from raybench.clock.links import time_word
    from raybench.measure.payoff import MOST_ERROR

    base = time_word(case.baseline.seconds)
    best, gentle, local = case.best(), case.gentlest, case.best(local=True)
    more = ""
    if local is not None:
        more = (
            f"; with {local.exchange.every} local steps between exchanges {local.exchange.name} is "
        )
        more += f"{_digits(local.speedup)} times as fast, if it needs no more steps"
    if best is not None:
        text = f"{best.exchange.name} takes {time_word(best.step.seconds)} a step, bf16 {base}: it "
        text += f"pays unless it needs {_digits(best.speedup)} times the steps"
        if gentle is not None and gentle is not best:
            text += f"; with the least error {gentle.exchange.name}, "
            text += f"{_digits(gentle.speedup)} times as fast"
        return f"{text}{more}."
    near = case.best(paying=False)
    if near is None:
        few = f"nothing to compare with an error below {MOST_ERROR:g}"
        return f"{few}; bf16 takes {base} a step{more}."
    text = f"none pays; bf16 takes {base} a step, the next best with an error below "
    text += f"{MOST_ERROR:g}, {near.exchange.name}, "
    text += time_word(near.step.seconds) + (" (less than 5 % saved)" if near.speedup > 1 else "")
    free = max(case.verdicts, key=lambda v: v.speedup_free if v.near else 0.0)
    if 1 / free.speedup_free > 0.95:
        return f"{text}, and a codec that takes no time would not change that{more}."
    text += f"; with a codec that takes no time {free.exchange.name} would be "
    return f"{text}{_digits(free.speedup_free)} times as fast{more}."


def _digits(value: float) -> str:
    """Return seconds in three digits: 0.0123, 1.23, 123."""
    return f"{value:#.3g}".rstrip(".") if value < 1000 else f"{value:,.0f}"


def _rate(bandwidth: float) -> str:
    """Return bytes per second as bit/s: 350 Mbit/s, any, never."""
    from raybench.clock.links import rate_word

    if math.isinf(bandwidth) or bandwidth == 0:
        return "any" if bandwidth else "never"
    return rate_word(bandwidth)
