"""Triton kernels equal plain torch bit for bit, and compile: interpreted on the CPU, run where there is a GPU."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch

import raybench
from raybench.compressors import by_size
from raybench.compressors import selection as threshold
from raybench.core import gpu, registry
from raybench.core.streams import FEISTEL_ROUNDS, MOST_SORTED, Stream, stream
from raybench.measure.timing import named
from raybench.wire import RaggedMessage, SparseMessage, bitpack, unpack
from raybench.wire.levels import code_dtype

pytest.importorskip("triton", reason="the kernels for GPUs need Triton")
HERE = "cuda" if torch.cuda.is_available() else "cpu"
if HERE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU, and TRITON_INTERPRET is not 1", allow_module_level=True)

from raybench.compressors.gpu import selection  # noqa: E402
from raybench.core.gpu import quantisers, streams  # noqa: E402
from raybench.wire import gpu as of_wire  # noqa: E402

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parent.parent
KERNEL = re.compile(r"^def (\w+_kernel)\(", re.MULTILINE)


MODULES = (of_wire, quantisers, selection, streams)
SINGLE, HALF, BRAIN = torch.float32, torch.float16, torch.bfloat16


def gaussian(*shape, seed=0, dtype=SINGLE):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype).to(HERE)


def same(a, b):
    """Equal in type, shape and every number, NaN being equal to NaN."""
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.isnan(), b.isnan())
        and torch.equal(a.nan_to_num(0), b.nan_to_num(0))
    )


@pytest.fixture
def launched(monkeypatch):
    """The names of the kernels that were launched; tensors of this machine go to the kernels."""
    monkeypatch.setattr(gpu, "usable", lambda x: True)
    names = set()
    for module in MODULES:

        def launch(kernel, programs, /, *args, run=module.launch, **constants):
            names.add(kernel.__name__)
            run(kernel, programs, *args, **constants)

        monkeypatch.setattr(module, "launch", launch)
    return names


# Where they are used ------------------------------------------------------------------------------


def test_the_cpu_is_served_by_numba_and_the_switch_is_heard(monkeypatch):
    assert not gpu.usable(torch.zeros(3))
    available = gpu.available.__wrapped__  # without its memory
    monkeypatch.setenv("CC", "cc")
    assert available()
    monkeypatch.setenv(gpu.SWITCH, "0")
    assert not available()
    monkeypatch.delenv(gpu.SWITCH)
    monkeypatch.delenv("CC")
    monkeypatch.setattr(gpu.shutil, "which", lambda name: None)
    assert not available()


def test_nothing_imports_triton_before_it_is_used():
    code = """
import sys, torch, raybench
from raybench.wire import unpack
x = torch.randn(3, 6000)
for name in ("top_k:k=1%", "qsgd", "natural", "rand_k:k=1%"):
    raybench.compressor(name).compress(x).pack()
sys.exit("triton" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=_environment())


def _environment(**more):
    return os.environ | {"PYTHONPATH": str(ROOT)} | more


# Streams ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 1024, 1500])
def test_draws_and_keys(launched, monkeypatch, count):
    def made():
        cells = stream(range(3), HERE).fold("up").fold(-7).each(range(2))
        alone = stream(5, HERE).fold("x")
        derived = cells.keys, alone.keys, cells.shared().keys, alone.each([]).keys
        return *derived, cells.bits(count), cells.uniform(count), alone.uniform(count)

    ours = made()
    assert launched == {"keys_kernel", "draw_kernel"}
    monkeypatch.setattr(gpu, "usable", lambda x: False)
    assert all(map(same, ours, made()))


@pytest.mark.parametrize(("d", "k"), [(MOST_SORTED + 1, 40), (2**40 + 3, 40)])
def test_permutations(launched, monkeypatch, d, k):
    def made():
        cells = stream(range(2), HERE).each(range(2))
        first = torch.tensor([[[0], [7]], [[d - 5], [1000]]], device=HERE)
        return cells.subset(d, k), cells.images(d, first, 20)

    ours = made()
    assert "images_kernel" in launched
    monkeypatch.setattr(gpu, "usable", lambda x: False)
    assert all(map(same, ours, made()))
    assert all(len(set(row)) == k for row in ours[0].view(-1, k).tolist())


@pytest.mark.parametrize("d", [1, 2, 5, 65])
def test_permutations_of_few_are_walked_to_their_end(d):
    """Where the network's range is nearly twice d, half of the images are walked on."""
    cells = stream(range(3), HERE)
    ours = streams.images(cells.keys, torch.zeros_like(cells.keys), d, d, FEISTEL_ROUNDS)
    assert torch.equal(ours, cells._feistel(d, d))
    assert torch.equal(ours.sort().values, torch.arange(d, device=HERE).expand(3, d))


# Bits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 7, 512, 2600])
def test_packing(launched, monkeypatch, count):
    random = torch.Generator().manual_seed(0)
    never_made = torch.full((1, -(-count // 5)), 255, dtype=torch.uint8, device=HERE)

    def made():
        yield bitpack.unpack(never_made, bitpack.TRIT, count)
        for width, symbols in given.items():
            packed = bitpack.pack(symbols, width)
            shifted = torch.nn.functional.pad(packed, (3, 2))
            yield packed
            yield bitpack.unpack(shifted, width, count, symbols.dtype, 3)

    tops = {width: 2**width for width in (1, 3, 8, 11, 16, 17)} | {bitpack.TRIT: 3}
    given = {
        width: torch.randint(0, top, (2, 1, count), generator=random).to(HERE, code_dtype(top))
        for width, top in tops.items()
    }
    ours = list(made())
    assert len(launched) == 4
    assert all(map(same, ours[2::2], given.values()))
    monkeypatch.setattr(gpu, "usable", lambda x: False)
    assert all(map(same, ours, made()))


# Selection --------------------------------------------------------------------------------------


def check_largest(x, k):
    where, values = selection.largest(x, k)
    assert torch.equal(where, by_size.largest_torch(x, k))
    assert same(values, x.gather(-1, where))


@pytest.mark.parametrize("dtype", [SINGLE, HALF, BRAIN])
@pytest.mark.parametrize("d", [1, 5, 112, 4096])
def test_largest_of_short_rows(d, dtype):
    for k in {1, -(-d // 10), d // 2 + 1, d}:
        check_largest(gaussian(2, 2, d, dtype=dtype), min(k, d))


@pytest.mark.parametrize(
    ("d", "k"),
    [(4097, 1), (4097, 4097), (9000, 90), (9000, 8999), (20480, 5000)]
    + [(300_000, k) for k in (1, 3000, 299_999, 300_000)],
)
def test_largest_of_long_rows(d, k):
    check_largest(gaussian(2 if d < 10**5 else 1, d), k)


def test_strides_are_heard():
    x = gaussian(3, 5000)
    for part in (x[:, :300], x[:, 1:4998], x[:, ::2], x[:, :4].T):
        check_largest(part, 4 if part.shape[-1] > 3 else 2)
        cuts = torch.full((len(part),), 0x3F800000, dtype=torch.int32, device=HERE)
        counts = selection.above(part, cuts)[0]
        assert torch.equal(counts, (part.abs() > 1).sum(-1))


HARD = {
    "zeros": lambda x: x.zero_(),
    "equal": lambda x: x.fill_(-3.0),
    "few values": lambda x: x.round_(),
    "mostly zero": lambda x: x.masked_fill_(x.abs() < 2.5, -0.0),
    "infinities and NaN": lambda x: x.masked_fill_(x > 2, torch.inf).masked_fill_(
        x < -2, torch.nan
    ),
    "denormal": lambda x: x.mul_(1e-40),
    "huge": lambda x: x.mul_(1e38),
    "ascending": lambda x: x.copy_(x.sort().values),
    "all in a tile": lambda x: x[:, :500].mul_(1e3),
    "every 64th": lambda x: x[:, ::64].mul_(1e3),
    "16 bits": lambda x: x,
}


@pytest.mark.parametrize("what", HARD)
@pytest.mark.parametrize("d", [700, 9000])
def test_largest_of_hard_rows(d, what):
    x = gaussian(2, d)
    HARD[what](x)
    if what == "16 bits":
        x = torch.stack((x.half(), x.round().half()))
    for k in (d // 100, d // 3):
        check_largest(x, k)


@pytest.mark.parametrize("cut", [-1, 0, 0x3F800000, 0x40400000, 0x7F7FFFFF, 0x7F800000])
def test_the_guess_changes_nothing(monkeypatch, cut):
    """Of what is marked: all, all but zeros, a third, too few, none."""
    own = [cut, 0x40000000]  # beside a row whose guess is good
    guessed = torch.tensor(own, dtype=torch.int32, device=HERE)
    monkeypatch.setattr(selection, "_guess", lambda x, k: guessed)
    check_largest(gaussian(2, 9000), 90)


def test_a_full_slot_and_a_failed_guess_are_met(monkeypatch):
    marked = []

    class Marks(selection._Marks):
        def __init__(self, *given):
            super().__init__(*given)
            marked.append(self)

    monkeypatch.setattr(selection, "_Marks", Marks)
    x = gaussian(2, 20480)
    x[0, 4096:6500] *= 100  # k of them in a tile, more than its slot holds
    at = torch.arange(20480 // 64, device=HERE)
    x[1, at * 64 + at * 7919 % 64] *= 1e6  # the sample sees these alone
    check_largest(x, 1800)
    (marks,) = marked
    assert (marks.counts[0] > marks.slot).sum() == 1
    assert marks.sound.tolist() == [True, False]


@pytest.mark.parametrize("d", [1, 300, 9000])
@pytest.mark.parametrize("cut", [0.0, 1e-45, 1.0, 3.0, 100.0, torch.inf])
def test_threshold(launched, monkeypatch, d, cut):
    x = gaussian(2, 2, d)
    x[0, 0, 0], x[1, 1, -1], x[1, 0] = torch.nan, -torch.inf, 0.0
    cuts = torch.full((2, 2), cut, device=HERE)
    ours = threshold.at_least(x, cuts)
    assert launched == {"mark_kernel", "emit_kernel"}
    size = by_size.sizes_torch(x)
    want = by_size.ragged(x, (size >= cuts[..., None]) & (size > 0))
    for a, b in zip((ours.counts, ours.indices, ours.values), want, strict=True):
        assert same(a, b)


# Sums ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "k"), [(1, 1), (300, 50), (9000, 5000)])
def test_sum_over_clients_takes_their_order(launched, d, k):
    B, n, random = 2, 3, torch.Generator().manual_seed(0)
    drawn = [torch.randperm(d, generator=random)[:k].sort().values for _ in range(B * n)]
    where, values = torch.stack(drawn).view(B, n, k).to(HERE), gaussian(B, n, k)
    want = torch.zeros(B, d)
    for i in range(n):
        want.scatter_add_(-1, where[:, i].cpu(), values[:, i].cpu())
    message = SparseMessage(d, SINGLE, where, values)
    assert torch.equal(message.sum_clients().cpu(), want)
    assert launched == {"add_kernel"}
    counts = torch.arange(B * n, device=HERE).view(B, n) * k // 5
    live = torch.arange(k, device=HERE) < counts[..., None]
    ragged = RaggedMessage(d, SINGLE, counts, where * live, values * live)
    absent = torch.tensor([[True, False, True], [True, True, True]], device=HERE)
    want = ragged.masked(absent).decode().cpu()
    want = want[:, 0] + want[:, 1] + want[:, 2]
    assert torch.equal(ragged.masked(absent).sum_clients().cpu(), want)


# Compressors ----------------------------------------------------------------------------------------

OPERATORS = {
    "top_k:k=5%": {"row_kernel", "add_kernel"},
    "rtop_k:k=5%": {"row_kernel", "add_kernel"},
    "block_top_k:k=3,block=300": {"row_kernel", "add_kernel"},
    "hard_threshold:threshold=2": {"mark_kernel", "emit_kernel", "add_kernel"},
    "adaptive_threshold": {"mark_kernel", "emit_kernel", "add_kernel"},
    "adaptive_threshold:rule=percentile": {"row_kernel", "mark_kernel", "emit_kernel"},
    "dithering:s=5": {"code_kernel", "decode_kernel", "pack_kernel", "unpack_kernel"},
    "dithering:s=1000,bucket=100": {"code_kernel", "decode_kernel", "pack_kernel"},
    "qsgd": {"code_kernel", "decode_kernel", "pack_kernel"},
    "natural_dithering": {"code_kernel", "decode_kernel", "pack_kernel"},
    "natural_dithering:s=1000,bucket=100": {"code_kernel", "decode_kernel", "pack_kernel"},
    "int8:bucket=128": {"code_kernel", "decode_kernel", "pack_kernel"},
    "int8:rounding=stochastic": {"code_kernel", "decode_kernel", "pack_kernel"},
    "terngrad": {"code_kernel", "decode_kernel", "pack_trits_kernel", "unpack_trits_kernel"},
    "natural": {"cut_kernel", "pack_kernel", "unpack_kernel"},
    "stochastic_rounding:bits=1": {"cut_kernel", "pack_kernel"},
    "stochastic_rounding:bits=24": {"cut_kernel"},
    "stochastic_rounding": {"cut_kernel", "pack_kernel", "unpack_kernel"},
    "exponential_rounding:unbiased=false": {"cut_kernel", "pack_kernel"},
    "exponential_rounding:base=3": {"decode_kernel", "pack_kernel"},
    "scaled_sign": {"decode_kernel", "pack_kernel", "unpack_kernel"},
    "one_bit": {"decode_kernel", "pack_kernel", "unpack_kernel"},
    "rand_k:k=5%": {"keys_kernel"},
}
IN_HALVES = ("top_k:k=5%", "hard_threshold:threshold=2", "dithering:s=5", "natural")
OTHERS = [name for name in registry.names("compressor") if name not in OPERATORS]
CASES = [(name, SINGLE) for name in (*OPERATORS, *OTHERS)] + [(name, HALF) for name in IN_HALVES]
WIDE = {"code_kernel", "cut_kernel"}  # which take float64 too
CASES += [(name, torch.float64) for name, kernels in OPERATORS.items() if kernels & WIDE]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_operators_send_the_same_bytes(launched, monkeypatch, name, dtype):
    """Those of the list by the kernels that it names; no other one is changed by them."""
    d = 700 if name in OPERATORS else 150
    x, operator = gaussian(1, 5, d, dtype=dtype), named(name)[1].fit(d, 5)
    x[0, 0, :5], x[0, 1] = 0.0, x[0, 1].round()
    if name in OPERATORS:
        most, tiny = torch.finfo(dtype).max, torch.finfo(dtype).tiny
        x[0, 2, :4] = torch.tensor([torch.nan, -0.0, most, -most], dtype=dtype)
        x[0, 3, 3:5], x[0, 4] = torch.tensor([torch.inf, -torch.inf], dtype=dtype), x[0, 4] * tiny

    def made():
        message = operator.compress(x, stream(range(1), HERE).fold("up").each(range(5)))
        back = unpack(message.pack())
        target = torch.ones_like(x).float()
        sums_ = message.sum_clients(), message.mean_of_senders(), message.add_to(target)
        rows = [leaf.payload() for leaf in message.leaves()]
        return *rows, message.decode(), back.decode().to(HERE), *sums_

    ours = made()
    kernels = OPERATORS.get(name, set())
    assert (kernels & WIDE if dtype == torch.float64 else kernels) <= launched
    monkeypatch.setattr(gpu, "usable", lambda x: False)
    for a, b in zip(ours, made(), strict=True):
        assert same(a, b)


def test_float64_and_what_has_no_kernel_fall_back(launched):
    x = gaussian(2, 300, dtype=torch.float64)
    for name in ("top_k:k=5%", "hard_threshold:threshold=1", "exponential_dithering:base=3"):
        message = raybench.compressor(name).compress(x)
        assert same(unpack(message.pack()).decode().to(HERE), message.decode())
    assert not launched & {"row_kernel", "mark_kernel", "code_kernel"}


def test_random_supports_are_added_up_one_client_after_the_other(launched):
    """A support in no order has no kernel; on a GPU additions of several clients would take any order."""
    x = gaussian(2, 3, 5000)
    message = raybench.compressor("rand_k:k=1%").compress(
        x, Stream(torch.arange(2, device=HERE)).each(range(3))
    )
    each = message.decode()
    assert torch.equal(message.sum_clients(), each[:, 0] + each[:, 1] + each[:, 2])
    assert "add_kernel" not in launched


# The compiler -------------------------------------------------------------------------------------


def test_every_kernel_compiles_and_shares_no_sums(tmp_path):
    """PTX for sm_90, which needs no GPU: the interpreter allows what the compiler refuses.

    No product is fused with a sum, no float is flushed to zero, no sum in memory is shared by programs.
    """
    where = _environment(TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    command = [sys.executable, str(ROOT / "tests" / "triton_kit.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=where, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = json.loads(done.stdout)
    written = {name for m in MODULES for name in KERNEL.findall(Path(m.__file__).read_text())}
    assert {name for name, _ in compiled} == written
    assert len(written) > 10
    for name, ptx in compiled:
        assert ".target sm_90" in ptx
        assert not re.search(r"\bfma\.|\.ftz\b|\b(atom|red)\.\S*global", ptx), name


def test_kernels_are_launched_in_one_way():
    """``launch`` alone turns off fused products and picks the device."""
    kernel = MagicMock()
    gpu.launch(kernel, 7, torch.zeros(1), 2, BLOCK=8)
    kernel.__getitem__.assert_called_once_with((7,))
    (_, how), passed = kernel[(7,)].call_args.args, kernel[(7,)].call_args.kwargs
    assert how == 2
    assert passed == {"BLOCK": 8, "enable_fp_fusion": False}
    gpu.launch(kernel, 0, torch.zeros(1))
    assert kernel[(7,)].call_count == 1
    for module in MODULES:
        tree = ast.parse(Path(module.__file__).read_text())
        subscripted = [
            node.func.value.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Subscript)
            and isinstance(node.func.value, ast.Name)
        ]
        assert not [name for name in subscripted if name.endswith("_kernel")]
