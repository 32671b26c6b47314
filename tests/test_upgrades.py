"""Versions of the schema: which are read, what others are told; one accounting for each folder."""

from __future__ import annotations

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_kit import cli
from fake_store import put

import raybench
from raybench import report, spec
from raybench.core.errors import InputError
from raybench.execution.plan import as_booked
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
)
from raybench.store.reader import accounting_of
from raybench.store.schema import SCHEMA_VERSION, version_of

SWEEP = {
    "name": "old",
    "problem": {"name": "quadratic", "dim": 200, "clients": 3},
    "algorithm": ["gd", {"name": "ef21", "step_size": {"theory": [1, 4]}}],
    "compressor": {"name": "top_k", "k": [2, 150]},
    "seed": [0, 1],
    "rounds": 5,
    "x0": {"normal": 1.0},
}
WIDER = {**SWEEP, "compressor": {"name": "top_k", "k": [2, 7, 150]}}


# -- other versions ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("versions") / "out"
    raybench.sweep(SWEEP, folder, inline=True)
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
    file.write_text(spec.load(SWEEP).text)
    for call in (load, cells, lambda f: merge(f, whole, tmp_path / "c"), report.render):
        with pytest.raises(InputError, match=said):
            call(folder)
    for words in (("sweep", file, "--out", folder, "--inline"), ("plan", file, "--out", folder)):
        found = cli(*words)
        assert found.code == 2
        assert said in " ".join(found.err.split())
        assert "in a new folder" in found.err
    found = cli("verify", folder)
    assert found.code == 1
    assert "other version" in found.out
    written = {p: p.read_bytes() for p in before if p.parent.name in ("cells", "curves")}
    assert all(before[p] == data for p, data in written.items())


def test_a_file_without_a_seal_is_damaged(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "out")
    file = next((tmp_path / "out/cells").iterdir())
    pq.write_table(pq.read_table(file), file)
    with pytest.raises(InputError, match="its bytes are not those that were written"):
        load(tmp_path / "out")


def test_a_text_column_that_is_missing_is_damage():
    types = {"cell": pa.string(), "round": CURVES.field("round").type}
    data = encode(pa.table({"cell": ["c"], "round": [0]}, schema=pa.schema(types)))
    for columns in (["cell", "compressor"], []):
        with pytest.raises(log.Unsound, match=r"cannot be read|not a readable"):
            log.rows(log.parquet(data, columns), CURVES, ["cell", "compressor"])


def test_every_file_that_is_written_describes_its_columns(whole, tmp_path):
    raybench.sweep({**SWEEP, "accounting": "paper:ef21"}, tmp_path / "paper", inline=True)
    merge(whole, tmp_path / "paper", tmp_path / "merged")
    compact(tmp_path / "merged", tmp_path / "compact")
    store = Store(tmp_path / "left")
    put(store, "ab")
    store.forget("a")
    for folder in (whole, *(tmp_path / name for name in ("merged", "compact", "left"))):
        for part, schema in (("curves", CURVES), ("cells", CELLS)):
            for file in (folder / part).iterdir():
                found = pq.read_schema(file)
                assert version_of(found) == SCHEMA_VERSION
                assert [f.metadata for f in found] == [f.metadata for f in schema]


# -- one accounting per folder ---------------------------------------------------------------


def test_a_folder_keeps_the_accounting_that_it_was_begun_with(tmp_path):
    out = tmp_path / "out"
    raybench.sweep({**SWEEP, "accounting": "paper:ef21"}, out, inline=True)
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


def test_a_folder_without_curves_has_no_accounting_yet(tmp_path):
    store = Store(tmp_path)
    store.claim({**SWEEP, "accounting": "paper:ef21"})
    asked = Accounting(index_bits="list_or_bitmask")
    assert accounting_of(tmp_path, asked) == asked
    assert accounting_of(tmp_path) == Accounting()


def test_merged_folders_have_the_accounting_of_the_first(whole, tmp_path):
    other = {**SWEEP, "compressor": {"name": "top_k", "k": 7}, "accounting": "paper:ef21"}
    raybench.sweep(other, tmp_path / "paper", inline=True)
    pairs = [
        ((whole, tmp_path / "paper"), Accounting()),
        ((tmp_path / "paper", whole), Accounting(32, "none", False)),
    ]
    for j, (pair, how) in enumerate(pairs):
        out = tmp_path / f"out{j}"
        merge(*pair, out)
        assert accounting_of(out) == how
        found, ends = load(out), cells(out)
        assert len(found) == 14 * 6  # cells times rows; gd is in both
        assert found["bits_up"].tolist() == load(out, how)["bits_up"].tolist()
        assert found["bits_down"].tolist() == load(out, how)["bits_down"].tolist()
        assert ends["bits_up"].tolist() == cells(out, how)["bits_up"].tolist()
        assert ends["bits_up"].notna().all()
