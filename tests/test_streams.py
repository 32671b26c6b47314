"""Streams: the published hash, uniform, by lineage; compressors, coins and bits computed without the engine."""

from __future__ import annotations

import hashlib
import math
import struct

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

import raybench
from raybench.core.streams import FEISTEL_ROUNDS, MOST_SORTED, Stream, stream, tag_of
from raybench.testing.trial import TrialMethod, finished, started
from raybench.wire import unpack

WORDS = st.integers(-(2**63), 2**63 - 1)


WORD = 2**64 - 1


def splitmix64(state, counter):
    """Vigna's splitmix64.c: the state advanced counter + 1 times, in Python integers."""
    z = (state + (counter + 1) * 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
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


def test_numbers_are_what_the_docstrings_define():
    # finished sweeps depend on these: whatever breaks this test is a new version of the streams
    key = 0
    for step in (tag_of("raybench"), tag_of("up"), 17, 3):  # seed 0, purpose, round, client
        key = splitmix64(key, step % 2**64)
    q = stream(0).fold("up").fold(17).each([3])
    assert q.keys.tolist() == [signed(key)]
    words = [splitmix64(key, j) for j in range(100)]
    assert q.bits(100).tolist() == [[signed(w) for w in words]]
    assert q.uniform(100).tolist() == [[(w >> 11) * 2.0**-53 for w in words]]
    smallest = sorted(range(100), key=lambda j: words[j])[:7]
    assert q.subset(100, 7).tolist() == [sorted(smallest)]


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


# Distribution (a fixed seed; bounds far beyond chance) -----------------------------------------------


def chi_square(counts, expected):
    """Return (statistic - degrees of freedom) in standard deviations."""
    counts = counts.double()
    degrees = counts.numel() - 1
    return float(((counts - expected) ** 2 / expected).sum() - degrees) / math.sqrt(2 * degrees)


def test_normal_numbers_are_normal():
    z = stream(1).each(range(1000)).normal(300).flatten()
    count = len(z)
    assert bool(z.isfinite().all())
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float((z**power).mean()) - moment) < 5 * math.sqrt(variance / count)
    inside = torch.special.ndtr(z)
    assert abs(chi_square(torch.histc(inside, 128, 0, 1), count / 128)) < 5


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
    assert torch.equal(stream(np.int64(3)).keys, stream(3).keys)
    assert torch.equal(stream(np.array([3, 4])).keys, stream([3, 4]).keys)
    assert torch.equal(stream(range(3, 5)).keys, stream([3, 4]).keys)


# What references of methods take from the engine, computed here without it --------------------------
# References use raybench's own compressors, coins and counts of bits, so a mistake in one of these would be in both.
# Here random numbers come from splitmix64 along the documented path (seed, 'round', round, purpose, client),
# compressors are a few lines of numpy, and bits are counted by hand.

D, CLIENTS = 40, 3
PROBLEM = {"name": "quadratic", "dim": D, "clients": CLIENTS, "heterogeneity": 0.5}


def key_of(seed: int, *path: int | str) -> int:
    """The key at the end of a path; a text stands for eight bytes of its BLAKE2b, less 2^63."""
    key = seed
    for tag in ("raybench", *path):
        if isinstance(tag, str):
            digest = hashlib.blake2b(tag.encode(), digest_size=8).digest()
            tag = int.from_bytes(digest, "big") - 2**63
        key = splitmix64(key, tag & WORD)
    return key


def words(key: int, count: int) -> list[int]:
    return [splitmix64(key, j) for j in range(count)]


def uniform(key: int, count: int) -> np.ndarray:
    return np.array([(word >> 11) * 2.0**-53 for word in words(key, count)])


def smallest(key: int, d: int, k: int) -> list[int]:
    """The documented subset: the k coordinates with the smallest of d hashes."""
    drawn = words(key, d)
    return sorted(range(d), key=drawn.__getitem__)[:k]


# Compressors in numpy ---------------------------------------------------------------------------


def rand_k(x, key, k, scaled=True):
    out = np.zeros_like(x)
    kept = smallest(key, len(x), k)
    out[kept] = x[kept] * (len(x) / k if scaled else 1.0)
    return out


def random_sparsification(x, key, p):
    return np.where(uniform(key, len(x)) < p, x / p, 0.0)


def lazy(x, key, p):
    return x / p if uniform(key, 1)[0] < p else np.zeros_like(x)


def dithering(x, key, s, p):
    norm = np.abs(x).max() if p == "inf" else (np.abs(x) ** p).sum() ** (1 / p)
    levels = np.minimum(np.floor(s * np.abs(x) / norm + uniform(key, len(x))), s)
    return norm * np.sign(x) * levels / s


OPERATORS = [
    ("rand_k", {"k": 7}, rand_k),
    ("rand_k", {"k": 7, "scaled": False}, rand_k),
    ("random_sparsification", {"p": 0.3}, random_sparsification),
    ("lazy", {"p": 0.6}, lazy),
    ("dithering", {"s": 3, "p": 2}, dithering),
    ("dithering", {"s": 1, "p": "inf"}, dithering),
    ("dithering", {"s": 5, "p": "inf"}, dithering),
]


@pytest.mark.parametrize(
    ("name", "params", "mine"), OPERATORS, ids=lambda x: getattr(x, "__name__", str(x))
)
def test_operators(name, params, mine):
    """Several cells and clients at once, each with the numbers of its own path."""
    random = np.random.default_rng(0)
    x = random.standard_normal((2, CLIENTS, D)) * 10.0 ** random.integers(-3, 4, (2, CLIENTS, 1))
    q = stream([5, 6]).fold("round").fold(17).fold("up").each(range(CLIENTS))
    result = raybench.compressor(name, **params).encode(torch.from_numpy(x), q).decode().numpy()
    want = [
        [mine(x[b, i], key_of(5 + b, "round", 17, "up", i), **params) for i in range(CLIENTS)]
        for b in range(2)
    ]
    np.testing.assert_allclose(result, want, rtol=1e-12)
    assert np.abs(result).max() > 0


# Coins, participants, minibatches, and the server's stream ------------------------------------------


def run_of(name, params=None, compressor=None, rounds=30, **given):
    method = TrialMethod(name, params or {}, compressor, PROBLEM, rounds=rounds, step=0.01, **given)
    return method.batch((1.0,), (0, 1))


def counts_of(run, name):
    """What each round adds to a count, (cells, rounds)."""
    return np.diff(run.recorder.column(name))


def test_the_coins_of_marina_are_read_off_its_messages():
    """A round in which all synchronise sends d values, another one K: known from the counts alone."""
    p, k, rounds = 0.3, 4, 60
    run = finished(run_of("marina", {"p": p}, {"name": "rand_k", "k": k}, rounds))
    sent = counts_of(run, "values_up")
    want = [
        [uniform(key_of(seed, "round", t, "sync"), 1)[0] < p for t in range(1, rounds + 1)]
        for seed in (0, 1)
    ]
    assert np.array_equal(sent, np.where(want, D, k))
    assert 0 < np.mean(want) < 1


def test_participants_are_read_off_the_messages():
    p, k, rounds = 0.4, 4, 60
    run = finished(run_of("ef21_pp", {"p": p}, {"name": "top_k", "k": k}, rounds))
    want = np.array(
        [
            [
                sum(
                    uniform(key_of(seed, "round", t, "participants", i), 1)[0] < p
                    for i in range(CLIENTS)
                )
                for t in range(1, rounds + 1)
            ]
            for seed in (0, 1)
        ]
    )
    np.testing.assert_allclose(counts_of(run, "values_up"), k * want / CLIENTS, rtol=1e-12)
    assert len(np.unique(want)) > 2


def test_minibatches():
    problem = {"name": "least_squares", "dataset": "breast_cancer", "rows": 60, "clients": 3}
    run = started(TrialMethod("sgd", {"batch": 4}, None, problem, step=0.01).batch((1.0,), (7,)))
    run.net.begin(5)
    result = run.net.sample("batch", 4).indices[0].tolist()
    assert result == [
        np.floor(20 * uniform(key_of(7, "round", 5, "batch", i), 4)).tolist() for i in range(3)
    ]


def test_the_server_draws_from_a_stream_of_its_own():
    """x^1 = D(x^1 - x^0) moves the coordinates that client -1 draws, not those that all share."""
    k = 6
    down = {"name": "rand_k", "k": k, "scaled": False}
    run = started(run_of("ef21_p", downlink=down))
    before = run.s.x.clone()
    run.advance(1)
    moved = (run.s.x != before).numpy()
    for seed in (0, 1):
        own = smallest(key_of(seed, "round", 1, "down", -1), D, k)
        shared = smallest(key_of(seed, "round", 1, "down"), D, k)
        assert set(np.flatnonzero(moved[seed])) == set(own) != set(shared)


# Bytes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["top_k:k=7", "rand_k:k=7", "random_sparsification:p=0.3"])
def test_the_checksum_is_seeded_with_the_length_of_the_header(text):
    """Magic, XXH3 of all that follows the prefix, length of the header; the seed guards the length."""
    packed = raybench.compressor(text).compress(torch.ones(D).double()).pack()
    magic, claimed, length = struct.unpack_from("<4sQI", packed)
    assert magic == b"RBM2"
    assert claimed == xxhash.xxh3_64_intdigest(packed[16:], seed=length)
    moved = struct.pack("<4sQI", magic, claimed, length - 1) + packed[16:]
    with pytest.raises(ValueError, match="damaged or cut short"):
        unpack(moved)


# Bits by hand -----------------------------------------------------------------------------------

TOP = {"name": "top_k", "k": 3}
# 3 of 40 indices by Elias-Fano: 3 low bits each, and 3 + floor(39/8) = 7 for the high parts: 16 bits,
# 2 bytes, where a list has 3 * 6 = 18 bits in 3 bytes. 10 of 40 take 39 bits by Elias-Fano: no byte less
# than a bitmask of 40, which is taken then.
NONE, SPARSE, DENSE = (0, 0), (3, 16), (40, 0)
BOOKS = [  # method, parameters, compressor; values and index bits of row 0; those, raw bits and bytes a round up
    ("gd", {}, None, NONE, *DENSE, 0, 320),
    ("ef21", {"init": "zero"}, TOP, NONE, *SPARSE, 0, 24 + 2),
    ("ef21", {"init": "compressed"}, TOP, SPARSE, *SPARSE, 0, 24 + 2),
    ("ef21", {"init": "full"}, TOP, DENSE, *SPARSE, 0, 24 + 2),
    ("ef21_plus", {}, TOP, SPARSE, *SPARSE, 1, 24 + 2 + 1),
    ("ef14", {}, {"name": "top_k", "k": "25%"}, NONE, 10, 40, 0, 80 + 5),
    ("dcgd", {}, {"name": "rand_k", "k": 3}, NONE, 3, 0, 0, 24),
    ("marina", {"p": 1.0}, {"name": "rand_k", "k": 3}, DENSE, *DENSE, 0, 320),
    ("diana", {}, {"name": "dithering", "s": 3}, NONE, 1, 0, 40 * 3, 8 + 15),
    ("diana", {}, "natural", NONE, 0, 0, 40 * 12, 60),
    ("ef14", {}, "scaled_sign", NONE, 1, 0, 40, 8 + 5),
    ("lag", {"z": 0.0}, None, DENSE, *DENSE, 1, 320 + 1),
]


@pytest.mark.parametrize(
    ("name", "params", "operator", "first", "values", "index", "raw", "size"),
    BOOKS,
    ids=lambda x: str(x)[:24],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_bits_of_a_round(name, params, operator, first, values, index, raw, size, dtype):
    """Modelled bits and packed bytes after T rounds; every round sends the model's 40 values down."""
    if (dtype == "float32") and operator == "natural":
        raw, size = 40 * 9, 45
    width = {"float64": 64, "float32": 32}[dtype]
    size -= values * (64 - width) // 8
    problem = {**PROBLEM, "dtype": dtype}
    method = TrialMethod(name, params, operator, problem, step=0.01, rounds=5)
    curve = finished(method.batch()).tables({})[0].to_pandas()
    for column, each in (("bits_up", values * width + index + raw), ("bytes_up", size)):
        assert np.diff(curve[column]).tolist() == [each] * 5
    assert curve["bits_up"][0] == first[0] * width + first[1]
    assert curve["bits_down"].tolist() == [40 * width * t for t in range(6)]
    assert curve["bytes_down"].tolist() == [5 * width * t for t in range(6)]
