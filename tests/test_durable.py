"""Nothing lost, nothing wrong: what a folder holds after damage, strangers, retries and other drivers."""

import json
import os
import random
import shutil
import threading

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_kit import cli, tree
from fake_store import batch, put
from tiers import first_of_each

import raybench
from raybench.core.errors import FolderLost, InputError
from raybench.store import CELLS, Store, encode, load, log, shard_name, to_table
from raybench.store.files import open_folder
from raybench.store.status import status_of

SWEEP = {
    "name": "small",
    "problem": {"name": "quadratic", "dim": 6, "clients": 3},
    "algorithm": ["gd", "ef21"],
    "compressor": [{"name": "top_k", "k": [1, 2]}],
    "step_size": {"theory": [1, 2]},
    "seed": [0, 1],
    "rounds": 20,
}
CELLS_OF_SWEEP = 12  # gd 2 x 2 once, ef21 2 x 2 x 2


def sweep(folder, config=SWEEP, **flags):
    return raybench.sweep(config, folder, inline=True, **flags)


def raw(folder):
    """Return the tables as other readers see them: every file in the folder, whatever the log says."""
    return pd.read_parquet(folder / "cells"), pd.read_parquet(folder / "curves")


def same_results(folder, other):
    """Compare all that does not depend on the clock or on how often something was tried."""
    for result, want in zip(raw(folder), raw(other), strict=True):
        keys = ["cell", "round"] if "round" in result else ["cell"]
        changing = ("seconds", "started", "attempts", "batch", "peak")
        out = [name for name in result if name.startswith(changing)]
        pair = [t.drop(columns=out).sort_values(keys, ignore_index=True) for t in (result, want)]
        for table in pair:
            if "extra" in table:
                table["extra"] = table["extra"].map(lambda m: sorted(dict(m or []).items()))
        pd.testing.assert_frame_equal(*pair)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "out"
    sweep(folder)
    return folder


@pytest.fixture
def mine(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "out")
    return tmp_path / "out"


# Retries -------------------------------------------------------------------------------------------


def test_a_retry_replaces_failed_rows_one_by_one(tmp_path):
    """Between any two writes other readers see each cell at most once."""
    store = Store(tmp_path / "r")
    for cell in "abc":
        store.commit(cell, None, to_table({"cell": [cell], "status": "failed"}, CELLS))
    again = Store(tmp_path / "r", retried="abc")
    seen, write = [], again.files.write

    def watched(rel, data):
        write(rel, data)
        seen.append(pd.read_parquet(tmp_path / "r/cells")["cell"].tolist())

    again.files.write = watched
    again.commit(shard_name("abc"), *batch("abc"))
    assert len(seen) == 6
    assert all(sorted(cells) == ["a", "b", "c"] for cells in seen)
    assert again.done() == dict.fromkeys("abc", "ok")


def test_doubles_are_set_aside(tmp_path):
    store = Store(tmp_path / "r")
    for cell in "abc":
        store.commit(cell, None, to_table({"cell": [cell], "status": "failed"}, CELLS))
    put(store, "abc")
    assert {f.kind for f in store.repair()} == {log.DOUBLE}
    cells, _ = raw(tmp_path / "r")
    assert sorted(cells["cell"]) == ["a", "b", "c"]
    assert store.done() == dict.fromkeys("abc", "ok")
    assert store.repair() == []


# Damage --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cells", "curves"])
def test_every_flipped_bit_is_found(mine, kind, monkeypatch):
    rng = random.Random(kind)
    # nobody writes here, so that looking again is only waiting
    monkeypatch.setattr(log, "LOOKS", 1)
    for file in sorted((mine / kind).iterdir()):
        data = file.read_bytes()
        for _ in range(4):
            at, bit = rng.randrange(len(data)), rng.randrange(8)
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            file.write_bytes(changed)
            with pytest.raises(InputError, match=file.name):
                load(mine)
            assert log.look(open_folder(mine), deep=True).harm
        file.write_bytes(data)
    load(mine)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (None, "it is not a readable Parquet file"),
        (lambda table: table.drop_columns(["round"]), "its pages cannot be read"),
    ],
)
def test_curves_that_were_wrong_from_the_start_are_damaged(mine, change, says):
    """A seal in order over what is no table of curves: what a faulty writer, or an ill will, could leave."""
    name = sorted(p.name for p in (mine / "cells").iterdir())[0]
    rows, curves = (pq.read_table(mine / part / name) for part in ("cells", "curves"))
    owner = json.loads((mine / "plan/owner.json").read_text())["folder"]
    data = encode(change(curves)) if change else b"no table"
    (mine / "curves" / name).write_bytes(data)
    shard = name.removesuffix(".parquet")
    (mine / "cells" / name).write_bytes(log.sealed(rows, shard, owner, data))
    with pytest.raises(InputError, match=f"curves/{name}: {says}"):
        load(mine)


@pytest.mark.parametrize(
    ("kind", "left"),  # how many bytes of a file
    first_of_each(
        [("curves", 500), ("curves", None), ("curves", 0), ("cells", 500), ("cells", None)],
        lambda case: case[0],
    ),
)
def test_what_is_damaged_runs_again(mine, whole, kind, left):
    name = sorted(p.name for p in (mine / "cells").iterdir())[0]
    file, is_harmless = mine / kind / name, (kind, left) == ("cells", None)
    if left is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:left])
    before = cli("verify", mine)
    if not is_harmless:  # else its curves are what a stopped sweep leaves
        assert before.code == 1
        assert name in before.out
        assert "sets it aside" in before.out
        with pytest.raises(InputError, match=name):
            load(mine)
    repairs = sweep(mine).repairs
    assert len(repairs) == (not is_harmless)
    assert all(name in text and "was moved to plan/damaged" in text for text in repairs)
    assert cli("verify", mine).code == 0
    same_results(mine, whole)
    assert len(load(mine)["cell"].unique()) == CELLS_OF_SWEEP


# Strangers -----------------------------------------------------------------------------------------


def test_files_of_others_do_not_count(mine, whole, tmp_path):
    before = load(mine)
    other = tmp_path / "other"
    sweep(other, {**SWEEP, "algorithm": "gd", "seed": 7})
    (stranger,) = (p.name for p in (other / "cells").iterdir())
    for kind in ("cells", "curves"):
        shutil.copy(other / kind / stranger, mine / kind / stranger)
        own = next((whole / kind).glob("*.parquet"))
        shutil.copy(own, mine / kind / f"{own.stem} copy.parquet")
        (mine / kind / f"._{own.name}").write_bytes(b"Mac OS X")
    pq.write_table(pa.table({"x": [1]}), mine / "cells/table.parquet")
    with pytest.warns(UserWarning, match="is left out"):
        result = load(mine)
    pd.testing.assert_frame_equal(result, before)
    said = cli("verify", mine)
    assert said.code == 1
    for what in ("another results folder", "a copy of", "did not write it", "it is not a shard"):
        assert what in said.out
    assert "note: " in cli("table", mine).err
    outcome = sweep(mine)
    assert (mine / "cells/table.parquet").exists()  # not ours to move
    assert outcome is not None


# Links and pipes -----------------------------------------------------------------------------------

WIDER = {**SWEEP, "seed": [0, 1, 2]}


@pytest.mark.parametrize(
    "rel", first_of_each(["curves", "plan/lock", "plan", "tmp", "cells/a.parquet", "sweep.yaml"])
)
@pytest.mark.parametrize("fresh", first_of_each([False, True]))
def test_a_link_in_a_folder_is_refused_and_nothing_outside_is_touched(mine, tmp_path, rel, fresh):
    (outside := tmp_path / "outside").mkdir()
    if rel == "cells/a.parquet":
        shutil.copy(next((mine / "cells").iterdir()), mine / rel)
    shutil.move(mine / rel, outside / "theirs")
    (mine / rel).symlink_to(outside / "theirs")
    if (mine / rel).is_dir():
        (outside / "theirs/precious.txt").write_bytes(b"of somebody else")
    before, kept = tree(outside), tree(mine)
    with pytest.raises(InputError, match=f"{rel} is a link"):
        sweep(mine, WIDER, fresh=fresh)
    for verb in ("table", "verify", "status"):
        said = cli(verb, mine)
        assert said.code == 2, (verb, said.out)
        assert "is a link" in " ".join(said.err.split())
    assert tree(outside) == before
    assert tree(mine) == kept


@pytest.mark.parametrize(
    "rel", first_of_each(["cells/a.parquet", "tmp/left", "weights/a.pt", "plan/lock"])
)
def test_a_pipe_in_a_folder_is_refused_at_once(mine, rel):
    """Opening it would wait for somebody at its other end."""
    (mine / rel).unlink(missing_ok=True)
    (mine / rel).parent.mkdir(exist_ok=True)
    os.mkfifo(mine / rel)
    said = []

    def ask():
        for call in (lambda: sweep(mine, WIDER, fresh=True), lambda: status_of(mine)):
            try:
                call()
                said.append("")
            except InputError as error:
                said.append(str(error))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(60)
    assert f"{rel} is neither a file nor a folder" in said[0]
    assert len(said) == 2


def test_reports_and_figures_are_not_written_through_links(mine, tmp_path):
    (other := tmp_path / "theirs").write_text("of somebody else")
    (mine / "report.html").symlink_to(other)
    (mine / "figures").mkdir()
    (mine / "figures/audit.csv").symlink_to(other)
    for verb in ("report", "audit", "plot"):
        said = cli(verb, mine)
        assert (said.code, "is a link" in " ".join(said.err.split())) == (2, True), said.err
    assert other.read_text() == "of somebody else"


def test_a_folder_may_be_reached_through_a_link(mine, tmp_path):
    (tmp_path / "link").symlink_to(mine)
    assert sweep(tmp_path / "link", WIDER).counts["ok"] == CELLS_OF_SWEEP * 3 // 2
    assert cli("verify", tmp_path / "link").code == 0
    assert (tmp_path / "link").is_symlink()


# Other drivers -------------------------------------------------------------------------------------


def test_a_plan_made_before_the_lock_is_made_again(tmp_path, monkeypatch):
    """A driver finishes a wider sweep while another one, that has planned, waits for the lock."""
    folder, held, began = tmp_path / "out", Store.held, []

    def late(self):
        if not began:
            began.append(True)
            sweep(folder, {**SWEEP, "seed": [0, 1, 2]})
        return held(self)

    monkeypatch.setattr(Store, "held", late)
    sweep(folder)
    cells, curves = raw(folder)
    assert cells["cell"].is_unique
    assert len(cells) == 18
    assert not curves.duplicated(["cell", "round"]).any()


def test_a_writer_of_a_killed_driver_writes_no_more(tmp_path):
    first, second = Store(tmp_path / "r"), Store(tmp_path / "r")
    owner = first.own()
    orphan = Store(tmp_path / "r", owner)
    put(orphan, "ab")
    assert second.own().folder == owner.folder
    with pytest.raises(FolderLost, match="taken over"):
        put(orphan, "cd")
    assert second.done() == {"a": "ok", "b": "ok"}


# Tries ---------------------------------------------------------------------------------------------


def test_tries_outlast_a_driver_that_dies(tmp_path, monkeypatch):
    folder, commit = tmp_path / "out", Store.commit

    class Died(BaseException):
        pass

    def die(self, *tables):
        raise Died

    monkeypatch.setattr(Store, "commit", die)
    with pytest.raises(Died):
        sweep(folder)
    first = json.loads((folder / log.ATTEMPTS).read_text())
    assert set(first.values()) == {1}
    monkeypatch.setattr(Store, "commit", commit)
    sweep(folder)
    cells, _ = raw(folder)
    tried = cells.set_index("cell")["attempts"]
    assert all(tried[cell] == 2 for cell in first)
    assert sorted(tried.unique()) == [1, 2]
    assert json.loads((folder / log.ATTEMPTS).read_text()) == {}
