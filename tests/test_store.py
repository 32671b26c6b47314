"""The store: schema, accounting, atomic commits, claims and locks, reading, merging."""

import json
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import fake_store
import fsspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raybench.errors import InputError
from raybench.store import (
    CELLS,
    CURVES,
    Accounting,
    Store,
    cells,
    compact,
    encode,
    load,
    merge,
    rebook,
    schema,
    shard_name,
    to_table,
)
from raybench.store.accounting import PRESETS, parse

CURVE_COLUMNS = [
    "cell",
    "label",
    "problem",
    "dataset",
    "clients",
    "algorithm",
    "compressor",
    "k",
    "step_size",
    "step_multiple",
    "seed",
    "round",
    "epoch",
    "grad_evals",
    "bits_up",
    "bits_down",
    "bytes_up",
    "bytes_down",
    "values_up",
    "index_explicit_up",
    "index_auto_up",
    "raw_bits_up",
    "values_down",
    "index_explicit_down",
    "index_auto_down",
    "raw_bits_down",
    "loss",
    "grad_norm_sq",
    "suboptimality",
    "mean_client_grad_norm_sq",
    "consensus_error",
    "estimator_error_sq",
    "accuracy",
    "test_loss",
    "seconds",
    "seconds_gradient",
    "seconds_compress",
    "seconds_communicate",
    "extra",
]
CELL_COLUMNS = [
    "cell",
    "group",
    "label",
    "status",
    "error",
    "reason",
    "problem",
    "dataset",
    "clients",
    "split",
    "algorithm",
    "compressor",
    "compressor_params",
    "downlink",
    "k",
    "step_size",
    "step_multiple",
    "theory_step",
    "seed",
    "rounds",
    "loss",
    "grad_norm_sq",
    "best_grad_norm_sq",
    "accuracy",
    "bits_up",
    "bits_down",
    "bytes_up",
    "bytes_down",
    "seconds",
    "d",
    "L",
    "L_tilde",
    "L_pm",
    "mu",
    "f_star",
    "heterogeneity",
    "constants",
    "omega",
    "alpha",
    "workers",
    "mode",
    "device",
    "batch",
    "batch_cells",
    "peak_memory",
    "config",
    "attempts",
    "started",
    "host",
    "raybench_version",
    "git_commit",
    "ray_version",
    "torch_version",
    "python_version",
]
SWEEP = {"name": "fake", "problem": {"name": "logistic", "dataset": ["mushrooms"]}}


def batch(ids, rounds=3, status="ok", shift=0.0, extra=None):
    """Return the tables of one batch: cell i has loss shift + i + round."""
    ids, t = list(ids), np.arange(rounds + 1)
    base = shift + np.arange(len(ids), dtype=float)[:, None]
    row = {"algorithm": "ef21", "compressor": "top_k", "k": 5, "label": "ef21 top_k k=5"}
    counts = {
        "values_up": 10.0 + 5 * t,
        "index_explicit_up": 30.0 * t,
        "index_auto_up": 20.0 * t,
        "raw_bits_up": 1.0 * t,
        "values_down": 100.0 * t,
        "index_explicit_down": 0.0,
        "index_auto_down": 0.0,
        "raw_bits_down": 0.0,
    }
    curves = to_table(
        {
            "cell": np.array(ids, object)[:, None],
            **row,
            **counts,
            "round": t,
            "loss": base + t,
            "seed": np.arange(len(ids))[:, None],
            "bits_up": 64 * counts["values_up"] + counts["index_auto_up"] + t,
            "bits_down": 6400.0 * t,
            "seconds": np.random.default_rng(0).random((len(ids), len(t))),
            "extra": extra or {},
        },
        CURVES,
    )
    columns = {**row, "cell": ids, "group": "g", "status": status, "rounds": rounds}
    columns |= {"config": json.dumps({"problem": {"params": {"dtype": "float64"}}})}
    return curves, to_table({**columns, "seed": np.arange(len(ids))}, CELLS)


def put(store, ids, **kw):
    store.commit(shard_name(ids), *batch(ids, **kw))


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results")


# -- schema and tables -----------------------------------------------------------------------


def test_schemas_are_the_documented_columns():
    assert CURVES.names == CURVE_COLUMNS
    assert CELLS.names == CELL_COLUMNS
    assert CURVES.field("extra").type == pa.map_(pa.string(), pa.float64())
    assert CELLS.field("started").type == pa.timestamp("us", tz="UTC")
    assert CURVES.field("round").type == pa.int64()
    assert CURVES.field("bits_up").type == pa.float64()


def test_files_bear_schema_and_versions(store, tmp_path):
    put(store, ["a", "b"])
    for folder, want in (("curves", CURVES), ("cells", CELLS)):
        (file,) = (tmp_path / "results" / folder).iterdir()
        found = pq.read_schema(file)
        assert found.equals(want)
        assert found.metadata[b"raybench_schema"] == b"1"
        assert found.metadata[b"raybench_version"]


def test_to_table_broadcasts_masks_and_fills():
    ids = np.array([["a"], ["b"]], object)
    where = np.array([[True, True, True], [True, False, False]])
    accuracy = np.ma.masked_array([[0.5], [0.6]], mask=[[False], [True]])
    table = to_table(
        {
            "cell": ids,
            "compressor": None,
            "round": np.arange(3),
            "loss": torch.arange(6.0).reshape(2, 3),
            "accuracy": accuracy,
            "grad_norm_sq": np.array([[1.0, np.nan, np.inf], [2.0, 0.0, 0.0]]),
            "extra": {"m": [[1.0, None, 3.0], [4.0, 5.0, 6.0]], "index_bitmask_up": np.arange(3)},
        },
        CURVES,
        where,
    )
    assert table.schema.equals(CURVES)
    assert table["cell"].to_pylist() == ["a", "a", "a", "b"]
    assert table["round"].to_pylist() == [0, 1, 2, 0]
    assert table["loss"].to_pylist() == [0, 1, 2, 3]
    assert table["accuracy"].to_pylist() == [0.5, 0.5, 0.5, None]
    assert math.isnan(table["grad_norm_sq"].to_pylist()[1])  # NaN is a value, not unknown
    assert table["compressor"].null_count == table["seconds"].null_count == 4
    assert [dict(r) for r in table["extra"].to_pylist()] == [
        {"m": 1.0},
        {"index_bitmask_up": 1.0},
        {"m": 3.0, "index_bitmask_up": 2.0},
        {"m": 4.0},
    ]


def test_to_table_names_an_unknown_column():
    with pytest.raises(InputError, match="did you mean grad_norm_sq"):
        to_table({"grad_norm": [1.0]}, CURVES)


@given(
    rows=st.lists(
        st.dictionaries(st.sampled_from("abc"), st.floats(allow_nan=False), max_size=3), max_size=6
    )
)
def test_extra_map_round_trip(rows):
    columns = {n: [r.get(n) for r in rows] for n in "abc"}
    table = to_table({"round": np.arange(len(rows)), "extra": columns}, CURVES)
    assert [dict(r) for r in table["extra"].to_pylist()] == rows
    again = pq.read_table(pa.BufferReader(encode(table)))
    assert again.equals(table)


# -- accounting ------------------------------------------------------------------------------

counts = st.floats(0, 1e15)


@given(
    st.sampled_from(["dtype", 16, 32, 64]),
    st.sampled_from(["auto", "explicit", "bitmask", "entropy", "none"]),
    st.lists(counts, min_size=6, max_size=6),
    st.sampled_from([32, 64]),
)
def test_bits_is_values_times_width_plus_index_plus_raw(value_bits, code, numbers, width):
    values, explicit, auto, raw, mask, entropy = numbers
    how = Accounting(value_bits, code)
    more = {"index_bitmask": mask, "index_entropy": entropy, "dtype_bits": width}
    index = {"auto": auto, "explicit": explicit, "bitmask": mask, "entropy": entropy, "none": 0.0}
    want = values * (width if value_bits == "dtype" else value_bits) + raw + index[code]
    assert how.bits(values, explicit, auto, raw, **more) == want
    arrays = [np.full((2, 1), v) for v in (values, explicit, auto, raw)]
    np.testing.assert_array_equal(how.bits(*arrays, **more), np.full((2, 1), want))
    tensors = [torch.full((3,), v, dtype=torch.float64) for v in (values, explicit, auto, raw)]
    assert torch.equal(how.bits(*tensors, **more), torch.full((3,), want, dtype=torch.float64))
    assert parse(str(how)) == parse(how.as_dict()) == how


def test_presets_and_text():
    assert parse("paper:ef21") == parse("paper:marina") == Accounting(32, "none", False)
    assert parse("paper:3pc") == Accounting(64, "none", True)
    assert parse("value_bits=32,index_bits=none") == Accounting(32, "none", True)
    assert parse("paper:3pc,count_init=false") == Accounting(64, "none", False)
    assert parse({"preset": "paper:ef21", "value_bits": 16}) == Accounting(16, "none", False)
    assert parse(None) == parse({}) == Accounting("dtype", "auto", True)
    assert set(PRESETS) == {"paper:ef21", "paper:marina", "paper:3pc"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("paper:ef22", "did you mean paper:ef21"),
        ("index_bits=bitmsk", "did you mean bitmask"),
        ("value_bit=32", "did you mean value_bits"),
        ("value_bits=33", "allowed: dtype, 16, 32, 64"),
        ("value_bits=٣٢", "allowed: dtype"),
        ("", "paper:ef21"),
        ({"count_init": "maybe"}, "allowed: true, false"),
        ({"value_bits": True}, "allowed"),
        (7, "is no accounting"),
        ({"preset": ["x"]}, "unknown preset"),
        ({"value_bits": [32]}, "allowed"),
    ],
)
def test_wrong_accounting_says_what_is_allowed(wrong, said):
    with pytest.raises(InputError, match=said):
        parse(wrong)


@given(st.text(max_size=30))
def test_any_text_is_an_accounting_or_an_input_error(text):
    try:
        assert isinstance(parse(text), Accounting)
    except InputError as error:
        said = str(error)
    else:
        return
    assert said.startswith("accounting")


def test_rebook_by_hand(store, tmp_path):
    extra = {"index_bitmask_up": 7.0 * np.arange(4), "index_entropy_up": 3.0 * np.arange(4)}
    put(store, ["a", "b"], extra=extra)
    folder = tmp_path / "results"
    curves = load(folder)
    t = curves["round"].to_numpy()
    values, raw = 10 + 5 * t, t
    for code, per_round in (("auto", 20), ("explicit", 30), ("bitmask", 7), ("entropy", 3)):
        found = load(folder, f"value_bits=32,index_bits={code}")
        assert found["bits_up"].tolist() == (32 * values + per_round * t + raw).tolist()
    paper = load(folder, "paper:ef21")  # the ten values of round 0 are free
    assert paper["bits_up"].tolist() == (32 * 5 * t + raw).tolist()
    assert paper["bits_down"].tolist() == (3200.0 * t).tolist()
    assert cells(folder, "paper:ef21")["bits_up"].tolist() == [32 * 15 + 3.0] * 2
    assert load(folder, Accounting())["bits_up"].tolist() == curves["bits_up"].tolist()
    raw_frame = pd.read_parquet(folder / "curves")  # with its map of extra counts
    booked, _ = rebook(raw_frame, pd.read_parquet(folder / "cells"), parse("index_bits=bitmask"))
    assert booked["bits_up"].tolist() == (64 * values + 7 * t + raw).tolist()


def test_rebook_knows_each_cells_dtype_and_missing_curves(store, tmp_path):
    curves, table = batch(["a", "b"])
    frame = table.to_pandas()
    frame.loc[0, "config"] = json.dumps({"problem": {"params": {"dtype": "float32"}}})
    store.commit("s", curves, to_table(frame.to_dict("series"), CELLS))
    _, failed = batch(["c"], status="failed")
    store.commit("c", None, failed)
    found = cells(tmp_path / "results", "index_bits=none").set_index("cell")["bits_up"]
    assert found["a"] == 32 * 25 + 3
    assert found["b"] == 64 * 25 + 3
    assert math.isnan(found["c"])


# -- writing ---------------------------------------------------------------------------------


def test_shard_names():
    assert shard_name(["abc"]) == "abc"
    assert shard_name(["a", "b"]) == shard_name(["b", "a"]) != shard_name(["ab"])
    assert re.fullmatch("[0-9a-f]{16}", shard_name(["a", "b"]))


@pytest.mark.parametrize("url", [False, True])
def test_commit_done_clean_drop(tmp_path, url):
    folder = f"memory://bucket-{os.getpid()}/{tmp_path.name}" if url else tmp_path / "r"
    store = Store(folder)
    assert store.done() == {}
    put(store, ["a", "b"])
    put(store, ["c"], status="failed")
    curves, table = batch(["d", "e"])
    store.files.write("curves/lost.parquet", encode(curves))
    store.files.write("tmp/stale.parquet.123", b"torn")
    assert store.done() == {"a": "ok", "b": "ok", "c": "failed"}
    assert set(load(folder)["cell"]) == {"a", "b", "c"}  # uncommitted curves are invisible
    assert store.clean() == ["lost"]
    assert store.files.names("tmp") == []
    assert store.clean() == []
    store.drop(["c", "a"])
    assert store.done() == {"b": "ok"}
    assert set(load(folder)["cell"]) == {"b"}
    store.commit(shard_name(["d", "e"]), encode(curves), encode(table))  # bytes from elsewhere
    assert set(store.done()) == {"b", "d", "e"}
    store.drop()
    assert store.done() == {}
    assert store.files.names("curves") == []


def test_a_retry_overwrites_itself(store, tmp_path):
    put(store, ["a"], status="failed")
    put(store, ["a"], shift=5.0)
    assert store.done() == {"a": "ok"}
    assert load(tmp_path / "results")["loss"].tolist() == [5, 6, 7, 8]


def test_skipped_rows_are_one_file_rewritten(store, tmp_path):
    put(store, ["a"])
    skipped = to_table({"cell": ["s", "t"], "status": "skipped", "reason": "no"}, CELLS)
    store.skip(skipped)
    before = (tmp_path / "results/cells/skipped.parquet").stat().st_mtime_ns
    store.skip(skipped)
    assert (tmp_path / "results/cells/skipped.parquet").stat().st_mtime_ns == before
    assert store.done() == {"a": "ok", "s": "skipped", "t": "skipped"}
    store.skip(skipped.slice(0, 1))
    assert store.done() == {"a": "ok", "s": "skipped"}
    store.skip(skipped.slice(0, 0))
    assert store.done() == {"a": "ok"}


class Full:
    """A file on a disk that is full after half of the data."""

    def __init__(self, file):
        self.file = file

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def write(self, data):
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("nth", [1, 2])  # the curves file, the cells file
@pytest.mark.parametrize("moment", ["write", "sync"])
def test_a_write_that_fails_leaves_no_part_of_a_file(store, tmp_path, monkeypatch, nth, moment):
    put(store, ["a"])
    calls = []

    def torn(path, mode):
        calls.append(path)
        file = open(path, mode)  # noqa: SIM115
        return Full(file) if len(calls) == nth else file

    def unsynced(handle):
        calls.append(handle)
        if len(calls) == 2 * nth - 1:  # a commit syncs file, folder, file, folder
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if moment == "write":
            patch.setattr("raybench.store.files.open", torn, raising=False)
        else:
            patch.setattr(os, "fsync", unsynced)
        with pytest.raises(OSError, match="No space"):
            put(store, ["b"])
    assert store.files.names("tmp") == []
    assert store.files.names("cells") == ["a.parquet"]
    assert store.files.names("curves") == ["a.parquet", "b.parquet"][:nth]
    assert len(pd.read_parquet(tmp_path / "results/curves")) == 4 * nth
    put(store, ["b"])
    assert store.done() == {"a": "ok", "b": "ok"}


def test_claim(store, tmp_path):
    folder = tmp_path / "results"
    store.claim(SWEEP, write=False)
    assert not folder.exists()
    store.claim(SWEEP)
    wider = {**SWEEP, "problem": {"name": "logistic", "dataset": ["mushrooms", "a9a"]}}
    store.claim(wider)  # an added axis value extends the sweep
    store.claim({**wider, "seed": [0, 1], "rounds": 7})
    store.claim(SWEEP)
    before = (folder / "sweep.yaml").read_bytes()
    for other, said in (
        ({**SWEEP, "name": "else"}, "name: the folder holds 'fake'"),
        ({**SWEEP, "problem": {"name": "logistic", "dataset": "w8a"}}, "problem.dataset"),
        ({**SWEEP, "problem": {**SWEEP["problem"], "lambda": 0.1}}, "problem.lambda"),
        ("name: fake\nproblem: {name: quadratic}\n", "problem.name"),
    ):
        with pytest.raises(InputError, match=said):
            store.claim(other)
    assert (folder / "sweep.yaml").read_bytes() == before
    assert sorted(p.name for p in folder.iterdir()) == ["sweep.yaml", "tmp"]


def test_claim_of_results_without_a_sweep(store):
    put(store, ["a"])
    with pytest.raises(InputError, match=r"no sweep\.yaml"):
        store.claim(SWEEP)


def _hold(folder, ready):
    with Store(folder).lock():
        ready.set()
        time.sleep(60)


def test_lock_excludes_and_dies_with_its_driver(store, tmp_path):
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    driver = context.Process(target=_hold, args=(tmp_path / "results", ready))
    driver.start()
    try:
        assert ready.wait(60)
        with pytest.raises(InputError, match=f"pid {driver.pid} on"), store.lock():
            pass
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.join()
    with store.lock(), pytest.raises(InputError, match=f"pid {os.getpid()}"), store.lock():
        pass
    with store.lock():
        pass


# -- readers beside writers ------------------------------------------------------------------

WRITER = """
import sys, time; sys.path.insert(0, {tests!r})
from test_store import put
from raybench.store import Store
store, part = Store({folder!r}), int(sys.argv[1])
i = 0
while True:
    ids = [f"{{part}}-{{i % {again}}}-{{j}}" for j in range(6)]
    put(store, ids, rounds=50, shift=float(i))
    print(i, flush=True)
    time.sleep({pause})
    i += 1
"""


def spawn_writer(folder, part=0, again=10**9, pause=0.0):
    """Start a process that commits batches until it is killed, the same ones ``again`` and again."""
    tests = str(Path(__file__).parent)
    code = WRITER.format(tests=tests, folder=str(folder), again=again, pause=pause)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-c", code, str(part)], stdout=subprocess.PIPE, text=True, env=env
    )


def wait_for(writer, batches):
    for _ in range(batches):
        assert writer.stdout.readline()


def kill(writer):
    writer.kill()
    writer.wait()
    writer.stdout.close()


READERS = {
    "pandas": lambda folder: pd.read_parquet(folder),
    "dataset": lambda folder: ds.dataset(folder).to_table().to_pandas(),
    "polars": lambda folder: pl.read_parquet(folder).to_pandas(),
    "duckdb": lambda folder: duckdb.sql(f"select * from '{folder}/*.parquet'").df(),
}


def test_readers_never_fail_or_see_a_torn_table(tmp_path):
    writers = [spawn_writer(tmp_path, part, pause=0.15) for part in range(2)]
    try:
        for writer in writers:
            wait_for(writer, 1)
        for _ in range(6):
            for read in READERS.values():
                table = read(str(tmp_path / "cells"))
                assert table["cell"].is_unique
                assert (table["rounds"] == 50).all()
                curves = read(str(tmp_path / "curves"))
                assert set(table["cell"]) <= set(curves["cell"])  # curves come first
                assert (curves.groupby("cell")["round"].nunique() == 51).all()
            found = load(tmp_path)
            assert (found.groupby("cell").size() == 51).all()
            assert set(found["cell"]) <= set(Store(tmp_path).done())
        assert all(writer.poll() is None for writer in writers)
    finally:
        for writer in writers:
            kill(writer)


def test_load_while_retries_replace_files(tmp_path):
    """A batch is replaced only by its own retry; path-based readers may trip over that, load not."""
    writer = spawn_writer(tmp_path, again=3, pause=0.01)
    try:
        wait_for(writer, 3)
        for _ in range(25):
            found = load(tmp_path)
            assert found["cell"].nunique() == 18
            assert (found.groupby("cell").size() == 51).all()
        assert writer.poll() is None
    finally:
        kill(writer)


def test_kill_9_of_a_writer_leaves_only_whole_batches(tmp_path):
    rng = np.random.default_rng(0)
    store = Store(tmp_path)
    for part in range(3):
        writer = spawn_writer(tmp_path, part)
        wait_for(writer, int(rng.integers(1, 6)))
        time.sleep(float(rng.uniform(0, 0.03)))
        kill(writer)
        with store.lock():
            store.clean()
        assert store.files.names("tmp") == []
        assert store.files.names("curves") == store.files.names("cells")
        found = load(tmp_path)
        assert (found.groupby("cell").size() == 51).all()
        assert set(found["cell"]) == set(store.done())


def test_clean_and_a_late_commit(store, monkeypatch):
    """A writer orphaned by a killed driver commits while the new driver cleans."""
    curves, table = batch(["a", "b"])
    shard = shard_name(["a", "b"])
    store.files.write(f"curves/{shard}.parquet", encode(curves))
    move = store.files.move

    def late(rel, to):
        move(rel, to)
        if rel.startswith("curves/"):
            store.files.write(f"cells/{shard}.parquet", encode(table))

    monkeypatch.setattr(store.files, "move", late)
    assert store.clean() == []
    assert store.files.names("curves") == [f"{shard}.parquet"]


# -- reading ---------------------------------------------------------------------------------


def test_load_joins_sorts_and_flattens(tmp_path):
    store = Store(tmp_path)
    fake_store.fill(store, seeds=2, rounds=20, multiples=(1.0, 4.0))
    frame = load(tmp_path, params=True)
    assert frame.columns.is_unique
    assert set(CURVE_COLUMNS) - {"extra"} <= set(frame)
    assert {"status", "group", "L", "theory_step", "extra.index_bitmask_up"} <= set(frame)
    assert {"problem.lambda", "problem.dtype", "algorithm.p", "compressor.k"} <= set(frame)
    assert (frame["problem.lambda"] == 0.1).all()
    own = frame[frame["algorithm"] == "marina"]
    assert (own["algorithm.p"] == own["k"] / 112).all()
    keys = list(zip(frame["cell"], frame["round"], strict=True))
    assert keys == sorted(set(keys))
    table = cells(tmp_path)
    assert table.columns.tolist() == CELL_COLUMNS
    assert table["cell"].is_unique
    assert set(table["status"]) == {"ok", "diverged", "failed", "skipped"}
    assert frame.groupby("cell")["L"].first().notna().all()


def test_reading_nothing(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        load(tmp_path / "absent")
    with pytest.raises(InputError, match="holds no results"):
        load(tmp_path)
    (tmp_path / "cells").mkdir()
    with pytest.raises(InputError, match="holds no results"):
        cells(tmp_path)
    with pytest.raises(InputError, match="cannot open"):
        load("nothing://bucket/folder")


def test_only_failed_cells(store, tmp_path):
    _, failed = batch(["x"], status="failed")
    store.commit("x", None, failed)
    assert len(load(tmp_path / "results")) == 0
    assert cells(tmp_path / "results", "paper:ef21")["status"].tolist() == ["failed"]


def test_a_torn_file_is_named(store, tmp_path):
    put(store, ["a"])
    file = tmp_path / "results/cells/b.parquet"
    file.write_bytes((tmp_path / "results/cells/a.parquet").read_bytes()[:500])
    with pytest.raises(InputError, match=r"b\.parquet is not a readable Parquet file"):
        load(tmp_path / "results")


def test_older_files_are_upgraded_and_newer_refused(store, tmp_path, monkeypatch):
    put(store, ["a"])
    curves, table = batch(["b"])
    old = curves.rename_columns([{"loss": "objective"}.get(c, c) for c in curves.column_names])
    old = old.drop_columns(["test_loss"])
    store.commit("b", encode(old), encode(table.replace_schema_metadata({"raybench_schema": "1"})))
    put(store, ["a"])

    def rename(table):
        return table.rename_columns([{"objective": "loss"}.get(c, c) for c in table.column_names])

    monkeypatch.setitem(schema.UPGRADES, 1, rename)
    for module in ("schema", "scan"):
        monkeypatch.setattr(f"raybench.store.{module}.SCHEMA_VERSION", 2)
    put(store, ["c"])  # of today's version 2, beside two files of version 1
    found = load(tmp_path / "results")
    assert found.groupby("cell")["loss"].apply(list).to_dict() == {
        cell: [0.0, 1.0, 2.0, 3.0] for cell in "abc"
    }
    assert found["test_loss"].isna().all()
    monkeypatch.undo()
    with pytest.raises(InputError, match="schema version 2"):
        load(tmp_path / "results")


# -- merge and compact -----------------------------------------------------------------------


def test_merge_takes_each_cell_where_it_ended_best(tmp_path):
    a, b, out = (Store(tmp_path / n) for n in ("a", "b", "out"))
    for store in (a, b):
        store.claim(SWEEP)
    put(a, ["1", "2"])
    put(a, ["3"], status="failed")
    put(b, ["2", "3"], shift=100.0)
    b.skip(to_table({"cell": ["s"], "status": "skipped", "reason": "no"}, CELLS))
    merge(a.folder, b.folder, out.folder)
    assert out.done() == {"1": "ok", "2": "ok", "3": "ok", "s": "skipped"}
    first = load(out.folder).groupby("cell")["loss"].first()
    assert first.to_dict() == {"1": 0.0, "2": 1.0, "3": 101.0}
    assert "fake" in (tmp_path / "out/sweep.yaml").read_text()
    assert a.done() == {"1": "ok", "2": "ok", "3": "failed"}
    with pytest.raises(InputError, match="not empty"):
        merge(a.folder, b.folder, out.folder)
    c = Store(tmp_path / "c")
    c.claim({"name": "fake", "problem": {"name": "quadratic"}})
    put(c, ["9"])
    with pytest.raises(InputError, match="different problems"):
        merge(a.folder, c.folder, tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_compact_changes_files_not_rows(tmp_path):
    store = Store(tmp_path / "a")
    fake_store.fill(store, seeds=2, rounds=20, multiples=(1.0, 4.0))
    compact(tmp_path / "a", tmp_path / "b")
    assert len(os.listdir(tmp_path / "b/curves")) == 1
    pd.testing.assert_frame_equal(load(tmp_path / "a"), load(tmp_path / "b"))
    key = "cell"
    pd.testing.assert_frame_equal(
        cells(tmp_path / "a").sort_values(key, ignore_index=True),
        cells(tmp_path / "b").sort_values(key, ignore_index=True),
    )


def test_object_store_reads_like_a_folder():
    url = f"memory://bucket-{os.getpid()}/read"
    store = Store(url)
    store.claim(SWEEP)
    put(store, ["a", "b"])
    assert len(load(url)) == 8
    with pytest.raises(InputError, match="another sweep"):
        store.claim({**SWEEP, "name": "else"})
    with store.lock(), pytest.raises(InputError, match="is running"), store.lock():
        pass
    files = fsspec.filesystem("memory").find(f"/bucket-{os.getpid()}/read")
    assert not [f for f in files if "/tmp/" in f]


def test_the_light_part_imports_light():
    code = "import sys, raybench.store.accounting; print({'pyarrow','pandas','numpy'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
