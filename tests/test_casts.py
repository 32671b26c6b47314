"""Casts to fewer bits and stochastic rounding: what is exact, unit roundoffs, omega reached."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import raybench
from raybench.testing.vectors import gaussian

DTYPES = [torch.float32, torch.float64]


def test_float64_is_rounded_to_half_once():
    x = gaussian(100_000).abs() * 10 ** (4 * gaussian(100_000, seed=1)).clamp(-12, 3)
    hard = [1 + 2**-11 + 2**-40, 2**-25 + 2.0**-60]  # by way of float32 they become 1 and 0
    x[:2] = torch.tensor(hard, dtype=torch.float64)
    x = x.clamp(max=60_000)
    got = raybench.compressor("fp16").compress(x).decode()
    assert np.array_equal(got.numpy(), x.numpy().astype(np.float16).astype(float))
    assert got[0] == 1 + 2**-10
    assert got[1] == 2**-24
    tie = torch.tensor([1 + 2**-8 + 2**-40, 1 + 2**-8, 1 + 3 * 2**-8], dtype=torch.float64)
    want = [1 + 2**-7, 1.0, 1 + 2**-6]
    assert raybench.compressor("bf16").compress(tie).decode().tolist() == want


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "most"), [("fp16", 65504.0), ("bf16", 2.0**128 - 2.0**120)])
def test_casts_saturate_what_is_finite(name, most, dtype):
    big = float(torch.finfo(dtype).max)
    x = torch.tensor([most * 1.0019, -big, math.inf, -math.inf, math.nan, most, 1.0], dtype=dtype)
    got = raybench.compressor(name).compress(x).decode()
    assert got[:4].tolist() == [most, -most, math.inf, -math.inf]
    assert got[4].isnan()
    assert got[5:].tolist() == [most, 1.0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "u"), [("fp16", 2.0**-11), ("bf16", 2.0**-8)])
def test_casts_err_by_the_unit_roundoff(name, u, dtype):
    x = gaussian(50_000, dtype=dtype).abs() + 0.01
    x[0] = 1 + u  # midway: the worst
    off = (raybench.compressor(name).compress(x).decode() - x).abs() / x
    assert off.max() == off[0]
    assert float(off[0]) == pytest.approx(u / (1 + u), rel=1e-5)
    assert u**2 <= 1 - raybench.compressor(f"{name}:scale=max").alpha(5) or name == "fp16"


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


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), spread=st.integers(0, 60), d=st.integers(1, 60))
def test_scaled_casts_contract_any_vector(seed, spread, d):
    x = gaussian(d, seed=seed) * 2.0 ** (-spread * gaussian(d, seed=seed + 1).abs())
    x = x / x.abs().max() * 10.0 ** (seed % 580 - 290)
    for name in ("fp16", "bf16"):
        q = raybench.compressor(name, scale="max")
        unit = x / x.abs().max()
        off = q.compress(x).decode() / x.abs().max() - unit
        assert off.square().sum() <= (1 - q.alpha(d)) * unit.square().sum() * (1 + 1e-9)


# Stochastic rounding -----------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 2, 3, 8])
def test_stochastic_rounding_reaches_its_omega(p):
    a, b = 1.0, 1 + 2.0 ** (1 - p)
    worst = 2 * a * b / (a + b)
    x = torch.full((1, 40_000), -worst, dtype=torch.float64)
    op = raybench.compressor("stochastic_rounding", bits=p)
    got = op.compress(x).decode()
    assert set(got.unique().tolist()) == {-a, -b}
    share = float((got == -b).double().mean())
    assert share == pytest.approx((worst - a) / (b - a), abs=0.015)
    variance = (worst - a) * (b - worst) / worst**2
    assert variance == pytest.approx(op.omega(9), rel=1e-12)
    assert op.omega(9) <= 4.0**-p


@pytest.mark.parametrize("dtype", DTYPES)
def test_stochastic_rounding_at_the_edges(dtype):
    most, mantissa = torch.finfo(dtype).max, 23 if dtype == torch.float32 else 52
    x = torch.tensor([most, -most, math.inf, -math.inf, math.nan, -0.0, 1.5], dtype=dtype)
    for p in (1, 2, 8, 24):
        got = raybench.compressor("stochastic_rounding", bits=p).compress(x.repeat(50, 1)).decode()
        assert got[:, :2].isfinite().all()
        assert (got[:, 2] == math.inf).all()
        assert (got[:, 3] == -math.inf).all()
        assert (got[:, 4].isnan() if p > 1 else got[:, 4] == math.inf).all()
        assert (got[:, 5] == 0).all()
        assert ((got[:, 6] == 1.5) | (p == 1)).all()
    y = gaussian(1000, dtype=dtype)
    if p > mantissa:
        assert torch.equal(
            raybench.compressor("stochastic_rounding:bits=24").compress(y).decode(), y
        )


def test_stochastic_rounding_is_unbiased_for_denormal_numbers():
    x = torch.full((40_000,), 3 * 2.0**-140)
    got = raybench.compressor("stochastic_rounding:bits=8").compress(x).decode()
    assert set(got.unique().tolist()) == {0.0, 2.0**-133}
    assert float((got > 0).double().mean()) == pytest.approx(3 / 128, abs=0.004)
