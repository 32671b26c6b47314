"""How the d coordinates of a variable fall into named tensors, which of those a method treats apart, and recorded ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Named tensors, in order, whose sizes sum to d. Hashable; shapes are those of one variable."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def vector(cls, d: int) -> Layout:
        """Return the layout of a single vector ``x`` of length d."""
        return cls((("x", (d,)),))

    @cached_property
    def dim(self) -> int:
        """Return d, the number of coordinates."""
        return sum(self.sizes)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Return the number of coordinates of each tensor."""
        return tuple(math.prod(shape) for _, shape in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __iter__(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        return iter(self.tensors)

    def views(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return each tensor of x (..., d) as a view (..., *shape)."""
        parts = x.split(self.sizes, dim=-1)
        return [p.view((*p.shape[:-1], *shape)) for p, (_, shape) in zip(parts, self.tensors)]

    def named(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return ``views`` of x (..., d) by name."""
        return {name: view for (name, _), view in zip(self.tensors, self.views(x), strict=True)}

    def concat(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return (..., d) from one tensor (..., *shape) per name: the inverse of ``views``."""
        pairs = zip(tensors, self.tensors, strict=True)
        flat = [t.reshape(*t.shape[: t.ndim - len(shape)], -1) for t, (_, shape) in pairs]
        return torch.cat(flat, dim=-1)

    def fragments(self, count: int) -> list[tuple[slice, Layout]]:
        """Return consecutive groups of tensors of about d/count coordinates: where, and their layouts.

        At most ``count`` of them, and none is empty: a large tensor stands alone.
        """
        groups: dict[int, list[tuple[tuple[str, tuple[int, ...]], int]]] = {}
        at = 0
        for tensor, size in zip(self.tensors, self.sizes, strict=True):
            middle = (2 * at + size) * count // (2 * max(1, self.dim))
            groups.setdefault(min(middle, count - 1), []).append((tensor, at))
            at += size
        ordered = [groups[j] for j in sorted(groups)]
        starts = [group[0][1] for group in ordered]
        return [
            (slice(first, last), Layout(tuple(tensor for tensor, _ in group)))
            for first, last, group in zip(starts, [*starts[1:], at], ordered, strict=True)
        ]


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


# Where recorded gradients lie in their folder: what writes them and what reads them agree on it here.
#
# A folder holds ``record.json`` and one ``step_<t>.npz`` for every recorded step t. An archive has one float32
# array for each parameter, under the parameter's name, in the parameter's shape; numpy saves and reads them
# without pickling. The JSON object has the keys
#
#     format            1
#     steps             the recorded steps, ascending
#     seconds_backward  seconds of a backward pass on the machine of the run, or null
#     world_size        processes of the run
#     tensors           [name, [sizes]] of every parameter, in the model's order
FORMAT = 1
INDEX = "record.json"


def step_file(step: int) -> str:
    """Return the name of the archive of a step."""
    return f"step_{step}.npz"
