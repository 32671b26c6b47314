"""Signs and rounding to levels: exact errors, kernels against references, constants."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raybench.compressors.dithering import (
    Dithering,
    ExponentialDithering,
    OneBit,
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
from raybench.core import parallel
from raybench.core.errors import InputError
from raybench.core.streams import stream
from raybench.testing.moments import SIGMAS, moments
from raybench.testing.vectors import families, gaussian
from raybench.wire import unpack

DTYPES = (torch.float32, torch.float64)
NARROW = {torch.uint8: 8, torch.int16: 15, torch.int32: 31, torch.int64: 52}


@pytest.fixture
def two_threads(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(parallel, "WORTH_THREADS", 0)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


# Signs --------------------------------------------------------------------------------------------

vectors = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40).map(
    lambda row: torch.tensor(row, dtype=torch.float64)
)


@settings(max_examples=150, deadline=None)
@given(vectors)
def test_errors_of_the_sign_operators_are_exact(x):
    d, size = len(x), x.square().sum()
    high, low = x[x >= 0], -x[x < 0]
    kept = sum(float(side.sum() ** 2) / max(len(side), 1) for side in (high, low))
    want = {ScaledSign: size - x.abs().sum() ** 2 / d, OneBit: size - kept}
    found = {}
    for kind, error in want.items():
        found[kind] = (kind().compress(x).decode() - x).square().sum()
        assert float(found[kind]) == pytest.approx(float(error), rel=1e-9, abs=1e-9 * float(size))
        assert float(found[kind]) <= (1 - kind().alpha(d)) * float(size) * (1 + 1e-9) + 1e-300
    assert found[OneBit] <= found[ScaledSign] + 1e-9 * size
    assert torch.equal(Sign().compress(x).decode(), torch.where(x >= 0, 1.0, -1.0).double())


def test_signs_on_small_examples():
    x = torch.tensor([4.0, -1.0, 0.0, -2.0])
    assert OneBit().compress(x).decode().tolist() == [2.0, -1.5, 2.0, -1.5]
    assert ScaledSign().compress(x).decode().tolist() == [1.75, -1.75, 1.75, -1.75]
    assert Sign().compress(x).decode().tolist() == [1, -1, 1, -1]
    assert OneBit().compress(x).nbytes == 2 * 4 + 1
    assert Sign().compress(x).nbytes == 1
    assert OneBit().compress(torch.zeros(3)).decode().tolist() == [0, 0, 0]
    assert OneBit().compress(-torch.ones(3)).decode().tolist() == [-1, -1, -1]
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
    for op in (ScaledSign(), OneBit(), Dithering(3), TernGrad(), ExponentialDithering(base=3.0)):
        value = op.compress(x).decode()
        assert not bool(value[1, 4].isfinite()), op
        assert bool(value[[0, 2]].isfinite().all()), op
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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("levels", "base"), [*GRIDS, ((1.0,), 1.06), ((1.0, 1.001, 1.002, 1.0021), 2.0)]
)
@pytest.mark.parametrize("nearest", [False, True])
def test_rounding_equals_the_reference(levels, base, nearest, dtype, two_threads):
    info = torch.finfo(dtype)
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
        back = unpack(m.pack())
        assert torch.equal(back.decode(), m.decode())
        assert m.nbytes == math.ceil(x.shape[-1] * rounded_width(levels, base, dtype) / 8)
        torch.testing.assert_close(m.scaled(0.25).decode(), m.decode() * 0.25)


@pytest.mark.parametrize(("levels", "base"), GRIDS[:-1])
def test_rounding_is_unbiased_and_its_omega_is_attained(levels, base):
    # between a and b the variance over x^2 is largest at 2ab/(a + b)
    op, around = Rounding(levels, base), (*levels, levels[0] * base)
    worst = max(pairwise(around), key=lambda pair: pair[1] / pair[0])
    a, b = worst
    x = torch.tensor([2 * a * b / (a + b)], dtype=torch.float64)
    m = moments(op, x, 60_000)
    assert abs(m.error[0] - op.omega(1)) <= SIGMAS * m.error[1]
    assert abs(float(m.mean[0]) - float(x)) <= SIGMAS * float(m.mean[1])
    values = op.compress(x.expand(1000, 1)).decode().unique()
    assert torch.allclose(values, torch.tensor([a, b], dtype=torch.float64), rtol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [1, 2, 8, 11, 24])
def test_cut_floats_equal_the_reference(p, dtype, two_threads):
    info = torch.finfo(dtype)
    hard = [0.0, 1.5, math.inf, math.nan, info.max, info.max / 1.01, info.tiny, info.tiny / 4]
    hard = torch.tensor([*hard, *(-v for v in hard)], dtype=dtype).expand(99, -1).contiguous()
    for x in (gaussian(2, 3, 24, dtype=dtype), gaussian(20_001, dtype=dtype), hard):
        for q in (stream(3).spread(tuple(x.shape[:-1])), None):
            assert torch.equal(
                cut(x, p, q).long() % 2**52,
                cut_torch(x, p, q).to(cut(x, p, q).dtype).long() % 2**52,
            )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [1, 3, 8])
def test_a_number_goes_to_one_of_the_two_around_it(p, dtype):
    """By the definition, on numbers: mantissa and exponent of frexp, the uniform integer of the stream."""
    x, q = (
        gaussian(5, 400, dtype=dtype) * gaussian(5, 400, seed=2, dtype=dtype).exp(),
        stream(3).spread((5,)),
    )
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
    for x in (*families(d).values(), gaussian(d).exp(), top):
        value = op.compress(x).decode()
        (alpha, beta), (gamma, _) = op.b1(d), op.b2(d)
        along, size, sent = (x @ value, x @ x, value @ value)
        assert alpha * size * (1 - 1e-12) <= sent <= beta * along * (1 + 1e-12)
        assert max(gamma * size, sent / beta) <= along * (1 + 1e-12)


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


def test_the_finest_grid_that_is_taken():
    x = gaussian(300)
    m = ExponentialRounding(1.0444).compress(x)
    assert len(grid((1.0,), 1.0444, torch.float64)) <= MOST_LEVELS
    assert m.width == 16
    assert torch.allclose(m.decode(), x, rtol=0.0445)
    with pytest.raises(ValueError, match="more than"):
        grid((1.0,), 1.04, torch.float64)
