"""Readers beside writers: no torn table, no half batch, whatever dies when."""

import os
import time
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pytest
from fake_store import batch
from process_kit import python

from raybench.store import Store, encode, load, shard_name


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results")


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
def test_readers_never_fail_or_see_a_torn_table(tmp_path):
    writers = [spawn_writer(tmp_path, part, pause=0.15) for part in range(2)]
    try:
        for writer in writers:
            wait_for(writer, 1)
        for _ in range(6):
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


@pytest.mark.thorough
def test_load_while_retries_replace_files(tmp_path):
    """A batch is replaced only by its own retry; path-based readers may trip over that, load not."""
    writer = spawn_writer(tmp_path, again=3, pause=0.01)
    try:
        wait_for(writer, 3)
        for _ in range(25):
            result = load(tmp_path)
            assert result["cell"].nunique() == 18
            assert (result.groupby("cell").size() == 51).all()
        assert writer.poll() is None
    finally:
        kill(writer)


def test_kill_9_of_a_writer_leaves_only_whole_batches(tmp_path):
    rng = np.random.default_rng(0)
    store = Store(tmp_path)
    for part in range(2):
        writer = spawn_writer(tmp_path, part)
        wait_for(writer, int(rng.integers(1, 6)))
        time.sleep(float(rng.uniform(0, 0.03)))
        kill(writer)
        with store.held():
            store.repair()
        assert store.files.names("tmp") == []
        assert store.files.names("curves") == store.files.names("cells")
        result = load(tmp_path)
        assert (result.groupby("cell").size() == 51).all()
        assert set(result["cell"]) == set(store.done())


def test_clean_and_a_late_commit(store, monkeypatch):
    """A writer orphaned by a killed driver commits while the new driver cleans."""
    curves, table = batch(["a", "b"])
    shard = shard_name(["a", "b"])
    store.files.prepare()
    store.files.write(f"curves/{shard}.parquet", encode(curves))
    move = store.files.move

    def late(rel, to):
        move(rel, to)
        if rel.startswith("curves/"):
            cells = store.seal(shard, encode(curves), table)
            store.files.write(f"cells/{shard}.parquet", cells)

    monkeypatch.setattr(store.files, "move", late)
    assert store.repair() == []
    assert store.files.names("curves") == [f"{shard}.parquet"]


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
