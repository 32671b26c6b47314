"""Reading results: load and cells, old versions, broken files, merged and compacted folders."""

import json
import os
import shutil
import sys
from contextlib import suppress

import fake_store
import pandas as pd
import pyarrow.parquet as pq
import pytest
from cli_kit import call, cli, refused
from fake_store import REAL, SWEEP, batch, put

import raybench
from raybench import report, spec
from raybench.core.errors import InputError
from raybench.store import CELLS, CURVES, Store, cells, compact, encode, load, log, merge, to_table
from raybench.store.remote import Remote
from raybench.store.schema import SCHEMA_VERSION, version_of

# -- reading ---------------------------------------------------------------------------------


def test_load_joins_sorts_and_flattens(tmp_path):
    store = Store(tmp_path)
    fake_store.fill(store, seeds=2, rounds=20, multiples=(1.0, 4.0))
    frame = load(tmp_path, params=True)
    assert frame.columns.is_unique
    assert set(CURVES.names) - {"extra"} <= set(frame)
    assert {"status", "group", "L", "theory_step", "extra.index_bitmask_up"} <= set(frame)
    assert {"problem.lambda", "problem.dtype", "algorithm.p", "compressor.k"} <= set(frame)
    assert (frame["problem.lambda"] == 0.1).all()
    own = frame[frame["algorithm"] == "marina"]
    assert (own["algorithm.p"] == own["k"] / 112).all()
    keys = list(zip(frame["cell"], frame["round"], strict=True))
    assert keys == sorted(set(keys))
    table = cells(tmp_path)
    assert table.columns.tolist() == CELLS.names
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
    for place in ("notes.txt", "cells/x", "curves/x"):
        file = tmp_path / "taken" / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
        with pytest.raises(InputError, match="not empty"):
            merge(a.folder, b.folder, tmp_path / "taken")
        file.unlink()
    c = Store(tmp_path / "c")
    c.claim({"name": "fake", "problem": {"name": "quadratic"}})
    put(c, ["9"])
    with pytest.raises(InputError, match="different problems"):
        merge(a.folder, c.folder, tmp_path / "d")
    assert not (tmp_path / "d").exists()


KILLED = """
import os, signal, sys
from raybench.store import files, load, merge

def dying(left):
    def step(name):
        plain = getattr(files.Disk, name)

        def counted(self, *words):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(self, *words)

        return counted

    for name in ("mkdir", "write", "rename", "sync"):
        setattr(files.Disk, name, step(name))

for steps in range(1, 1000):
    child = os.fork()
    if not child:
        dying(steps)
        merge("a", "b", "out")
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if os.path.exists("out"):
        assert sorted(set(load("out")["cell"])) == ["1", "2", "3"]
        print(steps)
        break
    assert code == -signal.SIGKILL, code
"""


STATUSES = ["ok", "ok", "ok", "failed", "skipped"]


def two(root):
    """Two folders of one sweep, of whose cells some have failed or were skipped."""
    a, b = (Store(f"{root}/{name}") for name in "ab")
    for store in (a, b):
        store.claim(SWEEP)
    put(a, ["1", "2"])
    a.commit("4", None, batch(["4"], status="failed")[1])
    put(b, ["3"], shift=100.0)
    b.skip(to_table({"cell": ["s"], "status": "skipped", "reason": "no"}, CELLS))
    return a.folder, b.folder


@pytest.mark.thorough
def test_a_merge_that_is_killed_leaves_no_folder_that_reads_as_whole(tmp_path):
    """Killed at every single thing that it does to the disk."""
    two(tmp_path)
    done = call(sys.executable, "-c", KILLED, cwd=tmp_path, timeout=300, check=True)
    assert int(done.stdout) > 20
    assert Store(tmp_path / "out").done() == dict(zip("1234s", STATUSES, strict=True))


def test_a_merge_into_an_object_store_counts_at_its_last_request(monkeypatch):
    class Died(BaseException):
        pass

    def dying(left):
        def write(self, rel, data):
            nonlocal left
            left -= 1
            if left == 0:
                raise Died
            plain(self, rel, data)

        return write

    a, b = two("memory://merge")
    plain, steps, whole = Remote.write, 0, False
    while not whole:
        steps += 1
        out = f"memory://merge/out{steps}"
        with monkeypatch.context() as patch, suppress(Died):
            patch.setattr(Remote, "write", dying(steps))
            merge(a, b, out)
            whole = True
        done = Store(out).done()
        assert done == (dict(zip("1234s", STATUSES, strict=True)) if whole else {}), steps
    assert steps > 6


def test_a_merge_that_fails_leaves_nothing(tmp_path, monkeypatch):
    a, b = two(tmp_path)
    (tmp_path / "out").mkdir()  # as an empty folder may be there
    monkeypatch.setattr(Store, "commit", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        merge(a, b, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "out"]
    monkeypatch.undo()
    (tmp_path / "link").symlink_to("out")
    merge(a, b, tmp_path / "link")
    assert len(Store(tmp_path / "out").done()) == 5


def test_compact_changes_files_not_rows(tmp_path):
    store = Store(tmp_path / "a")
    fake_store.fill(store, seeds=2, rounds=20, multiples=(1.0, 4.0))
    compact(tmp_path / "a", tmp_path / "b")
    assert len(os.listdir(tmp_path / "b/curves")) == 1
    pd.testing.assert_frame_equal(load(tmp_path / "a"), load(tmp_path / "b"))
    sorted_cells = (cells(tmp_path / n).sort_values("cell", ignore_index=True) for n in "ab")
    pd.testing.assert_frame_equal(*sorted_cells)


def test_what_load_says_is_what_the_files_say(tmp_path):
    fake_store.fill(Store(tmp_path), fake_store.METHODS[:2], rounds=20)
    plain = pd.read_parquet(tmp_path / "curves").sort_values(["cell", "round"], ignore_index=True)
    names = [name for name in plain if name != "extra"]
    curves = load(tmp_path)
    pd.testing.assert_frame_equal(curves[names].astype(plain[names].dtypes), plain[names])
    kept = pd.read_parquet(tmp_path / "cells").set_index("cell")
    table = cells(tmp_path).set_index("cell").astype(kept.dtypes)
    pd.testing.assert_frame_equal(
        table, kept.loc[table.index], check_index_type=False, check_dtype=False
    )
    for name in ("cell", "label", "compressor", "status"):  # a text that rows share is held once
        assert len({id(text) for text in curves[name]}) <= curves[name].nunique() + 1
        assert curves[name].dtype == pd.Series(["a"]).dtype.name
    assert curves["compressor"].isna().any()


# -- other versions ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "out"
    raybench.sweep(REAL, folder, inline=True)
    return folder


def as_version(folder, version: int) -> None:
    """Let all files of a folder say that they are of another version, with seals in order."""
    owner = json.loads((folder / "plan/owner.json").read_text())["folder"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raybench.store.schema.SCHEMA_VERSION", version)
        for file in sorted((folder / "cells").iterdir()):
            curves = folder / "curves" / file.name
            curves.write_bytes(encode(pq.read_table(curves)))
            data = log.sealed(pq.read_table(file), file.stem, owner, curves.read_bytes())
            file.write_bytes(data)


@pytest.mark.parametrize("version", [1, 2, 99])
def test_files_of_other_versions_are_refused_by_name(whole, tmp_path, version):
    folder, file = tmp_path / "out", tmp_path / "s.yaml"
    shutil.copytree(whole, folder)
    as_version(folder, version)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    said = f"schema version {version}, this raybench reads {SCHEMA_VERSION}"
    file.write_text(spec.load(REAL).text)
    for read in (load, cells, lambda f: merge(f, whole, tmp_path / "c"), report.render):
        with pytest.raises(InputError, match=said):
            read(folder)
    for words in (("sweep", file, "--out", folder, "--inline"), ("plan", file, "--out", folder)):
        told = refused(*words, says="in a new folder", complaints=3)
        assert said in " ".join(told.split())
    result = cli("verify", folder)
    assert result.code == 1
    assert "other version" in result.out
    written = {p: p.read_bytes() for p in before if p.parent.name in ("cells", "curves")}
    assert all(before[p] == data for p, data in written.items())


def test_a_file_without_a_seal_is_damaged(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "out")
    file = next((tmp_path / "out/cells").iterdir())
    pq.write_table(pq.read_table(file), file)
    with pytest.raises(InputError, match="its bytes are not those that were written"):
        load(tmp_path / "out")


def test_every_file_that_is_written_describes_its_columns(whole, tmp_path):
    raybench.sweep({**REAL, "accounting": "paper:ef21"}, tmp_path / "paper", inline=True)
    merge(whole, tmp_path / "paper", tmp_path / "merged")
    compact(tmp_path / "merged", tmp_path / "compact")
    store = Store(tmp_path / "left")
    put(store, "ab")
    store.forget("a")
    for folder in (whole, *(tmp_path / name for name in ("merged", "compact", "left"))):
        for part, schema in (("curves", CURVES), ("cells", CELLS)):
            for file in (folder / part).iterdir():
                result = pq.read_schema(file)
                assert version_of(result) == SCHEMA_VERSION
                assert [f.metadata for f in result] == [f.metadata for f in schema]
