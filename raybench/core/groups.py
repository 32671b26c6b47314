"""Tensors of a variable in groups: which of them a method treats apart, and each clipped on its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from raybench.core.layout import Layout


def clipped(layout: Layout, g: Tensor, limit: float) -> Tensor:
    """Return g (.., d) with every tensor scaled down to the norm ``limit`` where it is above."""
    parts = []
    for tensor in g.split(layout.sizes, -1):
        norm = torch.linalg.vector_norm(tensor, dim=-1, keepdim=True, dtype=torch.float64)
        parts.append(tensor * (limit / norm).clamp(max=1).to(g.dtype))
    return torch.cat(parts, -1)


@dataclass(frozen=True)
class Split:
    """The tensors of a layout in two groups: ``wide`` to be compressed, ``narrow`` to be sent dense.

    wide, narrow: places in the layout.
    """

    whole: Layout
    wide: tuple[int, ...]
    narrow: tuple[int, ...]

    @property
    def layout(self) -> Layout:
        """The layout of the tensors to be compressed."""
        return Layout(tuple(self.whole.tensors[i] for i in self.wide))

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the two groups of x (.., d), each (.., its size)."""
        if not self.narrow:
            return x, x[..., :0]
        parts = x.split(self.whole.sizes, -1)
        wide, narrow = ([parts[i] for i in group] for group in (self.wide, self.narrow))
        return torch.cat([x[..., :0], *wide], -1), torch.cat(narrow, -1)

    def join(self, wide: Tensor, narrow: Tensor) -> Tensor:
        """Return x of its two groups."""
        if not self.narrow:
            return wide
        sizes = self.whole.sizes
        parts = dict(zip(self.wide, wide.split([sizes[i] for i in self.wide], -1), strict=True))
        parts |= zip(self.narrow, narrow.split([sizes[i] for i in self.narrow], -1), strict=True)
        return torch.cat([parts[i] for i in range(len(sizes))], -1)


def matrices(layout: Layout, dense_vectors: bool) -> Split:
    """Return the split that compresses all tensors, or with ``dense_vectors`` those of two axes or more."""
    narrow = [i for i, (_, shape) in enumerate(layout) if dense_vectors and len(shape) < 2]
    wide = [i for i in range(len(layout)) if i not in narrow]
    return Split(layout, tuple(wide), tuple(narrow))
