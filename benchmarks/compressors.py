"""Compressors on a gradient of ResNet-18 (11,181,642 float32), beside floors and targets.

    RAYBENCH_DATA=... python benchmarks/compressors.py [--repeats 15] [--vector gaussian]

All times are multiples of one copy into a preallocated buffer, best of interleaved turns in one run.
The floors are what torch does for the heart of a compressor, with buffers allocated beforehand where
torch allows it. A target is for compress + decode; pack + unpack may take 4 more.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from raybench.core.process import tune_process

tune_process()  # before torch is loaded

import torch
from torch import Tensor

from raybench.core.streams import stream
from raybench.measure.timing import USUAL, Measured, busy, measure, named
from raybench.testing.vectors import SIZE, gaussian, resnet18

WIRE = 4.0  # copies that pack and unpack may take together
TARGETS = {
    "top_k:k=1%": 12,
    "top_k:k=0.1%": 5,
    "dgc:k=0.1%": 6,
    "rand_k:k=1%": 4,
    "sign": 4,
    "scaled_sign": 4,
    "natural": 4,
    "dithering": 8,
    "qsgd": 8,
    "terngrad": 8,
    "fp16": 3,
    "power_step:rank=4": 15,
}


def floors(x: Tensor) -> dict[str, Callable[[], Any]]:
    """Return torch's own actions by name; x (d,) is not changed."""
    d, out = x.numel(), torch.empty_like(x)
    at = stream(0).subset(d, d // 100)
    short = torch.empty_like(x, dtype=torch.float16)
    a = int(d**0.5)
    matrix, rows = x[: a * (d // a)].view(a, -1), out[: a * (d // a)].view(a, -1)
    q = gaussian(matrix.shape[1], 4, dtype=x.dtype)
    p = matrix @ q

    def low_rank() -> None:
        torch.mm(matrix, q, out=p)
        torch.mm(p, (matrix.T @ p).T, out=rows)

    magnitude = x.abs()
    return {
        "x.clone()": x.clone,
        "torch.topk 1%": lambda: magnitude.topk(d // 100, sorted=False),
        "torch.topk 0.1%": lambda: magnitude.topk(d // 1000, sorted=False),
        "zero, scatter 1%": lambda: out.zero_().scatter_(0, at, x[at]),
        "torch.sign": lambda: torch.sign(x, out=out),
        "x.norm()": x.norm,
        "torch.rand": lambda: torch.rand(d, out=out),
        "to float16 and back": lambda: out.copy_(short.copy_(x)),
        "three products, rank 4": low_rank,
    }


def line(row: Measured) -> str:
    """Return a row of the table: sums of times beside their targets."""
    if row.left_out:
        return f"{row.operator:24} left out: {row.left_out}"
    assert row.compress is not None
    if row.decode is None:
        return f"{row.operator:24} {row.compress:9.2f}"
    assert row.pack is not None
    assert row.unpack is not None
    both, wire = row.compress + row.decode, row.pack + row.unpack
    target = TARGETS.get(row.operator)
    met = "" if target is None else f"{target:8} {'met' if both <= target else 'MISSED':7}"
    text = f"{row.operator:24} {both:9.2f} {met:16} {wire:9.2f} "
    text += "       " if target is None else f"{'met' if wire <= WIRE else 'MISSED':7}"
    return f"{text} {row.error:9.3g} {row.bits_each:9.3g}"


def main() -> None:
    """Time the compressors and the floors in turn and print them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--vector", choices=("resnet18", "gaussian"), default="resnet18")
    given = parser.parse_args()
    found = resnet18() if given.vector == "resnet18" else None
    about = found.about if found else "Gaussian"
    x = found.vector if found else gaussian(SIZE, dtype=torch.float32)
    below, doubt = floors(x), busy()
    rows = measure(dict(map(named, USUAL)), x, given.repeats, limit=10.0, floors=below)
    print(f"{x.numel():,} float32, {about}, {torch.get_num_threads()} threads")
    print(f"a copy takes {1e3 * rows[-1].copy_s:.2f} ms; all times are multiples of it")
    print(f"{doubt}\n")
    head = f"{'compress':>9} {'':16} {'pack':>9} {'':7} {'relative':>9} {'bits per':>9}"
    print(f"{'':24} {head}")
    head = f"{'+ decode':>9} {'  target':16} {'+ unpack':>9} {'<= 4':7} {'error':>9} {'number':>9}"
    print(f"{'':24} {head}")
    ours = len(rows) - len(below)
    print("\n".join(line(row) for row in rows[:ours]))
    print("\nfloors: torch alone")
    print("\n".join(line(row) for row in rows[ours:]))


if __name__ == "__main__":
    main()
