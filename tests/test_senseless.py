"""Senseless content of results folders: every reading verb answers or refuses, and names the file."""

import json
import math
from contextlib import suppress
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from cli_kit import cli
from hypothesis import HealthCheck, given, settings

import raybench
from raybench.core import limits
from raybench.core.errors import InputError
from raybench.store import CELLS, CURVES, Store, encode, log, reader
from raybench.store.schema import config_of

READING = ("table", "table --by k", "table --link 1Gbit", "table --accounting paper:ef21")
READING += ("rank", "rank --trials 3", "status", "verify")
WRITING = ("audit", "report", "plot", "plot --kind heatmap", "plot --kind timeline")
OF_TWO = ("compare", "merge")
DEEP, LONG = "[" * 50000, "9" * 5000
WORDS = ("", "x", "[1]", "{}", "NaN", "\x1b[31m", "$\\frac", "ok", "gather", "ef21", "10%")
WORDS += (LONG, DEEP)
CONFIGS = ('{"problem": 3}', '{"plugins": [1]}', '{"a": "\\ud800"}')
CONFIGS += ('{"compressor": {"params": [1]}}',)
VALUES = {
    str(pa.string()): st.sampled_from(WORDS + CONFIGS) | st.text(max_size=8),
    str(pa.int64()): st.sampled_from((0, 1, -1, 2**63 - 1, -(2**63))) | st.integers(-9, 9),
    str(pa.float64()): st.floats() | st.sampled_from((0.0, 1.0, 1e308, 5e-324)),
    str(pa.bool_()): st.booleans(),
    str(CELLS.field("started").type): st.integers(-(2**63), 2**63 - 1),
    str(CURVES.field("extra").type): st.dictionaries(
        st.text(max_size=3), st.none() | st.floats()
    ).map(lambda values: [*values.items()]),
}


def rewritten(shards, folder, change):
    """Write shards anew into a folder, with ``change`` of their tables, as a raybench would that writes nonsense."""
    store = Store(folder)
    store.own()
    for name, *tables in shards:
        curves, cells = (table and change(table) for table in tables)
        data = curves and encode(curves)
        store.put(name, data, store.seal(name, data, cells))
    return folder


def with_column(table, name, values):
    at, field = (
        table.schema.get_field_index(name),
        CELLS.field(name) if name in CELLS.names else CURVES.field(name),
    )
    column = pa.array(values, pa.int64() if pa.types.is_timestamp(field.type) else field.type)
    return table.set_column(at, field, column.cast(field.type))


SWEEP = """
name: small
problem: {name: quadratic, dim: 12, clients: 4}
algorithm: [gd, ef21, marina]
compressor: [{name: top_k, k: [1, 25%]}]
step_size: {theory: [1, 2]}
seed: 0..1
rounds: 5
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """The shards of a sweep: name, curves or None, cells."""
    folder = tmp_path_factory.mktemp("sound") / "r"
    raybench.sweep(SWEEP, folder, inline=True)
    files = reader.open_results(folder)
    result = []
    for shard in log.look(files).shards:
        data = files.read(f"curves/{shard.name}.parquet")
        curves = None if data is None else log.rows(log.parquet(data), CURVES)
        result.append((shard.name, curves, shard.cells))
    return result


@pytest.mark.parametrize("verb", ["report", "plot"])
def test_infinite_steps_have_no_place_in_a_figure(verb, shards, tmp_path):
    def change(table):
        if "step_multiple" not in table.column_names:
            return table
        rest = table["step_multiple"].to_pylist()[1:]
        return with_column(table, "step_multiple", [math.inf, *rest])

    folder = rewritten(shards, tmp_path / "r", change)
    assert cli(verb, folder, "--out", tmp_path / "out").code == 0


@pytest.mark.parametrize("verb", [*READING, *WRITING, *OF_TWO, "load"])
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_shards_get_an_answer_or_a_refusal(verb, shards, tmp_path_factory, data):
    place = tmp_path_factory.mktemp("senseless")
    names = data.draw(
        st.lists(st.sampled_from([*CELLS.names, *CURVES.names]), min_size=1, max_size=3)
    )

    def change(table):
        for name in {*names} & {*table.column_names}:
            kind = CELLS.field(name).type if name in CELLS.names else CURVES.field(name).type
            few = data.draw(st.lists(st.none() | VALUES[str(kind)], min_size=1, max_size=3))
            values = (
                table[name].to_pylist() if len(few) == 2 and not pa.types.is_timestamp(kind) else []
            )
            every = [few[i % len(few)] for i in range(len(table))]
            table = with_column(table, name, [*values[:5], *every[len(values[:5]) :]])
        return table

    folder = rewritten(shards[:4], place / "r", change)
    if verb == "load":
        for how in ({}, {"params": True}, {"accounting": "paper:3pc"}):
            with suppress(InputError):
                raybench.load(folder, **how)
        return
    word, *options = verb.split()
    second = [folder] * (verb in OF_TWO)
    out = ["--out", place / "out"] * (verb in (*WRITING, "merge"))
    said = cli(word, folder, *second, *options, *out)
    assert said.code in (0, 1, 2)
    assert (said.code == 2) == said.err.startswith("error: "), said.err


SENSELESS = ("x", "[1]", "3", DEEP, LONG, *CONFIGS[1:3], '{"problem": {"params": [1]}}')


def test_plugins_that_an_older_raybench_has_noted_are_read():
    told = {"kind": "problem", "name": "mine", "overrides": False, "version": "1"}
    assert config_of(json.dumps({"plugins": [told]}))["plugins"] == [told]


@pytest.mark.parametrize("text", SENSELESS, ids=range(len(SENSELESS)))
def test_a_config_that_is_none_is_refused_and_verify_names_its_file(text, shards, tmp_path):
    def change(table):
        has_one = "config" in table.column_names
        return with_column(table, "config", [text] * len(table)) if has_one else table

    folder = rewritten(shards[:1], tmp_path / "r", change)
    said = cli("table", folder)
    assert said.code == 2
    assert "config of a cell" in said.err
    with pytest.raises(InputError, match="config of a cell"):
        raybench.load(folder, params=True)
    said = cli("verify", folder)
    assert said.code == 1
    assert f"cells/{shards[0][0]}.parquet" in said.out


UNKNOWN = '{"problem": "a", "metric": "loss", "value": NaN, "since": "x"}'
PLANS = {
    "plan/grid.json": ['{"a": -1}'],
    "plan/cells.json": ['{"a": 1}'],
    "plan/target.json": [
        *(f'{{"targets": {inner}}}' for inner in ("3", '[{"problem": 1}]', f"[{UNKNOWN}]")),
        "[]",
    ],
}
ANYWHERE = ["", "{", '{"a": "x"}', "NaN", DEEP, LONG]
BAD_PLANS = [(rel, text) for rel, own in PLANS.items() for text in (*ANYWHERE, *own)]


@pytest.mark.parametrize(("rel", "text"), BAD_PLANS)
def test_a_senseless_file_of_the_plan_is_refused_by_its_name(rel, text, shards, tmp_path):
    folder = Path(rewritten(shards[:1], tmp_path / "r", lambda table: table))
    (folder / rel).write_text(text)
    said = cli("table", folder)
    assert said.code == 2
    says = "holds a target that is no number" if UNKNOWN in text else "is not as it was written"
    assert f"{folder}/{rel}: {says}" in said.err.replace("\n", ""), said.err
    assert "remove it" in said.err


@pytest.mark.parametrize(
    "rel", ["plan/batches.json", "plan/attempts.json", "plan/owner.json", "plan/lock"]
)
def test_what_a_driver_keeps_for_itself_may_be_damaged(rel, shards, tmp_path):
    folder = Path(rewritten(shards[:1], tmp_path / "r", lambda table: table))
    for text in (DEEP, LONG, "[1]", json.dumps({"a": [1], "b": {}, "folder": 3})):
        (folder / rel).write_text(text)
        assert cli("status", folder).code == 0
        assert cli("table", folder).code == 0


def test_texts_that_are_no_utf_8_are_damaged(shards, tmp_path):
    def change(table):
        if "error" in table.column_names:
            bad = pa.array([b"\xff\xfe"] * len(table)).view(pa.string())
            table = table.set_column(
                table.schema.get_field_index("error"), CELLS.field("error"), bad
            )
        return table

    said = cli("table", rewritten(shards[:1], tmp_path / "r", change))
    assert said.code == 2
    assert "pages cannot be read" in said.err


@pytest.mark.parametrize(
    "kind", ["a reason", "a label", "the name of a metric", "names of metrics", "rows"]
)
def test_a_shard_that_unpacks_to_more_than_may_be_is_refused(kind, shards, tmp_path, monkeypatch):
    rows, long = 1000, "x" * 100_000
    rows = {"rows": 400_000, "names of metrics": 4000}.get(kind, rows)
    curves, cells = shards[0][1:]
    cells = pa.concat_tables([cells[:1]] * (rows if kind == "a reason" else 1)).combine_chunks()
    curves = pa.concat_tables([curves[:1]] * (1 if kind == "a reason" else rows)).combine_chunks()
    if kind == "rows":
        for name in {*CURVES.names} - {"cell", "round"}:
            curves = with_column(curves, name, [None] * rows)
    elif kind == "a reason":
        cells = with_column(cells, "reason", [long] * rows)
    else:
        names = [str(i) for i in range(rows)] if kind == "names of metrics" else [long] * rows
        if kind == "a label":
            curves = with_column(curves, "label", names)
        else:
            curves = with_column(curves, "extra", [[(name, 1.0)] for name in names])
    store = Store(tmp_path / "r")
    store.own()
    data = encode(curves)
    store.put("one", data, store.seal("one", data, cells))
    monkeypatch.setattr(limits, "memory_here", lambda: 2**28)
    folder = "cells" if kind == "a reason" else "curves"
    says = f"{folder}/one.parquet: it unpacked takes"
    with pytest.raises(InputError, match=says):
        raybench.load(tmp_path / "r")
    assert says in cli("merge", tmp_path / "r", tmp_path / "r", "--out", tmp_path / "m").err
    assert sorted(tmp_path.iterdir()) == [tmp_path / "r"]
