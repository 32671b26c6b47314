"""Triton kernels that select entries equal plain torch bit for bit: interpreted on the CPU, run on a GPU."""

from __future__ import annotations

import pytest
import torch
from triton_cases import BRAIN, HALF, HERE, SINGLE, gaussian, same
from triton_cases import launched as _launched  # noqa: F401

from raybench.compressors import by_size
from raybench.compressors import selection as threshold
from raybench.core.gpu import selection

pytestmark = pytest.mark.thorough


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
    [(4097, 1), (4097, 4097), (9000, 90), (9000, 8999), (20480, 5000)],
)
def test_largest_of_long_rows(d, k):
    check_largest(gaussian(2, d), k)


def test_strides_are_heard():
    x = gaussian(3, 5000)
    for part in (x[:, :300], x[:, 1:4998], x[:, ::2], x[:, :4].T):
        check_largest(part, 4 if part.shape[-1] > 3 else 2)
        cuts = torch.full((len(part),), 0x3F800000, dtype=torch.int32, device=HERE)
        counts = selection.above(part, cuts)[0]
        assert torch.equal(counts, (part.abs() > 1).sum(-1))


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 300, 3000, 30000, 299_999, 300_000])
def test_largest_of_longer_rows(k):
    check_largest(gaussian(300_000), k)


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
