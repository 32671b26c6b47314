"""raybench bench: what operators cost in time and bytes, as multiples of a copy; and what a link takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from raybench.cli.shared import Plugins, console, count, listing, note

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table
    from rich.text import Text
    from torch import Tensor

    from raybench.cli.shared import Screen
    from raybench.testing.bench import Measured

Case = tuple[str, "Tensor"]  # what the vector is, and the vector
VECTORS = ("resnet18", "gaussian")
DEVICES = ("cpu", "cuda")
NONE = "none"
USUAL_BATCH = "64,20,112"
CLONE = "x.clone()"
COLUMN_HEADS = ("compress", "decode", "pack", "unpack", "error", "bytes", "bits/d", "of dense")
NARROW_SCREEN = 96  # a terminal of fewer columns gets a table without the bytes


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
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
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
        from raybench.cli.bench_link import bench_link

        bench_link(processes, repeats, json)
        return
    from pathlib import Path

    import torch

    from raybench.core import registry
    from raybench.core.errors import InputError, nearest
    from raybench.testing.bench import busy, frame, measure, named, usual

    for file in plugin or ():
        registry.load_plugin(file)
    if device not in DEVICES:
        raise InputError.of("--device", f"unknown device {device!r}", nearest(device, DEVICES))
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError.of("--device", "there is no GPU here", "raybench doctor tells more")
    if out is not None and not Path(out).expanduser().resolve().parent.is_dir():
        raise InputError.of("--out", f"no folder {Path(out).parent}", "make it first")
    if operators and every:
        raise InputError.of("--all", "and names together", "give one of them")
    texts = registry.names("compressor") if every else operators or usual()
    chosen = dict(named(text) for text in texts)
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    facts = {"threads": torch.get_num_threads(), "device": device, "torch": torch.__version__}
    where = device if device != "cpu" else count(torch.get_num_threads(), "thread")
    screen, frames, doubt = console(), [], busy()
    try:
        for about, x in _cases(d, batch, vector, gradient):
            x = x.to(device)
            if not json:
                screen.print(_head(about, x, where))
            rows = measure(chosen, x, repeats, limit, {CLONE: x.clone})
            clone = rows.pop()
            frames.append(frame(rows, vector=about, shape=str(tuple(x.shape)), **facts))
            if not json:
                _print(screen, rows, x, clone)
    finally:
        torch.set_num_threads(before)
    if not json and frames:
        screen.print(_legend())
    _save(frames, json, out)
    if doubt:
        note(doubt)


def _cases(d: int | None, batch: str, vector: str, gradient: str | None) -> Iterator[Case]:
    """Yield what there is to measure; everything is checked before the first vector is made."""
    from raybench.core.errors import InputError, nearest
    from raybench.testing.vectors import gaussian

    shape = _shape(batch)
    long = None
    if gradient is not None:
        long = _long(*_own(gradient), d)
    elif vector not in (*VECTORS, NONE):
        raise InputError.of("--vector", f"unknown vector {vector!r}", nearest(vector, VECTORS))
    elif vector != NONE:
        from raybench.testing.vectors import SIZE

        if vector == "resnet18" and d is not None and d > SIZE:
            fix = "--vector gaussian has any length"
            raise InputError.of("--d", f"ResNet-18 has {SIZE:,} parameters", fix)
        long = _shipped(vector, d or SIZE)
    if long is not None:
        yield long
    if shape is not None:
        yield "Gaussian", gaussian(*shape)


def _shape(batch: str) -> tuple[int, ...] | None:
    from raybench.core.errors import InputError

    if batch == NONE:
        return None
    parts = batch.split(",")
    if len(parts) != 3 or not all(p.strip().isdigit() and int(p) > 0 for p in parts):
        fix = f"cells, clients, coordinates such as {USUAL_BATCH}, or none"
        raise InputError.of("--batch", f"{batch!r} is no shape", fix)
    return tuple(int(p) for p in parts)


def _shipped(vector: str, d: int) -> Case:
    import torch

    from raybench.testing.vectors import gaussian

    if vector == "gaussian":
        return "Gaussian", gaussian(d, dtype=torch.float32)
    from raybench.testing.vectors import resnet18

    found = resnet18()
    return _long(found.about, found.vector, d)


def _own(file: str) -> Case:
    """Return the vector in a .npy file, as float32 unless it holds float64."""
    from pathlib import Path

    import numpy as np
    import torch

    from raybench.core.errors import InputError

    try:
        held = np.load(Path(file).expanduser(), allow_pickle=False)
        values = np.asarray(held).ravel()
        values = values.astype(np.float64 if values.dtype == np.float64 else np.float32)
    except FileNotFoundError:
        raise InputError.of("--gradient", f"no such file {file}", "give a .npy file") from None
    except (ValueError, TypeError, EOFError) as error:
        what = f"{file} cannot be read: {error}"
        raise InputError.of("--gradient", what, "save numbers with numpy.save") from None
    if values.size == 0 or not np.isfinite(values).all():
        raise InputError.of("--gradient", f"{file} is empty or not finite", "give finite numbers")
    return Path(file).name, torch.from_numpy(values)


def _long(about: str, x: Tensor, d: int | None) -> Case:
    from raybench.core.errors import InputError
    from raybench.testing.vectors import thinned

    if d is None or d == x.numel():
        return about, x
    if d > x.numel():
        raise InputError.of("--d", f"the vector has {x.numel():,} coordinates", "ask for fewer")
    return f"{about}, {d:,} of {x.numel():,} coordinates", thinned(x, d)


def _head(about: str, x: Tensor, where: str) -> Text:
    """Return the line above a table; where: the device, or the threads of the processor."""
    from rich.text import Text

    shape = " × ".join(f"{n:,}" for n in x.shape)
    kind = str(x.dtype).removeprefix("torch.")
    head = Text(f"{shape} {kind}", style="bold")
    head.append(f"  {about}; {where}", style="not bold dim")
    return head


def _print(screen: Screen, rows: list[Measured], x: Tensor, clone: Measured) -> None:
    """Print the copy's time, the table, and what was left out."""
    from rich.text import Text

    moved = 2 * x.numel() * x.element_size()
    took = clone.copy_s
    said = f"{took * 1e3:.3g} ms" if took >= 1e-3 else f"{took * 1e6:.3g} µs"
    text = f"  a copy takes {said}, {moved / took / 1e9:.3g} GB/s read and written; "
    text += f"a fresh clone {_ratio(clone.compress)} copies"
    screen.print(Text(text, style="dim"))
    measured = [row for row in rows if not row.left_out]
    if measured:
        screen.print(_table(measured, narrow=screen.console.width < NARROW_SCREEN))
    for row in rows:
        if row.left_out:
            screen.print(Text(f"  left out: {row.operator}: {row.left_out}", style="dim"))


def _table(rows: list[Measured], narrow: bool) -> Table:
    heads = [head for head in COLUMN_HEADS if not (narrow and head == "bytes")]
    table = listing("operator", *heads, right=heads, fold="operator")
    for row in rows:
        times = (row.compress, row.decode, row.pack, row.unpack)
        cells = dict(zip(COLUMN_HEADS, map(_ratio, times)))
        cells["error"] = f"{row.error:.3g}"
        cells["bytes"] = _size(row.bytes or 0)
        cells["bits/d"] = f"{row.bits_each:.3g}"
        cells["of dense"] = f"{row.of_dense:.2%}"
        table.add_row(row.operator, *(cells[head] for head in heads))
    return table


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


def _legend() -> Text:
    from rich.text import Text

    return Text(
        "Times are multiples of buffer.copy_(x), the best of interleaved turns; error is "
        "‖C(x) − x‖²/‖x‖² of one draw; bytes are the payload of all rows, of dense their share of x's; "
        "bits/d are modelled bits per coordinate. Buffers are reused: a fresh clone of a long vector "
        "mostly measures page faults. A seeded support is drawn in compress and serves decode too; a "
        "receiver elsewhere draws it again.",
        style="dim",
    )


def _save(frames: list[pd.DataFrame], json: bool, out: str | None) -> None:
    """Print the figures as JSON, or save them."""
    import pandas as pd

    table = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    if json:
        print(table.to_json(orient="records", indent=1, double_precision=15))
    if out is not None:
        table.to_parquet(out, index=False)
