"""Streams: numbers are those of the published hash, and uniform; lineage holds."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raybench.core.streams import FEISTEL_ROUNDS, MOST_SORTED, Stream, stream, tag_of

WORDS = st.integers(-(2**63), 2**63 - 1)


def splitmix64(state, counter):
    """Vigna's splitmix64.c: the state advanced counter + 1 times, in Python integers."""
    word = 2**64 - 1
    z = (state + (counter + 1) * 0x9E3779B97F4A7C15) & word
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & word
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & word
    return z ^ (z >> 31)


def signed(word):
    return word - 2**64 if word >= 2**63 else word


def cells(count=3, clients=4, seed=0):
    return stream(range(seed, seed + count)).fold("up").fold(17).each(range(clients))


# The hash -----------------------------------------------------------------------------------------


def test_splitmix64_published_vector():
    # the first outputs of the reference C code for seed 1234567
    want = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    got = Stream(torch.tensor(1234567)).bits(3).tolist()
    assert [g % 2**64 for g in got] == want


@settings(deadline=None)
@given(WORDS, st.integers(-(2**63), 2**63 - 1))
def test_hash_is_splitmix64(key, counter):
    want = signed(splitmix64(key % 2**64, counter % 2**64))
    assert int(Stream(torch.tensor(key)).fold(counter).keys) == want
    assert int(Stream(torch.tensor(key)).each([counter]).keys[0]) == want


HIGH = torch.tensor([[1, 2, 3, 7], [10, 100, 2**40, 2**52], [5, 5, 5, 5]])


def test_integers_are_below_their_row_s_limit():
    drawn = cells().integers(33, HIGH)
    assert torch.equal(drawn, (cells().uniform(33) * HIGH[..., None]).long())
    assert bool(((drawn >= 0) & (drawn < HIGH[..., None])).all())


def feistel(key, d, v):
    """Return the image of v under the permutation of 0..d-1, in Python's integers."""
    low = max(d - 1, 1).bit_length() // 2
    high = max(d - 1, 1).bit_length() - low
    while True:
        left, right = v >> low, v % 2**low
        for t in range(0, FEISTEL_ROUNDS, 2):
            left ^= splitmix64(splitmix64(key, t), right) % 2**high
            right ^= splitmix64(splitmix64(key, t + 1), left) % 2**low
        v = (left << low) + right
        if v < d:
            return v


@pytest.mark.parametrize(
    ("d", "k"),
    [(1, 1), (2, 1), (7, 3), (112, 11), (112, 112), (1000, 999), (MOST_SORTED, 4000)]
    + [(MOST_SORTED + 1, 7), (5000, 5000), (10**6, 50), (2**31, 20), (10**12, 20)],
)
def test_subsets_are_what_the_docstring_defines(d, k):
    drawn, keys = cells().subset(d, k), cells().keys.flatten().tolist()
    assert drawn.shape == (3, 4, k)
    for key, row in zip(keys, drawn.view(-1, k).tolist(), strict=True):
        assert len(set(row)) == k
        if d <= MOST_SORTED:
            words = [splitmix64(key % 2**64, j) for j in range(d)]
            assert row == sorted(sorted(range(d), key=words.__getitem__)[:k])
        elif k < d:
            assert row[:50] == [feistel(key % 2**64, d, j) for j in range(min(k, 50))]


@settings(deadline=None)
@given(st.integers(1, 2**53 - 1))
def test_integers_stay_below_high(high):
    largest = torch.tensor(1 - 2.0**-53, dtype=torch.float64)
    assert int((largest * high).long()) == high - 1
    assert int((largest * torch.tensor(high)).long()) == high - 1


# Distribution (fixed seeds; bounds far beyond chance) ----------------------------------------------


def chi_square(counts, expected):
    """Return (statistic - degrees of freedom) in standard deviations."""
    counts = counts.double()
    degrees = counts.numel() - 1
    return float(((counts - expected) ** 2 / expected).sum() - degrees) / math.sqrt(2 * degrees)


@pytest.mark.parametrize("seed", range(3))
def test_uniform_numbers_are_uniform(seed):
    u = stream(seed).each(range(500)).uniform(400).flatten()
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    assert abs(chi_square(torch.histc(u, 256, 0, 1), len(u) / 256)) < 5
    low = (u * 2**20) % 1  # the low bits are as good as the high
    assert abs(chi_square(torch.histc(low, 256, 0, 1), len(u) / 256)) < 5


@pytest.mark.parametrize(
    "pairs",
    [
        lambda: stream(0).each(range(10**5)).uniform(2),  # counters
        lambda: torch.cat([stream(0).each(range(10**5)).fold(t).uniform(1) for t in (1, 2)], -1),
        lambda: stream(0).fold(3).each(range(2 * 10**5)).uniform(1).view(-1, 2),  # clients
        lambda: stream(range(2 * 10**5)).uniform(1).view(-1, 2),  # seeds
        lambda: torch.stack([stream(0).fold(t).uniform(10**5) for t in ("up", "down")], -1),
    ],
    ids=["counters", "rounds", "clients", "seeds", "purposes"],
)
def test_neighbours_are_independent(pairs):
    u = pairs()
    cell = (u * 16).long()
    counts = torch.bincount(cell[:, 0] * 16 + cell[:, 1], minlength=256)
    assert abs(chi_square(counts, len(u) / 256)) < 5
    assert abs(float(torch.corrcoef(u.T)[0, 1])) < 5 / math.sqrt(len(u))


def test_every_bit_is_fair():
    words = stream(5).each(range(2000)).bits(20).flatten()
    ones = ((words[:, None] >> torch.arange(64)) & 1).double().mean(0)
    assert float((ones - 0.5).abs().max()) < 5 * 0.5 / math.sqrt(len(words))


def test_normal_numbers_are_normal():
    z = stream(1).each(range(1000)).normal(300).flatten()
    count = len(z)
    assert bool(z.isfinite().all())
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float((z**power).mean()) - moment) < 5 * math.sqrt(variance / count)
    inside = torch.special.ndtr(z)
    assert abs(chi_square(torch.histc(inside, 128, 0, 1), count / 128)) < 5


@pytest.mark.parametrize(("d", "k"), [(13, 4), (13, 12), (1000, 10), (MOST_SORTED + 4, 9)])
def test_subsets_are_uniform_over_coordinates(d, k):
    rows = 40_000
    q = stream(3).each(range(rows))
    counts = torch.bincount(q.subset(d, k).flatten(), minlength=d).double()
    # a subset without replacement varies less than independent draws, by (d - k)/(d - 1)
    spread = (d - k) / (d - 1)
    expected = rows * k / d
    scaled = expected + (counts - expected) / math.sqrt(spread * d / (d - 1))
    assert abs(chi_square(scaled, expected)) < 5


@pytest.mark.parametrize("d", [12, MOST_SORTED + 1])
def test_pairs_of_a_subset_are_uniform(d):
    # P(i and j) = k(k-1) / (d(d-1)) for every pair: distances on the circle of coordinates
    q = stream(4).each(range(60_000))
    pairs = q.subset(d, 2)
    gap = (pairs[:, 1] - pairs[:, 0]) % d
    gap = torch.minimum(gap, d - gap)
    counts = torch.bincount(gap, minlength=d // 2 + 1)[1:].double()
    expected = torch.full_like(counts, 2 / (d - 1) * len(pairs))
    if d % 2 == 0:
        expected[-1] /= 2
    assert abs(chi_square(counts, expected)) < 5


@pytest.mark.parametrize("d", [10, MOST_SORTED + 1])
def test_subsets_of_none_and_of_too_many(d):
    assert cells().subset(d, 0).shape == (3, 4, 0)
    assert torch.equal(cells().subset(d, d)[0, 0], torch.arange(d))
    for k in (-1, d + 1):
        with pytest.raises(ValueError, match="coordinates"):
            cells().subset(d, k)


# Lineage --------------------------------------------------------------------------------------------


def test_the_same_numbers_whatever_the_batch():
    q = cells(5, 6, seed=10)
    whole = {n: f(q) for n, f in DRAWS.items()}
    for b in range(5):
        for i in range(6):
            alone = stream([10 + b]).fold("up").fold(17).each([i])
            for name, draw in DRAWS.items():
                assert torch.equal(draw(alone)[0, 0], whole[name][b, i]), name


DRAWS = {
    "uniform": lambda q: q.uniform(5),
    "normal": lambda q: q.normal(5),
    "small": lambda q: q.subset(50, 5),
    "large": lambda q: q.subset(10**5, 5),
    "fold": lambda q: q.fold("slot").fold(3).uniform(2),
}


@pytest.mark.parametrize("then", [lambda q: q, lambda q: q.fold("slot").fold(2)])
def test_at_is_a_part_of_all(then):
    every, part = torch.arange(9), torch.tensor([7, 2, 3])
    q = then(cells(3, 2))
    assert torch.equal(q.at(every).keys[:, part], q.at(part).keys)
    assert torch.equal(q.at(every).uniform(4)[:, part], q.at(part).uniform(4))
    assert torch.equal(q.at(torch.arange(2)).keys, q.keys)
    assert torch.equal(q.shared().keys, q.at(part).shared().keys)


def test_cells_are_selected():
    for q in (cells(4), cells(4).fold("slot"), stream(range(4))):
        for chosen in (torch.tensor([3, 1]), slice(1, 3), torch.tensor([True, False, True, False])):
            assert torch.equal(q[chosen].keys, q.keys[chosen])
            assert torch.equal(q[chosen].shared().keys, q.shared().keys[chosen])
    rows = stream(0).spread((5,))
    assert torch.equal(rows[torch.tensor([4, 0])].keys, rows.keys[torch.tensor([4, 0])])


def test_fold_and_each_commute():
    a = stream([1, 2]).each(range(3)).fold("x").fold(1)
    b = stream([1, 2]).fold("x").fold(1).each(range(3))
    assert torch.equal(a.keys, b.keys)
    c = stream([1, 2]).fold(1).fold("x").each(range(3))
    assert not torch.equal(a.keys, c.keys)  # but the order of folds matters


def test_different_paths_have_different_keys():
    root = stream(0)
    purposes = [root.fold(t) for t in ("a", "b", "", "shared", 0, 1, -1, 2**62)]
    keys = [p.fold(r).each(range(10)).keys for p in purposes for r in range(10)]
    keys += [p.fold(r).shared().keys[None] for p in purposes for r in range(10)]
    keys += [stream(range(100)).keys]
    every = torch.cat(keys)
    assert len(every.unique()) == len(every)


def test_spread_makes_rows_of_one_key():
    q = stream(5)
    assert q.spread(()) is q
    rows = q.spread((3, 4))
    assert rows.shape == (3, 4)
    assert torch.equal(rows.keys, q.each(range(3)).each(range(4)).keys)
    assert rows.spread((3, 4)) is rows
    assert len(q.spread((2, 3, 4)).keys.unique()) == 24
    with pytest.raises(ValueError, match=r"\(3, 4\).*\(4, 3\)"):
        rows.spread((4, 3))


def test_tags():
    assert tag_of(7) == 7
    assert tag_of("up") == tag_of("up") != tag_of("down")
    assert tag_of(2**63) == -(2**63)
    assert tag_of(2**64 + 5) == 5
    assert stream(0).fold(2**64 - 1).keys == stream(0).fold(-1).keys


def test_sources_of_seeds():
    import numpy as np

    assert torch.equal(stream(np.int64(3)).keys, stream(3).keys)
    assert torch.equal(stream(np.array([3, 4])).keys, stream([3, 4]).keys)
    assert torch.equal(stream(range(3, 5)).keys, stream([3, 4]).keys)
