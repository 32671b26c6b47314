"""The networks of which ``gpu.py`` times steps of training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
