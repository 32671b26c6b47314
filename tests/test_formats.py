"""Narrow formats: kernels against their references, levels against the published ones, tight constants."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import raybench
from raybench.compressors import formats as blocks
from raybench.compressors import formats as small
from raybench.compressors.formats import nf4_codes
from raybench.core import parallel
from raybench.testing.vectors import gaussian

pytestmark = pytest.mark.thorough

DTYPES = [torch.float32, torch.float64]
PUBLISHED_NF4 = [  # QLoRA's table, as in bitsandbytes
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
]


def mixed(rows, d, dtype):
    """Numbers of many sizes, ties, zeros of both signs, denormals, NaN and infinity."""
    x = gaussian(rows, d, dtype=dtype) * 10 ** (3 * gaussian(rows, d, seed=1, dtype=dtype))
    x.view(-1)[::7] = torch.round(x.view(-1)[::7]) / 2
    x.view(-1)[5::31] = 0.0
    x.view(-1)[6::37] = -0.0
    x.view(-1)[3::41] = torch.finfo(dtype).tiny / 3
    if d > 20:
        x[0, 11], x[1, 12], x[2, 13] = math.nan, math.inf, -math.inf
    return x


def nearest_even(v, levels):
    """The level nearest to v by exact arithmetic, of two the one with the even code; levels by code."""
    sizes = [Fraction(s) for s in levels[: len(levels) // 2] if s == s]
    at = min(Fraction(abs(v)), sizes[-1])
    code = min(range(len(sizes)), key=lambda c: (abs(sizes[c] - at), c % 2))
    return math.copysign(float(sizes[code]), v)


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request, monkeypatch):
    monkeypatch.setattr(parallel, "WORTH_THREADS", 1 if request.param == 2 else 10**12)
    monkeypatch.setattr(torch, "get_num_threads", lambda: request.param)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("d", "block"), [(1, 1), (7, 3), (97, 32), (97, 97), (6001, 64), (6001, 6001)]
)
@pytest.mark.usefixtures("threads")
def test_kernels_equal_plain_torch(d, block, dtype):
    x = mixed(3, d, dtype)
    top = blocks.shared_max(x, block)
    by = blocks.nonzero(top)
    share = x / by.repeat_interleave(block, -1)[:, :d]
    levels = blocks.table_of("nf4", dtype, x.device)
    want = torch.bucketize(share, (levels[1:] + levels[:-1]) / 2).where(~share.isnan(), 0)
    assert torch.equal(nf4_codes(x, by, block).long(), want)
    for element, form in small.ELEMENTS.items():
        got, want = small.mx_codes(x, form, block), small.mx_codes_torch(x, form, block)
        assert torch.equal(got[1], want[1]), element
        assert torch.equal(got[1] == small.EXPONENT_NAN, top.isnan()), element
        assert torch.equal(got[0], want[0]), element
    largest = blocks.nonzero(blocks.shared_max(x, d))
    for name, form in small.HALVES.items():
        got = small.small_codes(x, form)
        assert torch.equal(got, small.small_codes_torch(x, form)), name
        got = small.small_codes(x, form, largest)
        assert torch.equal(got, small.small_codes_torch(x / largest, form)), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["float16", "bfloat16", *small.ELEMENTS])
def test_small_floats_round_as_torch_and_numpy_do(name, dtype):
    """float32 as torch casts it, float64 to float16 as numpy does, all in exact arithmetic."""
    form = {**small.HALVES, **small.ELEMENTS}[name]
    x = mixed(3, 4001, dtype)
    code = small.small_codes(x, form).long() & ((1 << (8 * (2 if name in small.HALVES else 1))) - 1)
    levels = torch.tensor(form.levels(), dtype=torch.float64)
    got, finite = levels[code % len(levels)], x.isfinite()
    casts = {"float16": torch.float16, "bfloat16": torch.bfloat16}
    casts |= {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    if dtype == torch.float32 and name in casts:
        want, most = x.to(casts[name]).double(), form.levels()[form.largest]
        inside = finite & (x.abs() <= most)
        assert torch.equal(got[inside], want[inside])
        beyond = finite & (x.abs() > most)
        assert torch.equal(got[beyond].abs(), torch.full_like(got[beyond], most))
    elif name == "float16":
        inside = finite & (x.abs() <= 65504)
        assert np.array_equal(got[inside].numpy(), x[inside].numpy().astype(np.float16))
    else:
        some = finite.flatten().nonzero()[:, 0][:: 101 if name == "bfloat16" else 11]
        flat, result = x.flatten()[some].tolist(), got.flatten()[some].tolist()
        if name == "bfloat16":  # 2^15 levels: only those around
            ulps = [math.ldexp(1.0, max(math.frexp(v)[1], -125) - 8) for v in flat]
            off = [abs(Fraction(v) - Fraction(g)) for v, g in zip(flat, result)]
            assert all(o <= Fraction(u) / 2 for o, u in zip(off, ulps))
        else:
            assert result == [nearest_even(v, form.levels()) for v in flat]


# Block formats -----------------------------------------------------------------------------------


def test_nf4_levels_are_the_published_ones():
    assert blocks.normal_float() == pytest.approx(PUBLISHED_NF4, abs=2e-7)


def test_levels_of_four_bits():
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert blocks.FORMATS["e2m1"].levels == magnitudes + [-v for v in magnitudes]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["mxfp4", "mxfp8:element=e4m3", "mxfp8:element=e5m2"])
def test_mx_rounds_to_the_nearest_even(name, dtype):
    op = raybench.compressor(name)
    x = gaussian(40, 32, dtype=dtype) * 10 ** (2 * gaussian(40, 32, seed=1, dtype=dtype))
    form = blocks.FORMATS[op.element]
    levels = torch.tensor([v for v in form.levels if v > 0])
    x[0, :4] = torch.tensor([0.25, 0.75, -1.25, 5.0])  # ties of E2M1 at scale 1
    x[0, 4:] = 4.0
    ties = (levels[1:] + levels[:-1]) / 2
    x[1:5] = ties[torch.arange(4 * 32) % len(ties)].view(4, 32).to(dtype)
    x[1:5, 0] = levels[-1]
    if dtype == torch.float64:
        x[4, 1:] *= 1 + 2.0**-40  # just above a tie, which float32 cannot tell
    m = op.compress(x)
    exponent = torch.floor(torch.log2(x.abs().amax(-1))) - form.top
    assert torch.equal(m.scales[:, 0].double() - 127, exponent.double())
    scale = 2.0 ** exponent.double()[:, None]
    want = [[nearest_even(v, form.levels) for v in row] for row in (x.double() / scale).tolist()]
    assert torch.equal(m.decode().double(), torch.tensor(want, dtype=torch.float64) * scale)


def lost(op, x):
    scale = x.abs().amax(-1, keepdim=True)
    return ((op.compress(x).decode() - x) / scale).square().sum(-1) / (x / scale).square().sum(-1)


WORST = {  # the largest of a block and what all others are, at which the constant is reached
    "nf4": (1.0, blocks.normal_float()[6] / 2),
    "mxfp4": (5.0, 0.25),
    "mxfp8": (512.0 - 2.0**-30, 512.0 - 2.0**-30),
    "int8": (254.0, 1.0),
}


@pytest.mark.parametrize("name", WORST)
def test_block_formats_reach_their_alpha(name):
    op = raybench.compressor(name)
    top, rest = WORST[name]
    x = torch.full((getattr(op, "block", 1000),), rest, dtype=torch.float64)
    x[3] = top
    assert float(lost(op, x)) == pytest.approx(1 - op.alpha(1000), rel=1e-6)


@pytest.mark.parametrize("name", ["nf4", "nf4:double=true", "mxfp4", "mxfp8", "int8:bucket=64"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bad_number_spoils_its_block_alone(name, bad, dtype):
    op, x = raybench.compressor(name), gaussian(64 * 300, dtype=dtype)
    clean = op.compress(x).decode()
    x[64 * 3 + 2] = bad
    got = op.compress(x).decode()
    size = 64 * 256 if "double" in name else getattr(op, "block", 64)
    start = (64 * 3 + 2) // size * size
    spoiled = torch.arange(len(x)).sub(start).ge(0) & torch.arange(len(x)).lt(start + size)
    shown = got[spoiled].isnan() if name != "int8:bucket=64" else ~got[spoiled].isfinite()
    assert shown.all()
    assert torch.equal(got[~spoiled], clean[~spoiled])
