"""The verb ``advise``: whether compression pays for a model on a network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from raybench.cli import shared
from raybench.cli.shared import Screen, count, listing, load_plugins, new_file, note, pairs
from raybench.core.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from raybench.analysis.links import Network
    from raybench.measure.advise import Candidate, Gradients
    from raybench.measure.payoff import Case, Compute

GPUS = ("2", "8", "64")
LINKS = ("100Mbit", "1Gbit", "10Gbit", "100Gbit")
MOST_WORKERS = 1_000_000
FORWARD_SHARE = 0.5  # of the backward pass, which takes about twice the operations
NARROW = 76  # columns below which a table does without what matters less
LINKS_AT_ONCE = 4
LABEL = 17
WIDEST_LINK = 8  # letters of a column's head
OF_THE_MODEL = ("dense", "parts", "every", "overlaps", "memory", "role")  # not in JSON
RULE_BY = "top_k:k=1%"
WITH_THE_MODEL = "With the model, --sweep FILE.yaml writes a sweep."
LEGEND = (
    "* pays: saves 5 % of the step or more. pays below: up to which bit/s of the link, at the latency of the "
    "fastest link shown; free codec: the same if encoding and decoding took no time. Errors are "
    "‖C(g) − g‖²/‖g‖², kept by error feedback and sent later, or lost. via: messages are gathered, summed on "
    "the way (reduce), or either gathered or averaged in parts (all_to_all), by what is faster. State: what a "
    "method keeps on a worker. Casts to 16 bits are not charged; as float32 they travel in buckets behind the "
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
    dataset: Annotated[
        str | None, Option(metavar="NAME", help="[default: a usual one of the model]")
    ] = None,
    compressor: Annotated[
        list[str] | None,
        Option(metavar="OP", help="top_k:k=5%, ..; repeat. [default: a catalogue]"),
    ] = None,
    sweep: Annotated[
        str | None,
        Option(metavar="FILE.yaml", help="Write the sweep that tells how many steps it takes."),
    ] = None,
    json: Annotated[bool, Option("--json", help="Print the figures as JSON.")] = False,
    plugin: shared.Plugins = None,
) -> None:
    """Say whether compression pays for a model on a network.

    Replays compressors on real gradients, times their codecs here, and compares a step with that of
    data-parallel training in bfloat16 by a model of the network.
    """
    from raybench.analysis.links import parse
    from raybench.data.recorded import is_record
    from raybench.measure.advise import BATCH, baseline, chosen, gradients, replay, sweep_text
    from raybench.measure.payoff import case_of
    from raybench.measure.timing import busy

    load_plugins(plugin)
    workers, networks = _workers(gpus or GPUS), {text: parse(text) for text in link or LINKS}
    asked, goal = chosen(compressor), None
    if sweep is not None:  # whatever is in the way is said before anything is measured
        goal = new_file("--sweep", sweep)
        if is_record(model):
            what = "recorded gradients do not tell how to train the model"
            raise InputError.of("--sweep", what, "give the model: my_module:function")
    for key, seconds in (("--forward", forward), ("--backward", backward)):
        if seconds is not None and not 0 < seconds < math.inf:
            raise InputError.of(key, f"{seconds:g} is out of range", "seconds > 0, such as 0.12")
    doubt = busy()
    source = gradients(model, dataset, BATCH if batch is None else batch)
    compute, whose = _compute(source, forward, backward)
    rows = replay(asked, source.layout, source.vectors)
    base = baseline(source.layout.dim)
    measured = [row for row in rows if not row.left_out]
    cases = [
        case_of(name, network, n, compute, base, measured)
        for n in workers
        for name, network in networks.items()
    ]
    if source.note:
        note(source.note)
    if goal is not None:  # messages travel as is fastest on the first network
        assert source.problem is not None
        ways = [v.step.collective for v in cases[0].verdicts]
        candidates = zip(measured, ways, strict=True)
        with goal.open("x", encoding="utf-8") as file:
            file.write(sweep_text(candidates, source.problem, workers[0]))
    if json:
        _print_json(source, compute, whose, rows, cases)
    else:
        _print(Screen(), source, compute, whose, rows, cases, networks)
        after = f"Next: raybench plan {goal}"
        if goal is None:
            model_given = source.problem is not None
            after = "--sweep FILE.yaml writes the sweep." if model_given else WITH_THE_MODEL
        caveat = "How many steps a method needs to a target is unknown: only training tells."
        Screen().print(f"\n{caveat} {after}")
    if doubt:
        note(doubt)


def _workers(given: Sequence[str]) -> list[int]:
    words = [word.strip() for text in given for word in text.split(",")]
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
    if backward is None and source.problem is not None:
        return Compute(forward or source.forward or 0.0, back), "measured on this machine's CPU"
    whose = "backward as given" if backward is not None else "backward as the run recorded it"
    if forward is None:
        whose += ", forward taken to be half of it"
    elif backward is not None:
        whose = "as given"
    return Compute(forward or FORWARD_SHARE * back, back), whose


def _print_json(
    source: Gradients, compute: Compute, whose: str, rows: list[Candidate], cases: list[Case]
) -> None:
    """Print everything as JSON: seconds, bytes, bytes per second; infinite and unknown numbers are null."""
    from dataclasses import asdict
    from json import dumps, loads

    figures = {
        "gradients": source.about,
        "parameters": source.layout.dim,
        "steps": source.steps,
        "forward": compute.forward,
        "backward": compute.backward,
        "passes": whose,
        "operators": [
            {key: value for key, value in vars(row).items() if key not in OF_THE_MODEL}
            for row in rows
        ],
        "networks": [
            {
                "gpus": case.n,
                "link": case.link,
                "network": str(case.network),
                "baseline": asdict(case.baseline),
                "methods": [
                    asdict(v) | {"pays_at_any_bandwidth": math.isinf(v.pays_below), "pays": v.pays}
                    for v in case.verdicts
                ],
                "recommendation": _sentence(case),
            }
            for case in cases
        ],
        "steps_to_target": None,
    }
    finite = loads(dumps(figures), parse_constant=lambda word: None)
    print(dumps(finite, indent=1))


def _print(
    out: Screen,
    source: Gradients,
    compute: Compute,
    whose: str,
    rows: list[Candidate],
    cases: list[Case],
    networks: Mapping[str, Network],
) -> None:
    """Print the rule for sparse messages, the figures, the seconds of a step, and the advice."""
    out.head(source.about)
    out.dim(f"  {count(source.layout.dim, 'parameter')}")
    out.dim(f"  forward {_time(compute.forward)}, backward {_time(compute.backward)}: {whose}")
    out.dim("  encode and decode: measured on this machine's CPU")
    workers = list(dict.fromkeys(case.n for case in cases))
    out.print(f"\n{_rule(rows, workers)}")
    narrow = out.console.width < NARROW
    out.head("\nWhat compressors do to these gradients")
    out.print(_operators(rows, narrow))
    for row in rows:
        if row.left_out:
            out.dim(f"  left out: {row.name}: {row.left_out}")
    names = list(networks)
    labels = {n: n if len(n) <= WIDEST_LINK else f"link {i}" for i, n in enumerate(names, 1)}
    for n in workers:
        for first in range(0, len(names), LINKS_AT_ONCE):
            some = names[first : first + LINKS_AT_ONCE]
            out.head(f"\nSeconds a step, {n} workers")
            out.print(_steps([c for c in cases if c.n == n and c.link in some], labels, narrow))
    for name, network in networks.items():
        about = str(network).removeprefix(f"{network.link.name}: ")
        out.dim(f"  {labels[name]}: {'' if labels[name] == name else f'{name}: '}{about}")
    out.dim(LEGEND)
    out.head("\nAdvice")
    out.print(pairs([(f"{c.n} workers, {labels[c.link]}", _sentence(c)) for c in cases]))


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


def _operators(rows: list[Candidate], narrow: bool) -> Table:
    heads = ["via", "MB", "enc. ms", "dec. ms", "error", "state MB"]
    heads = heads[1:-1] if narrow else heads
    lines = []
    for row in [row for row in rows if not row.left_out]:
        error = row.dropped if row.error is None else f"{row.error:.2g} {row.dropped}"
        cells = {
            "via": row.collectives[0] if len(row.collectives) == 1 else "either",
            "MB": f"{row.size / 1e6:.3g}",
            "enc. ms": f"{1e3 * row.encode:.3g}",
            "dec. ms": f"{1e3 * row.decode:.3g}",
            "error": "0" if row.dropped == "none" else error,
            "state MB": f"{row.state / 1e6:.3g}",
        }
        lines.append((row.name, *(cells[head] for head in heads)))
    return _by_compressor(heads, lines, [head for head in heads if head != "via"])


def _by_compressor(heads: list[str], rows: list[tuple[str, ...]], right: list[str]) -> Table:
    table = listing(("compressor", *heads), rows, right=right, fold="compressor")
    table.columns[0].min_width = LABEL
    return table


def _steps(cases: list[Case], labels: Mapping[str, str], narrow: bool) -> Table:
    """Return the seconds of a step by link; break-even is that at the latency of the fastest of them."""
    reference = max(cases, key=lambda case: case.network.link.bandwidth)
    limits = ["pays below", "free codec"][: 1 if narrow else 2]
    heads = [*limits, *(labels[case.link] for case in cases)]
    base = [f"{_digits(case.baseline.seconds)} " for case in cases]
    rows = [("bf16, the baseline", *([""] * len(limits)), *base)]
    for i, verdict in enumerate(reference.verdicts):
        bounds = [verdict.pays_below, verdict.pays_below_free][: len(limits)]
        here = [case.verdicts[i] for case in cases]
        cells = [f"{_digits(v.step.seconds)}{'*' if v.pays else ' '}" for v in here]
        rows.append((verdict.name, *map(_rate, bounds), *cells))
    return _by_compressor(heads, rows, heads)


def _sentence(case: Case) -> str:
    """Return what to do on a network, in one sentence."""
    base, best, near, local = case.baseline.seconds, case.fastest, case.nearest, ""
    if case.local is not None:
        local = f"; {case.local.every} local steps between exchanges are "
        local += f"{_digits(case.local.speedup)} times as fast"
    if best is None and near is None:
        return f"nothing to compare; bf16 takes {_time(base)} a step{local}."
    if best is not None:
        text = f"{best.name} takes {_time(best.step.seconds)} a step, bf16 {_time(base)}: it pays "
        text += f"unless it needs {_digits(best.speedup)} times the steps"
        gentle = case.gentlest
        if gentle is not None and gentle.name != best.name:
            text += f"; with the least error {gentle.name}, {_digits(gentle.speedup)} times as fast"
        return f"{text}{local}."
    assert near is not None
    text = f"none pays; bf16 takes {_time(base)} a step, the next best, {near.name}, "
    text += _time(near.step.seconds) + (" (less than 5 % saved)" if near.speedup > 1 else "")
    free = max(case.verdicts, key=lambda v: v.speedup_free if v.every == 1 else 0.0)
    if 1 / free.speedup_free > 0.95:
        return f"{text}, and a codec that takes no time would not change that{local}."
    text += f"; with a codec that takes no time {free.name} would be {_digits(free.speedup_free)}"
    return f"{text} times as fast{local}."


def _digits(value: float) -> str:
    """Return seconds in three digits: 0.0123, 1.23, 123."""
    return f"{value:#.3g}".rstrip(".") if value < 1000 else f"{value:,.0f}"


def _time(seconds: float) -> str:
    return f"{_digits(seconds)} s" if seconds >= 0.1 else f"{_digits(1e3 * seconds)} ms"


def _rate(bandwidth: float) -> str:
    """Return bytes per second as bit/s in short: 350M, 1.2G, any, never."""
    if math.isinf(bandwidth) or bandwidth == 0:
        return "any" if bandwidth else "never"
    bits = 8 * bandwidth
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if bits >= size:
            return f"{bits / size:.3g}{unit}" if bits < 1000 * size else f"{bits / size:.0f}{unit}"
    return f"{bits:.3g}"
