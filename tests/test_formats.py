"""Narrow formats: kernels against references, published levels, tight constants; tensors of 16 bits."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import raybench
from raybench import compressor
from raybench.compressors import Compressor
from raybench.compressors import formats as blocks
from raybench.compressors import formats as small
from raybench.compressors.formats import NF4, nf4_codes
from raybench.compressors.norms import in_buckets
from raybench.core import parallel
from raybench.core.registry import lookup, names
from raybench.core.streams import stream
from raybench.testing.compressors import assert_bits_fit_bytes, examples, same_bits
from raybench.testing.vectors import cells_and_clients, gaussian
from raybench.wire import HALVES, Dense, DenseMessage, RaggedMessage, unpack

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


@pytest.mark.parametrize("block", [1, 3, 64, 6000, 6001, 9999])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_of_a_block_by_numpy(block, dtype):
    x = mixed(3, 6001, dtype)
    parts = np.split(np.abs(x.numpy()), range(block, 6001, block), axis=1)
    want = np.stack([part.max(1) for part in parts], 1)
    want[~np.isfinite(want)] = np.nan
    assert np.array_equal(blocks.shared_max(x, block).numpy(), want, equal_nan=True)


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
            assert all(
                abs(Fraction(v) - Fraction(g)) <= Fraction(u) / 2
                for v, g, u in zip(flat, result, ulps)
            )
        else:
            assert result == [nearest_even(v, form.levels()) for v in flat]


# Uniform 8 bits ----------------------------------------------------------------------------------


def test_int8_keeps_the_largest_of_every_bucket():
    x = gaussian(4, 1000, dtype=torch.float32)
    for rounding in ("nearest", "stochastic"):
        m = raybench.compressor("int8", bucket=64, rounding=rounding).compress(x)
        at = in_buckets(x, 64).abs().argmax(-1) + torch.arange(0, 1000, 64)
        assert torch.equal(m.decode().gather(-1, at), x.gather(-1, at))
        assert m.nbytes == 1000 + 4 * 16


# Block formats -----------------------------------------------------------------------------------


def test_nf4_levels_are_the_published_ones():
    assert blocks.normal_float() == pytest.approx(PUBLISHED_NF4, abs=2e-7)


def test_small_floats_are_those_of_torch():
    every = torch.arange(256, dtype=torch.uint8)
    for name, dtype in {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}.items():
        want = every.view(dtype).double()
        mine = blocks.table_of(name, torch.float64, torch.device("cpu"))
        finite = want.isfinite()
        assert torch.equal(mine[finite], want[finite])
        assert float(want[finite].max()) == {"e4m3": 448.0, "e5m2": 57344.0}[name]
        assert float(want[small.ELEMENTS[name].largest]) == float(want[finite].max())
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


@pytest.mark.parametrize(
    ("name", "bits", "double_bits"),
    [("nf4", 4.5, 5.0), ("nf4:double=true", 4 + 0.125 + 32 / 2**14, 4 + 0.125 + 64 / 2**14)]
    + [("mxfp8", 8.25, 8.25), ("mxfp4", 4.25, 4.25)]
    + [("fp16", 16, 16), ("bf16", 16, 16), ("stochastic_rounding:bits=4", 12, 15)]
    + [("int8:bucket=512", 8 + 32 / 512, 8 + 64 / 512)],
)
def test_bits_of_a_number(name, bits, double_bits):
    for dtype, want in ((torch.float32, bits), (torch.float64, double_bits)):
        m = raybench.compressor(name).compress(gaussian(2, 2**14, dtype=dtype))
        assert (m.bits == want * 2**14).all()
        assert m.nbytes == want * 2**11


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


@pytest.mark.parametrize("name", ["nf4", "mxfp4", "mxfp8", "mxfp8:element=e5m2", "int8"])
@pytest.mark.parametrize("size", [1, 2, 5, 32, 300])
def test_no_search_beats_alpha(name, size):
    op = raybench.compressor(name, **{"bucket" if name == "int8" else "block": size})
    top = torch.linspace(1, 2, 257, dtype=torch.float64)[:, None, None]
    every = [k / 127 for k in range(128)]
    if name != "int8":
        every = [v for v in blocks.FORMATS[name if name == "nf4" else op.element].levels if v == v]
    largest = max(every)
    levels = torch.tensor(sorted({abs(v) for v in every}), dtype=torch.float64)
    mids = (levels[1:] + levels[:-1]) / 2
    others = torch.cat((mids / largest, mids / largest / 2, torch.tensor([0.0, 1.0, 0.9])))
    others = others[torch.linspace(0, len(others) - 1, min(len(others), 60)).long()]
    x = (top * others[:, None]).expand(257, len(others), size).clone()
    x[..., 0] = top[..., 0]
    assert float(lost(op, x).max()) <= (1 - op.alpha(size)) * (1 + 1e-9)
    y = gaussian(2000, size) * gaussian(2000, size, seed=5).abs() ** 3
    assert float(lost(op, y).max()) <= (1 - op.alpha(size)) * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), spread=st.floats(0, 25), block=st.sampled_from([1, 4, 64]))
def test_doubly_quantised_scales_keep_the_contraction(seed, spread, block):
    op = NF4(block, True)
    d = block * 300 - 1
    size = 2.0 ** (-spread * stream(seed).uniform(300)).repeat_interleave(block)[:d]
    x = gaussian(4, d, seed=seed) * size
    worst = raybench.compressor("nf4", block=block).alpha(d)
    assert 1 / (256 * block) <= op.alpha(d) <= worst
    assert float(lost(op, x).max()) <= 1 - op.alpha(d)


def test_scales_in_bytes():
    levels = blocks.scale_levels()
    assert len(levels) == len(set(levels)) == 256
    assert levels == sorted(levels)
    assert levels[0] == 0
    assert levels[-2:] == [31 / 32, 1.0]
    x = torch.zeros(64 * 300)
    x[::64] = torch.tensor([2.0**-i for i in range(14)] * 22)[:300] * 3
    m = raybench.compressor("nf4:double=true").compress(x)
    assert torch.equal(m.decode(), x)  # powers of two of the largest are levels
    assert m.tops.tolist() == [3.0, 3.0]
    alone = raybench.compressor("nf4").compress(x[:64]).decode()
    assert torch.equal(raybench.compressor("nf4:double=true").compress(x[:64]).decode(), alone)


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


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8", "mxfp8:element=e5m2"])
def test_mx_beyond_the_range_of_its_scale(name):
    op = raybench.compressor(name)
    x = gaussian(3, 64)
    largest = max(v for v in blocks.FORMATS[op.element].levels if v == v)
    for scale in (1e-300, 1e-45, 1e45, 1e300):
        got = op.compress(x * scale).decode()
        assert got.isfinite().all()
        assert (got * x >= 0).all()
        if scale > 1:
            assert got.abs().max() == 2.0**127 * largest
    near = torch.full((32,), torch.finfo(torch.float32).max)
    assert op.compress(near).decode().isfinite().all()
    assert not op.compress(torch.zeros(5)).decode().any()


# Tensors of 16 bits -------------------------------------------------------------------------------


@pytest.fixture(params=HALVES, ids=str)
def dtype(request):
    return request.param


REGISTERED = {
    label: (name, params)
    for name in names("compressor")
    for label, params in examples(lookup("compressor", name)).items()
}


REGISTERED["rounding:levels=1,1.5"] = ("rounding", {"levels": (1, 1.5)})


@pytest.mark.parametrize("label", REGISTERED)
def test_every_registered_operator_takes_them(label, dtype):
    """For all parameters that the conformance kit tries: bytes, round trip, and 16 bits a value."""
    name, params = REGISTERED[label]
    op = lookup("compressor", name).target(**params).bind(24, 4).operator
    x, q = gaussian(3, 4, 24, dtype=torch.float32).to(dtype), cells_and_clients(3, 4)
    m, wide = op.compress(x, q), op.compress(x.float(), q)
    value = m.decode()
    assert (value.shape, value.dtype, m.dtype) == (x.shape, dtype, dtype)
    assert value.isfinite().all()
    assert_bits_fit_bytes(m)
    saved = wide.bits.double() - m.bits
    assert torch.equal(saved, 16 * torch.as_tensor(wide.cost.values).double().expand(m.lead))
    back = unpack(m.pack())
    assert (back.dtype, back.bits.tolist()) == (dtype, m.bits.tolist())
    assert same_bits(back.decode(), value)
    assert same_bits(back.sum_clients(), m.sum_clients())
    # values of 16 bits carry an error of eps/2 each, which factors of at most 24 (Rand-1) carry on
    size = wide.decode().double().norm(dim=-1)
    kept = m.decode(out=torch.empty(x.shape))
    off = (kept - wide.decode()).double().norm(dim=-1)
    assert (off <= 4 * torch.finfo(dtype).eps * size).all(), float((off / size).max())
    assert same_bits(kept.to(dtype), value)
    assert same_bits(m.to(torch.float32).to(dtype).decode(), value)


def test_what_is_selected_is_sent_exactly(dtype):
    x = gaussian(3, 40, dtype=torch.float32).to(dtype)
    for name in ("identity", "top_k:k=5", "rtop_k:k=5", "block_top_k:k=1,block=7", "dgc:k=10"):
        value = compressor(name).compress(x).decode()
        assert torch.equal(value, torch.where(value != 0, x, value)), name
        assert (value != 0).any(-1).all()


def test_factors_do_not_overflow():
    """d/k = 12 times 40,000 is beyond float16, not beyond what receivers add up in."""
    x = torch.full((2, 3, 12), 4e4, dtype=torch.float16)
    m = compressor("rand_k", k=1).compress(x, cells_and_clients(2, 3))
    assert m.nbytes == 2
    value = m.decode(out=torch.zeros(2, 3, 12))
    assert torch.equal(value.amax(-1), torch.full((2, 3), 12 * float(x[0, 0, 0])))
    assert m.decode().isinf().any(-1).all()  # float16 has no such number
    assert torch.equal(m.add_to(torch.ones(2, 3, 12)), value + 1)
    assert torch.equal(m.sum_clients(), value.sum(-2))
    assert torch.equal(unpack(m.pack()).sum_clients(), value.sum(-2))
    one = compressor("l1_sampling").compress(x[0, 0])
    assert one.decode(out=torch.zeros(12)).sum() == 12 * float(x[0, 0, 0])


def test_sums_and_targets_of_any_width(dtype):
    x = gaussian(2, 3, 8, dtype=torch.float32).to(dtype)
    m = Dense(x)
    assert m.sum_clients().dtype == torch.float32
    torch.testing.assert_close(m.sum_clients(), x.float().sum(-2))
    for other in (dtype, torch.float32, torch.float64):
        target = torch.ones(2, 3, 8, dtype=other)
        assert m.add_to(target) is target
        assert torch.equal(target, (x.float() + 1).to(other))
    out = torch.empty_like(x)
    assert m.decode(out=out) is out
    assert torch.equal(out, x)
    loose = torch.empty(2, 8, 3, dtype=dtype).mT
    assert torch.equal(m.decode(out=loose), x)
    for wrong in (torch.float64, torch.int16):
        with pytest.raises(ValueError, match="the message decodes to"):
            m.decode(out=torch.empty(2, 3, 8, dtype=wrong))


def test_a_cast_leaves_the_original(dtype):
    x = gaussian(2, 8, dtype=torch.float32)
    m = DenseMessage(8, torch.float32, x)
    half = m.to(dtype)
    assert (m.dtype, m.values.dtype, half.values.dtype) == (torch.float32, torch.float32, dtype)
    assert half.nbytes == m.nbytes // 2


class Hides(Compressor):
    """Says nothing of 16 bits, as a user's compressor may: it sees float32 alone."""

    def encode(self, x, stream):
        assert x.dtype == torch.float32
        assert x.is_contiguous()
        lead = x.shape[:-1]
        where = torch.zeros(*lead, 1, dtype=torch.int64)
        counts = torch.ones(lead, dtype=torch.int64)
        return RaggedMessage(x.shape[-1], x.dtype, counts, where, x[..., :1].clone())


def test_an_operator_of_a_user_needs_to_know_nothing(dtype):
    x = gaussian(5, 2, 3, dtype=torch.float32).to(dtype).transpose(0, 1)
    bound = Hides().bind(3)
    for m in (Hides().compress(x), bound(x, cells_and_clients(2, 5))):
        assert m.dtype == dtype
        assert torch.equal(m.decode()[..., 0], x[..., 0])
        assert (m.decode()[..., 1:] == 0).all()


def test_what_is_not_finite_shows(dtype):
    x = torch.tensor([1.0, math.nan, -math.inf, 2.0], dtype=dtype)
    for name in ("identity", "top_k:k=2", "rand_k:k=4"):
        value = compressor(name).compress(x).decode()
        assert value[1].isnan()
        assert value[2] == -math.inf
