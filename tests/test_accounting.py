"""Accounting: counts become bits, and finished sweeps are booked anew."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from fake_store import batch, put
from hypothesis import given, settings
from hypothesis import strategies as st

from raybench.core.errors import InputError
from raybench.store import (
    CELLS,
    Accounting,
    Store,
    cells,
    load,
    rebook,
    to_table,
)
from raybench.store.accounting import PRESETS, parse


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results")


counts = st.floats(0, 1e15)


@settings(deadline=None)
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
