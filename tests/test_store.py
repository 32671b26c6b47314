"""The store: schema, tables, commits, claims, locks, leases, patience; no torn table and no half batch for readers."""

import itertools
import json
import math
import os
import re
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
import torch
from fake_store import batch, put
from process_kit import python, wait_until

from raybench.core import patience
from raybench.core.errors import InputError, StoreError
from raybench.store import CELLS, CURVES, Store, encode, load, lock, remote, shard_name, to_table
from raybench.store.files import open_folder

CURVE_COLUMNS = """
    cell group label problem dataset clients split algorithm compressor k step_size
    step_multiple seed round epoch grad_evals bits_up bits_down bytes_up bytes_down
    bytes_up_max messages_up messages_down values_up index_explicit_up index_auto_up
    raw_bits_up values_down index_explicit_down index_auto_down raw_bits_down loss
    grad_norm_sq suboptimality mean_client_grad_norm_sq consensus_error estimator_error_sq
    accuracy test_loss clock_seconds seconds seconds_gradient seconds_compress
    seconds_communicate extra
"""
CELL_COLUMNS = """
    cell group label status error reason problem dataset clients split algorithm compressor
    compressor_params downlink k step_size step_multiple theory_step seed rounds loss
    grad_norm_sq best_grad_norm_sq accuracy bits_up bits_down bytes_up bytes_down seconds d L
    L_tilde L_pm mu f_star heterogeneity constants omega alpha workers mode device value_bits exchange on_clock baseline batch
    batch_cells peak_memory config attempts started host raybench_version git_commit
    ray_version torch_version python_version
"""
SWEEP = {"name": "fake", "problem": {"name": "logistic", "dataset": ["mushrooms"]}}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results")


# -- schema and tables -----------------------------------------------------------------------


def test_schemas_are_the_documented_columns():
    assert CURVES.names == CURVE_COLUMNS.split()
    assert CELLS.names == CELL_COLUMNS.split()
    kinds = {"extra": pa.map_(pa.string(), pa.float64()), "round": pa.int64(), "loss": pa.float64()}
    assert {name: CURVES.field(name).type for name in kinds} == kinds
    assert CELLS.field("started").type == pa.timestamp("us", tz="UTC")
    for field in (*CURVES, *CELLS):
        assert field.metadata[b"description"], field.name
        assert b"unit" in field.metadata, field.name


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


# -- writing ---------------------------------------------------------------------------------


def test_shard_names():
    assert shard_name(["abc"]) == "abc"
    assert shard_name(["a", "b"]) == shard_name(["b", "a"]) != shard_name(["ab"])
    assert re.fullmatch("[0-9a-f]{16}", shard_name(["a", "b"]))


@pytest.mark.parametrize("url", [False, True])
def test_commit_done_repair_drop(tmp_path, url):
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
    assert store.repair() == []
    assert store.files.names("tmp") == []
    assert store.files.names("curves") == store.files.names("cells")
    store.commit(shard_name(["d", "e"]), curves, table)
    assert set(store.done()) == {"a", "b", "c", "d", "e"}
    store.drop()
    assert store.done() == {}
    assert store.files.names("curves") == []


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


def test_claim(store, tmp_path):
    folder = tmp_path / "results"
    store.claim(SWEEP, write=False)
    assert not folder.exists()
    store.claim(SWEEP)
    wider = {**SWEEP, "problem": {"name": "logistic", "dataset": ["mushrooms", "a9a"]}}
    store.claim(wider)  # an added axis value extends the sweep
    store.claim({**wider, "seed": [0, 1], "rounds": 7})
    for again in (SWEEP, wider, SWEEP):
        store.claim(again)
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
    assert sorted(p.name for p in folder.iterdir()) == ["plan", "sweep.yaml", "tmp"]
    assert len(list((folder / "plan/sweeps").iterdir())) == 3, "those that it was before, once each"


def test_claim_of_results_without_a_sweep(store):
    put(store, ["a"])
    with pytest.raises(InputError, match=r"no sweep\.yaml"):
        store.claim(SWEEP)


HOLDER = """
import sys
from raybench.store import Store
with Store(sys.argv[1]).held():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_lock_excludes_and_dies_with_its_driver(store):
    driver = python("-c", HOLDER, store.folder)
    try:
        assert driver.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=f"pid {driver.pid} on"), store.held():
            pass
    finally:
        driver.kill()
        driver.communicate()
    with store.held(), pytest.raises(InputError, match=f"pid {os.getpid()}"), store.held():
        pass
    with store.held():
        pass
    assert Path(store.files.path("plan/lock")).read_text() == ""  # nobody's


# -- object stores --------------------------------------------------------------------------


def test_a_lease_excludes_and_expires(monkeypatch, tmp_path):
    folder = f"memory://lease/{tmp_path.name}"
    taken = pytest.raises(InputError, match="another sweep is running")
    with Store(folder).held(), taken, Store(folder).held():
        pass
    with Store(folder).held():
        pass
    assert open_folder(folder).names("plan") == []
    dead = Store(folder)
    monkeypatch.setattr(lock, "LEASE", -1.0)  # it has run out as soon as it is made
    context = dead.held()
    context.__enter__()
    monkeypatch.undo()
    with Store(folder).held(), pytest.raises(InputError), Store(folder).held():
        pass


@pytest.mark.parametrize("ended", [False, True], ids=["taken over", "its holder ended late"])
def test_of_two_who_take_over_one_wins(monkeypatch, tmp_path, ended):
    """Both find the old lease run out; the conditional PUT of the next number succeeds once.

    Where the late holder ends meanwhile, the other begins at 0, and who counts on must see it.
    """
    folder = f"memory://race/{tmp_path.name}{ended}"
    files, create = open_folder(folder), remote.Remote.create
    files.write("plan/lock.3", json.dumps({"own": "x", "until": 0}).encode())
    entered = []

    def first_another(self, rel, data):
        if not entered:
            entered.append(True)
            if ended:
                files.remove("plan/lock.3")
            other = Store(folder).held()
            other.__enter__()
            entered.append(other)
        return create(self, rel, data)

    monkeypatch.setattr(remote.Remote, "create", first_another)
    with pytest.raises(InputError, match="another sweep is running"), Store(folder).held():
        pass
    assert files.names("plan") == ["lock.0" if ended else "lock.4"]


def test_a_lease_is_renewed_while_it_is_held(monkeypatch, tmp_path):
    """Its end moves on, again and again, and nobody else gets in."""
    monkeypatch.setattr(lock, "RENEWED", 0.05)
    folder = f"memory://renewed/{tmp_path.name}"
    files = open_folder(folder)

    def ends_at():
        return json.loads(files.read("plan/lock.0"))["until"]

    with Store(folder).held():
        ends = [ends_at()]

        def moved_on():
            ends.append(ends_at())
            return len(set(ends)) > 3

        wait_until(moved_on, "it is not renewed")
        with pytest.raises(InputError, match="another sweep is running"), Store(folder).held():
            pass
    assert files.names("plan") == []


def test_patience_is_bounded_and_asks_less_and_less_often(monkeypatch):
    now, asked, told = [0.0], [], []
    monkeypatch.setattr(patience.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(patience.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))

    def fail():
        asked.append(now[0])
        raise OSError(5, "down")

    with patience.heard(told.append), pytest.raises(StoreError, match="last: down"):
        patience.patiently(fail, "s3://b/x", 60.0)
    assert asked[-1] <= 60.0
    assert len(told) == len(asked) - 1 < 20
    assert told[0] == "s3://b/x: down; trying again"
    waits = [b - a for a, b in itertools.pairwise(asked)]
    assert waits[0] <= patience.FIRST
    assert patience.LONGEST / 2 <= max(waits) <= patience.LONGEST
    for error in (FileNotFoundError("x"), PermissionError("x"), ValueError("x")):
        asked.clear()

        def refuse(error=error):
            asked.append(0)
            raise error

        with pytest.raises(type(error)):
            patience.patiently(refuse, "x", 60.0)
        assert len(asked) == 1
    monkeypatch.setenv(patience.VARIABLE, "long")
    with pytest.raises(InputError, match="is no number of seconds"):
        patience.patience()


# Readers beside writers ---------------------------------------------------------------------------


WRITER = """
import sys, time; sys.path.insert(0, {tests!r})
from fake_store import put
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
    return python("-c", code, part, env=env)


def wait_for(writer, batches):
    for _ in range(batches):
        assert writer.stdout.readline()


def kill(writer):
    writer.kill()
    writer.communicate()


def as_read(folder):
    """Yield the table of a folder as each of four readers sees it."""
    yield pd.read_parquet(folder)
    yield ds.dataset(folder).to_table().to_pandas()
    yield pl.read_parquet(folder).to_pandas()
    yield duckdb.sql(f"select * from '{folder}/*.parquet'").df()


@pytest.mark.thorough
@pytest.mark.timeout(900)  # what is read grows as fast as the writers go on
def test_readers_never_fail_or_see_a_torn_table(tmp_path):
    writers = [spawn_writer(tmp_path, part, pause=0.15) for part in range(2)]
    try:
        for writer in writers:
            wait_for(writer, 1)
        for _ in range(3):
            for table in as_read(tmp_path / "cells"):
                assert table["cell"].is_unique
                assert (table["rounds"] == 50).all()
            for curves in as_read(tmp_path / "curves"):
                assert set(table["cell"]) <= set(curves["cell"])  # curves come first
                assert (curves.groupby("cell")["round"].nunique() == 51).all()
            result = load(tmp_path)
            assert (result.groupby("cell").size() == 51).all()
            assert set(result["cell"]) <= set(Store(tmp_path).done())
        assert all(writer.poll() is None for writer in writers)
    finally:
        for writer in writers:
            kill(writer)


def test_kill_9_of_a_writer_leaves_only_whole_batches(tmp_path):
    store, writer = Store(tmp_path), spawn_writer(tmp_path)
    wait_for(writer, 3)
    kill(writer)  # at whatever it does now
    with store.held():
        store.repair()
    assert store.files.names("tmp") == []
    assert store.files.names("curves") == store.files.names("cells")
    result = load(tmp_path)
    assert (result.groupby("cell").size() == 51).all()
    assert set(result["cell"]) == set(store.done())


@pytest.mark.parametrize("moment", ["before the cells", "after its look"])
def test_a_clean_within_a_commit_loses_nothing(store, monkeypatch, moment):
    """A driver that starts cleans while a worker of the one before it is about to commit.

    The curves have no cells yet and are taken away. The writer looks again when it has written the
    cells, whether the other has removed the curves by then or still holds them in its hands.
    """
    curves, table = batch(["a", "b"])
    shard = shard_name(["a", "b"])
    other = Store(store.folder)
    if moment == "before the cells":
        write = store.files.write

        def interrupted(rel, data):
            if rel.startswith("cells/"):
                other.repair()
                assert store.files.names("curves") == []
            write(rel, data)

        monkeypatch.setattr(store.files, "write", interrupted)
        store.commit(shard, curves, table)
    else:
        store.files.prepare()
        store.files.write(f"curves/{shard}.parquet", encode(curves))
        move = other.files.move

        def taken(rel, to):
            move(rel, to)
            if rel.startswith("curves/"):  # the whole rest of the commit happens now
                store.commit(shard, curves, table)

        monkeypatch.setattr(other.files, "move", taken)
        assert other.repair() == []
    assert store.files.names("curves") == store.files.names("cells") == [f"{shard}.parquet"]
    assert len(load(store.folder)) == len(curves)
