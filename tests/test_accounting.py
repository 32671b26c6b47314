"""Accounting: counts become bits, sweeps are booked anew. Reading: old versions, broken, merged, compacted folders."""

import itertools
import json
import math
import shutil
from contextlib import suppress

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from cli_kit import cli
from fake_runs import make
from fake_store import batch, put
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import first_of_each

import raybench
from raybench import report, spec
from raybench.core.counts import Counts
from raybench.core.errors import InputError
from raybench.execution.plan import as_booked
from raybench.spec import json_schema
from raybench.store import (
    CELLS,
    CURVES,
    Accounting,
    Store,
    cells,
    compact,
    encode,
    load,
    log,
    merge,
    rebook,
    to_table,
)
from raybench.store.accounting import INDEX_BITS, PRESETS, parse_accounting
from raybench.store.files import Disk, LocalFolder, open_folder
from raybench.store.reader import accounting_of
from raybench.store.remote import Remote
from raybench.store.schema import SCHEMA_VERSION, SINCE_4, version_of


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results")


number = st.floats(0, 1e15)


@settings(max_examples=40)
@given(
    st.one_of(st.just("dtype"), st.integers(1, 64)),
    st.sampled_from([*INDEX_BITS]),
    st.builds(Counts, *[number] * len(Counts._fields)),
    st.sampled_from([32, 64]),
)
def test_bits_is_values_times_width_plus_index_plus_raw(value_bits, code, counts, width):
    how = Accounting(value_bits, code)
    want = counts.values * (width if value_bits == "dtype" else value_bits) + counts.raw
    want += 0.0 if code == "none" else getattr(counts, f"index_{code}")
    assert how.bits(counts, width) == want
    arrays = Counts(*(np.full((2, 1), v) for v in counts))
    np.testing.assert_array_equal(how.bits(arrays, width), np.full((2, 1), want))
    tensors = Counts(*(torch.full((3,), v, dtype=torch.float64) for v in counts))
    assert torch.equal(how.bits(tensors, width), torch.full((3,), want, dtype=torch.float64))
    assert parse_accounting(str(how)) == parse_accounting(how.as_dict()) == how


def test_every_code_that_is_counted_can_be_charged():
    codes = {name.removeprefix("index_") for name in Counts._fields if name.startswith("index_")}
    assert set(INDEX_BITS) == codes | {"none"}
    offered = json_schema()["properties"]["accounting"]["anyOf"][1]["properties"]
    assert set(offered["index_bits"]["enum"]) == set(INDEX_BITS)


def test_presets_and_text():
    assert parse_accounting("default") == Accounting()
    assert (
        parse_accounting("paper:ef21")
        == parse_accounting("paper:marina")
        == Accounting(32, "none", False)
    )
    assert parse_accounting("paper:3pc") == Accounting(64, "none", True)
    assert parse_accounting("value_bits=32,index_bits=none") == Accounting(32, "none", True)
    assert parse_accounting("paper:3pc,count_init=false") == Accounting(64, "none", False)
    # what is set beside a preset counts, wherever it stands
    assert parse_accounting({"value_bits": 16, "preset": "paper:ef21"}) == Accounting(
        16, "none", False
    )
    assert parse_accounting(None) == parse_accounting({}) == Accounting("dtype", "auto", True)
    assert set(PRESETS) == {"default", "paper:ef21", "paper:marina", "paper:3pc"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("paper:ef22", "did you mean paper:ef21"),
        ("index_bits=bitmsk", "did you mean bitmask"),
        ("value_bit=32", "did you mean value_bits"),
        ("value_bits=0", "allowed: dtype, or an integer from 1 to 64"),
        ("value_bits=٣٢", "allowed: dtype"),
        ("", "paper:ef21"),
        ({"count_init": "maybe"}, "allowed: true, false"),
        (7, "is no accounting"),
        ({"value_bits": [32]}, "allowed"),
    ],
)
def test_wrong_accounting_says_what_is_allowed(wrong, said):
    with pytest.raises(InputError, match=said):
        parse_accounting(wrong)


def test_rebook_by_hand(store, tmp_path):
    """Row 0 holds initial messages both ways: 10 values up and 40 values with 8 index bits down."""
    each = {"bitmask": 7.0, "entropy": 3.0, "list_or_bitmask": 11.0}
    extra = {f"index_{code}_up": bits * np.arange(4) for code, bits in each.items()}
    extra |= {f"index_{code}_down": bits + 2 * bits * np.arange(4) for code, bits in each.items()}
    put(store, ["a", "b"], extra=extra, first_down=40.0)
    folder = tmp_path / "results"
    curves = load(folder)
    t = curves["round"].to_numpy()
    up, down = 10 + 5 * t, 40 + 100 * t
    for code, per_round in {**each, "auto": 20, "explicit": 30, "none": 0}.items():
        for how, width in ((f"value_bits=32,index_bits={code}", 32), (f"index_bits={code}", 64)):
            want = (width * up + per_round * t + t).tolist()
            assert load(folder, how)["bits_up"].tolist() == want
    for code, bits in each.items():
        result = load(folder, f"value_bits=32,index_bits={code}")
        assert result["bits_down"].tolist() == (32 * down + bits + 2 * bits * t).tolist()
        free = load(folder, f"value_bits=32,index_bits={code},count_init=false")
        assert free["bits_down"].tolist() == (32 * 100 * t + 2 * bits * t).tolist()
        assert free["bits_up"].tolist() == (32 * 5 * t + bits * t + t).tolist()
    paper = load(folder, "paper:ef21")  # the messages of round 0 are free
    assert paper["bits_up"].tolist() == (32 * 5 * t + t).tolist()
    assert paper["bits_down"].tolist() == (3200.0 * t).tolist()
    ends = cells(folder, "paper:ef21")
    assert ends["bits_up"].tolist() == [32 * 15 + 3.0] * 2
    assert ends["bits_down"].tolist() == [32 * 300.0] * 2
    assert cells(folder, "index_bits=none")["bits_down"].tolist() == [64 * 340.0] * 2
    assert load(folder, Accounting())["bits_up"].tolist() == curves["bits_up"].tolist()
    raw_frame = pd.read_parquet(folder / "curves")  # with its map of extra counts
    booked, _ = rebook(
        raw_frame, pd.read_parquet(folder / "cells"), parse_accounting("index_bits=bitmask")
    )
    assert booked["bits_up"].tolist() == (64 * up + 7 * t + t).tolist()


def test_a_curve_without_its_first_row_has_no_initial_messages(store, tmp_path):
    put(store, ["a"])
    folder = tmp_path / "results"
    curves, table = load(folder), cells(folder)
    late = curves[curves["round"] > 0]
    for side in ("up", "down"):
        all_counted, _ = rebook(late, table, Accounting(32, "none", True))
        free, ends = rebook(late, table, Accounting(32, "none", False))
        assert free[f"bits_{side}"].tolist() == all_counted[f"bits_{side}"].tolist()
        assert ends[f"bits_{side}"].tolist() == free[f"bits_{side}"].tolist()[-1:]


def test_rebook_knows_each_cells_dtype_and_missing_curves(store, tmp_path):
    curves, table = batch(["a", "b"])
    frame = table.to_pandas()
    frame.loc[0, "value_bits"] = 32
    store.commit("s", curves, to_table(frame.to_dict("series"), CELLS))
    _, failed = batch(["c"], status="failed")
    store.commit("c", None, failed)
    result = cells(tmp_path / "results", "index_bits=none").set_index("cell")["bits_up"]
    assert result["a"] == 32 * 25 + 3
    assert result["b"] == 64 * 25 + 3
    assert math.isnan(result["c"])


BOOKS = [
    Accounting("dtype", "auto", True),
    Accounting(16, "bitmask", True),
    Accounting(7, "entropy", False),
    Accounting(32, "none", False),
]
SMALL = {
    "problem": {"name": "quadratic", "dim": 40, "clients": 3, "dtype": ["float64", "float32"]},
    "algorithm": [
        "gd",
        {"name": "ef21", "init": ["full", "compressed"]},
        {"name": "marina", "p": 0.3, "compressor": {"name": "rand_k", "k": 2}},
        {"name": "ef21_p", "step_size": 0.01, "downlink": {"name": "top_k", "k": 2}},
        {"name": "dcgd", "step_size": 0.01, "compressor": "natural"},
    ],
    "compressor": {"name": "top_k", "k": 3},
    "rounds": 4,
}


def test_booked_anew_is_as_if_booked_so_from_the_start(tmp_path):
    """The same sweep run once under each accounting, and each booked as the one before it."""
    bits = ["bits_up", "bits_down"]
    folders = [tmp_path / str(j) / "small" for j in range(len(BOOKS))]
    for how, folder in zip(BOOKS, folders, strict=True):
        raybench.sweep({**SMALL, "accounting": how.as_dict()}, folder, inline=True)
    for j, how in enumerate(BOOKS):
        want, ends = load(folders[j]), cells(folders[j])[["cell", *bits]]
        assert (want.groupby("cell")["bits_up"].last() > 0).all()
        columns = ["cell", "round", *bits]
        pd.testing.assert_frame_equal(load(folders[j - 1], how)[columns], want[columns])
        pd.testing.assert_frame_equal(cells(folders[j - 1], how)[["cell", *bits]], ends)


@pytest.mark.parametrize("side", ["up", "down"])
@pytest.mark.parametrize("count_init", [True, False])
def test_cells_stop_by_the_bits_that_the_accounting_counts(tmp_path, side, count_init):
    """Dense float64 both ways, 40 values a message; before round 1 a message up, and none down."""
    sweep = {**SMALL, "problem": {"name": "quadratic", "dim": 40, "clients": 3}, "rounds": 30}
    sweep |= {"algorithm": {"name": "ef21", "init": "full"}, "compressor": "identity"}
    sweep |= {"accounting": {"count_init": count_init}, "stop": {f"bits_{side}": 5.5 * 64 * 40}}
    raybench.sweep(sweep, tmp_path / "out", inline=True)
    (row,) = cells(tmp_path / "out").to_dict("records")
    # the first round whose bits are at least 5.5 messages
    free = side == "down" or not count_init
    assert row["rounds"] == (6 if free else 5)
    assert row[f"bits_{side}"] == 6 * 64 * 40


def test_booking_anew_leaves_what_it_is_given():
    """The caller's tables are copied, so that they can be read under several accountings."""
    curves, ends = make([{"g": [4, 2, 1]}])
    before = curves.copy(), ends.copy()
    result, _ = rebook(curves, ends, parse_accounting({"index_bits": "none"}))
    assert not result["bits_up"].equals(curves["bits_up"])
    pd.testing.assert_frame_equal(curves, before[0])
    pd.testing.assert_frame_equal(ends, before[1])


REAL = {
    "name": "old",
    "problem": {"name": "quadratic", "dim": 200, "clients": 3},
    "algorithm": ["gd", {"name": "ef21", "step_size": {"theory": [1, 4]}}],
    "compressor": {"name": "top_k", "k": [2, 150]},
    "seed": [0, 1],
    "rounds": 5,
    "x0": {"normal": 1.0},
}
WIDER = {**REAL, "compressor": {"name": "top_k", "k": [2, 7, 150]}}


def test_a_folder_keeps_the_accounting_that_it_was_begun_with(tmp_path):
    out = tmp_path / "out"
    raybench.sweep({**REAL, "accounting": "paper:ef21"}, out, inline=True)
    before = load(out)
    asked = spec.load(WIDER)
    kept = as_booked(asked, out)
    assert kept.accounting == Accounting(32, "none", False)
    assert kept.notes[: len(asked.notes)] == asked.notes
    assert "--accounting HOW shows them by another" in kept.notes[-1]
    assert spec.load(kept.text).cells == asked.cells
    assert as_booked(kept, out) is kept
    assert as_booked(asked, tmp_path / "none") is asked
    raybench.sweep(WIDER, out, inline=True)
    assert load(out)["bits_up"].tolist() == load(out, "paper:ef21")["bits_up"].tolist()
    assert load(out)["cell"].nunique() > before["cell"].nunique()
    assert "value_bits=32, index_bits=none, count_init=false" in report.render(out, "markdown")


def test_merged_folders_have_the_accounting_of_the_first(tmp_path):
    whole = tmp_path / "whole"
    raybench.sweep(REAL, whole, inline=True)
    other = {**REAL, "compressor": {"name": "top_k", "k": 7}, "accounting": "paper:ef21"}
    raybench.sweep(other, tmp_path / "paper", inline=True)
    pair, hows = (whole, tmp_path / "paper"), (Accounting(), Accounting(32, "none", False))
    for j, how in enumerate(hows):
        out = tmp_path / f"out{j}"
        merge(pair[j], pair[1 - j], out)
        assert accounting_of(out) == how
        result, ends = load(out), cells(out)
        assert len(result) == 14 * 6  # cells times rows; gd is in both
        bits = ["bits_up", "bits_down"]
        pd.testing.assert_frame_equal(result[bits], load(out, how)[bits])
        assert ends["bits_up"].tolist() == cells(out, how)["bits_up"].tolist()
        assert ends["bits_up"].notna().all()


SWEEP = {"name": "fake", "problem": {"name": "logistic", "dataset": ["mushrooms"]}}


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


ENDS = dict(zip("1234s", ["ok", "ok", "ok", "failed", "skipped"], strict=True))


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


class Died(BaseException):
    """As if the process had been killed: whatever it tries afterwards fails, too."""


ON_DISK = [(LocalFolder, "clear"), *((Disk, name) for name in ("mkdir", "write", "rename", "sync"))]


@pytest.mark.parametrize(
    ("place", "steps"),
    [
        pytest.param("", ON_DISK, marks=pytest.mark.thorough),
        ("memory://merge", [(Remote, "write")]),
    ],
    ids=["on disk", "in an object store"],
)
def test_a_merge_that_is_killed_leaves_no_folder_that_reads_as_whole(
    tmp_path, monkeypatch, place, steps
):
    """Killed at every single thing that it does to the disk, or at every request to the object store."""
    place = place or tmp_path
    a, b = two(place)
    left, outcomes = 0, [{}]

    def dying(plain, count):
        def step(*words):
            if next(count) >= left:
                raise Died
            return plain(*words)

        return step

    while not outcomes[-1]:
        left += 1
        with monkeypatch.context() as patch, suppress(Died):
            count = itertools.count(1)
            for kind, name in steps:
                patch.setattr(kind, name, dying(getattr(kind, name), count))
            merge(a, b, f"{place}/out{left}")
        with suppress(InputError):
            load(f"{place}/out{left}")
            outcomes.append(Store(f"{place}/out{left}").done())
    assert left > 6
    assert outcomes == [*([{}] * (len(outcomes) - 1)), ENDS]


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


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "out"
    raybench.sweep(REAL, folder, inline=True)
    return folder


def as_version(folder, version: int) -> None:
    """Let all files of a folder say that they are of another version, with its columns and with seals in order."""
    later = list(SINCE_4) if version < 4 else []
    owner = json.loads((folder / "plan/owner.json").read_text())["folder"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raybench.store.schema.SCHEMA_VERSION", version)
        for file in sorted((folder / "cells").iterdir()):
            curves = folder / "curves" / file.name
            curves.write_bytes(encode(pq.read_table(curves)))
            table = pq.read_table(file).drop_columns(later)
            data = log.sealed(table, file.stem, owner, curves.read_bytes())
            file.write_bytes(data)


@pytest.mark.parametrize("version", first_of_each([1, 2, 99], lambda version: version > 2))
def test_files_of_other_versions_are_refused_by_name(whole, tmp_path, version):
    folder, file = tmp_path / "out", tmp_path / "s.yaml"
    shutil.copytree(whole, folder)
    as_version(folder, version)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    said = f"schema version {version}, this raybench reads {SCHEMA_VERSION}"
    file.write_text(spec.load(REAL).text)
    for call in (load, cells, lambda f: merge(f, whole, tmp_path / "c"), report.render):
        with pytest.raises(InputError, match=said):
            call(folder)
    for words in (("sweep", file, "--out", folder, "--inline"), ("plan", file, "--out", folder)):
        result = cli(*words)
        assert result.code == 2
        assert said in " ".join(result.err.split())
        assert "in a new folder" in result.err
    result = cli("verify", folder)
    assert result.code == 1
    assert "other version" in result.out
    written = {p: p.read_bytes() for p in before if p.parent.name in ("cells", "curves")}
    assert all(before[p] == data for p, data in written.items())


WAYS = ("gather", "reduce", "all_to_all")
KINDS = {
    "problem": {"name": "quadratic", "dim": 12, "clients": 3, "dtype": ["float64", "float32"]},
    "algorithm": [
        *({"name": "dcgd", "compressor": {"name": "identity", "collective": how}} for how in WAYS),
        *("gd", {"name": "choco_sgd", "compressor": {"name": "top_k", "k": 3}}),
    ],
    "clock": {"compute": 1.0},
    "step_size": 0.01,
    "rounds": 3,
}


def test_a_folder_of_schema_3_is_read_and_not_written_to(tmp_path):
    """Its facts are those that were stored; what is made of it is of today's schema, and goes on."""
    folder, file = tmp_path / "out", tmp_path / "s.yaml"
    raybench.sweep(KINDS, folder, inline=True)
    want, table = load(folder), cells(folder)
    exchanges = table["exchange"].value_counts().to_dict()
    assert exchanges == {"gather": 4, "reduce": 2, "all_to_all": 2, "mix": 2}
    as_version(folder, 3)
    pd.testing.assert_frame_equal(load(folder), want)
    pd.testing.assert_frame_equal(cells(folder), table)
    looked = log.look(open_folder(folder), columns=["cell", "status", "value_bits"])
    few = looked.cells().to_pandas()
    assert few["value_bits"].tolist() == table["value_bits"].tolist()
    assert cli("verify", folder).code == 0
    file.write_text(spec.load(KINDS).text)
    for verb in ("sweep", "plan"):
        said = cli(verb, file, "--out", folder, *["--inline"] * (verb == "sweep"))
        assert said.code == 2
        told = " ".join(said.err.split())
        assert "has files of an older schema: this raybench reads them, and writes 4" in told
        assert "raybench.store.compact(folder, new)" in told
    compact(folder, tmp_path / "new")
    pd.testing.assert_frame_equal(load(tmp_path / "new"), want, check_dtype=False)
    assert "nothing was missing" in cli("sweep", file, "--out", tmp_path / "new", "--inline").out


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
