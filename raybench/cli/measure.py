"""The verbs that measure compressors: ``bench`` (time and bytes, and links), ``study`` (error), ``advise`` (what pays)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raybench.cli.shared import (
    RESULTS_FOLDER,
    Plugins,
    Screen,
    console,
    count,
    listing,
    load_plugins,
    note,
    pairs,
)

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table
    from torch import Tensor

    from raybench.analysis.links import Network
    from raybench.measure.advise import Gradients, Replayed
    from raybench.measure.payoff import Case, Compute
    from raybench.measure.timing import Measured

VECTORS = ("resnet18", "gaussian")
DEVICES = ("cpu", "cuda")
NONE = "none"
USUAL_BATCH = "64,20,112"
CLONE = "x.clone()"
COLUMN_HEADS = ("compress", "decode", "pack", "unpack", "error", "bytes", "bits/d", "of dense")
NARROW_SCREEN = 96  # a terminal of fewer columns gets a table without the bytes
Json = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]


def bench(
    operators: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME[:KEY=VALUE,...]|link", help="Operators, or the link. [default: the usual]"
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every operator there is.")] = False,
    d: Annotated[
        int | None,
        typer.Option("--d", metavar="D", min=1, help="Length of the long vector. [default: all]"),
    ] = None,
    batch: Annotated[
        str, typer.Option(metavar="B,n,d", help="Shape of the batch of short ones, or none.")
    ] = USUAL_BATCH,
    vector: Annotated[
        str, typer.Option(metavar="NAME", help="The long vector: resnet18, gaussian or none.")
    ] = VECTORS[0],
    gradient: Annotated[
        str | None, typer.Option(metavar="FILE.npy", help="A long vector of your own.")
    ] = None,
    processes: Annotated[
        int, typer.Option(metavar="N", min=2, max=64, help="Of `link`: processes here.")
    ] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Turns; the best of each counts.")] = 10,
    limit: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Time for one operator on one vector.")
    ] = 5.0,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads. [default: torch's choice]")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = DEVICES[0],
    json: Json = False,
    out: Annotated[
        str | None, typer.Option(metavar="FILE.parquet", help="Save the figures.")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Time operators on a real gradient and on short vectors; or, as `bench link`, messages between processes.

    Times of compress, decode, pack and unpack are multiples of copying the vector into a buffer. The
    gradient is one of ResNet-18, 11,181,642 numbers. Beside them: error, bytes and modelled bits.

    `bench link` times exchanges over gloo between --processes of this machine, or between those that torchrun has
    started on several, and prints latency and bandwidth as texts for --link.
    """
    if operators == ["link"]:
        _bench_link(processes, repeats, json)
        return
    import pandas as pd
    import torch

    from raybench.core import registry
    from raybench.core.errors import InputError, nearest
    from raybench.measure.timing import busy, frame, measure, named, usual

    load_plugins(plugin)
    if device not in DEVICES:
        raise InputError.of("--device", f"unknown device {device!r}", nearest(device, DEVICES))
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError.of("--device", "there is no GPU here", "raybench doctor tells more")
    if out is not None and not Path(out).expanduser().resolve().parent.is_dir():
        raise InputError.of("--out", f"no folder {Path(out).parent}", "make it first")
    if operators and every:
        raise InputError.of("--all", "and names together", "give one of them")
    texts = registry.names("compressor") if every else operators or usual()
    chosen = dict(map(named, texts))
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    facts = {"threads": torch.get_num_threads(), "device": device, "torch": torch.__version__}
    where = device if device != "cpu" else count(torch.get_num_threads(), "thread")
    screen, doubt, figures = console(), busy(), pd.DataFrame()
    try:
        for about, x in _vectors(d, batch, vector, gradient):
            x = x.to(device)
            shape = " × ".join(f"{n:,}" for n in x.shape)
            if not json:
                head = f"{shape} {str(x.dtype).removeprefix('torch.')}"
                screen.head(head, f"  {about}; {where}", dim=True)
            *rows, clone = measure(chosen, x, repeats, limit, {CLONE: x.clone})
            table = frame(rows, vector=about, shape=str(tuple(x.shape)), **facts)
            figures = pd.concat((figures, table), ignore_index=True) if len(figures) else table
            if not json:
                _timed(screen, rows, x, clone)
    finally:
        torch.set_num_threads(before)
    if json:
        print(figures.to_json(orient="records", indent=1, double_precision=15))
    elif len(figures):
        screen.dim(TIMED)
    if out is not None:
        figures.to_parquet(out, index=False)
    if doubt:
        note(doubt)


def _vectors(
    d: int | None, batch: str, vector: str, gradient: str | None
) -> Iterator[tuple[str, Tensor]]:
    """Yield names and vectors to measure on; all options are checked before the first one is made."""
    import torch

    from raybench.core.errors import InputError, nearest
    from raybench.testing.gradient import SIZE, resnet18, thinned
    from raybench.testing.vectors import gaussian

    parts = [] if batch == NONE else [p.strip() for p in batch.split(",")]
    if batch != NONE and (len(parts) != 3 or not all(p.isdigit() and int(p) > 0 for p in parts)):
        fix = f"cells, clients, coordinates such as {USUAL_BATCH}, or none"
        raise InputError.of("--batch", f"{batch!r} is no shape", fix)
    if gradient is None and vector not in (*VECTORS, NONE):
        raise InputError.of("--vector", f"unknown vector {vector!r}", nearest(vector, VECTORS))
    if gradient is None and vector == "resnet18" and (d or 0) > SIZE:
        fix = "--vector gaussian has any length"
        raise InputError.of("--d", f"ResNet-18 has {SIZE:,} parameters", fix)
    if gradient is None and vector == "gaussian":
        yield "Gaussian", gaussian(d or SIZE, dtype=torch.float32)
    elif gradient is not None or vector != NONE:
        about, x = _read(gradient) if gradient is not None else reversed(resnet18())
        if (d or 0) > x.numel():
            raise InputError.of("--d", f"the vector has {x.numel():,} coordinates", "ask for fewer")
        if d not in (None, x.numel()):
            about, x = f"{about}, {d:,} of {x.numel():,} coordinates", thinned(x, d)
        yield about, x
    if parts:
        yield "Gaussian", gaussian(*map(int, parts))


def _read(file: str) -> tuple[str, Tensor]:
    """Return the name and the vector in a .npy file, as float32 unless it holds float64."""
    import numpy as np
    import torch

    from raybench.core.errors import InputError

    try:
        values = np.asarray(np.load(Path(file).expanduser(), allow_pickle=False)).ravel()
        values = values.astype(np.float64 if values.dtype == np.float64 else np.float32)
    except FileNotFoundError:
        raise InputError.of("--gradient", f"no such file {file}", "give a .npy file") from None
    except (ValueError, TypeError, EOFError) as error:
        what = f"{file} cannot be read: {error}"
        raise InputError.of("--gradient", what, "save numbers with numpy.save") from None
    if values.size == 0 or not np.isfinite(values).all():
        raise InputError.of("--gradient", f"{file} is empty or not finite", "give finite numbers")
    return Path(file).name, torch.from_numpy(values)


def _timed(screen: Screen, rows: list[Measured], x: Tensor, clone: Measured) -> None:
    """Print the copy's time, the table, and what was left out."""
    moved, took = 2 * x.numel() * x.element_size(), clone.copy_s
    said = f"{took * 1e3:.3g} ms" if took >= 1e-3 else f"{took * 1e6:.3g} µs"
    text = f"  a copy takes {said}, {moved / took / 1e9:.3g} GB/s read and written; "
    screen.dim(f"{text}a fresh clone {_ratio(clone.compress)} copies")
    heads = [h for h in COLUMN_HEADS if h != "bytes" or screen.console.width >= NARROW_SCREEN]
    table = listing("operator", *heads, right=heads, fold="operator")
    for row in [row for row in rows if not row.left_out]:
        cells = {action: _ratio(getattr(row, action)) for action in COLUMN_HEADS[:4]}
        cells |= {"error": f"{row.error:.3g}", "bytes": _size(row.bytes or 0)}
        cells |= {"bits/d": f"{row.bits_each:.3g}", "of dense": f"{row.of_dense:.2%}"}
        table.add_row(row.operator, *(cells[head] for head in heads))
    if table.row_count:
        screen.print(table)
    for row in [row for row in rows if row.left_out]:
        screen.dim(f"  left out: {row.operator}: {row.left_out}")


def _ratio(value: float | None) -> str:
    """Return a ratio in three digits or fewer: 0.07, 3.42, 12.5, 214."""
    if value is None:
        return "–"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _size(amount: int) -> str:
    """Return bytes in short: 975 B, 782 kB, 44.7 MB."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if amount >= size:
            return f"{amount / size:.{0 if amount >= 100 * size else 1}f} {unit}"
    return f"{amount} B"


TIMED = (
    "Times are multiples of buffer.copy_(x), the best of interleaved turns; error is "
    "‖C(x) − x‖²/‖x‖² of one draw; bytes are the payload of all rows, of dense their share of x's; "
    "bits/d are modelled bits per coordinate. Buffers are reused: a fresh clone of a long vector "
    "mostly measures page faults. A seeded support is drawn in compress and serves decode too; a "
    "receiver elsewhere draws it again."
)


# bench link ----------------------------------------------------------------------------------

WORDS = {"pair": "point to point", "gather": "gather", "all_reduce": "all-reduce"}
FORMS = {"pair": "ring", "gather": "gather", "all_reduce": "gather"}  # what the text of a fit says


def _bench_link(processes: int, repeats: int, json: bool) -> None:
    """Time exchanges between processes here, or as one of those that torchrun started; print what fits.

    Raises InputError if the processes do not find each other.
    """
    from dataclasses import asdict
    from json import dumps

    from raybench.analysis.links import rate_word, time_word, written
    from raybench.core.errors import InputError
    from raybench.measure import link
    from raybench.measure.timing import busy

    doubt, several = busy(), link.joined()
    try:
        rank, times = link.measure_joined(repeats) if several else (0, [])
        times = times or link.measure_here(processes, repeats)
    except RuntimeError as error:
        what = f"the processes did not measure: {str(error).strip().splitlines()[-1]}"
        fix = "are MASTER_ADDR and GLOO_SOCKET_IFNAME right?" if several else "is gloo usable here?"
        raise InputError.of("bench link", what, fix) from error
    if rank:  # one of them speaks
        return
    kinds = dict.fromkeys(t.what for t in times)
    fits = {kind: link.fit([t for t in times if t.what == kind]) for kind in kinds}
    texts = {k: written(f.link.latency, f.link.bandwidth, FORMS[k]) for k, f in fits.items()}
    if json:
        rows = {kind: {**asdict(fit), "text": texts[kind]} for kind, fit in fits.items()}
        print(dumps({"timings": [asdict(t) for t in times], "fits": rows}, indent=1))
        return
    screen, where = console(), "of torchrun" if several else "of this machine"
    screen.head(f"{times[0].n} processes {where}, over gloo")
    heads = ("exchange", "bytes of each", "measured", "fitted")
    table = listing(*heads, right=heads[1:], fold="exchange")
    for t in times:
        fitted = float(link.expected(t.what, fits[t.what].link, t.n, t.size))
        table.add_row(WORDS[t.what], f"{t.size:,}", time_word(t.median), time_word(fitted))
    screen.print(table)
    heads = ("exchange", "latency", "bandwidth", "misfit", "--link")
    table = listing(*heads, right=heads[1:4], fold="exchange")
    for kind, fit in fits.items():
        latency = f"{time_word(fit.link.latency)} [{', '.join(map(time_word, fit.latency))}]"
        rate = f"{rate_word(fit.link.bandwidth)} [{', '.join(map(rate_word, fit.bandwidth))}]"
        table.add_row(WORDS[kind], latency, rate, f"{fit.misfit:.0%}", texts[kind])
    screen.print(table)
    screen.dim(
        "gather: every process broadcasts its message, as raybench's train mode does; all-reduce: gloo's ring. "
        "Medians of turns, as the slowest process saw them; in brackets 95 % of fits to sizes and turns drawn "
        "anew; misfit is the median error over sizes. Which text: gather for raybench's own train mode, ring "
        "for machines joined by such links. Between processes of one machine this is its memory and its "
        "processors, not a network: start torchrun -m raybench bench link on several."
    )
    if doubt:
        note(doubt)


# study ---------------------------------------------------------------------------------------

STUDIES = ("compressors",)
SHORT_HEADS = {
    "scaled sign": "sign",
    "Top-k + natural": "+ nat.",
    "Top-k + natural dithering": "+ nat. dith.",
    "dithering": "dith.",
    "natural dithering": "nat. dith.",
}


def study(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="compressors.")],
    operators: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OPERATOR]...", help="top_k:k=1% ... [default: all of the study]"),
    ] = None,
    d: Annotated[
        int, typer.Option("--d", metavar="D", help="Length of the drawn vectors.")
    ] = 10_000,
    draws: Annotated[int, typer.Option(metavar="N", help="Vectors of each family.")] = 20,
    seed: Annotated[int, typer.Option(metavar="S", help="Of vectors and operators.")] = 0,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="[default: results/compressor-study]"),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Measure error against bits of operators on random vectors and gradients.

    Writes study.parquet and figures: Gaussian, Laplace, uniform, exponential and heavy-tailed
    vectors, and gradients of a network at the start and in training.
    """
    from raybench.core.errors import InputError, nearest
    from raybench.measure import study as studies

    if what not in STUDIES:
        raise InputError.of("study", f"no study is named {what!r}", nearest(what, STUDIES))
    load_plugins(plugin)
    grids = {text: [text] for text in operators} if operators else None
    folder = out or str(RESULTS_FOLDER / "compressor-study")
    rows = studies.compressors(folder, d, draws, grids, seed)
    paths = studies.figures(rows, folder)
    screen = console()
    if grids:
        _errors(screen, rows)
    else:
        _sign(screen, studies.against_sign(rows))
        _energy(screen, studies.top_k_energy(rows))
    screen.print(f"\nrows     {folder}/study.parquet")
    for path in paths:
        if path.suffix == ".png":
            screen.print(f"figure   {path.with_suffix('')}.{{png,pdf,csv}}")


def _number(value: float) -> str:
    return "–" if not math.isfinite(value) else f"{value:.3g}"


def _errors(out: Screen, rows: pd.DataFrame) -> None:
    """Print every operator's error and bits a coordinate, family by family."""
    families = list(rows["family"].unique())
    table = listing("operator", "bits", *families, right=("bits", *families))
    for operator, part in rows.groupby("operator", sort=False):
        errors = part.set_index("family")["error_best"]
        bits = f"{part['wire_per_coordinate'].mean():.3g}"
        table.add_row(str(operator), bits, *(_number(errors[f]) for f in families))
    out.head("‖c C(x) − x‖² / ‖x‖² with the best c; bits a coordinate as packed")
    out.print(table)


def _sign(out: Screen, rows: pd.DataFrame) -> None:
    """Print what others pay for scaled sign's error."""
    from rich.text import Text

    names = [c for c in rows.columns if c not in ("family", "error", "below", "cheapest")]
    heads = [SHORT_HEADS.get(n, n) for n in names]
    table = listing("vectors", "error", *heads, right=("error", *heads))
    for row in rows.to_dict("records"):
        cells = [
            Text(
                ("< " if n in row["below"] else "") + _number(row[n]),
                style="bold" if n == row["cheapest"] else "",
            )
            for n in names
        ]
        table.add_row(row["family"], _number(row["error"]), *cells)
    out.head("Bits a coordinate for the error of scaled sign (bold: the least)")
    out.print(table)
    wins = list(rows.loc[rows["cheapest"] == "scaled sign", "family"])
    if wins:
        out.print(f"Nothing here beats scaled sign at its own error on: {', '.join(wins)}.")


def _energy(out: Screen, energy: pd.DataFrame) -> None:
    """Print Top-k's residuals beside the formulas of order statistics."""
    energy = energy.assign(share=energy["share"].round(4))
    shares = [s for s in (0.01, 0.03, 0.1, 0.3) if s in set(energy["share"])]
    heads = [f"{s:.0%}" for s in shares]
    table = listing("vectors", *heads, right=heads)
    for family, part in energy.groupby("family", sort=False):
        by_share = part.set_index("share")
        cells = []
        for share in shares:
            error, formula = by_share.loc[share, ["error", "formula"]]
            cells.append(f"{error:.4f}" + (f" ({formula:.4f})" if math.isfinite(formula) else ""))
        table.add_row(str(family), *cells)
    table.add_row("Rand-k, any", *(f"{1 - s:.4f}" for s in shares))
    out.head("\nWhat Top-k leaves of ‖x‖², by k/d (in brackets: the formula)")
    out.print(table)


# advise --------------------------------------------------------------------------------------

GPUS = ("2", "8", "64")
LINKS = ("100Mbit", "1Gbit", "10Gbit", "100Gbit")
MOST_WORKERS = 1_000_000
FORWARD_SHARE = 0.5  # of the backward pass, which takes about twice the operations
NARROW = 76  # columns below which a table does without what matters less
LINKS_AT_ONCE = 4
LABEL = 17
WIDEST_LINK = 8  # letters of a column's head
RULE_BY = "top_k:k=1%"
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
        typer.Argument(
            metavar="MODEL|FOLDER",
            help="resnet18, transformer, torchvision:NAME, my_module:function, or recorded gradients.",
        ),
    ],
    gpus: Annotated[
        list[str] | None,
        typer.Option(metavar="N", help="Workers; 2,8,64 or repeat. [default: 2,8,64]"),
    ] = None,
    link: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LINK",
            help="1Gbit, 10Gbit,20ms,server, 31MB/s,80us; repeat. [default: 100Mbit to 100Gbit]",
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(metavar="B", help="Samples of a worker's gradient. [default: 16]")
    ] = None,
    backward: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Your backward pass. [default: measured here]"),
    ] = None,
    forward: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Your forward pass. [default: half the backward]"),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="[default: a usual one of the model]")
    ] = None,
    compressor: Annotated[
        list[str] | None,
        typer.Option(metavar="OP", help="top_k:k=5%, ..; repeat. [default: a catalogue]"),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.yaml", help="Write the sweep that tells how many steps it takes."
        ),
    ] = None,
    json: Json = False,
    plugin: Plugins = None,
) -> None:
    """Say whether compression pays for a model on a network.

    Replays operators on real gradients, times their codecs here, and compares a step with that of
    data-parallel training in bfloat16 by a model of the network.
    """
    from raybench.analysis.links import parse
    from raybench.measure.advise import BATCH, baseline, chosen, gradients, replay, sweep_text
    from raybench.measure.payoff import case_of
    from raybench.measure.timing import busy

    load_plugins(plugin)
    workers, networks = _workers(gpus or GPUS), {text: parse(text) for text in link or LINKS}
    asked, goal = chosen(compressor), _goal(sweep, model)
    for key, seconds in (("--forward", forward), ("--backward", backward)):
        _check_seconds(key, seconds)
    doubt = busy()
    source = gradients(model, dataset, BATCH if batch is None else batch)
    compute, whose = _compute(source, forward, backward)
    rows = replay(asked, source.layout, source.vectors)
    base = baseline(source.layout.dim)
    measured = [row for row in rows if not row.left_out]
    cases = [
        case_of(name, network, n, compute, base, [row.exchange for row in measured])
        for n in workers
        for name, network in networks.items()
    ]
    if source.note:
        note(source.note)
    if goal is not None:  # messages travel as is fastest on the first network
        assert source.problem is not None
        ways = [v.step.collective for v in cases[0].verdicts]
        candidates = zip((row.candidate for row in measured), ways, strict=True)
        with goal.open("x", encoding="utf-8") as file:
            file.write(sweep_text(candidates, source.problem, workers[0]))
    if json:
        _print_json(source, compute, whose, rows, cases)
    else:
        _print(console(), source, compute, whose, rows, cases, networks)
        text = "\nHow many steps a method needs to a target is unknown: only training tells. "
        if goal is not None:
            text += f"Next: raybench plan {goal}"
        elif source.problem is None:
            text += "With the model, --sweep FILE.yaml writes a sweep."
        else:
            text += "--sweep FILE.yaml writes the sweep."
        console().print(text)
    if doubt:
        note(doubt)


def _workers(given: Sequence[str]) -> list[int]:
    from raybench.core.errors import InputError

    words = [word.strip() for text in given for word in text.split(",")]
    for word in words:
        if not word.isdigit() or not 2 <= int(word) <= MOST_WORKERS:
            few = f"{word!r} workers have nothing to exchange"
            what = few if word in ("0", "1") else repr(word)
            raise InputError.of("--gpus", what, "an integer >= 2, or several: 2,8,64")
    return list(dict.fromkeys(map(int, words)))


def _check_seconds(key: str, value: float | None) -> None:
    from raybench.core.errors import InputError

    if value is not None and not 0 < value < math.inf:
        raise InputError.of(key, f"{value:g} is out of range", "seconds > 0, such as 0.12")


def _compute(
    source: Gradients, forward: float | None, backward: float | None
) -> tuple[Compute, str]:
    """Return the seconds of a step's passes, and whose they are."""
    from raybench.core.errors import InputError
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


def _goal(sweep: str | None, model: str) -> Path | None:
    """Return where the sweep file goes; whatever is in the way is said before anything is measured."""
    from raybench.core.errors import InputError
    from raybench.data.recorded import is_record

    if sweep is None:
        return None
    goal = Path(sweep).expanduser()
    if is_record(model):
        what = "recorded gradients do not tell how to train the model"
        raise InputError.of("--sweep", what, "give the model: my_module:function")
    if goal.exists():
        raise InputError.of("--sweep", f"{goal} exists", "give another name")
    if not goal.parent.is_dir():
        raise InputError.of("--sweep", f"no folder {goal.parent}", "make it first")
    return goal


def _print_json(
    source: Gradients, compute: Compute, whose: str, rows: list[Replayed], cases: list[Case]
) -> None:
    """Print everything as JSON: seconds, bytes, bytes per second; infinite and unknown numbers are null."""
    from dataclasses import asdict
    from json import dumps

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [plain(v) for v in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    figures = {
        "gradients": source.about,
        "parameters": source.layout.dim,
        "steps": source.steps,
        "forward": compute.forward,
        "backward": compute.backward,
        "passes": whose,
        "operators": [
            {"name": of.label, "compressor": of.compressor, "method": dict(of.method)}
            | {key: value for key, value in vars(row).items() if key != "candidate"}
            | {"dropped": of.error, "collectives": of.collectives}
            for row in rows
            for of in [row.candidate]
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
    print(dumps(plain(figures), indent=1))


def _print(
    out: Screen,
    source: Gradients,
    compute: Compute,
    whose: str,
    rows: list[Replayed],
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
    out.head("\nWhat operators do to these gradients")
    out.print(_operators(rows, narrow))
    for row in rows:
        if row.left_out:
            out.dim(f"  left out: {row.candidate.label}: {row.left_out}")
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


def _rule(rows: list[Replayed], workers: list[int]) -> str:
    """Return the rule that says from bytes alone when gathered sparse messages are fewer than a ring's."""
    from raybench.measure.payoff import GATHER, sparse_share

    sparse = {
        row.candidate.label: row.size / row.entries
        for row in rows
        if not row.left_out and row.entries > 0
        if GATHER in row.candidate.collectives and row.candidate.operator.selection
    }
    text = "In bytes alone, k of d entries that are gathered beat a bf16 ring only if k/d < 4/(c n)"
    if not sparse:
        return f"{text}, with c bytes an entry and n workers."
    label = RULE_BY if RULE_BY in sparse else next(iter(sparse))
    c = sparse[label]
    limits = [(n, sparse_share(n, c)) for n in workers]
    shares = [f"{f'{s:.3g}' if s >= 1 else f'{100 * s:.2g} %'} for {n}" for n, s in limits]
    return f"{text}: here, with c = {c:.2f} bytes ({label}), below {', '.join(shares)} workers."


def _operators(rows: list[Replayed], narrow: bool) -> Table:
    heads = ["via", "MB", "enc. ms", "dec. ms", "error", "state MB"]
    heads = heads[1:-1] if narrow else heads
    table = _by_compressor(heads, [h for h in heads if h != "via"])
    for row in [row for row in rows if not row.left_out]:
        of = row.candidate
        error = of.error if row.error is None else f"{row.error:.2g} {of.error}"
        cells = {
            "via": of.collectives[0] if len(of.collectives) == 1 else "either",
            "MB": f"{row.size / 1e6:.3g}",
            "enc. ms": f"{1e3 * row.encode:.3g}",
            "dec. ms": f"{1e3 * row.decode:.3g}",
            "error": "0" if of.error == "none" else error,
            "state MB": f"{row.state / 1e6:.3g}",
        }
        table.add_row(of.label, *(cells[h] for h in heads))
    return table


def _by_compressor(heads: list[str], right: list[str]) -> Table:
    table = listing("compressor", *heads, right=right, fold="compressor")
    table.columns[0].min_width = LABEL
    return table


def _steps(cases: list[Case], labels: Mapping[str, str], narrow: bool) -> Table:
    """Return the seconds of a step by link; break-even is that at the latency of the fastest of them."""
    reference = max(cases, key=lambda case: case.network.link.bandwidth)
    limits = ["pays below", "free codec"][: 1 if narrow else 2]
    heads = [*limits, *(labels[case.link] for case in cases)]
    table = _by_compressor(heads, heads)
    base = [f"{_digits(case.baseline.seconds)} " for case in cases]
    table.add_row("bf16, the baseline", *([""] * len(limits)), *base)
    for i, verdict in enumerate(reference.verdicts):
        bounds = [verdict.pays_below, verdict.pays_below_free][: len(limits)]
        here = [case.verdicts[i] for case in cases]
        cells = [f"{_digits(v.step.seconds)}{'*' if v.pays else ' '}" for v in here]
        table.add_row(verdict.name, *map(_rate, bounds), *cells)
    return table


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
