"""Margin losses on the CPU over sparse rows and a tile of cells at a time (numba).

A tile of T cells is laid out (d, T): cell by cell next to each other, so one index of a sparse row
serves T contiguous numbers, one or two vector registers. Per client and tile, and per block of
``block_size`` rows, whose intermediates stay in the first-level cache:

1. margins: z[row] = sum over the row's indices of x[index]       (rows compressed, CSR)
2. slopes and losses, elementwise, with a polynomial exp that the compiler vectorises
3. gradient: g[index] += sum over the index's rows of s[row]      (columns compressed, per block)

Steps 1 and 3 are the same primitive, ``_gather_sum``. Where all stored values are 1 (one-hot data)
they skip the multiplication. The arithmetic is in float64 throughout, also for float32 problems.
Every (client, tile) is independent and its order of operations fixed, so neither the number of
threads nor the other cells of a batch change a cell's numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from raybench.core.compiled import compiled

LOGISTIC, SIGMOID_SQ = 0, 1
# Of the fast-math flags only contract (fused multiply-add): the others assume that there is no NaN
# and no infinity, and would optimise the rounding trick of ``_exp`` away.
_OPTIONS: Mapping[str, object] = {"error_model": "numpy", "fastmath": {"contract"}}


@intrinsic(prefer_literal=True)
def _gather_sum(typing, out, at, index, values, lo, hi, x, tile, weighted, accumulate):
    """out[at : at+T] (+)= sum_{lo <= j < hi} [values[j]] x[T index[j] : T index[j] + T].

    tile = T, weighted and accumulate are literal integers: the sum stays in vector registers, which
    the compiler does not manage for a loop over an array.
    """
    signature = types.void(out, at, index, values, lo, hi, x, tile, weighted, accumulate)
    lanes, weigh, add = (a.literal_value for a in (tile, weighted, accumulate))
    vector, i64 = ir.VectorType(ir.DoubleType(), lanes), ir.IntType(64)

    def emit(context, builder, sig, args):
        out, at, index, values, lo, hi, x = (
            context.make_array(kind)(context, builder, value).data
            if isinstance(kind, types.Array)
            else context.cast(builder, value, kind, types.int64)
            for kind, value in zip(sig.args[:7], args)
        )
        target = builder.bitcast(builder.gep(out, [at]), vector.as_pointer())
        zero = ir.Constant(vector, [0.0] * lanes)
        first = builder.load(target, align=8) if add else zero
        entry = builder.block
        head, body, end = (builder.append_basic_block(n) for n in ("head", "body", "end"))
        builder.branch(head)
        builder.position_at_end(head)
        j, total = builder.phi(i64), builder.phi(vector)
        builder.cbranch(builder.icmp_signed("<", j, hi), body, end)
        builder.position_at_end(body)
        position = builder.zext(builder.load(builder.gep(index, [j])), i64)
        place = builder.gep(x, [builder.mul(position, ir.Constant(i64, lanes))])
        term = builder.load(builder.bitcast(place, vector.as_pointer()), align=8)
        if weigh:
            scalar = builder.insert_element(
                ir.Constant(vector, ir.Undefined),
                builder.load(builder.gep(values, [j])),
                ir.Constant(ir.IntType(32), 0),
            )
            mask = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
            spread = builder.shuffle_vector(scalar, scalar, mask)
            term = builder.fmul(spread, term, flags=["contract"])
        new = builder.fadd(total, term, flags=["contract"])
        following = builder.add(j, ir.Constant(i64, 1))
        builder.branch(head)
        for phi, start, step in ((j, lo, following), (total, first, new)):
            phi.add_incoming(start, entry)
            phi.add_incoming(step, body)
        builder.position_at_end(end)
        builder.store(total, target, align=8)
        return context.get_dummy_value()

    return signature, emit


def block_size(tile: int) -> int:
    """Return the rows per block: few enough for the cache, many enough to repay each column."""
    return 512 if tile == 1 else 128


@intrinsic
def _power_of_two(typing, shifted):
    """Return 2^n for shifted = n + 1.5 * 2^52 + 1023, whose lowest bits hold n + 1023."""

    def emit(context, builder, sig, args):
        i64 = ir.IntType(64)
        bits = builder.shl(builder.bitcast(args[0], i64), ir.Constant(i64, 52))
        return builder.bitcast(bits, ir.DoubleType())

    return types.float64(types.float64), emit


@compiled(inline="always", **_OPTIONS)
def exp_minus(a: float) -> float:
    """Return exp(-a) for a >= 0 within 1 ulp; 0 above 708; NaN for NaN. Vectorises."""
    b = -708.0 if a > 708.0 else -a
    # adding 1.5 * 2^52 + 1023 rounds to an integer
    shifted = b * 1.4426950408889634 + 6755399441056767.0
    n = shifted - 6755399441056767.0
    r = b - n * 0.6931471803691238
    r = r - n * 1.9082149292705877e-10  # ln 2 is subtracted in two parts, which keeps all digits
    # Taylor to r^13, |r| <= 0.347, the remainder is below 1e-17
    p = 1.6059043836821613e-10
    p = p * r + 2.08767569878681e-09
    p = p * r + 2.505210838544172e-08
    p = p * r + 2.755731922398589e-07
    p = p * r + 2.7557319223985893e-06
    p = p * r + 2.48015873015873e-05
    p = p * r + 0.0001984126984126984
    p = p * r + 0.001388888888888889
    p = p * r + 0.008333333333333333
    p = p * r + 0.041666666666666664
    p = p * r + 0.16666666666666666
    p = p * r + 0.5
    p = p * r * r + r
    e = (1.0 + p) * _power_of_two(shifted)
    return 0.0 if a > 708.0 else e


@compiled(inline="always", **_OPTIONS)
def _slope_and_loss(kind: int, z: float) -> tuple[float, float, float]:
    """Return l'(z) and (q, h), with l(z) = log(1 + q) + h."""
    e = exp_minus(abs(z))
    inverse = 1.0 / (1.0 + e)
    small = e * inverse
    minus = small if z >= 0.0 else inverse  # sigma(-z)
    if kind == LOGISTIC:
        return -minus, e, (0.0 if z >= 0.0 else -z)
    plus = inverse if z >= 0.0 else small
    return -2.0 * minus * minus * plus, 0.0, minus * minus


@cache
def margin_kernel(tile: int, weighted: bool, kind: int) -> Callable[..., None]:
    """Return the compiled oracle for tiles of ``tile`` cells; see ``margins.SparseMargins``."""
    # Closures may capture integers only: with anything else numba's cache on disk never matches.
    weigh = int(weighted)
    T, room = tile, block_size(tile) * tile

    @compiled(**_OPTIONS)
    def oracle(rows, columns, labels, blocks, x, shift, shifted, grads, losses, loss, lo, hi):
        row_ends, row_index, row_values = rows
        column_ends, column_name, column_index, column_values = columns
        client_blocks, block_rows, block_columns = blocks
        B, d = grads.shape[0], grads.shape[2]
        tiles = (B + T - 1) // T
        xt, gt = np.zeros(d * T), np.empty(d * T)

        z, q, h, sign = np.empty(room), np.empty(room), np.empty(room), np.empty(room)
        total = np.empty(T)
        for item in range(lo, hi):
            c, first = item // tiles, (item % tiles) * T
            live = min(T, B - first)
            cx = c if x.shape[1] > 1 else 0
            for t in range(live):
                for k in range(d):
                    xt[k * T + t] = x[first + t, cx, k]
            for k in range(d * T):
                gt[k] = 0.0
            for t in range(T):
                total[t] = 0.0
            begin, end = client_blocks[c], client_blocks[c + 1]
            count = 1.0 / (block_rows[end] - block_rows[begin])
            for block in range(begin, end):
                r0, size = block_rows[block], block_rows[block + 1] - block_rows[block]
                for r in range(size):
                    a, b, at = row_ends[r0 + r], row_ends[r0 + r + 1], r * T
                    _gather_sum(z, at, row_index, row_values, a, b, xt, T, weigh, 0)
                for r in range(size):
                    for t in range(T):
                        sign[r * T + t] = labels[r0 + r]
                # one flat loop, which the compiler vectorises for every T
                for k in range(size * T):
                    y = sign[k]
                    slope, q[k], h[k] = _slope_and_loss(kind, y * z[k])
                    z[k] = slope * y * count
                for j in range(block_columns[block], block_columns[block + 1]):
                    a, b, at = column_ends[j], column_ends[j + 1], column_name[j] * T
                    _gather_sum(gt, at, column_index, column_values, a, b, z, T, weigh, 1)
                if loss:
                    # the sum of log(1 + q) is the log of a product, kept as product - 1
                    m = size
                    while m > 1:
                        half = (m + 1) // 2
                        for k in range((m - half) * T):
                            h[k] += h[k + half * T]
                        if kind == LOGISTIC:
                            for k in range((m - half) * T):
                                q[k] = q[k] * q[k + half * T] + (q[k] + q[k + half * T])
                        m = half
                    for t in range(live):
                        total[t] += h[t] + (math.log1p(q[t]) if kind == LOGISTIC else 0.0)
            for t in range(live):
                if shifted:
                    cs = c if shift.shape[1] > 1 else 0
                    for k in range(d):
                        grads[first + t, c, k] = gt[k * T + t] + shift[first + t, cs, k]
                else:
                    for k in range(d):
                        grads[first + t, c, k] = gt[k * T + t]
                if loss:
                    losses[first + t, c] = total[t] * count

    return oracle


@cache
def minibatch_kernel(weighted: bool, kind: int) -> Callable[..., None]:
    """Return the compiled gradient of b sampled rows per (cell, client)."""

    @compiled(**_OPTIONS)
    def minibatch(rows, labels, starts, x, shift, shifted, sample, grads, lo, hi):
        ends, index, values = rows
        n, d, size = grads.shape[1], grads.shape[2], sample.shape[2]
        for item in range(lo, hi):
            b, c = item // n, item % n
            at = x[b, c if x.shape[1] > 1 else 0]
            out = grads[b, c]
            for k in range(d):
                out[k] = shift[b, c if shift.shape[1] > 1 else 0, k] if shifted else 0.0
            for m in range(size):
                r = starts[c] + sample[b, c, m]
                z = 0.0
                for j in range(ends[r], ends[r + 1]):
                    z += values[j] * at[index[j]] if weighted else at[index[j]]
                s = _slope_and_loss(kind, labels[r] * z)[0] * labels[r] / size
                for j in range(ends[r], ends[r + 1]):
                    out[index[j]] += s * values[j] if weighted else s

    return minibatch


@compiled(error_model="numpy", fastmath={"contract", "reassoc", "nsz"})  # a sum in vector registers
def nonconvex_kernel(lam, x, grads, values):
    """Write gradient and value of lam sum_l x_l^2 / (1 + x_l^2) at each row of x (R, d)."""
    for b in range(x.shape[0]):
        row, out, total = x[b], grads[b], 0.0
        for k in range(len(row)):
            v = float(row[k])
            square = v * v
            inverse = 1.0 / (1.0 + square)
            out[k] = 2.0 * lam * v * inverse * inverse
            total += 1.0 if square > 1e300 else square * inverse
        values[b] = lam * total
