"""Marking what lies above a cut, a bit per coordinate, and collecting what is marked."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from raybench.core.compiled import compiled
from raybench.core.parallel import run_tiled, scratch

TILE = 32_768  # coordinates marked at a time: whole words of 64
COST = 0.5  # of marking a coordinate, in additions
LANES = {32: 16, 64: 8}  # entries of so many bits compared by one instruction


def _word_of(context, builder, signature, args, test):
    """Return the 64 bits of what ``test(value, bounds..)`` says of row[at + i]: vectors of lanes.

    No loop compiles to as little.
    """
    dtype = signature.args[0].dtype
    lanes, one = LANES[dtype.bitwidth], ir.IntType(dtype.bitwidth)
    vector, word, i32 = ir.VectorType(one, lanes), ir.IntType(64), ir.IntType(32)
    empty = ir.Constant(vector, ir.Undefined)
    spread = ir.Constant(ir.VectorType(i32, lanes), [0] * lanes)
    bounds = [
        builder.shuffle_vector(
            builder.insert_element(empty, context.cast(builder, a, t, dtype), ir.Constant(i32, 0)),
            empty,
            spread,
        )
        for a, t in zip(args[2:], signature.args[2:], strict=True)
    ]
    data = context.make_array(signature.args[0])(context, builder, args[0]).data
    found = ir.Constant(word, 0)
    for first in range(0, 64, lanes):
        place = builder.gep(data, [builder.add(args[1], ir.Constant(word, first))])
        place = builder.bitcast(place, vector.as_pointer())
        value = builder.load(place, align=dtype.bitwidth // 8)
        hits = builder.zext(builder.bitcast(test(value, *bounds), ir.IntType(lanes)), word)
        found = builder.or_(found, builder.shl(hits, ir.Constant(word, first)))
    return found


@intrinsic
def within(typing, row, at, cut, most):
    """Return the 64 bits of whether cut < |row[at + i]| <= most."""

    def build(context, builder, signature, args):
        bits = signature.args[0].dtype.bitwidth

        def test(value, low, high):
            size = builder.and_(value, ir.Constant(value.type, [2 ** (bits - 1) - 1] * LANES[bits]))
            return builder.and_(
                builder.icmp_signed(">", size, low), builder.icmp_signed("<=", size, high)
            )

        return _word_of(context, builder, signature, args, test)

    return types.uint64(row, types.int64, cut, most), build


@intrinsic
def _by_sign(typing, row, at, above, below):
    """Return the 64 bits of whether row[at + i] > above, or below < row[at + i] < 0."""

    def build(context, builder, signature, args):
        bits = signature.args[0].dtype.bitwidth

        def test(value, high, low):
            zero = ir.Constant(value.type, [0] * LANES[bits])
            return builder.or_(
                builder.icmp_signed(">", value, high),
                builder.and_(
                    builder.icmp_signed(">", value, low), builder.icmp_signed("<", value, zero)
                ),
            )

        return _word_of(context, builder, signature, args, test)

    return types.uint64(row, types.int64, above, below), build


@intrinsic
def ones(typing, word):
    """Return how many bits of a word are set."""
    return types.int64(types.uint64), lambda context, builder, sig, args: builder.ctpop(args[0])


@intrinsic
def lowest(typing, word):
    """Return the place of the lowest bit that is set."""
    no = ir.Constant(ir.IntType(1), 1)  # the word is never zero
    return types.int64(types.uint64), lambda context, builder, sig, args: builder.cttz(args[0], no)


@compiled
def _word(row, at, cut, other, signed):
    return _by_sign(row, at, cut, other) if signed else within(row, at, cut, other)


@compiled
def _mark(bits, r0, r1, lo, hi, cuts, others, signed, todo, marks, counts):
    for r in range(r0, r1):
        if not todo[r]:
            continue
        for t in range(lo // TILE, -(-hi // TILE)):
            row = bits[r, t * TILE : min((t + 1) * TILE, hi)]
            words = marks[r, t * TILE // 64 :]
            whole, found = row.shape[0] // 64, 0
            for w in range(whole):
                word = _word(row, w * 64, cuts[r], others[r], signed)
                words[w] = word
                found += ones(word)
            if row.shape[0] > 64 * whole:
                rest = np.zeros(64, row.dtype)
                rest[: row.shape[0] - 64 * whole] = row[64 * whole :]
                word = _word(rest, 0, cuts[r], others[r], signed)
                word &= (np.uint64(1) << np.uint64(row.shape[0] - 64 * whole)) - np.uint64(1)
                words[whole] = word
                found += ones(word)
            counts[r, t] = found


@compiled
def _collect(bits, r0, r1, lo, hi, marks, ends, where, raw):
    for r in range(r0, r1):
        row, to, values = bits[r], where[r], raw[r]
        if lo == 0:  # one of those who share a row clears what lies beyond its count
            to[ends[r, -1] :] = 0
            values[ends[r, -1] :] = 0
        for t in range(lo // TILE, -(-hi // TILE)):
            at = ends[r, t - 1] if t else 0
            for w in range(t * TILE // 64, -(-min((t + 1) * TILE, hi) // 64)):
                word = marks[r, w]
                while word != 0:
                    j = w * 64 + lowest(word)
                    to[at], values[at] = j, row[j]
                    at += 1
                    word &= word - np.uint64(1)


class Marks(NamedTuple):
    """What was marked: a bit per coordinate, uint64 (R, words), and counts by tile (R, tiles).

    The bits lie in scratch space that the next marking of the same thread overwrites.
    """

    bits: np.ndarray
    tiles: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        """How many are marked in each row, int64 (R,)."""
        return self.tiles.sum(1)


def mark(
    bits: np.ndarray,
    cuts: np.ndarray,
    most: np.ndarray | None = None,
    again: tuple[Marks, np.ndarray] | None = None,
) -> Marks:
    """Mark the entries with cut < |x| <= most of rows (R, d); both (R,), integers like the bits.

    again: marks made before, of which only some rows (bool (R,)) are to be made anew.
    """
    high = np.full(len(bits), np.iinfo(bits.dtype).max, bits.dtype) if most is None else most
    marks, todo = again or (_space(bits), np.ones(len(bits), bool))
    return _run(bits, cuts, high, False, todo, marks)


def mark_by_sign(bits: np.ndarray, cuts: np.ndarray) -> Marks:
    """Mark the positive entries above cuts[:, 0] and the negative ones with |x| above cuts[:, 1].

    cuts: (R, 2), from 0 to infinity, integers like the bits. A NaN is marked whatever its sign.
    """
    below = cuts[:, 1] + np.iinfo(bits.dtype).min  # the bits of -cut
    every = np.ones(len(bits), bool)
    return _run(bits, np.ascontiguousarray(cuts[:, 0]), below, True, every, _space(bits))


def _space(bits: np.ndarray) -> Marks:
    rows, d = bits.shape
    words = -(-d // 64)
    space = scratch("marks", rows * words, np.uint64).reshape(rows, words)
    return Marks(space, np.empty((rows, -(-d // TILE)), np.int64))


def _run(
    bits: np.ndarray,
    cuts: np.ndarray,
    others: np.ndarray,
    signed: bool,
    todo: np.ndarray,
    marks: Marks,
) -> Marks:
    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _mark(bits, r0, r1, lo, hi, cuts, others, signed, todo, *marks)

    run_tiled(work, len(bits), bits.shape[1], COST, TILE)
    return marks


def collect(bits: np.ndarray, marks: Marks, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return indices (ascending, int64) and values (of ``dtype``) marked in each row: (R, most).

    Beyond a row's count both are zero.
    """
    rows, d = bits.shape
    ends = marks.tiles.cumsum(1)
    widest = int(ends[:, -1].max()) if rows else 0
    where = torch.empty(rows, widest, dtype=torch.int64)
    values = torch.empty(rows, widest, dtype=dtype)
    to, raw = where.numpy(), values.numpy().view(bits.dtype)

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _collect(bits, r0, r1, lo, hi, marks.bits, ends, to, raw)

    run_tiled(work, rows, d, COST, TILE)
    return where, values
