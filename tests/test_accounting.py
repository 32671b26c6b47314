"""Accounting: counts become bits, and finished sweeps are booked anew."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from fake_store import REAL, batch, put
from hypothesis import given, settings
from hypothesis import strategies as st

import raybench
from raybench import report, spec
from raybench.core.counts import Counts
from raybench.core.errors import InputError
from raybench.execution.plan import as_booked
from raybench.spec import json_schema
from raybench.store import CELLS, Accounting, Store, cells, load, merge, rebook, to_table
from raybench.store.accounting import INDEX_BITS, PRESETS, dtype_bits, parse
from raybench.store.reader import accounting_of

number = st.floats(0, 1e15)


@settings(deadline=None)
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
    assert parse(str(how)) == parse(how.as_dict()) == how


def test_every_code_that_is_counted_can_be_charged():
    codes = {name.removeprefix("index_") for name in Counts._fields if name.startswith("index_")}
    assert set(INDEX_BITS) == codes | {"none"}
    offered = json_schema()["properties"]["accounting"]["anyOf"][1]["properties"]
    assert set(offered["index_bits"]["enum"]) == set(INDEX_BITS)


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
        ("value_bits=0", "allowed: dtype, or an integer from 1 to 64"),
        ("value_bits=65", "allowed: dtype, or an integer from 1 to 64"),
        ("value_bits=٣٢", "allowed: dtype"),
        ({"value_bits": 32.0}, "allowed: dtype"),
        ("", "paper:ef21"),
        ({"count_init": "maybe"}, "allowed: true, false"),
        ({"value_bits": True}, "allowed"),
        (7, "is no accounting"),
        ({"preset": ["x"]}, "unknown preset"),
        ({"value_bits": [32]}, "allowed"),
        ({"value_bit": 32}, "did you mean value_bits"),
    ],
)
def test_wrong_accounting_says_what_is_allowed(wrong, said):
    with pytest.raises(InputError, match=said):
        parse(wrong)


@settings(deadline=None)
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
    booked, _ = rebook(raw_frame, pd.read_parquet(folder / "cells"), parse("index_bits=bitmask"))
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
    frame.loc[0, "config"] = json.dumps({"problem": {"params": {"dtype": "float32"}}})
    store.commit("s", curves, to_table(frame.to_dict("series"), CELLS))
    _, failed = batch(["c"], status="failed")
    store.commit("c", None, failed)
    result = cells(tmp_path / "results", "index_bits=none").set_index("cell")["bits_up"]
    assert result["a"] == 32 * 25 + 3
    assert result["b"] == 64 * 25 + 3
    assert math.isnan(result["c"])


@pytest.mark.parametrize(
    ("config", "width"),
    [
        (None, 64),
        (math.nan, 64),  # a null in a frame
        ("", 64),
        ("{}", 64),
        ('{"problem": null}', 64),
        ('{"problem": {"params": {"dtype": "float64"}}}', 64),
        ('{"problem": {"params": {"dtype": "float32"}}}', 32),
        ('{"problem": {"dtype": "bfloat16"}}', 16),
    ],
)
def test_the_width_of_a_value_in_a_cell(config, width):
    assert dtype_bits(config) == width


BOOKS = [
    Accounting(value_bits, index_bits, count_init)
    for value_bits, index_bits, count_init in (
        ("dtype", "auto", True),
        (16, "bitmask", True),
        (7, "entropy", False),
        (32, "none", False),
    )
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


@pytest.fixture(scope="module")
def booked(tmp_path_factory):
    """The same sweep run once under each accounting."""
    folders = {how: tmp_path_factory.mktemp("booked") / "small" for how in BOOKS}
    for how, folder in folders.items():
        raybench.sweep({**SMALL, "accounting": how.as_dict()}, folder, inline=True)
    return folders


@pytest.mark.parametrize("how", BOOKS, ids=str)
def test_booked_anew_is_as_if_booked_so_from_the_start(booked, how):
    bits = ["cell", "round", "bits_up", "bits_down"]
    want, ends = load(booked[how])[bits], cells(booked[how])[["cell", "bits_up", "bits_down"]]
    assert (want.groupby("cell")["bits_up"].last() > 0).all()
    for other in BOOKS:
        pd.testing.assert_frame_equal(load(booked[other], how)[bits], want)
        result = cells(booked[other], how)[["cell", "bits_up", "bits_down"]]
        pd.testing.assert_frame_equal(result, ends)


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
    from fake_runs import make

    curves, ends = make([{"g": [4, 2, 1]}])
    before = curves.copy(), ends.copy()
    result, _ = rebook(curves, ends, parse({"index_bits": "none"}))
    assert not result["bits_up"].equals(curves["bits_up"])
    pd.testing.assert_frame_equal(curves, before[0])
    pd.testing.assert_frame_equal(ends, before[1])


WIDER = {**REAL, "compressor": {"name": "top_k", "k": [2, 7, 150]}}


# -- one accounting per folder ---------------------------------------------------------------


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


def test_a_folder_without_curves_has_no_accounting_yet(tmp_path):
    store = Store(tmp_path)
    store.claim({**REAL, "accounting": "paper:ef21"})
    asked = Accounting(index_bits="list_or_bitmask")
    assert accounting_of(tmp_path, asked) == asked
    assert accounting_of(tmp_path) == Accounting()


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
