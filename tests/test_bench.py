"""Measuring compressors: figures beside a copy, the gradient they are tried on, and claims drawn."""

from __future__ import annotations

import json
import math
import time

import numpy as np
import pandas as pd
import pytest
import torch
from cli_kit import cli, ran, tidy

import raybench
from raybench.compressors import Compressor, Dense
from raybench.core.errors import InputError
from raybench.measure import study
from raybench.measure import timing as bench
from raybench.measure.study import drawn
from raybench.testing import claims
from raybench.testing.vectors import gaussian


class Given(Compressor):
    """C(x) = ``of(x)``, sent dense, with the constants that the test claims."""

    deterministic = True

    def __init__(self, of=lambda x: x.clone(), **constants):
        self.of, self.constants = of, constants

    def encode(self, x, stream):
        return Dense(self.of(x))

    def omega(self, d):
        return self.constants.get("omega")

    def alpha(self, d):
        return self.constants.get("alpha")

    def b1(self, d):
        return self.constants.get("b1")

    def b2(self, d):
        return self.constants.get("b2")


def slow(x):
    """Return x after 0.1 µs a coordinate."""
    time.sleep(1e-7 * x.numel())
    return x.clone()


def measured(*asked, **more):
    """Return the rows of figures one by one."""
    return list(bench.measure(*asked, **more).itertuples())


# What is measured ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(500,), (3, 4, 50)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_figures_are_those_of_the_message(shape, dtype):
    x = gaussian(*shape, dtype=dtype)
    q = raybench.compressor("top_k", k="10%")
    table = bench.measure({"none": Given(), "top": q}, x, 2)
    none, top = table.itertuples(index=False)
    message = q.compress(x)
    assert [row.operator for row in (none, top)] == ["none", "top"]
    assert (top.rows, top.d, top.dtype) == (x.numel() // shape[-1], shape[-1], str(dtype)[6:])
    assert top.bytes == message.nbytes * top.rows
    assert top.packed == len(message.pack())
    assert top.bits == int(message.bits.sum())
    assert top.of_dense == top.bytes / (x.numel() * dtype.itemsize)
    assert top.bits_each == top.bits / x.numel()
    off = (message.decode().double() - x.double()).square().sum(-1) / x.double().square().sum(-1)
    assert top.error == pytest.approx(float(off.mean()), rel=1e-12)
    assert (none.error, none.of_dense) == (0.0, 1.0)
    for row in (none, top):
        times = [getattr(row, action) for action in bench.ACTIONS]
        assert all(0 < t < math.inf for t in times)
        assert row.repeats == 2
    assert tuple(table) == bench.COLUMNS


def test_best_of_turns_over_the_copy(monkeypatch):
    """A false clock: the copy takes 2, then 1; compress 30, 9, 7, the first turn not counted."""
    durations = {
        **{"copy": [2.0, 1.0, 1.0, 1.0], "compress": [30.0, 9.0, 7.0]},
        **{"decode": [1.0, 6.0, 5.0], "pack": [1.0, 4.0, 4.5], "unpack": [8.0, 3.0, 3.0]},
    }
    real = bench.ActionClock.__call__

    def call(self, key, action):
        name = key if isinstance(key, str) else key[1]
        now = iter([0.0, durations[name].pop(0)])
        with monkeypatch.context() as patch:
            patch.setattr(bench, "perf_counter", lambda: next(now))
            return real(self, key, action)

    monkeypatch.setattr(bench.ActionClock, "__call__", call)
    (row,) = measured({"mine": Given(alpha=1.0)}, gaussian(20), 2, limit=100.0)
    assert (row.copy_s, row.compress, row.decode, row.pack, row.unpack) == (1, 7, 5, 4, 3)
    assert all(not left for name, left in durations.items() if name != "copy")


def test_what_does_not_fit_is_left_out_and_every_turn_draws_anew():
    seen = []

    class Seen(Given):
        def encode(self, x, stream):
            seen.extend(stream.keys.flatten().tolist())
            return Dense(x.clone())

    given = {"large": raybench.compressor("top_k:k=500"), "seen": Seen()}
    rows = measured(given, gaussian(2, 3, 50), 4)
    assert "500 of 50 coordinates" in rows[0].left_out
    assert all(map(math.isnan, (rows[0].compress, rows[0].bits_each, rows[0].of_dense)))
    assert (rows[1].left_out, rows[1].repeats) == ("", 4)
    assert len(set(seen)) == len(seen) == 5 * 6


@pytest.mark.thorough
def test_slow_operators_are_guessed_from_pieces_or_measured_once():
    given = {"slow": Given(slow, alpha=1.0)}
    # 2^17 coordinates take 13 ms, four times that too long
    for shape, limit in (((1 << 19,), 0.02), ((64, 20, 100), 0.001)):
        (row,) = measured(given, gaussian(*shape), 3, limit=limit)
        assert "a call takes about" in row.left_out
    (row,) = measured(given, gaussian(2, 10_000), 3, limit=0.001)
    assert (row.left_out, row.repeats) == ("", 1)  # too short to guess: one turn, which counts
    assert row.compress * row.copy_s >= 0.001
    (row,) = measured(given, gaussian(2, 10_000), 3, limit=60.0)
    assert row.repeats == 3


def test_names_fill_in_what_is_required():
    assert bench.named("top_k")[1].alpha(1000) == 0.01
    labels = {"top_k": "top_k:k=1%", "rand_k:mask=common": "rand_k:mask=common,k=1%"}
    labels |= {text: text for text in bench.USUAL}  # the usual ones say all that they require
    assert {text: bench.named(text)[0] for text in labels} == labels
    for text, said in (("topk", "did you mean top_k"), ("top_k:kk=3", "kk")):
        with pytest.raises(InputError, match=said):
            bench.named(text)


# The command line ------------------------------------------------------------------------------


@pytest.mark.thorough
def test_bench_prints_two_tables():
    said = ran(
        *("bench", "top_k:k=10%", "natural", "top_k:k=77", "--vector", "gaussian", "--d", 3000),
        *("--batch", "2,3,50", "--repeats", 2),
    )
    tidy(said.out)
    lines = [line.split() for line in said.out.splitlines()]
    assert [line[0] for line in lines if line].count("natural") == 2
    heads = ["operator", "compress", "decode", "pack", "unpack", "error", "bytes", "bits/d"]
    assert [*heads, "of", "dense"] in lines
    (long, batch) = [line for line in lines if line[:1] == ["natural"]]
    assert (long[-4:], batch[-2:]) == (["3.3", "KiB", "9", "28.12%"], ["12", "18.75%"])
    assert said.out.startswith("3,000 float32  Gaussian; ")
    assert "\n2 × 3 × 50 float64  Gaussian; " in said.out
    assert "left out: top_k:k=77: k: 77 of 50 coordinates" in said.out
    assert said.out.count("  a copy takes ") == 2


@pytest.mark.thorough
def test_a_busy_machine_is_told(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    args = ("bench", "identity", "--vector", "none", "--batch", "1,2,9", "--repeats", 1)
    for load, told in ((1.9, False), (2.1, True)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        said = cli(*args)
        assert ("note: the machine is busy (load 2.1 on 4 cores)" in said.err) == told
        assert "busy" not in said.out


@pytest.mark.thorough
def test_bench_takes_a_gradient_and_prints_its_figures_as_json(tmp_path):
    values = np.arange(1.0, 401.0).reshape(20, 20)  # float64 stays so
    np.save(tmp_path / "mine.npy", values)
    said = ran(
        *("bench", "top_k", "--vector", tmp_path / "mine.npy", "--batch", "none", "--json"),
        *("--repeats", 1),
    )
    (row,) = json.loads(said.out)
    assert (row["operator"], row["vector"], row["shape"]) == ("top_k:k=1%", "mine.npy", "(400,)")
    assert (row["dtype"], row["d"], row["device"]) == ("float64", 400, "cpu")
    assert row["threads"] == torch.get_num_threads()
    kept = np.sort(values.ravel())[-4:]
    assert row["error"] == pytest.approx(1 - (kept**2).sum() / (values**2).sum(), rel=1e-12)
    assert row["bits"] == 4 * (64 + 9)
    (tmp_path / "junk.npy").write_text("no array")
    assert "cannot be read" in cli("bench", "--vector", tmp_path / "junk.npy").err
    for name, wrong in {"nan": [1.0, math.nan], "none": [], "text": ["a"]}.items():
        np.save(tmp_path / f"{name}.npy", np.array(wrong))
        refused = cli("bench", "--vector", tmp_path / f"{name}.npy")
        assert refused.code == 2
        assert "cannot be read" in refused.err
        assert name == "text" or "empty or not finite" in refused.err


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("topk",), "did you mean top_k?"),
        (("--vector", "resnet"), "did you mean resnet18?"),
        (("--batch", "64,0,3"), "is no shape"),
        (("--d", 11_181_643), "the vector has 11,181,642 coordinates"),
        (("--vector", "nowhere.npy"), "No such file"),
        pytest.param(
            *(("--device", "cuda"), "there is no GPU here"),
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
        (("identity", "--all"), "give one of them"),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(args, said, monkeypatch):
    monkeypatch.setattr(bench, "measure", lambda *a, **k: pytest.fail("measured"))
    result = cli("bench", *args)
    assert result.code == 2
    assert said in result.err
    assert result.complaints == 1


# Claims ----------------------------------------------------------------------------------------


def test_bounds_and_factors_of_the_claims():
    d = 10
    assert claims.claim(Given(omega=3.0), d) == (3.0, 1.0)
    assert claims.claim(Given(alpha=0.25), d) == (0.75, 1.0)
    assert claims.claim(Given(omega=3.0, alpha=0.5), d) == (0.5, 1.0)
    assert claims.claim(Given(b1=(0.5, 2.0)), d) == (1 - 0.5 / 4, 0.5)  # 1/beta, beta^2/alpha
    assert claims.claim(Given(), d) == (None, 1.0)
    (one, *_) = claims.check_claims(Given(), d)
    assert (one.verdict, one.bias, one.error) == ("no claim", None, (0.0, 0.0))


@pytest.mark.parametrize(
    ("op", "fault"),
    [
        (Given(lambda x: 0.5 * x, omega=0.3), "biased"),
        (Given(lambda x: -x, omega=5.0), "biased"),
        (Given(lambda x: x.flip(-1), omega=9.0), "biased"),
        (Given(lambda x: 0 * x, alpha=0.5), "error above the bound"),
        (Given(lambda x: 0.5 * x, b1=(0.5, 1.0)), "not in B1"),  # ||C||^2 = 0.25 ||x||^2
        (Given(lambda x: 2 * x, b1=(0.5, 1.0)), "not in B1"),  # ||C||^2 = 4, <C, x> = 2
        (Given(lambda x: 0.5 * x, b2=(0.8, 2.0)), "not in B2"),  # <C, x> = 0.5
    ],
)
def test_false_claims_are_found(op, fault):
    result = [one for one in claims.check_claims(op, 50) if one.family == "gaussian"]
    assert fault in result[0].verdict


# -- the study: formulas, vectors, rows, figures ---------------------------------------------------


SMALL = {"Top-k": ["top_k:k=1%", "top_k:k=10%", "top_k:k=100%"], "scaled sign": ["scaled_sign"]}


def quantile_share(absolute, k):
    """The residual by definition: sort, drop the k largest."""
    squares = absolute.double().square().sort(dim=-1).values
    return squares[..., : squares.shape[-1] - k].sum(-1) / squares.sum(-1)


def test_rows_are_what_they_say():
    x = drawn(400, 6)
    rows = study.measure({"gaussian": x["gaussian"]}, {**SMALL, "Rand-k": ["rand_k:k=10%"]})
    assert len(rows) == 5
    by = rows.set_index("operator")
    assert by.loc["top_k:k=100%", "error"] == 0
    kept = quantile_share(x["gaussian"].abs(), 40)
    assert by.loc["top_k:k=10%", "error"] == pytest.approx(float(kept.mean()), rel=1e-6)
    low = 3  # Elias-Fano: floor(log2(400/40)) bits of each index, the rest in unary
    assert by.loc["top_k:k=10%", "bits"] == 40 * (32 + low) + 40 + (399 >> low)
    one = x["gaussian"].double()
    sign = 1 - one.abs().sum(-1).square() / 400 / one.square().sum(-1)
    assert by.loc["scaled_sign", "error"] == pytest.approx(float(sign.mean()), rel=1e-5)
    sent = by.loc["scaled_sign"]  # a float32 and a bit a coordinate
    assert sent["bits_per_coordinate"] == sent["wire_per_coordinate"] == (32 + 400) / 400
    rand = by.loc["rand_k:k=10%"]
    assert rand["error"] > 3 > 1 > rand["error_best"]


@pytest.mark.thorough
def test_the_study_prints_every_compressor_by_family_and_writes_rows_and_figures(tmp_path):
    args = ("--d", 100, "--draws", 2, "--out", tmp_path / "s")
    said = ran("study", "compressors", "top_k:k=10%", "scaled_sign", *args)
    rows = pd.read_parquet(tmp_path / "s" / "study.parquet")
    assert set(rows["family"]) == {*drawn(1, 1), "gradient, start", "gradient, trained"}
    tidy(said.out)
    lines = [line.split() for line in said.out.splitlines() if line[:8] == " scaled_"]
    assert [len(line) for line in lines] == [2 + 8]  # all families
    error = rows.set_index(["operator", "family"]).loc[("scaled_sign", "gaussian"), "error_best"]
    assert lines[0][2] == f"{error:.3g}"
    assert f"{tmp_path}/s/error_against_bits.{{png,pdf,csv}}" in said.out.replace("\n", "")
    assert all(path.stat().st_size > 500 for path in (tmp_path / "s").iterdir())
