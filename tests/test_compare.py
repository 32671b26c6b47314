"""Two folders compared: tests against scipy and all signs, matching by what was asked for, the verb."""

import io
import itertools
import math

import numpy as np
import pandas as pd
import pytest
from cli_kit import SWEEP, cli, tidy
from fake_runs import make
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

import raybench
from raybench.analysis import compare, differences, frames, to_target
from raybench.analysis.examples import example
from raybench.analysis.significance import holm, paired, signed_rank, unpaired
from raybench.core.errors import InputError

COSTS = st.sampled_from([1.0, 2.0, 3.0, 5.0, 8.0, math.inf])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    here = tmp_path_factory.mktemp("swept")
    raybench.sweep(SWEEP, here / "a", inline=True)
    raybench.sweep(SWEEP, here / "b", inline=True, sets=["problem.clients=6", "seed=1..2"])
    return here / "a", here / "b"


# -- statistics ------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.integers(-5, 5).filter(bool), min_size=1, max_size=9))
def test_signed_ranks_are_those_of_all_signs(changes):
    ranks = stats.rankdata(np.abs(changes))
    up = float(ranks[np.array(changes) > 0].sum())
    sums = [ranks[np.array(s)].sum() for s in itertools.product([False, True], repeat=len(ranks))]
    far = 2 * min(np.mean(np.array(sums) <= up), np.mean(np.array(sums) >= up))
    assert signed_rank(ranks, up) == pytest.approx(min(1.0, far), abs=1e-12)


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 10), min_size=3, max_size=20, unique=True), st.randoms())
def test_paired_is_scipys_wilcoxon(b, random):
    a = [1.0] * len(b)
    change = np.log(b)
    assume(len(set(np.abs(change))) == len(b) and 0 not in change)
    want = stats.wilcoxon(change, method="exact")
    found = paired(a, b)
    assert found.p_value == pytest.approx(want.pvalue, abs=1e-9)
    up = stats.rankdata(np.abs(change))[change > 0].sum()
    total = len(b) * (len(b) + 1) / 2
    assert found.effect == pytest.approx(2 * up / total - 1)
    assert found.ratio == pytest.approx(np.exp(np.median(change)))


@settings(deadline=None)
@given(st.lists(COSTS, min_size=1, max_size=8), st.lists(COSTS, min_size=1, max_size=8))
def test_unpaired_is_cliffs_delta_by_loops_and_symmetric(a, b):
    found, back = unpaired(a, b), unpaired(b, a)
    above = sum((y > x) - (y < x) for x in a for y in b) / (len(a) * len(b))
    assert found.effect == pytest.approx(above)
    assert back.effect == pytest.approx(-above)
    assert found.p_value == pytest.approx(back.p_value)


def test_unpaired_is_scipys_test():
    a, b = [1.0, 4.0, 6.0, 7.0], [2.0, 3.0, 9.0, 11.0, 12.0]
    assert unpaired(a, b).p_value == stats.mannwhitneyu(a, b, method="exact").pvalue
    worse = unpaired(a, [math.inf] * 5)
    assert (worse.ratio, worse.effect) == (math.inf, 1.0)
    assert worse.p_value == unpaired(a, [100.0] * 5).p_value or worse.p_value < 0.05


def test_infinite_costs_are_worse_than_any():
    assert paired([1.0, 1.0], [math.inf, math.inf]) == (math.inf, 1.0, 0.5)
    assert paired([math.inf] * 6, [5.0] * 6) == (0.0, -1.0, 2 / 64)
    assert paired([math.inf], [math.inf]) == (1.0, 0.0, 1.0)
    assert all(math.isnan(v) for v in paired([], []))


@settings(deadline=None)
@given(st.lists(st.floats(0, 1) | st.just(math.nan), max_size=8))
def test_holm_by_its_definition(p):
    known = sorted(v for v in p if v == v)
    for value, found in zip(p, holm(p), strict=True):
        if value != value:
            assert math.isnan(found)
            continue
        place = max(i for i, v in enumerate(known) if v == value)
        want = max((len(known) - j) * v for j, v in enumerate(known[: place + 1]))
        assert found == pytest.approx(min(1.0, want))


# -- two sources -----------------------------------------------------------------------------


def test_a_source_is_the_same_as_itself():
    runs = example(("a", "b"))
    for by in ("step", "series", "method"):
        found = compare(runs, runs, 1e-3, by=by)
        assert (found["verdict"] == "same").all()
        assert (found["identical"] == found["pairs"]).all()
        assert (found["ratio"] == 1).all()
    assert differences(runs, runs) == {}
    assert len(compare(runs, runs, by="step")) == 16


def test_costs_and_pairs_by_hand():
    def runs(costs, **more):
        values = [[1.0] * n + [0.01] for n in costs]
        return make([{"g": g, "seed": s, **more} for s, g in enumerate(values)])

    (row,) = compare(runs([4, 5, 6]), runs([2, 2, 3, 9]), 0.1).to_dict("records")
    assert (row["cells_a"], row["cells_b"], row["pairs"]) == (3, 4, 3)
    assert (row["cost_a"], row["cost_b"]) == (50.0, 25.0)
    assert row["ratio"] == pytest.approx(0.5)
    assert (row["effect"], row["p_value"], row["verdict"]) == (-1.0, 0.25, "not shown")
    slower = compare(runs([2] * 8), runs([3] * 8), 0.1).iloc[0]
    assert (slower["verdict"], slower["p_value"]) == ("dearer", 2 / 256)
    lost = compare(runs([2] * 8), runs([3] * 8, status="diverged"), 0.1).iloc[0]
    assert (lost["reached_b"], lost["ratio"], lost["verdict"]) == (0, math.inf, "dearer")


def test_what_all_cells_differ_in_does_not_keep_them_apart():
    a = make(
        [{"g": [1, 0.01], "params": {"p": 0.1}}, {"g": [1, 0.1], "k": 2, "params": {"p": 0.1}}]
    )
    b = make(
        [{"g": [1, 0.01], "params": {"p": 0.5}}, {"g": [1, 0.1], "k": 3, "params": {"p": 0.5}}]
    )
    assert differences(a, b) == {"algorithm.p": ("0.1", "0.5")}
    found = compare(a, b, 0.5)
    assert dict(zip(found["k"], found["verdict"], strict=True)) == {
        1: "same",
        2: "only a",
        3: "only b",
    }
    with pytest.raises(InputError, match="in common"):
        compare(a, make([{"g": [1], "algorithm": "gd"}, {"g": [1], "algorithm": "sgd"}]))


def test_best_steps_are_compared_though_they_differ():
    fast, slow = [1, 0.01, 0.01], [1, 1, 0.01]
    a = make([{"g": fast, "multiple": 1.0}, {"g": slow, "multiple": 2.0}])
    b = make([{"g": slow, "multiple": 1.0}, {"g": fast, "multiple": 2.0}])
    (row,) = compare(a, b, 0.1, by="series").to_dict("records")
    assert (row["step_a"], row["step_b"], row["ratio"]) == ("x1", "x2", 1.0)
    assert compare(a, b, 0.1)["ratio"].tolist() == pytest.approx([2.0, 0.5])


def test_bad_ways():
    with pytest.raises(InputError, match="did you mean series"):
        compare(example(), example(), by="serie")


# -- the verb --------------------------------------------------------------------------------


def test_the_verb(folders):
    a, b = folders
    said = cli("compare", a, b)
    assert said.code == 0
    tidy(said.out)
    assert "They differ in problem.clients 4 → 6" in said.out
    want = compare(a, b, by="series")
    assert want["pairs"].max() == 1
    raw = pd.read_csv(io.StringIO(cli("compare", a, b, "--format", "csv").out))
    np.testing.assert_allclose(raw["ratio"], want["ratio"])
    own = cli("compare", a, a, "--by", "step")
    assert own.out.count("identical") == len(compare(a, a)) + 1
    assert "\\toprule" in cli("compare", a, b, "--format", "latex").out


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--by", "serie"], "did you mean series"),
        (["--target", "nan"], "a number > 0"),
        (["--format", "latx"], "did you mean latex"),
    ],
)
def test_bad_questions(folders, asked, said):
    wrong = cli("compare", *folders, *asked)
    assert (wrong.code, wrong.complaints, wrong.out) == (2, 1, "")
    assert said in wrong.err


def test_a_folder_that_is_not_there(folders, tmp_path):
    wrong = cli("compare", folders[0], tmp_path / "none")
    assert (wrong.code, wrong.complaints) == (2, 1)


def test_groups_that_the_differing_key_alone_tells_apart_are_never_pooled(tmp_path):
    """A folder with two splits against one with a third: each row is that of one split."""
    text = """
name: splits
problem: {name: logistic, dataset: breast_cancer, scale: columns, clients: 5, lambda: 0.1, split: SPLIT}
algorithm: {name: ef21, compressor: {name: top_k, k: 3}, step_size: {theory: [1, 4]}}
seed: 0..2
x0: {normal: 1.0}
rounds: 40
"""
    for name, split in (("two", "[contiguous, sorted_by_label]"), ("third", "shuffled")):
        (tmp_path / f"{name}.yaml").write_text(text.replace("SPLIT", split))
        out = tmp_path / name
        assert cli("sweep", tmp_path / f"{name}.yaml", "--out", out, "--inline").code == 0
    two, third = frames(tmp_path / "two"), frames(tmp_path / "third")
    own = to_target(two, 0.1, by=("facet", "step"))
    costs = own.set_index(["facet", "step"])["bits_up"].to_dict()
    for by in ("series", "method", "step"):
        there, back = compare(two, third, 0.1, by=by), compare(third, two, 0.1, by=by)
        assert (there[["cells_a", "cells_b", "pairs"]] == 3).all(axis=None)
        for row in there.to_dict("records"):
            split = row["facet"].removeprefix("split=")
            assert row["apart"] == f"{split} → shuffled"
            assert row["cost_a"] == costs[row["facet"], row["step_a"]]
        assert len(back) == len(there) == (4 if by == "step" else 2)
        for row in back.to_dict("records"):
            split = row["apart"].removeprefix("shuffled → ")
            assert row["cost_b"] == costs[f"split={split}", row["step_b"]]
        alone = compare(two, two, 0.1, by=by)
        assert (alone["verdict"] == "same").all()
        assert (alone["apart"] == "").all()
    assert " A → B " in cli("compare", tmp_path / "two", tmp_path / "third").out
    assert " A → B " not in cli("compare", tmp_path / "two", tmp_path / "two").out
