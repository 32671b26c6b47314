"""Quantisers: norms, codes and laws of dithering; conformance of further parameters."""

from __future__ import annotations

import math
from contextlib import suppress
from fractions import Fraction

import pytest
import torch

from raybench.compressors import dithering as kernels
from raybench.compressors import norms as sizes
from raybench.compressors.dithering import (
    Dithering,
    ExponentialDithering,
    NaturalDithering,
    Qsgd,
    ScaledSign,
    Sign,
    TernGrad,
)
from raybench.compressors.rounding import ExponentialRounding, Natural, Rounding
from raybench.core import parallel
from raybench.core.registry import lookup
from raybench.core.streams import stream
from raybench.testing import NotClaimed
from raybench.testing.claims import SIGMAS, draws, moments
from raybench.testing.compressors import CHECKS, Subject
from raybench.testing.vectors import cells_and_clients, families, gaussian
from raybench.wire import unpack
from raybench.wire.levels import (
    code_dtype,
    levels_of,
)

DTYPES = (torch.float32, torch.float64)
NARROW = {torch.uint8: 8, torch.int16: 15, torch.int32: 31, torch.int64: 52}


@pytest.fixture
def two_threads(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(parallel, "WORTH_THREADS", 0)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


# Norms and codes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, math.inf])
def test_norms_equal_the_reference(p, dtype, two_threads):
    for lead, d in (((), 1), ((2, 3), 24), ((9,), 700), ((), 20_011)):
        x = gaussian(*lead, d, dtype=dtype)
        for bucket in (0, 1, 7, 512, 3000, 50_000):
            got = sizes.norms(x, p, bucket)
            want = [
                torch.linalg.vector_norm(part.double(), ord=p, dim=-1)
                for part in x.split(bucket or d, -1)
            ]
            torch.testing.assert_close(got, torch.stack(want, -1), rtol=1e-12, atol=0)
            torch.testing.assert_close(got, sizes.norms_torch(x, p, bucket), rtol=1e-12, atol=0)


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


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_alone_has_the_norm_it_has_in_a_batch(dtype, two_threads):
    x = gaussian(5, 30_001, dtype=dtype)
    for p in (1.0, 2.0, math.inf):
        for bucket in (0, 100):
            together = sizes.norms(x, p, bucket)
            alone = torch.stack([sizes.norms(row, p, bucket) for row in x])
            assert torch.equal(together, alone)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bucket", [0, 7, 3000])
def test_sums_equal_the_reference(bucket, dtype, two_threads):
    x = gaussian(2, 3, 20_011, dtype=dtype)
    x[0, 0, :5], x[0, 1, 7], x[1, 2, 9] = -0.0, math.nan, math.inf
    for what in (sizes.SIZES, sizes.SQUARES):
        got, want = sizes.sums(x, what, bucket), sizes.sums_torch(x, what, bucket)
        torch.testing.assert_close(got, want, rtol=1e-12, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [1, 7, 20_011])
def test_sums_of_either_side_by_hand(d, dtype, two_threads):
    x = gaussian(2, 3, d, dtype=dtype)
    x[0, 0, :5] = -0.0
    wide = x.double()
    want = torch.stack((wide.clamp(max=0).sum(-1), wide.clamp(min=0).sum(-1)), -1)
    torch.testing.assert_close(sizes.side_sums(x), want, rtol=1e-12, atol=1e-300)
    x[0, 1, 0], x[1, 2, 0] = math.nan, math.inf
    below, above = sizes.side_sums(x).unbind(-1)
    assert below[0, 1].isnan()  # NaN is not >= 0
    assert above[0, 1].isfinite()
    assert above[1, 2] == math.inf
    assert below[1, 2].isfinite()
    for row in range(3):
        assert torch.equal(sizes.side_sums(x[0, row]), sizes.side_sums(x)[0, row]) or row == 1


def way_of(table, s, base):
    """Return the way to round to a table's levels, and its ladder."""
    if table != "power":
        return {"linear": kernels.DITHERED, "nearest": kernels.NEAREST, "floor": kernels.FLOOR}[
            table
        ], None
    return (kernels.POWER, None) if base == 2 else (kernels.LADDER, levels_of(table, s, base)[s:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("table", "s", "base"),
    [
        *(("linear", s, 2.0) for s in (1, 3, 127, 200, 40_000, 2**30)),
        *(("power", s, 2.0) for s in (1, 3, 8, 200, 1000)),
        *(("power", 1, 3.0), ("power", 4, 3.0), ("power", 150, 1.1)),
        *((way, s, 2.0) for way in ("nearest", "floor") for s in (1, 127, 2**30)),
    ],
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


@pytest.mark.parametrize(
    ("table", "base"),
    [("linear", 2.0), ("nearest", 2.0), ("floor", 2.0), ("power", 2.0), ("power", 3.0)],
)
def test_ratios_above_one_are_clamped(table, base):
    # floor(s |x| / norm + u) can reach s + 1 by rounding; here by a norm that is too small
    x, norm = gaussian(50, 24), torch.full((50, 1), 1e-12, dtype=torch.float64)
    for s in (1, 2, 100):
        way, steps = way_of(table, s, base)
        codes = kernels.codes_of(x, norm, stream(0).spread((50,)), way, s, 0, steps)
        assert torch.equal(codes.long(), torch.where(x < 0, 0, 2 * s))


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


@pytest.mark.parametrize("p", [1.0, 2.0, "inf"])
@pytest.mark.parametrize(("s", "base"), [(1, 2.0), (4, 2.0), (4, 3.0), (12, 1.3), (2, 10.0)])
def test_exponential_dithering_has_the_exact_variance(p, s, base):
    op, steps = ExponentialDithering(s, p, base), levels_of("power", s, base)[s:]
    for name in ("gaussian", "zipf", "terngrad-critical"):
        x = families(24)[name]
        norm, size = torch.linalg.vector_norm(x, ord=float(p)), float(x.square().sum())
        exact = exact_variance(x, norm, steps) / size
        assert exact <= op.omega(24) + 1e-12
        m = moments(op, x, 6000)
        assert abs(m.error[0] - exact) <= SIGMAS * m.error[1] + 1e-12


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, "inf"])
@pytest.mark.parametrize("base", [1.05, 2.0, 7.0])
def test_omega_of_exponential_dithering_bounds_the_exact_variance(p, base):
    for s in (1, 2, 5, 40):
        steps = levels_of("power", s, base)[s:]
        for d in (1, 24, 500):
            many = [gaussian(d, seed=seed) ** (1 + 2 * (seed % 3)) for seed in range(30)]
            for x in (*many, *families(d).values()):
                norm, size = torch.linalg.vector_norm(x, ord=float(p)), float(x.square().sum())
                if size == 0:
                    continue
                omega = ExponentialDithering(s, p, base).omega(d)
                assert exact_variance(x, norm, steps) <= omega * size * (1 + 1e-9) + 1e-15


@pytest.mark.parametrize("s", [1, 2, 4])
def test_natural_dithering_has_the_law_of_dithering_then_natural(s):
    # the law of the two steps, summed exactly: to j / 2^(s-1), then from there to a power of two
    x, count, fine = families(16)["student t2"], 20_000, 2 ** (s - 1)
    steps = levels_of("power", s)[s:]
    found = draws(NaturalDithering(s, 2.0), x, count).abs() / x.norm()
    for j in range(len(x)):
        at = float(x[j].abs() / x.norm()) * fine
        law = torch.zeros(s + 1, dtype=torch.float64)
        for grid_point, chance in ((math.floor(at), 1 - at % 1), (math.floor(at) + 1, at % 1)):
            value = grid_point / fine
            k = int((steps <= value).sum()) - 1
            up = 0.0 if k == s else (value - steps[k]) / (steps[k + 1] - steps[k])
            law[k] += chance * (1 - up)
            if k < s:
                law[k + 1] += chance * up
        near = (found[:, j, None] - steps).abs()
        assert float(near.min(-1).values.max()) < 1e-12
        shares = torch.bincount(near.argmin(-1), minlength=s + 1) / count
        spread = (law * (1 - law) / count).clamp(min=0).sqrt()
        assert bool(((shares - law).abs() <= 5 * spread + 3 / count).all())


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


def test_bounds_of_ternary_operators_are_tight_in_buckets():
    critical, B = families(8)["terngrad-critical"], 8
    m = moments(TernGrad(B), critical.repeat(3), 20_000)
    assert abs(m.error[0] - (math.sqrt(B) - 1) / 2) <= SIGMAS * m.error[1]
    # flat: ||x||_1 / ||x||_2
    m = moments(Qsgd(1, B), torch.ones(3 * B, dtype=torch.float64), 20_000)
    assert abs(m.error[0] - (math.sqrt(B) - 1)) <= SIGMAS * m.error[1]
    assert TernGrad(B).omega(24) == (math.sqrt(B) - 1) / 2
    assert Qsgd(1, B).omega(24) == math.sqrt(B) - 1


def test_a_norm_is_divided_by_as_it_is_sent():
    # a flat vector of float32 whose norm rounds: the mean is x, not x times the rounding
    x = torch.full((3,), 7e-45, dtype=torch.float32)  # five units of the smallest denormal
    norm = float((x.double().norm()).float())
    value = Dithering(1, 2.0).compress(x.expand(40_000, 3)).decode().double()
    assert set(value.unique().tolist()) == {0.0, norm}
    mean = value.mean() / x[0].double()
    assert abs(mean - 1) < 5 * math.sqrt((norm / 7e-45 - 1) / 120_000)


# Conformance of further parameters ---------------------------------------------------------------

CASES = [
    ("dithering", {"s": 2, "bucket": 7}),
    ("dithering", {"s": 1, "p": "inf", "bucket": 1}),
    ("dithering", {"s": 300}),
    ("qsgd", {"s": 4, "bucket": 5}),
    ("terngrad", {"bucket": 9}),
    ("natural_dithering", {"s": 4, "bucket": 7}),
    ("exponential_dithering", {"s": 4, "base": 3.0, "p": 1.5}),
    ("exponential_dithering", {"s": 9, "base": 1.3, "p": "inf", "bucket": 7}),
    ("exponential_rounding", {"base": 3}),
    ("exponential_rounding", {"base": 5, "unbiased": False}),
    ("exponential_rounding", {"unbiased": False}),
    ("rounding", {"levels": [1, 1.25, 1.5], "base": 2}),
    ("rounding", {"levels": [2], "base": 9.5}),
]


@pytest.mark.parametrize(("name", "params"), CASES, ids=[f"{n}:{p}" for n, p in CASES])
def test_conformance_of_further_parameters(name, params):
    target = lookup("compressor", name).target
    subject = Subject(lambda d: target(**params), samples=5000, dims=(1, 7, 33), big=50_000)
    for check in CHECKS.values():
        with suppress(NotClaimed):
            check(subject)


@pytest.mark.gpu
def test_a_gpu_makes_the_same_codes():
    x, q = gaussian(3, 4, 700, dtype=torch.float32), cells_and_clients(3, 4)
    there = stream(0, "cuda").each(torch.arange(3)).each(torch.arange(4))
    for op in (Natural(), Rounding((1, 1.5)), Sign(), ExponentialRounding(3.0, False)):
        m, far = op.compress(x, q), op.compress(x.cuda(), there)
        assert torch.equal(m.codes, far.codes.cpu()), op
        assert m.pack() == far.pack(), op
    for op in (Dithering(3, "inf", 50), TernGrad(), NaturalDithering(9, "inf"), ScaledSign()):
        m, far = op.compress(x, q), op.compress(x.cuda(), there)
        torch.testing.assert_close(m.scales, far.scales.cpu(), rtol=1e-6, atol=0)
        assert float((m.codes == far.codes.cpu()).float().mean()) > 0.999, op
        torch.testing.assert_close(far.decode().cpu(), unpack(far.pack()).decode())
