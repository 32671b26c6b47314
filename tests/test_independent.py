"""What the reference methods of other tests take from the engine, computed here without it.

References of methods use raybench's own compressors, coins and counts of bits, so a mistake in one of these would
be in both. Here the random numbers come from splitmix64 in Python's integers along the documented path
(seed, "round", round, purpose, client), compressors are a few lines of numpy, and bits are counted by hand.
"""

import hashlib
import struct

import numpy as np
import pytest
import torch
import xxhash
from test_streams import splitmix64

import raybench
from raybench.core.streams import stream
from raybench.testing.trial import Method, finished, started
from raybench.wire import unpack

WORD = 2**64 - 1
D, CLIENTS = 40, 3
PROBLEM = {"name": "quadratic", "dim": D, "clients": CLIENTS, "heterogeneity": 0.5}


def key_of(seed: int, *path: int | str) -> int:
    """The key at the end of a path; a text stands for eight bytes of its BLAKE2b, less 2^63."""
    key = seed
    for tag in ("raybench", *path):
        if isinstance(tag, str):
            tag = (
                int.from_bytes(hashlib.blake2b(tag.encode(), digest_size=8).digest(), "big") - 2**63
            )
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


def top_k(x, key, k):
    out = np.zeros_like(x)
    kept = np.argsort(-np.abs(x), kind="stable")[:k]
    out[kept] = x[kept]
    return out


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


def scaled_sign(x, key):
    return np.abs(x).mean() * np.where(x >= 0, 1.0, -1.0)


OPERATORS = [
    ("top_k", {"k": 7}, top_k),
    ("rand_k", {"k": 7}, rand_k),
    ("rand_k", {"k": 7, "scaled": False}, rand_k),
    ("random_sparsification", {"p": 0.3}, random_sparsification),
    ("lazy", {"p": 0.6}, lazy),
    ("dithering", {"s": 3, "p": 2}, dithering),
    ("dithering", {"s": 1, "p": "inf"}, dithering),
    ("dithering", {"s": 5, "p": "inf"}, dithering),
    ("scaled_sign", {}, scaled_sign),
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
    method = Method(name, params or {}, compressor, PROBLEM, rounds=rounds, step=0.01, **given)
    return method.batch((1.0,), (0, 1))


def counts(run, name):
    """What each round adds to a count, (cells, rounds)."""
    return np.diff(run.recorder.column(name))


def test_the_coins_of_marina_are_read_off_its_messages():
    """A round in which all synchronise sends d values, another one K: known from the counts alone."""
    p, k, rounds = 0.3, 4, 60
    run = finished(run_of("marina", {"p": p}, {"name": "rand_k", "k": k}, rounds))
    sent = counts(run, "values_up")
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
    np.testing.assert_allclose(counts(run, "values_up"), k * want / CLIENTS, rtol=1e-12)
    assert len(np.unique(want)) > 2


def test_minibatches():
    problem = {"name": "least_squares", "dataset": "breast_cancer", "rows": 60, "clients": 3}
    run = started(Method("sgd", {"batch": 4}, None, problem, step=0.01).batch((1.0,), (7,)))
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


@pytest.mark.parametrize(
    ("name", "params", "mine"), OPERATORS[:4], ids=lambda x: getattr(x, "__name__", str(x))
)
def test_the_checksum_is_seeded_with_the_length_of_the_header(name, params, mine):
    """Magic, XXH3 of all that follows the prefix, length of the header; the seed guards the length."""
    packed = raybench.compressor(name, **params).compress(torch.ones(D).double()).pack()
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
BOOKS = [  # method, parameters, compressor; values, index bits, raw bits, bytes a round up
    ("gd", {}, None, 40, 0, 0, 320),
    ("ef21", {}, TOP, 3, 16, 0, 24 + 2),
    ("ef21_plus", {}, TOP, 3, 16, 1, 24 + 2 + 1),
    ("ef14", {}, {"name": "top_k", "k": "25%"}, 10, 40, 0, 80 + 5),
    ("dcgd", {}, {"name": "rand_k", "k": 3}, 3, 0, 0, 24),
    ("diana", {}, {"name": "dithering", "s": 3}, 1, 0, 40 * 3, 8 + 15),
    ("dcgd", {}, "natural", 0, 0, 40 * 12, 60),
    ("ef14", {}, "scaled_sign", 1, 0, 40, 8 + 5),
    ("lag", {"z": 0.0}, None, 40, 0, 1, 320 + 1),
]


@pytest.mark.parametrize(
    ("name", "params", "operator", "values", "index", "raw", "size"),
    BOOKS,
    ids=lambda x: str(x)[:24],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_bits_of_a_round(tmp_path, name, params, operator, values, index, raw, size, dtype):
    """Modelled bits and packed bytes after T rounds; every round sends the model's 40 values down."""
    if (dtype == "float32") and operator == "natural":
        raw, size = 40 * 9, 45
    width = {"float64": 64, "float32": 32}[dtype]
    size -= values * (64 - width) // 8
    given = {
        "problem": {**PROBLEM, "dtype": dtype},
        "algorithm": {"name": name, **params},
        "compressor": operator,
        "step_size": 0.01,
        "rounds": 5,
    }
    raybench.sweep({k: v for k, v in given.items() if v is not None}, tmp_path / "out", inline=True)
    curve = raybench.load(tmp_path / "out")
    for column, each in (("bits_up", values * width + index + raw), ("bytes_up", size)):
        assert np.diff(curve[column]).tolist() == [each] * 5
    assert curve["bits_down"].tolist() == [40 * width * t for t in range(6)]
    assert curve["bytes_down"].tolist() == [5 * width * t for t in range(6)]
