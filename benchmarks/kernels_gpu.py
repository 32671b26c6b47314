"""Triton kernels on this machine's GPU, beside plain torch and beside floors.

    python benchmarks/kernels_gpu.py [--d 11181642] [--repeats 20]

All times are multiples of one copy into a preallocated buffer, by CUDA's events, the best of turns that all take
one after another. The last column says whether the kernel's result equals plain torch's, bit for bit. Without a
GPU nothing is measured.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import raybench
from raybench.compressors import by_size
from raybench.compressors.selection import at_least
from raybench.core import gpu
from raybench.core.streams import Stream, stream
from raybench.testing.vectors import SIZE
from raybench.wire import bitpack
from raybench.wire.sparse import SparseMessage

CLIENTS = 8  # whose sparse messages are added up


class Case(NamedTuple):
    """What is timed; by a kernel and by plain torch, where it is the same call with kernels on and off."""

    name: str
    action: Callable[[], Any]


def cases(x: Tensor) -> list[Case]:
    """Return what is timed on a vector x (1, d), float32, and on as many numbers in short rows."""
    d, source = x.shape[-1], stream(0, x.device).each([0])
    short = x[:, : d // 1000 * 1000].view(-1, 1000)
    k = max(1, d // 100)
    rows = [by_size.largest(x.roll(7919 * i, -1), k) for i in range(CLIENTS)]
    indices, values = (torch.stack(part, 1) for part in zip(*rows, strict=True))
    message = SparseMessage(d, x.dtype, indices, values)
    cut = values.abs().amin((1, 2))
    codes = (x > 0).to(torch.uint8) * 5
    trits = codes // 4
    levels, natural = raybench.compressor("dithering:s=7"), raybench.compressor("natural")
    sent = levels.compress(x, source)
    out = torch.empty_like(x)
    packed = bitpack.pack(codes, 3)
    return [
        Case("largest, 0.1%", lambda: by_size.largest(x, -(-d // 1000))),
        Case("largest, 1%", lambda: by_size.largest(x, k)),
        Case("largest, 10%", lambda: by_size.largest(x, -(-d // 10))),
        Case("largest, 1% of rows of 1000", lambda: by_size.largest(short, 10)),
        Case("above a threshold, 1%", lambda: at_least(x, cut)),
        Case(f"sum of {CLIENTS} sparse messages", message.sum_clients),
        Case("64 random bits each", lambda: Stream(source.keys).bits(d)),
        Case("uniform numbers", lambda: Stream(source.keys).uniform(d)),
        Case("1% of a permutation", lambda: Stream(source.keys).subset(d, k)),
        Case("dithering, compress", lambda: levels.compress(x, source)),
        Case("dithering, decode", lambda: sent.decode(out)),
        Case("natural, compress", lambda: natural.compress(x, source)),
        Case("pack 3 bits", lambda: bitpack.pack(codes, 3)),
        Case("unpack 3 bits", lambda: bitpack.unpack(packed, 3, d, torch.uint8)),
        Case("pack trits", lambda: bitpack.pack(trits, bitpack.TRIT)),
    ]


def floors(x: Tensor) -> list[Case]:
    """Return torch's own actions on x (1, d)."""
    out, k = torch.empty_like(x), max(1, x.shape[-1] // 100)
    return [
        Case("copy", lambda: out.copy_(x)),
        Case("torch.topk of |x|, 1%", lambda: x.abs().topk(k, sorted=False)),
        Case("a random number each, torch's own", lambda: out.uniform_()),
    ]


def tensors(result: Any) -> list[Tensor]:
    """Return copies of the tensors of a result: itself, several, or a message's bytes."""
    if isinstance(result, Tensor):
        return [result.clone()]
    if isinstance(result, tuple):
        return list(result)
    return [leaf.payload() for leaf in result.leaves()]


def milliseconds(action: Callable[[], Any]) -> float:
    """Return how long the GPU takes, from an idle one until it is idle again."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    action()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def switched(on: bool) -> None:
    """Let GPUs be served by the kernels, or by plain torch."""
    gpu.usable = (lambda x: x.is_cuda) if on else (lambda x: False)


def main() -> None:
    """Measure, if there is a GPU, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--d", type=int, default=SIZE, help="coordinates")
    parser.add_argument("--repeats", type=int, default=20, help="turns")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here, nothing measured")
        return
    if not gpu.available():
        sys.exit(f"no kernels here: Triton is not installed, or {gpu.SWITCH} is 0")
    x = stream(0, "cuda").each([0]).normal(given.d).float()
    timed, plain = cases(x), floors(x)
    equal, best = {}, {}
    for case in timed:  # compiled on the way
        results = []
        for on in (True, False):
            switched(on)
            results.append(tensors(case.action()))
        equal[case.name] = all(map(torch.equal, *results))
    for _ in range(given.repeats):
        for on, several in ((True, timed), (False, [*timed, *plain])):
            switched(on)
            for case in several:
                key = case.name, on
                best[key] = min(best.get(key, math.inf), milliseconds(case.action))
    copy = best["copy", False]
    print(f"{torch.cuda.get_device_name()}, d = {given.d:,}: a copy takes {copy:.4f} ms")
    print(f"{'in copies':34} {'kernel':>8} {'torch':>8}  equal")
    for case in timed:
        ours, theirs = (best[case.name, on] / copy for on in (True, False))
        print(f"{case.name:34} {ours:8.2f} {theirs:8.2f}  {'yes' if equal[case.name] else 'NO'}")
    for case in plain:
        print(f"{case.name:34} {'':8} {best[case.name, False] / copy:8.2f}")


if __name__ == "__main__":
    main()
