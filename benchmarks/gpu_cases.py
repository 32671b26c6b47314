"""What ``gpu.py`` times: calls that have kernels for GPUs beside plain torch, and networks in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import raybench
from raybench.compressors import by_size
from raybench.compressors.selection import at_least
from raybench.core import gpu
from raybench.core.streams import Stream, stream
from raybench.measure.timing import Clock
from raybench.testing.vectors import SIZE
from raybench.wire import bitpack
from raybench.wire.sparse import SparseMessage

CLIENTS = 8  # whose sparse messages are added up


def best(device: torch.device, action: Callable[[], Any], repeats: int = 5) -> float:
    """Return the least seconds of an action, after one that is not counted."""
    action()
    clock = Clock(device)
    for _ in range(repeats):
        clock("", action)
    return clock.best[""]


def cases(x: Tensor) -> dict[str, Callable[[], Any]]:
    """Return what is timed on x (1, d), float32: the same calls with kernels on and off."""
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
    sent, out, packed = levels.compress(x, source), torch.empty_like(x), bitpack.pack(codes, 3)
    return {
        "largest, 0.1%": lambda: by_size.largest(x, -(-d // 1000)),
        "largest, 1%": lambda: by_size.largest(x, k),
        "largest, 10%": lambda: by_size.largest(x, -(-d // 10)),
        "largest, 1% of rows of 1000": lambda: by_size.largest(short, 10),
        "above a threshold, 1%": lambda: at_least(x, cut),
        f"sum of {CLIENTS} sparse messages": message.sum_clients,
        "64 random bits each": lambda: Stream(source.keys).bits(d),
        "uniform numbers": lambda: Stream(source.keys).uniform(d),
        "1% of a permutation": lambda: Stream(source.keys).subset(d, k),
        "dithering, compress": lambda: levels.compress(x, source),
        "dithering, decode": lambda: sent.decode(out),
        "natural, compress": lambda: natural.compress(x, source),
        "pack 3 bits": lambda: bitpack.pack(codes, 3),
        "unpack 3 bits": lambda: bitpack.unpack(packed, 3, d, torch.uint8),
        "pack trits": lambda: bitpack.pack(trits, bitpack.TRIT),
    }


def tensors(result: Any) -> list[Tensor]:
    """Return copies of the tensors of a result: itself, several, or a message's bytes."""
    if isinstance(result, Tensor):
        return [result.clone()]
    return list(result) if isinstance(result, tuple) else [x.payload() for x in result.leaves()]


def kernels(machine: Any) -> Iterator[dict[str, Any]]:
    """Time kernels and plain torch over a copy, and compare their bits; on the CPU the same calls twice."""
    x = stream(0, machine.device).each([0]).normal(10**5 if machine.small else SIZE).float()
    out, k, usual = torch.empty_like(x), max(1, x.shape[-1] // 100), gpu.usable
    copy = best(machine.device, lambda: out.copy_(x), 20)
    yield {"case": "copy", "numbers": x.shape[-1], "torch, seconds": copy}
    plain = {"torch.topk of |x|, 1%": lambda: x.abs().topk(k, sorted=False)}
    plain["a random number each, torch's own"] = lambda: out.uniform_()
    for name, action in plain.items():
        yield {"case": name, "torch, copies": best(machine.device, action) / copy}
    for name, action in cases(x).items():
        results, took = [], []
        for on in (True, False):
            try:
                gpu.usable = usual if on else (lambda x: False)
                results.append(tensors(action()))
                took.append(best(machine.device, action) / copy)
            finally:
                gpu.usable = usual
        equal = all(map(torch.equal, *results))
        yield {"case": name, "kernel, copies": took[0], "torch, copies": took[1], "equal": equal}


# Networks of which steps of training are timed -------------------------------------------------------


class Words(nn.Module):
    """A transformer of the usual form, its first and last matrix shared: 124 million parameters, or few."""

    def __init__(self, small: bool) -> None:
        super().__init__()
        words, width, heads, layers = (64, 32, 2, 2) if small else (50257, 768, 12, 12)
        self.length, self.words = 16 if small else 1024, words
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(self.length, width)
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(block, layers, nn.LayerNorm(width), False)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        y = self.embed(x) + self.place(torch.arange(x.shape[1], device=x.device))
        return F.linear(self.body(y, mask, is_causal=True), self.embed.weight).flatten(0, 1)


def networks(machine: Any) -> Iterator[tuple[str, Callable[[], nn.Module], Tensor, Tensor]]:
    """Yield names, makers, inputs and targets."""
    import torchvision

    small, there = machine.small, machine.device
    name, batch, side = ("resnet18", 2, 32) if small else ("resnet50", 64, 224)
    images = torch.randn(batch, 3, side, side, device=there)
    targets = torch.randint(10, (batch,), device=there)
    yield name, partial(getattr(torchvision.models, name), num_classes=1000), images, targets
    words = Words(small)
    x = torch.randint(words.words, (2 if small else 8, words.length), device=there)
    yield "transformer", partial(Words, small), x, x.roll(-1, 1).flatten()
