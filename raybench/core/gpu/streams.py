"""Random streams on a GPU: the hash of (key, counter), and what is made of it in one pass over memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from raybench.core.gpu import launch

BLOCK = 1024  # numbers that a program makes


@triton.jit
def hashed(key, counter):
    """Return splitmix64(key, counter), uint64, elementwise with broadcasting."""
    z = key.to(tl.uint64, bitcast=True) + (counter.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def unit(hashes):
    """Return numbers uniform on [0, 1), float64, of hashes."""
    return (hashes >> 11).to(tl.float64) * 1.1102230246251565e-16  # 2^-53


@triton.jit
def draw_kernel(keys, out, count, blocks, UNIFORM: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0)
    r = (at // blocks).to(tl.int64)
    j = (at % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    h = hashed(tl.load(keys + r), j)
    to = out + r * count + j
    if UNIFORM:
        tl.store(to, unit(h), mask=j < count)
    else:
        tl.store(to, h.to(tl.int64, bitcast=True), mask=j < count)


@triton.jit
def keys_kernel(root, tags, ids, out, count, many, tagged, IDS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(root + at // many, mask=at < count, other=0)
    for t in range(tagged):
        key = hashed(key, tl.load(tags + t)).to(tl.int64, bitcast=True)
    if IDS:
        identity = tl.load(ids + at % many, mask=at < count, other=0)
        key = hashed(key, identity).to(tl.int64, bitcast=True)
    tl.store(out + at, key, mask=at < count)


@triton.jit
def images_kernel(
    keys, first, out, d, count, blocks, high, low, ROUNDS: tl.constexpr, BLOCK: tl.constexpr
):
    at = tl.program_id(0)
    r = (at // blocks).to(tl.int64)
    j = (at % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    key, step = tl.load(keys + r), tl.full((), 1, tl.int64)
    above, below = (step << high) - 1, (step << low) - 1
    v = tl.minimum(tl.load(first + r) + j, d - 1)
    todo = j < count
    while tl.max(todo.to(tl.int32), 0) > 0:  # those beyond d walk on
        left, right = v >> low, v & below
        for t in range(0, ROUNDS, 2):
            a = hashed(key, step * t).to(tl.int64, bitcast=True)
            b = hashed(key, step * (t + 1)).to(tl.int64, bitcast=True)
            left = left ^ (hashed(a, right).to(tl.int64, bitcast=True) & above)
            right = right ^ (hashed(b, left).to(tl.int64, bitcast=True) & below)
        v = tl.where(todo, (left << low) | right, v)
        todo = todo & (v >= d)
    tl.store(out + r * count + j, v, mask=j < count)


def draws(keys: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Return random numbers of shape (*keys.shape, count).

    dtype: int64 for 64 bits each, float64 for numbers uniform on [0, 1), multiples of 2^-53.
    """
    out = torch.empty(*keys.shape, count, dtype=dtype, device=keys.device)
    blocks = -(-count // BLOCK)
    arguments = keys.contiguous(), out, count, blocks
    launch(
        draw_kernel, keys.numel() * blocks, *arguments, UNIFORM=dtype == torch.float64, BLOCK=BLOCK
    )
    return out


def keys_of(root: Tensor, tags: tuple[int, ...], ids: Tensor | None) -> Tensor:
    """Return the keys of a stream, int64 (*root.shape, *ids.shape): root folded by tags, then by the ids."""
    shape = (*root.shape, *(() if ids is None else ids.shape))
    out = torch.empty(shape, dtype=torch.int64, device=root.device)
    folds = torch.tensor(tags, dtype=torch.int64, device=root.device)
    count, many = out.numel(), 1 if ids is None else max(len(ids), 1)
    arguments = root.contiguous(), folds, folds if ids is None else ids, out, count, many, len(tags)
    launch(keys_kernel, -(-count // BLOCK), *arguments, IDS=ids is not None, BLOCK=BLOCK)
    return out


def images(keys: Tensor, first: Tensor, d: int, count: int, rounds: int) -> Tensor:
    """Return pi(first), .., pi(first + count - 1) of a permutation per key, int64 (*keys.shape, count).

    pi is a Feistel network of so many rounds (even) on the bits of d - 1, walked until it is below d.
    first: int64 like keys; beyond d - 1 the last image is repeated.
    """
    width, blocks = max(d - 1, 1).bit_length(), -(-count // BLOCK)
    out = torch.empty(*keys.shape, count, dtype=torch.int64, device=keys.device)
    arguments = keys.contiguous(), first.contiguous(), out, d, count, blocks
    halves = width - width // 2, width // 2
    launch(images_kernel, keys.numel() * blocks, *arguments, *halves, ROUNDS=rounds, BLOCK=BLOCK)
    return out
