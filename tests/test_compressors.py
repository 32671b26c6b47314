"""Operators: the conformance kit on all of ours, roles, and exact laws."""

from __future__ import annotations

import math
from contextlib import suppress
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raybench.compressors import Role, unpack
from raybench.compressors.by_size import largest, largest_torch
from raybench.compressors.dense import Identity, Zero
from raybench.compressors.dithering import Dithering, ScaledSign, TernGrad
from raybench.compressors.rounding import Natural
from raybench.compressors.selection import TopK
from raybench.compressors.sparsification import RandK
from raybench.core.errors import InputError
from raybench.core.registry import lookup, names
from raybench.core.streams import stream
from raybench.testing.checks import NotClaimed
from raybench.testing.compressors import CHECKS, Subject, examples
from raybench.testing.moments import SIGMAS, draws, moments
from raybench.testing.vectors import cells_and_clients, families, gaussian
from raybench.wire import (
    LevelsMessage,
    SeededMessage,
    SparseMessage,
)

SAMPLES = 4000
CASES = {
    label: (name, params)
    for name in names("compressor")
    for label, params in examples(lookup("compressor", name)).items()
}
CASES |= {
    f"dithering:p={p},s={s}": ("dithering", {"p": p, "s": s})
    for p, s in ((1.0, 2), (1.5, 3), (3.0, 2), (10.0, 1), (2.0, 100))
}
CASES |= {
    f"natural_dithering:p={p},s={s}": ("natural_dithering", {"p": p, "s": s})
    for p, s in ((1.0, 4), (3.0, 2), (2.0, 8))
}
CASES["top_k:k=3"] = ("top_k", {"k": 3})
CASES["rand_k:k=3"] = ("rand_k", {"k": 3})
# the defaults of both round to powers of two, which need no table of levels
CASES["rounding:levels=1,1.5"] = ("rounding", {"levels": (1, 1.5)})
CASES["exponential_rounding:base=3,unbiased=False"] = (
    "exponential_rounding",
    {"base": 3.0, "unbiased": False},
)


@lru_cache(maxsize=2)
def subject(label: str) -> Subject:
    name, params = CASES[label]
    target = lookup("compressor", name).target
    return Subject(lambda d: target(**params), samples=SAMPLES)


@pytest.mark.parametrize(("label", "check"), [(c, k) for c in CASES for k in CHECKS])
def test_conformance(label, check):
    with suppress(NotClaimed):
        CHECKS[check](subject(label))


# Roles and the entry point ----------------------------------------------------------------------


def test_roles():
    d = 10
    bound = RandK(2).bind(d, role=Role.CONTRACTIVE)
    assert (bound.factor, bound.alpha, bound.omega) == (0.2, 0.2, None)
    x = gaussian(d)
    q = stream(3)
    torch.testing.assert_close(
        bound(x, q).decode(), RandK(2).compress(x, q).decode() / 5, rtol=1e-15, atol=0
    )
    assert RandK(2).bind(d, role=Role.UNBIASED).omega == 4
    assert TopK(2).bind(d, role=Role.CONTRACTIVE).factor == 1
    with pytest.raises(InputError, match="biased"):
        TopK(2).bind(d, role=Role.UNBIASED)
    with pytest.raises(InputError, match="no contraction"):
        Zero().bind(d, role=Role.CONTRACTIVE)
    with pytest.raises(InputError, match="11 of 10"):
        TopK(11).bind(d)


def test_rescaled_rand_k_is_the_unscaled_one():
    # RandK unscaled has alpha = K/d exactly: a projection
    x, d = families(20)["gaussian"], 20
    m = moments(RandK(5), x, SAMPLES, RandK(5).bind(d, role=Role.CONTRACTIVE).factor)
    assert abs(m.shrunk[0] - 0.75) <= SIGMAS * m.shrunk[1]


@pytest.mark.parametrize("bad", [torch.zeros(3).int(), torch.zeros(3).cfloat(), np.zeros(3), [1.0]])
def test_compress_refuses_other_types(bad):
    with pytest.raises(TypeError, match="one of float64, float32, float16, bfloat16, not"):
        Identity().compress(bad)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_compress_refuses_no_coordinates(shape):
    with pytest.raises(ValueError, match="at least one coordinate"):
        Identity().compress(torch.zeros(shape))


@pytest.mark.parametrize("label", [c for c in CASES if "p=" not in c])
def test_no_rows_and_gradients_are_fine(label):
    op = subject(label).op
    x = torch.zeros(0, 4, 24, dtype=torch.float64)
    assert op.compress(x).decode().shape == x.shape
    kept = gaussian(24).requires_grad_()
    value = op.compress(kept).decode()
    assert not value.requires_grad
    assert len(op.compress(kept).pack())


# Exact laws --------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 5, 23])
def test_rand_k_second_moment_is_exact_on_average_over_coordinates(k):
    d = 24
    x = families(d)["gaussian"]
    m = moments(RandK(k), x, SAMPLES)
    assert abs(m.error[0] - (d / k - 1)) <= SIGMAS * m.error[1]
    flat = moments(RandK(k), families(d)["flat"], 100)
    assert flat.error[0] == pytest.approx(d / k - 1, rel=1e-12)  # the same for every subset
    assert flat.error[1] < 1e-12


def test_common_mask_is_linear_over_clients():
    d, n = 30, 7
    x, q = gaussian(5, n, d), cells_and_clients(5, n)
    op = RandK(4, "common")
    m = op.compress(x, q)
    of_mean = op.compress(x.mean(1, keepdim=True), q.at(torch.tensor([0]))).decode()[:, 0]
    torch.testing.assert_close(m.sum_clients() / n, of_mean, rtol=1e-12, atol=1e-12)
    assert op.correlated
    assert not RandK(4).correlated
    supports = (m.decode() != 0).double()
    assert torch.equal(supports, supports[:, :1].expand_as(supports))
    assert not torch.equal(supports[0], supports[1])  # cells have their own


def test_averaging_gains_a_factor_n_unless_the_mask_is_common():
    d, n, count = 20, 10, 4000
    x = families(d)["gaussian"]
    error = {}
    for mask in ("independent", "common"):
        m = RandK(4, mask).compress(x.expand(count, n, d), cells_and_clients(count, n))
        error[mask] = (m.sum_clients() / n - x).square().sum(-1).mean() / x.square().sum()
    assert error["independent"] == pytest.approx(4 / n, rel=0.05)
    assert error["common"] == pytest.approx(4, rel=0.05)


def test_terngrad_bound_is_tight():
    for d in (1, 2, 24, 400):
        x = families(d)["terngrad-critical"]
        exact = float(x.abs().max() * x.abs().sum() / x.square().sum() - 1)
        assert exact == pytest.approx(TernGrad().omega(d), rel=1e-12, abs=1e-12)
        m = moments(TernGrad(), x, SAMPLES)
        assert abs(m.error[0] - exact) <= SIGMAS * m.error[1] + 1e-12


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0, 7.0, "inf"])
@pytest.mark.parametrize("s", [1, 2, 3, 10, 127])
def test_dithering_omega_bounds_the_exact_variance(p, s):
    # the variance is known in closed form: (N/s)^2 t (1 - t), t the fractional part of s|x|/N
    for d in (1, 2, 24, 1000):
        x = torch.cat((gaussian(200, d), gaussian(200, d, seed=3) ** 3, -gaussian(200, d).exp()))
        sparse = x[:200] * (gaussian(200, d, seed=4).abs() > 1.5)
        x = torch.cat((x, sparse, torch.stack(list(families(d).values()))))
        x = x[x.abs().sum(-1) > 0]
        norm = torch.linalg.vector_norm(x, ord=float(p), dim=-1, keepdim=True)
        t = (s * x.abs() / norm).clamp(max=s)
        t = t - t.floor()
        exact = ((norm / s) ** 2 * t * (1 - t)).sum(-1) / x.square().sum(-1)
        assert float(exact.max()) <= Dithering(s, p).omega(d) + 1e-12


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, "inf"])
@pytest.mark.parametrize("s", [1, 2, 4])
def test_dithering_draws_have_the_exact_variance(p, s):
    x = families(24)["student t2"]
    norm = torch.linalg.vector_norm(x, ord=float(p))
    t = s * x.abs() / norm
    t = t - t.floor()
    exact = float(((norm / s) ** 2 * t * (1 - t)).sum() / x.square().sum())
    m = moments(Dithering(s, p), x, SAMPLES)
    assert abs(m.error[0] - exact) <= SIGMAS * m.error[1] + 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_natural_compression_at_the_ends(dtype):
    info = torch.finfo(dtype)
    top = 2.0 ** (127 if dtype == torch.float32 else 1023)
    x = torch.tensor([0.0, -0.0, 1.0, -8.0, info.max, -info.max, math.inf, -math.inf, math.nan])
    value = Natural().compress(x.to(dtype).expand(500, -1)).decode().double()
    want = torch.tensor([0.0, 0.0, 1.0, -8.0, top, -top, math.inf, -math.inf, math.inf])
    assert torch.equal(value[:, :8], want[:8].expand(500, -1))  # powers of two are exact
    assert bool(value[:, 8].isinf().all())


def test_scaled_sign_error_is_exact():
    for x in families(24).values():
        value = ScaledSign().compress(x).decode()
        want = x.square().sum() - x.abs().sum() ** 2 / 24
        assert float((value - x).square().sum()) == pytest.approx(float(want), abs=1e-12)
    assert ScaledSign().compress(
        torch.tensor([0.0, -0.0, -2.0])
    ).decode().tolist() == pytest.approx([2 / 3, 2 / 3, -2 / 3])


def test_dithering_of_extreme_magnitudes():
    # powers of the entries neither overflow nor vanish
    for scale in (1e-200, 1e-160, 1e200):
        for p in (1.0, 2.0, 50.0, "inf"):
            x = families(12)["gaussian"] * scale
            value = draws(Dithering(4, p), x, 4000) / scale
            assert float((value.mean(0) - x / scale).abs().max()) < 0.2


def test_many_levels_cost_no_table():
    x = gaussian(4, 24)
    m = Dithering(2**30, 2.0).compress(x)
    assert m.nbytes == 8 + 24 * 4
    torch.testing.assert_close(m.decode(), x, rtol=0, atol=1e-8)
    with pytest.raises(ValueError, match="cut short"):
        LevelsMessage.read(m.known(), m.payload()[..., :-1], None)


# Top-k ------------------------------------------------------------------------------------------


def brute_force(row, k):
    """The definition: sort by magnitude (NaN largest), ties by index."""
    size = [math.inf if math.isnan(v) else abs(v) for v in row]
    return sorted(sorted(range(len(row)), key=lambda j: (-size[j], j))[:k])


numbers = st.one_of(
    st.floats(width=32),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e-45]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=60), st.data())
def test_top_k_is_brute_force(row, data):
    k = data.draw(st.integers(1, len(row)))
    for dtype in (torch.float64, torch.float32):
        x = torch.tensor(row, dtype=dtype)
        assert largest(x, k)[0].tolist() == brute_force(x.tolist(), k)
        assert largest_torch(x, k).tolist() == brute_force(x.tolist(), k)


@pytest.mark.parametrize("k", [1, 5, 24, 25, 60, 499, 500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_top_k_kernels_equal_the_reference(k, dtype):
    x = gaussian(4, 3, 500, dtype=dtype)
    x = torch.cat((x, (x * 2).round(), torch.zeros_like(x)))  # with many ties
    x[0, 0, 17] = math.nan
    x[0, 1, 10:40] = math.inf
    assert torch.equal(largest(x, k)[0], largest_torch(x, k))


def test_messages_are_of_the_kind_that_pays():
    x, q = gaussian(2, 3, 24), cells_and_clients(2, 3)
    assert isinstance(TopK(3).compress(x, q), SparseMessage)
    assert isinstance(RandK(3).compress(x, q), SeededMessage)
    assert RandK(3).compress(x, q).nbytes == 24  # no indices
    assert TopK(3).compress(x, q).nbytes == 24 + 2  # 3 indices of 5 bits
    assert TopK(10).compress(x, q).nbytes == 80 + 3  # a bitmask of 24 bits is shorter than 50
    assert Natural().compress(x.float(), q).nbytes == 27  # 9 bits a number
    assert ScaledSign().compress(x.float(), q).nbytes == 4 + 3
    assert TernGrad().compress(x.float(), q).nbytes == 4 + 5  # five trits a byte
    assert Zero().compress(x, q).nbytes == 0


@pytest.mark.parametrize("name", names("compressor"))
def test_bound_call_is_the_operator(name):
    params = examples(lookup("compressor", name))
    op = lookup("compressor", name).target(**next(iter(params.values())))
    x, q = gaussian(2, 3, 24), cells_and_clients(2, 3)
    assert torch.equal(op.bind(24, 3)(x, q).decode(), op.compress(x, q).decode())
    assert 0 <= op.bind(24, 3).dense_share(torch.float32) <= 1


# Devices ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("label", [c for c in CASES if "p=" not in c])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cuda_agrees_with_the_cpu(label, dtype):
    """The same message from the same keys: bytes where it is made of integers, else to rounding."""
    op = subject(label).op
    x, q = gaussian(3, 4, 24, dtype=dtype), cells_and_clients(3, 4)
    here = op.compress(x, q)
    there = op.compress(x.cuda(), stream(0, "cuda").each(range(3)).each(range(4)))
    torch.testing.assert_close(there.decode().cpu(), here.decode(), rtol=1e-4, atol=1e-5)
    assert torch.equal(torch.as_tensor(there.nbytes).cpu(), torch.as_tensor(here.nbytes))
    assert torch.equal(unpack(there.pack()).decode(), there.decode().cpu())
