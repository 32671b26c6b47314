"""The verbs that measure compressors by themselves: ``bench`` (time and bytes, and links) and ``study`` (error)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from raybench.cli import shared
from raybench.cli.shared import Screen, check_word, digits, listing, note
from raybench.core.errors import InputError, count

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

VECTORS = ("resnet18", "gaussian")
DEVICES = ("cpu", "cuda")
USUAL_BATCH = "64,20,112"
COLUMN_HEADS = ("compress", "decode", "pack", "unpack", "error", "bytes", "bits/d", "of dense")


def bench(
    operators: Annotated[
        list[str] | None,
        Argument(
            metavar="NAME[:KEY=VALUE,...]|link",
            help="Compressors, or the link. [default: the usual]",
        ),
    ] = None,
    every: Annotated[bool, Option("--all", help="Every compressor there is.")] = False,
    d: Annotated[
        int | None,
        Option("--d", metavar="D", min=1, help="Length of the long vector. [default: all]"),
    ] = None,
    batch: Annotated[
        str, Option(metavar="B,n,d", help="Shape of the batch of short ones, or none.")
    ] = USUAL_BATCH,
    vector: Annotated[
        str,
        Option(metavar="NAME", help="The long vector: resnet18, gaussian, none, or a file x.npy."),
    ] = VECTORS[0],
    processes: Annotated[
        int, Option(metavar="N", min=2, max=64, help="Of `link`: processes here.")
    ] = 2,
    repeats: Annotated[int, Option(min=1, help="Turns; the best of each counts.")] = 10,
    limit: Annotated[
        float, Option(metavar="SECONDS", min=0, help="Time for one compressor on one vector.")
    ] = 5.0,
    device: Annotated[str, Option(help="cpu or cuda.")] = DEVICES[0],
    json: shared.Json = False,
    plugin: shared.Plugins = None,
) -> None:
    """Time compressors, or messages between processes (bench link).

    On a real gradient and on short vectors. Times of compress, decode, pack and unpack are multiples of copying the
    vector into a buffer. The gradient is one of ResNet-18, 11,181,642 numbers. Beside them: error, bytes and modelled
    bits.

    `bench link` times exchanges over gloo between --processes of this machine, or between those that torchrun has
    started on several, and prints latency and bandwidth as texts for --link.
    """
    if operators == ["link"]:
        _bench_link(processes, repeats, json)
        return
    import pandas as pd
    import torch

    from raybench.core import registry
    from raybench.measure.timing import USUAL, busy, measure, named

    check_word("--device", device, DEVICES, "device")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError.of("--device", "there is no GPU here", "raybench doctor tells more")
    if operators and every:
        raise InputError.of("--all", "and names together", "give one of them")
    texts = registry.names("compressor") if every else operators or USUAL
    chosen = dict(map(named, texts))
    threads = torch.get_num_threads()
    facts = {"threads": threads, "device": device, "torch": torch.__version__}
    where = device if device != "cpu" else count(threads, "thread")
    screen, doubt, tables = Screen(), busy(), []
    for about, x in _vectors(d, batch, vector):
        x = x.to(device)
        if not json:
            shape = " × ".join(f"{n:,}" for n in x.shape)
            head = f"{shape} {str(x.dtype).removeprefix('torch.')}"
            screen.head(head, f"  {about}; {where}", dim=True)
        rows = measure(chosen, x, repeats, limit)
        tables.append(rows.assign(vector=about, shape=str(tuple(x.shape)), **facts))
        if not json:
            _timed(screen, rows, x)
    figures = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
    if json:
        print(figures.to_json(orient="records", indent=1, double_precision=15))
    elif len(figures):
        screen.dim(TIMED)
    note(doubt)


def _vectors(d: int | None, batch: str, vector: str) -> Iterator[tuple[str, Tensor]]:
    """Yield names and vectors to measure on; all options are checked before the first one is made."""
    import torch

    from raybench.testing.vectors import SIZE, gaussian, resnet18, thinned

    parts = [] if batch == "none" else [p.strip() for p in batch.split(",")]
    if batch != "none" and (len(parts) != 3 or not all(p.isdigit() and int(p) > 0 for p in parts)):
        fix = f"cells, clients, coordinates such as {USUAL_BATCH}, or none"
        raise InputError.of("--batch", f"{batch!r} is no shape", fix)
    of_a_file = vector.endswith(".npy")
    if not of_a_file:
        check_word("--vector", vector, (*VECTORS, "none"), "vector")
    if vector == "gaussian":
        yield "Gaussian", gaussian(d or SIZE, dtype=torch.float32)
    elif vector != "none":
        about, x = _read(vector) if of_a_file else resnet18()[::-1]
        if (d or 0) > x.numel():
            fix = "ask for fewer; --vector gaussian has any length"
            raise InputError.of("--d", f"the vector has {x.numel():,} coordinates", fix)
        if d not in (None, x.numel()):
            about, x = f"{about}, {d:,} of {x.numel():,} coordinates", thinned(x, d)
        yield about, x
    if parts:
        yield "Gaussian", gaussian(*map(int, parts))


def _read(file: str) -> tuple[str, Tensor]:
    """Return the name and the vector in a .npy file, as float32 unless it holds float64."""
    import numpy as np
    import torch

    try:
        values = np.asarray(np.load(Path(file).expanduser(), allow_pickle=False)).ravel()
        values = values.astype(np.float64 if values.dtype == np.float64 else np.float32)
        if values.size == 0 or not np.isfinite(values).all():
            raise ValueError("it is empty or not finite")
    except (OSError, ValueError, TypeError, EOFError) as error:
        what = f"{file} cannot be read: {error}"
        raise InputError.of("--vector", what, "save finite numbers with numpy.save") from None
    return Path(file).name, torch.from_numpy(values)


def _timed(screen: Screen, rows: pd.DataFrame, x: Tensor) -> None:
    """Print the copy's time, the table, and what was left out."""
    from raybench.core.limits import size
    from raybench.report import words

    whole = rows[rows["left_out"] == ""]
    if len(whole):
        copy = whole["copy_s"].iloc[0]
        speed = 2 * x.numel() * x.element_size() / copy / 1e9
        screen.dim(f"  a copy takes {words.seconds(copy)}, {speed:.3g} GB/s read and written")
        lines = [
            (row.operator, *(digits(getattr(row, action)) for action in COLUMN_HEADS[:4]))
            + (f"{row.error:.3g}", size(row.bytes), f"{row.bits_each:.3g}", f"{row.of_dense:.2%}")
            for row in whole.astype({"bytes": int}).itertuples()
        ]
        heads = ("operator", *COLUMN_HEADS)
        screen.print(listing(heads, lines, right=COLUMN_HEADS, fold="operator"))
    for row in rows[rows["left_out"] != ""].itertuples():
        screen.dim(f"  left out: {row.operator}: {row.left_out}")


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

    from raybench.clock.links import rate_word, time_word, written
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
    screen, where = Screen(), "of torchrun" if several else "of this machine"
    screen.head(f"{times[0].n} processes {where}, over gloo")
    heads = ("exchange", "latency", "bandwidth", "misfit", "--link")
    lines = []
    for kind, fit in fits.items():
        latency = f"{time_word(fit.link.latency)} [{', '.join(map(time_word, fit.latency))}]"
        rate = f"{rate_word(fit.link.bandwidth)} [{', '.join(map(rate_word, fit.bandwidth))}]"
        lines.append((WORDS[kind], latency, rate, f"{fit.misfit:.0%}", texts[kind]))
    screen.print(listing(heads, lines, right=heads[1:4], fold="exchange"))
    screen.dim(
        "gather: every process broadcasts its message, as raybench's train mode does; all-reduce: gloo's ring. "
        "Medians of turns, as the slowest process saw them; in brackets 95 % intervals of the fit; "
        "misfit is the median error over sizes. Which text: gather for raybench's own train mode, ring "
        "for machines joined by such links. Between processes of one machine this is its memory and its "
        "processors, not a network: start torchrun -m raybench bench link on several."
    )
    note(doubt)


# study ---------------------------------------------------------------------------------------


def study(
    what: Annotated[str, Argument(metavar="WHAT", help="compressors.")],
    operators: Annotated[
        list[str] | None,
        Argument(metavar="[OPERATOR]...", help="top_k:k=1% ... [default: all of the study]"),
    ] = None,
    d: Annotated[int, Option("--d", metavar="D", help="Length of the drawn vectors.")] = 10_000,
    draws: Annotated[int, Option(metavar="N", help="Vectors of each family.")] = 20,
    seed: Annotated[int, Option(metavar="S", help="Of vectors and compressors.")] = 0,
    out: Annotated[
        str | None, Option("--out", metavar="DIR", help="[default: results/compressor-study]")
    ] = None,
    plugin: shared.Plugins = None,
) -> None:
    """Measure compressors' error against their bits.

    On random vectors and on gradients. Writes study.parquet and figures: Gaussian, Laplace, uniform, exponential and
    heavy-tailed vectors, and gradients of a network at the start and in training.
    """
    from raybench.measure import study as studies
    from raybench.report.words import number

    check_word("study", what, ("compressors",), "study")
    grids = {text: [text] for text in operators} if operators else None
    folder = out or str(shared.RESULTS_FOLDER / "compressor-study")
    rows, paths = studies.compressors(folder, d, draws, grids, seed)
    errors = rows.pivot_table("error_best", "operator", "family", dropna=False, sort=False)
    errors.insert(0, "bits", rows.groupby("operator", sort=False)["wire_per_coordinate"].mean())
    lines = [(name, *map(number, values)) for name, *values in errors.itertuples()]
    screen = Screen()
    screen.print(listing(("operator", *errors), lines, right=errors, fold="operator"))
    screen.dim("‖c C(x) − x‖² / ‖x‖² with the best c; bits a coordinate as packed")
    shared.show_files(paths)
