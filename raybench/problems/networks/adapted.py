"""Which parameters of a network are trained, and low-rank updates (LoRA) in place of its matrices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raybench.core.errors import InputError, nearest
from raybench.problems.networks import own


class LowRankUpdate(nn.Module):
    """A linear layer whose matrix W stays: x -> W x + scale B A x, with A (rank, in), B (out, rank), and its bias.

    Tensors keep the names that they have in the layer. transposed: W is stored as (in, out), as GPT-2's are.
    Source: Hu et al. 2021 (LoRA).
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, layer: Any, rank: int, scale: float, transposed: bool) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight.requires_grad_(False), layer.bias
        self.scale, self.transposed = scale, transposed
        out, into = self.weight.shape[::-1] if transposed else self.weight.shape
        self.lora_a = nn.Parameter(torch.empty(rank, into))
        self.lora_b = nn.Parameter(torch.zeros(out, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.T if self.transposed else self.weight
        update = F.linear(F.linear(x, self.lora_a), self.lora_b)
        return F.linear(x, weight, self.bias) + self.scale * update

    def whole(self, a: Tensor, b: Tensor) -> Tensor:
        """Return W + scale B A as W is stored."""
        update = self.scale * (b @ a)
        return self.weight + (update.T if self.transposed else update)


def adapted(
    net: nn.Module, match: tuple[str, ...], rank: int | None, alpha: float | None, seed: int
) -> nn.Module:
    """Return the network of which only parameters that a pattern names are trained.

    rank: matrices of linear layers among them stay as they are, and updates of that rank are trained in their place,
    which are zero at first. Raises InputError for a pattern that names none, and where there is no such matrix.
    """
    names = [name for name, p in net.named_parameters() if p.requires_grad]
    chosen = matching(names, match, "problem.match")
    if rank is not None and not match:
        fix = f"match: [[...]] of {', '.join(names[:6])}"
        raise InputError.of("problem.match", "says which matrices lora is for", fix)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name in chosen)
    if rank is None:
        return net
    updates = 0
    with own.seeded(seed):
        for name in sorted(chosen):
            place, _, leaf = name.rpartition(".")
            layer = net.get_submodule(place)
            transposed = type(layer).__name__ == "Conv1D"  # of the library transformers
            if leaf != "weight" or not (isinstance(layer, nn.Linear) or transposed):
                continue
            update = LowRankUpdate(layer, rank, (alpha or rank) / rank, transposed)
            updates += 1
            if not place:
                return update
            outer, _, last = place.rpartition(".")
            setattr(net.get_submodule(outer), last, update)
    if not updates:
        what = f"lora is for matrices of linear layers, and {match[0]!r} names none"
        raise InputError.of("problem.match", what, "such as *.qkv.weight")
    return net


def matching(names: Iterable[str], patterns: Iterable[str], key: str) -> set[str]:
    """Return the names that a pattern matches; raises InputError, which names ``key``, for one that matches none."""
    chosen: set[str] = set()
    for pattern in patterns:
        matches = {name for name in names if fnmatchcase(name, pattern)}
        if not matches:
            raise InputError.of(key, f"{pattern!r} names no parameter", nearest(pattern, names))
        chosen |= matches
    return chosen


def merged(net: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state_dict in which low-rank updates are part of the matrices that they update."""
    out = dict(weights)
    for name, layer in net.named_modules():
        if isinstance(layer, LowRankUpdate):
            at = f"{name}." if name else ""
            a, b = (out.pop(f"{at}lora_{part}").to(layer.weight) for part in "ab")
            out[f"{at}weight"] = layer.whole(a, b)
    return out
