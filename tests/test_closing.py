"""The table a sweep ends with, against hand computation."""

from __future__ import annotations

import fake_store
import numpy as np
import pandas as pd
from fake_runs import make

from raybench.analysis import closing_table, frames
from raybench.analysis.closing import framed
from raybench.report.tables import closing
from raybench.store import Store


def test_closing_table_by_hand():
    runs = [
        {"g": [1, 0.5, 0.05], "algorithm": "gd", "compressor": None, "k": None, "per_round": 100.0},
        *({"g": [1, 0.5, 0.05], "k": 1, "seed": s} for s in range(3)),
        {"g": [1, 0.05, 0.01], "k": 5, "per_round": 50.0, "multiple": 2.0},
        {"g": [1, 0.4], "algorithm": "marina", "compressor": "rand_k", "status": "diverged"},
    ]
    table = closing_table(make(runs), target=0.1).set_index("method")
    assert table.index.tolist() == ["EF21 Top-K", "GD", "MARINA Rand-K"]
    row = table.loc["EF21 Top-K"]
    assert (row["k"], row["bits_to_target"], row["ratio_to_gd"], row["seeds"]) == (1, 20.0, 0.1, 3)
    assert (row["bits_low"], row["bits_high"], row["edge"]) == (20.0, 20.0, "only")
    assert table.loc["GD", "ratio_to_gd"] == 1.0
    assert table.loc["MARINA Rand-K", "diverged"] == 1


def test_closing_table_of_a_folder_follows_the_accounting(tmp_path):
    fake_store.fill(Store(tmp_path), rounds=200)
    plain, paper = closing_table(tmp_path), closing_table(tmp_path, "paper:ef21")
    assert set(plain["method"]) == set(paper["method"])
    gd = [t.set_index("method").loc["GD", "bits_to_target"] for t in (plain, paper)]
    assert gd[1] == (gd[0] - 64 * 112) / 2  # half as wide, without the first gradient
    found = frames(tmp_path, "paper:ef21")
    pd.testing.assert_frame_equal(closing_table(found), paper)
    pd.testing.assert_frame_equal(closing_table((found.curves, found.cells)), paper)
    pd.testing.assert_frame_equal(closing_table(frames(tmp_path), "paper:ef21"), paper)
    assert found.accounting == "value_bits=32, index_bits=none, count_init=false"


def test_final_values_are_medians_over_seeds():
    runs = [{"g": [1, 0.5, g], "seed": s} for s, g in enumerate((0.05, 0.03, 0.02))]
    (row,) = closing_table(make(runs), target=0.1).to_dict("records")
    np.testing.assert_allclose(row["grad_norm_sq"], 0.03)
    np.testing.assert_allclose((row["loss"], row["bits_up"], row["rounds"]), (0.03, 20.0, 2))
    assert (row["target"], row["ok"], row["failed"], row["skipped"]) == (0.1, 3, 0, 0)


def test_without_gradient_norms_methods_are_judged_by_the_loss():
    curves, cells = make([{"g": [1, 0.5, 0.05]}, {"g": [1, 0.2, 0.2], "k": 2}])
    curves["grad_norm_sq"] = cells["grad_norm_sq"] = np.nan
    table = closing_table((curves, cells), target=0.1, by="series")
    assert table["bits_to_target"].tolist() == [20.0, np.inf]
    assert table["loss"].tolist() == [0.05, 0.2]
    assert table["grad_norm_sq"].isna().all()


def test_what_a_reader_of_the_bits_is_told(tmp_path):
    """Nothing, where every cell knows what was packed."""
    fake_store.fill(Store(tmp_path), rounds=10)
    assert frames(tmp_path).notes == []
    assert frames(tmp_path, "index_bits=list_or_bitmask").notes == []


def test_the_baseline_is_what_ran_without_compression():
    def costs(algorithm, compressor, per_round):
        how = {"algorithm": algorithm, "compressor": compressor, "k": None if not compressor else 1}
        return {"g": [1, 0.5, 0.05], "per_round": per_round, **how}

    own, sgd = costs("ef21", "top_k", 10.0), costs("sgd", None, 50.0)
    plain, identity = costs("gd", None, 100.0), costs("dcgd", "identity", 80.0)
    thin = costs("dcgd", "rand_k", 5.0)
    for others, base, head in (
        ([sgd, thin], 50.0, "÷ SGD"),
        ([sgd, identity, plain], 100.0, "÷ GD"),
        ([identity, thin], 80.0, "÷ DCGD"),
    ):
        runs = make([own, *others])
        table = closing_table(runs, target=0.1).set_index("method")
        assert table.loc["EF21 Top-K", "ratio_to_gd"] == 10.0 / base
        assert head in closing(framed(*runs), target=0.1).head
    table = closing_table(make([own, thin]), target=0.1)
    assert table["ratio_to_gd"].isna().all()
