"""Quantisers: signs, dithering, rounding and casts: exact laws and errors, kernels against references."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise, product
from operator import itemgetter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import first_of_each
from torch.nn.functional import pad

import raybench
from raybench.compressors import dithering as kernels
from raybench.compressors import norms as sizes
from raybench.compressors.dithering import (
    Dithering,
    ExponentialDithering,
    NaturalDithering,
    OneBit,
    Qsgd,
    ScaledSign,
    Sign,
    TernGrad,
)
from raybench.compressors.rounding import (
    MOST_LEVELS,
    ExponentialRounding,
    Natural,
    RoundedMessage,
    Rounding,
    StochasticRounding,
    cut,
    cut_torch,
    grid,
    round_to,
    round_to_torch,
    rounded_width,
)
from raybench.core.errors import InputError
from raybench.core.streams import stream
from raybench.testing.claims import SIGMAS, moments
from raybench.testing.vectors import families, gaussian
from raybench.wire.levels import code_dtype, levels_of

DTYPES = (torch.float32, torch.float64)
DRAWS = 4000


# Norms and codes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "dtype"), first_of_each(product([2.0, math.inf, 1.0, 1.5], DTYPES)))
def test_norms_equal_the_reference(p, dtype, two_threads):
    for lead, d in (((), 1), ((2, 3), 24), ((9,), 12_000), ((), 20_011)):
        x = gaussian(*lead, d, dtype=dtype)
        for bucket in (0, 1, 7, 512, 3000, 50_000):
            got = sizes.norms(x, p, bucket)
            size = bucket or d
            parts = pad(x.double(), (0, -d % size)).unflatten(-1, (-1, size))
            want = torch.linalg.vector_norm(parts, ord=p, dim=-1)
            torch.testing.assert_close(got, want, rtol=1e-12, atol=0)
            torch.testing.assert_close(got, sizes.norms_torch(x, p, bucket), rtol=1e-12, atol=0)
            if lead == (9,):
                assert torch.equal(got, torch.stack([sizes.norms(row, p, bucket) for row in x]))


def test_norms_of_extreme_rows_leave_the_others():
    x = gaussian(6, 5000)
    clean = sizes.norms(x, 2.0)
    x[1], x[2] = x[1] * 1e-200, x[2] * 1e200
    x[3], x[4, 7], x[5, 7] = 0.0, math.nan, math.inf
    got = sizes.norms(x, 2.0)[:, 0]
    want = clean[:, 0] * torch.tensor([1, 1e-200, 1e200, 0, 1, 1], dtype=torch.float64)
    torch.testing.assert_close(got[:4], want[:4], rtol=1e-12, atol=0)
    assert got[0] == clean[0, 0]
    assert not bool(got[4:].isfinite().any())
    for p in (1.0, 2.0, math.inf):
        assert not bool(sizes.norms(x[4:], p).isfinite().any())
        assert bool(sizes.norms(x[4:, :512], p, 8)[:, 1:].isfinite().all())


def way_of(table, s, base):
    """Return the way to round to a table's levels, and its ladder."""
    ways = {"linear": kernels.DITHERED, "nearest": kernels.NEAREST, "floor": kernels.FLOOR}
    if table != "power":
        return ways[table], None
    return (kernels.POWER, None) if base == 2 else (kernels.LADDER, levels_of(table, s, base)[s:])


WAYS = [
    *(("linear", s, 2.0) for s in (3, 1, 127, 200, 40_000, 2**30)),
    *(("power", s, 2.0) for s in (3, 1, 8, 200, 1000)),
    *(("power", 4, 3.0), ("power", 1, 3.0), ("power", 150, 1.1)),
    *((way, s, 2.0) for way in ("nearest", "floor") for s in (127, 1, 2**30)),
]


@pytest.mark.parametrize(
    ("table", "s", "base", "dtype"),
    first_of_each(((*way, dtype) for way in WAYS for dtype in DTYPES), lambda c: (c[0], c[2] == 2)),
)
def test_codes_equal_the_reference(table, s, base, dtype, two_threads):
    hard = torch.tensor([0.0, -0.0, 1e-45, 1e-30, -1e30, 3e38, math.inf, -math.inf, math.nan])
    for x in (
        gaussian(2, 3, 24, dtype=dtype) * gaussian(2, 3, 24, seed=5, dtype=dtype).exp(),
        gaussian(20_001, dtype=dtype) ** 3,
        hard.to(dtype).expand(40, 9).contiguous(),
        gaussian(4, 600, dtype=dtype) * torch.finfo(dtype).tiny,
    ):
        q = stream(3).spread(tuple(x.shape[:-1]))
        for bucket in (0, 7):
            for p in (2.0, math.inf):
                norm = sizes.norms(x, p, bucket).to(dtype).double()
                way, steps = way_of(table, s, base)
                got = kernels.codes_of(x, norm, q, way, s, bucket, steps)
                assert got.dtype == code_dtype(2 * s + 1)
                want = kernels.codes_torch(x, norm, q, way, s, bucket, steps)
                assert torch.equal(got.long(), want)
                assert int(want.min()) >= 0
                assert int(want.max()) <= 2 * s


def test_codes_by_the_definition():
    """Each way in exact arithmetic: which of the two levels around |x_j| / norm, given the uniform number."""
    x, q = gaussian(6, 40), stream(4).spread((6,))
    norm, u = x.abs().amax(-1, keepdim=True), q.uniform(40).tolist()
    for s in (1, 3, 127):
        dithered, nearest, floor = (
            kernels.codes_of(x, norm, q, way, s, 0, None).tolist()
            for way in (kernels.DITHERED, kernels.NEAREST, kernels.FLOOR)
        )
        for r, row in enumerate(x.tolist()):
            for j, value in enumerate(row):
                at = Fraction(value) / Fraction(float(norm[r])) * s  # between -s and s
                low, part = math.floor(at), at - math.floor(at)
                up = low + (Fraction(u[r][j]) < part)
                assert floor[r][j] - s == up
                size = math.floor(abs(at) + Fraction(u[r][j]))
                assert dithered[r][j] - s == min(size, s) * (1 if value >= 0 else -1)
                assert nearest[r][j] - s == round(at)


# Dithering ----------------------------------------------------------------------------------------


def exact_variance(x, norm, steps):
    """Return E||C(x) - x||^2 of unbiased rounding of |x| / norm to the steps 0, .., 1."""
    ratio = x.abs() / norm
    k = torch.searchsorted(steps, ratio, right=True).clamp(max=len(steps) - 1) - 1
    return float(norm**2 * ((ratio - steps[k]) * (steps[k + 1] - ratio)).sum())


STEPS = [
    *((None, s) for s in (1, 2, 3, 10, 127)),
    *((base, s) for base in (1.05, 2.0, 7.0) for s in (1, 2, 5, 40)),
]


@pytest.mark.parametrize("p", first_of_each([2.0, 1.0, 1.5, 3.0, 7.0, "inf"]))
@pytest.mark.parametrize("d", first_of_each([24, 1, 2, 500]))
def test_omega_of_dithering_bounds_the_exact_variance(d, p):
    """The variance is known in closed form, between any two levels, equally spaced or powers."""
    many = [gaussian(d, seed=seed) ** (1 + 2 * (seed % 3)) for seed in range(30)]
    sparse = gaussian(d) * (gaussian(d, seed=4).abs() > 1.5)
    vectors = [*many, sparse, -gaussian(d).exp(), *families(d).values()]
    for base, s in STEPS:
        op = Dithering(s, p) if base is None else ExponentialDithering(s, p, base)
        steps = levels_of("linear" if base is None else "power", s, base or 2.0)[s:]
        for x in vectors:
            norm, size = torch.linalg.vector_norm(x, ord=float(p)), float(x.square().sum())
            if size:
                bound = op.omega(d) * size * (1 + 1e-9) + 1e-15
                assert exact_variance(x, norm, steps) <= bound, (base, s)


def test_base_two_is_natural_dithering():
    x, q = gaussian(5, 300), stream(0).spread((5,))
    natural = NaturalDithering(6, 2.0, 50).compress(x, q).decode()
    assert torch.equal(natural, ExponentialDithering(6, 2.0, 2.0, 50).compress(x, q).decode())


@pytest.mark.parametrize(
    "op", [Dithering(3, 2.0, 7), Qsgd(2, 7), TernGrad(7), NaturalDithering(3, 2.0, 7)]
)
def test_a_bucket_is_a_vector_of_its_own(op):
    x = gaussian(2, 24)
    m = op.compress(x)
    assert m.scales.shape == (2, 4)
    for b, part in enumerate(x.split(7, -1)):
        p = math.inf if isinstance(op, TernGrad) else 2.0
        torch.testing.assert_close(m.scales[:, b], torch.linalg.vector_norm(part, ord=p, dim=-1))
    assert op.omega(24) == op.omega(1000) == type(op)(**{**op.__dict__, "bucket": 0}).omega(7)
    assert op.omega(5) < op.omega(7)
    still = type(op)(**{**op.__dict__, "bucket": 24}).compress(x).decode()
    assert torch.equal(still, type(op)(**{**op.__dict__, "bucket": 0}).compress(x).decode())


def test_a_norm_is_divided_by_as_it_is_sent():
    # a flat vector of float32 whose norm rounds: the mean is x, not x times the rounding
    x = torch.full((3,), 7e-45, dtype=torch.float32)  # five units of the smallest denormal
    norm = float((x.double().norm()).float())
    value = Dithering(1, 2.0).compress(x.expand(DRAWS, 3)).decode().double()
    assert set(value.unique().tolist()) == {0.0, norm}
    mean = value.mean() / x[0].double()
    assert abs(mean - 1) < 5 * math.sqrt((norm / 7e-45 - 1) / (3 * DRAWS))


# Signs --------------------------------------------------------------------------------------------

vectors = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40).map(
    lambda row: torch.tensor(row, dtype=torch.float64)
)


@settings(max_examples=50, deadline=None)
@given(vectors)
def test_errors_of_the_sign_operators_are_exact(x):
    d, size = len(x), x.square().sum()
    high, low = x[x >= 0], -x[x < 0]
    kept = sum(float(side.sum() ** 2) / max(len(side), 1) for side in (high, low))
    want = {ScaledSign: size - x.abs().sum() ** 2 / d, OneBit: size - kept}
    result = {}
    for kind, error in want.items():
        result[kind] = (kind().compress(x).decode() - x).square().sum()
        assert float(result[kind]) == pytest.approx(float(error), rel=1e-9, abs=1e-9 * float(size))
        assert float(result[kind]) <= (1 - kind().alpha(d)) * float(size) * (1 + 1e-9) + 1e-300
    assert result[OneBit] <= result[ScaledSign] + 1e-9 * size
    assert torch.equal(Sign().compress(x).decode(), torch.where(x >= 0, 1.0, -1.0).double())


def test_signs_on_small_examples():
    x = torch.tensor([4.0, -1.0, 0.0, -2.0])
    assert OneBit().compress(x).decode().tolist() == [2.0, -1.5, 2.0, -1.5]
    assert ScaledSign().compress(x).decode().tolist() == [1.75, -1.75, 1.75, -1.75]
    assert (OneBit().compress(x).nbytes, Sign().compress(x).nbytes) == (2 * 4 + 1, 1)
    one_hot = torch.tensor([0.0, 3.0, 0.0, 0.0])  # the worst case: alpha = 1/d
    assert float((OneBit().compress(one_hot).decode() - one_hot).square().sum()) == 0.75 * 9


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_shows_or_is_refused(bad):
    x = gaussian(3, 30)
    x[1, 4] = bad
    with pytest.raises(ValueError, match="no bit for NaN"):
        Sign().compress(x)
    huge = torch.full((3,), 1.5e308, dtype=torch.float64)  # the sum overflows, no number does
    assert Sign().compress(huge).decode().tolist() == [1, 1, 1]
    value = Dithering(3, 2.0, 10).compress(x).decode()
    assert bool(value[1, 10:].isfinite().all())  # other buckets stay
    for op in (Natural(), Rounding((1, 1.5)), ExponentialRounding(3.0, False)):
        value = op.compress(x).decode()
        assert bool(value[1, 4].isinf()), op
        assert int(value.isfinite().sum()) == 89, op


# Rounding -----------------------------------------------------------------------------------------

GRIDS = [((1.0,), 2.0), ((1.0,), 3.0), ((1.0, 1.5), 2.0), ((1.0, 1.1, 7.0), 10.0), ((1.3,), 1e6)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("levels", "base"), [*GRIDS, ((1.0,), 1.06)])
def test_a_grid_is_all_of_its_levels(levels, base, dtype):
    info, held = torch.finfo(dtype), grid(levels, base, dtype)
    assert bool((held.diff() > 0).all())
    assert info.tiny <= float(held[0])
    assert float(held[-1]) <= info.max
    inside = held[(held > 1e-30) & (held < 1e30)]
    around = torch.tensor((*levels, levels[0] * base), dtype=torch.float64)
    ratios, wanted = inside[1:] / inside[:-1], around[1:] / around[:-1]
    assert bool(((ratios[:, None] / wanted - 1).abs().min(-1).values < 1e-6).all())
    assert torch.isclose(held, torch.tensor(levels[0]).double(), rtol=1e-6).any()
    # none is missing at the ends: one more level would leave the normal numbers
    widest = float(wanted.max())
    assert float(held[0]) / widest < info.tiny * (1 + 1e-6)
    assert float(held[-1]) * widest > info.max * (1 - 1e-6)


def value_of(codes, levels, base, dtype):
    """Return what codes of a grid stand for, by the definition."""
    held, sign = grid(levels, base, dtype), 2 ** (rounded_width(levels, base, dtype) - 1)
    sizes = torch.cat((torch.zeros(1), held, torch.tensor([math.inf]))).to(dtype)
    return sizes[codes.long() % sign] * torch.where(codes.long() >= sign, -1, 1)


CLOSE = ((1.0, 1.001, 1.002, 1.0021), 2.0)


@pytest.mark.parametrize(
    ("grid_of", "nearest", "dtype"),
    first_of_each(product([CLOSE, *GRIDS, ((1.0,), 1.06)], [False, True], DTYPES), itemgetter(1)),
)
def test_rounding_equals_the_reference(grid_of, nearest, dtype, two_threads):
    (levels, base), info = grid_of, torch.finfo(dtype)
    hard = [0.0, 1.0, 1.5, 3.0, info.max, info.tiny, info.tiny / 2, info.tiny / 8, math.inf]
    hard = torch.tensor([*hard, *(-v for v in hard), math.nan, -math.nan], dtype=dtype)
    wide = gaussian(3, 700, dtype=dtype) * (20 * gaussian(3, 700, dtype=dtype, seed=2)).exp()
    close = 1 + gaussian(900, dtype=dtype) / 500  # several levels in one place of the table
    for x in (wide, hard.expand(50, -1).contiguous(), gaussian(6001, dtype=dtype), close):
        q = None if nearest else stream(3).spread(tuple(x.shape[:-1]))
        codes = round_to(levels, base, x, q)
        assert torch.equal(codes.long(), round_to_torch(levels, base, x, q))
        m = RoundedMessage(x.shape[-1], dtype, codes, levels, base)
        assert torch.equal(m.decode(), value_of(codes, levels, base, dtype))
        assert m.nbytes == math.ceil(x.shape[-1] * rounded_width(levels, base, dtype) / 8)


def gaps():
    """Yield a rounding and the levels between which its relative variance is largest."""
    for levels, base in GRIDS[:-1]:
        around = (*levels, levels[0] * base)
        yield Rounding(levels, base), *max(pairwise(around), key=lambda pair: pair[1] / pair[0])
    for p in (1, 2, 3, 8):
        yield StochasticRounding(p), 1.0, 1 + 2.0 ** (1 - p)


@pytest.mark.parametrize(("op", "a", "b"), [*gaps()], ids=str)
def test_rounding_is_unbiased_and_its_omega_is_attained(op, a, b):
    """Between a and b the variance over x^2 is largest at 2ab/(a + b)."""
    worst = 2 * a * b / (a + b)
    x = torch.tensor([-worst], dtype=torch.float64)
    m = moments(op, x, DRAWS)
    assert (worst - a) * (b - worst) / worst**2 == pytest.approx(op.omega(1), rel=1e-12)
    assert abs(m.error[0] - op.omega(1)) <= SIGMAS * m.error[1] + 1e-12
    assert abs(float(m.mean[0]) + worst) <= SIGMAS * float(m.mean[1])
    values = op.compress(x.expand(1000, 1)).decode().unique()
    assert torch.allclose(values, torch.tensor([-b, -a], dtype=torch.float64), rtol=1e-12)


@pytest.mark.parametrize(("p", "dtype"), first_of_each(product([1, 2, 8, 11, 24], DTYPES)))
def test_cut_floats_equal_the_reference(p, dtype, two_threads):
    info = torch.finfo(dtype)
    hard = [0.0, 1.5, math.inf, math.nan, info.max, info.max / 1.01, info.tiny, info.tiny / 4]
    hard = torch.tensor([*hard, *(-v for v in hard)], dtype=dtype).expand(99, -1).contiguous()
    for x in (gaussian(2, 3, 24, dtype=dtype), gaussian(20_001, dtype=dtype), hard):
        for q in (stream(3).spread(tuple(x.shape[:-1])), None):
            got, want = cut(x, p, q), cut_torch(x, p, q)
            assert torch.equal(got.long() % 2**52, want.to(got.dtype).long() % 2**52)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [1, 3, 8])
def test_a_number_goes_to_one_of_the_two_around_it(p, dtype):
    """By the definition, on numbers: mantissa and exponent of frexp, the uniform integer of the stream."""
    q = stream(3).spread((5,))
    x = gaussian(5, 400, dtype=dtype) * gaussian(5, 400, seed=2, dtype=dtype).exp()
    got = StochasticRounding(p).compress(x, q).decode().double()
    mantissa, exponent = torch.frexp(x.double())  # 1/2 <= |mantissa| < 1
    gap = torch.ldexp(torch.ones_like(mantissa), exponent - p)
    low = (x.double().abs() / gap).floor() * gap
    bits = 24 - p if dtype == torch.float32 else 53 - p
    u = (q.bits(400) & (2**bits - 1)).double() / 2**bits
    want = torch.where(u >= 1 - (x.double().abs() - low) / gap, low + gap, low)
    assert torch.equal(got, want.copysign(x.double()))


def test_rounding_to_powers_of_two_is_natural_compression():
    for dtype in DTYPES:
        x, q = gaussian(4, 600, dtype=dtype), stream(0).spread((4,))
        natural = Natural().compress(x, q)
        for op in (Rounding(), ExponentialRounding()):
            m = op.compress(x, q)
            assert torch.equal(m.decode(), natural.decode())
            assert m.nbytes == natural.nbytes
            assert op.omega(600) == Natural().omega(600)


@pytest.mark.parametrize("base", [1.05, 2.0, 3.0, 5.0, 100.0])
def test_nearest_rounding_has_the_constants_of_the_paper(base):
    op, d = ExponentialRounding(base, False), 24
    top = torch.linspace(1.0, base, 2001, dtype=torch.float64)
    ratio = op.compress(top).decode() / top
    low, high = 2 / (base + 1), 2 * base / (base + 1)
    assert float(ratio.min()) == pytest.approx(low, rel=1e-2)
    assert float(ratio.max()) == pytest.approx(high, rel=1e-2)
    assert low * (1 - 1e-12) <= float(ratio.min())
    assert float(ratio.max()) <= high * (1 + 1e-12)
    middle = torch.tensor([(1 + base) / 2], dtype=torch.float64)
    error = float((op.compress(middle).decode() - middle).square() / middle.square())
    assert error == pytest.approx(1 - op.alpha(d), rel=1e-12)
    assert op.b1(d) == (pytest.approx(low**2), pytest.approx(high))
    assert op.b2(d) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.parametrize(
    ("levels", "base"),
    [((), 2.0), ((0.5,), 2.0), ((2.0,), 2.0), ((1, math.nan), 2.0), ((1,), 1.04), ((1,), 1.0)],
)
def test_grids_that_are_refused(levels, base):
    with pytest.raises(InputError):
        Rounding(levels, base)
    if levels == (1,):
        with pytest.raises(InputError):
            ExponentialRounding(base)


@pytest.mark.thorough
def test_the_finest_grid_that_is_taken():
    x = gaussian(300)
    m = ExponentialRounding(1.0444).compress(x)
    assert len(grid((1.0,), 1.0444, torch.float64)) <= MOST_LEVELS
    assert m.width == 16
    assert torch.allclose(m.decode(), x, rtol=0.0445)
    with pytest.raises(ValueError, match="more than"):
        grid((1.0,), 1.04, torch.float64)


# Casts -------------------------------------------------------------------------------------------


def test_fp16_has_no_class_but_with_a_scale():
    lost = torch.full((8,), 2.0**-26)
    assert raybench.compressor("fp16").alpha(8) is None
    assert not raybench.compressor("fp16").compress(lost).decode().any()
    q = raybench.compressor("fp16:scale=max")
    assert torch.equal(q.compress(lost).decode(), lost)
    x = torch.full((1000,), 2.0**-25, dtype=torch.float64)
    x[7] = 1.0
    error = (q.compress(x).decode() - x).square().sum()
    assert error == 999 * 2.0**-50  # all but the largest are lost
    assert q.alpha(2**40) == pytest.approx(1 / (1 + 2.0**-10))
    assert q.alpha(1000) == 1 - 2.0**-22


# Stochastic rounding -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_stochastic_rounding_at_the_edges(dtype):
    most = torch.finfo(dtype).max
    x = torch.tensor([most, -most, math.inf, -math.inf, math.nan, -0.0, 1.5], dtype=dtype)
    for p in (1, 2, 8, 24):
        got = StochasticRounding(p).compress(x.repeat(50, 1)).decode()
        assert got[:, :2].isfinite().all()
        assert (got[:, 2] == math.inf).all()
        assert (got[:, 3] == -math.inf).all()
        assert (got[:, 4].isnan() if p > 1 else got[:, 4] == math.inf).all()
        assert (got[:, 5] == 0).all()
        assert ((got[:, 6] == 1.5) | (p == 1)).all()
    if dtype == torch.float32:  # has no more bits than that
        y = gaussian(1000, dtype=dtype)
        assert torch.equal(StochasticRounding(24).compress(y).decode(), y)
