"""Rankings against loops over cells and against every subset there is, matching by what was asked for, and the verbs."""

import io
import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from cli_kit import SWEEP, cli, ran, tidy
from fake_runs import make, reaching
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

import raybench
from raybench.analysis import (
    closing_table,
    compare,
    default_target,
    differences,
    first_crossing,
    frames,
    frames_of,
    instances,
    profile,
    rank,
    scaling,
    to_target,
    trials,
    tuned,
)
from raybench.analysis.examples import example
from raybench.analysis.frames import choosing_on
from raybench.analysis.rankings import DRAWS, after
from raybench.analysis.readings import FACTORS, audit, explained
from raybench.core.errors import InputError
from raybench.report.charts import shares
from raybench.report.custom import figure
from raybench.report.rankings import after_trials, comparison
from raybench.report.rankings import audit_lines as told

COSTS = st.sampled_from([1.0, 2.0, 3.0, 5.0, 8.0, math.inf])


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Return the results of the same sweep with more clients and seeds of which one is the same."""
    out = tmp_path_factory.mktemp("swept") / "results"
    raybench.sweep(SWEEP, out, inline=True, sets=["problem.clients=6", "seed=1..2", "rounds=12"])
    return out


BAD = {
    "rank A --by methd": "did you mean method",
    "rank A --target -1": "a number > 0",
    "rank A --accounting paper:ef12": "did you mean",
    "rank A --trials 0": "a whole number from 1",
    "rank A --trials 2 --by algoritm": "did you mean algorithm",
    "compare A none": "none",
    **{f"table A --tuning-seeds {seeds}": "seeds" for seeds in ("0,1", "7", "x", "", "0.5")},
    **{
        f"{verb} --tuning-seeds 0,1": "all of the seeds"
        for verb in ("rank A", "rank A --trials 2", "compare A A", "plot A", "report A")
    },
    **{
        f"plot A {asked} --tuning-seeds 0": "none is chosen"
        for asked in ("--kind steps", "--kind heatmap", "--by step")
    },
}


def test_bad_questions(swept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for asked, says in BAD.items():
        wrong = cli(*(swept if part == "A" else part for part in asked.split(" ")))
        assert (wrong.code, wrong.complaints, wrong.out) == (2, 1, ""), asked
        assert says in wrong.err, asked
    assert not (swept / "figures").exists()


def test_instances_and_ranks_by_loops():
    curves, cells = example(("a", "b", "c"), seeds=4)
    result = frames_of((curves, cells))
    best = result.tuned("method", 1e-3)
    table = instances(result, 1e-3)
    cost = first_crossing(curves, 1e-3, settled=True)
    for row in best.to_dict("records"):
        keys = ["facet", "series", "step"]
        own = result.cells[(result.cells[keys] == [row[key] for key in keys]).all(axis=1)]
        for cell in own.to_dict("records"):
            assert table.loc[(row["facet"], cell["seed"]), row["method"]] == cost[cell["cell"]]
    said = rank((curves, cells), 1e-3).set_index("method")
    ranks = np.array([stats.rankdata(row) for row in table.to_numpy()])
    np.testing.assert_allclose(said["rank"][table.columns], ranks.mean(axis=0))
    ratios = table.div(table.min(axis=1), axis=0)
    want = {name: stats.gmean(column) for name, column in ratios.items()}
    assert said["ratio"].to_dict() == pytest.approx(want)
    assert said["wins"].sum() == len(table)
    assert (said["instances"] == 12).all()


def test_methods_that_miss_the_target_share_the_last_rank():
    runs = [
        *({"g": [1, 0.01], "seed": s} for s in range(3)),
        *({"g": [1, 1], "seed": s, "algorithm": "diana"} for s in range(3)),
        *({"g": [1, 1], "seed": s, "algorithm": "marina", "status": "diverged"} for s in range(3)),
        *({"g": [1, 0.5, 0.01], "algorithm": "gd", "k": None, "compressor": None} for _ in "1"),
    ]
    result = rank(make(runs), 0.1).set_index("method")
    assert result["rank"].to_dict() == {
        "EF21 Top-K": 1.0,
        "GD": 2.0,  # its one seed counts on each instance
        "DIANA Top-K": 3.5,
        "MARINA Top-K": 3.5,
    }
    assert result["reached"][["EF21 Top-K", "GD", "DIANA Top-K"]].tolist() == [3, 3, 0]
    assert result.loc["GD", "ratio"] == 2.0
    assert result.loc["DIANA Top-K", "ratio"] == math.inf
    # an instance that none solves decides nothing
    result = rank(make([{"g": [1, 1], "seed": 0}, {"g": [1, 1], "algorithm": "diana"}]), 0.1)
    assert (result["rank"].tolist(), result["wins"].tolist()) == ([1.5, 1.5], [0, 0])
    assert result["ratio"].isna().all()


def test_a_method_with_fewer_seeds_has_its_median_on_the_others():
    runs = [*reaching(1.0, 7, 8, 9, 10), *reaching(1.0, 2, 6, 40, algorithm="diana")]
    table = instances(frames_of(make(runs)), 0.1)
    assert table["DIANA Top-K"].tolist() == [20.0, 60.0, 400.0, 60.0]
    assert table["EF21 Top-K"].tolist() == [70.0, 80.0, 90.0, 100.0]


def test_rank_the_verb(swept):
    said = ran("rank", swept)
    tidy(said.out)
    want = rank(swept)
    lines = said.out.splitlines()
    heads = [f" {method} " for method in want["method"]]
    places = [next(i for i, line in enumerate(lines) if line.startswith(head)) for head in heads]
    assert places == sorted(places)
    asked = ("--by", "series", "--format", "csv", "--target", 1e300)
    raw = pd.read_csv(io.StringIO(cli("rank", swept, *asked).out))
    pd.testing.assert_frame_equal(raw, rank(swept, 1e300, by="series"), check_dtype=False)
    assert (raw["reached"] == raw["instances"]).all()
    assert "EF21 Rand-3" in set(raw["series"])


def test_a_profile_by_its_definition():
    source = example(("a", "b", "c"), seeds=4)
    costs = instances(frames_of(source), 1e-4)
    assert np.isinf(costs.to_numpy()).any()
    result = profile(source, 1e-4)
    for row in result.to_dict("records"):
        hits = 0
        for _, one in costs.iterrows():
            best = min(one)
            hits += math.isfinite(one[row["method"]]) and one[row["method"]] / best <= row["tau"]
        assert row["share"] == pytest.approx(hits / len(costs))
        ends = stats.binomtest(hits, len(costs)).proportion_ci(0.95, method="exact")
        assert (row["low"], row["high"]) == pytest.approx((ends.low, ends.high))
    assert set(result["instances"]) == {12}
    assert result.groupby("method")["share"].apply(lambda s: s.is_monotonic_increasing).all()
    assert result[result["tau"] == 1]["share"].sum() >= 1


def test_a_power_is_found():
    """A target costs n^1.5 rounds here."""
    runs, counts = [], (4, 16, 64)
    for n in counts:
        length = round(n**1.5)
        runs += [{"g": [1.0] * length + [0.01], "seed": s} for s in (0, 1)]
    made, cells = make(runs)
    for i, cell in enumerate(cells["cell"]):
        n = counts[i // 2]
        made.loc[made["cell"] == cell, "clients"] = n
        cells.loc[i, "clients"] = n
        cells.loc[i, "config"] = cells.loc[i, "config"].replace('"a"', f'"a", "clients": {n}')
    result = scaling((made, cells), "n", 0.1)
    assert result["clients"].tolist() == [4, 16, 64]
    assert result["cost"].tolist() == [80.0, 640.0, 5120.0]
    np.testing.assert_allclose(result["exponent"], 1.5)
    assert result["problem"].tolist() == [""] * 3
    np.testing.assert_allclose([result["exponent_low"], result["exponent_high"]], 1.5)


def test_points_of_a_line_have_one_target():
    runs = example(("a", "b", "c"))
    for table in runs:
        table["clients"] = 10
    runs[1]["d"] = runs[1]["dataset"].map({"a": 10, "b": 20, "c": 40})
    curves, cells = runs
    ends = {"a": 1.0, "b": 1e2, "c": 1e4}  # how far each comes: targets of their own are apart
    curves["grad_norm_sq"] *= np.where(curves["round"] > 0, curves["dataset"].map(ends), 1.0)
    cells["grad_norm_sq"] *= cells["dataset"].map(ends)
    own = {name: default_target(curves, part) for name, part in cells.groupby("dataset")}
    assert len({*own.values()}) == 3
    result = scaling(runs, "d")
    assert set(result["target"]) == {max(own.values())}
    assert result["d"].tolist() == [10, 20, 40] * 3
    assert result.groupby("problem")["target"].nunique().tolist() == [1]
    by_k = scaling(example(("a", "b")), "k")
    assert set(by_k["method"]) == {"EF21 Top-K", "MARINA Rand-K"}
    assert by_k["problem"].nunique() == 2


# -- after some trials ------------------------------------------------------------------------------


def drawn(costs, m):
    """Return the costs of the seeds (draws, seeds) of the first candidate of each set of m."""
    return np.array([costs[min(subset)] for subset in itertools.combinations(range(len(costs)), m)])


@settings(max_examples=40)
@given(arrays(float, st.tuples(st.integers(1, 7), st.integers(1, 4)), elements=COSTS))
def test_means_medians_and_shares_are_those_of_all_subsets(costs):
    result = after(costs)
    for m in range(1, len(costs) + 1):
        every = drawn(costs, m)
        at = {name: values[m - 1] for name, values in result.items()}
        assert at["reach"] == pytest.approx(np.isfinite(every).mean())
        assert at["expected"] == pytest.approx(np.median(every.mean(axis=0)))
        middle = np.median(every, axis=0)
        assert at["cost"] == np.median(middle)
        if costs.shape[1] > 1:  # up to five seeds the interval is their range
            assert (at["cost_low"], at["cost_high"]) == (middle.min(), middle.max())
        both = np.sort(every.ravel())
        for name, share in (("draws_low", (1 - DRAWS) / 2), ("draws_high", (1 + DRAWS) / 2)):
            assert at[name] == both[math.ceil(share * len(both) - 1e-9) - 1]


def grid(algorithm, *rounds, seeds=1, **more):
    """Return runs, a step for each number of rounds that 0.1 takes it; of None it is never reached."""
    more = {"algorithm": algorithm, **more}
    for j, count in enumerate(rounds):
        g = [1.0] * 40 if count is None else [1.0] * count + [0.01] * (40 - count)
        for seed in range(seeds):
            yield {"g": g, "multiple": 2.0**j, "seed": seed, **more}


def test_a_step_that_diverges_or_fails_is_a_trial_that_costs_infinitely_much():
    runs = [
        *grid("ef21", 5, 10, seeds=2),
        *grid("ef21", 1, seeds=2, k=2, status="diverged"),
        *grid("ef21", 1, k=3, status="failed"),
        *grid("ef21", 1, k=4, status="skipped"),  # was never one
    ]
    result = trials(make(runs), 0.1)
    assert result["grid"].tolist() == [4] * 4
    assert result["reach"].tolist() == pytest.approx([2 / 4, 1 - 1 / 6, 1.0, 1.0])
    assert result["expected"].tolist() == [math.inf, math.inf, 62.5, 50.0]


def test_a_step_that_diverges_for_one_seed_is_chosen_for_none():
    spoiled = grid("ef21", 1, k=2, status="diverged")
    half = [*grid("ef21", 1, k=2), *({**run, "seed": 1} for run in spoiled)]
    drawn_trials = trials(make([*grid("ef21", 5, 10, seeds=2), *half]), 0.1)
    assert drawn_trials["reach"].tolist() == pytest.approx([2 / 3, 1.0, 1.0])
    assert drawn_trials["draws_low"].tolist() == [50.0] * 3


def test_rounds_series_and_algorithms():
    made = make([*grid("ef21", 5, 10), *grid("ef21", 7, k=2)])
    assert trials(made, 0.1, x="round")["cost"].tolist() == [7.0, 5.0, 5.0]
    assert trials(made, 0.1, by="series")["grid"].tolist() == [2, 2, 1]
    assert trials(made, 0.1, by="algorithm")["grid"].tolist() == [3, 3, 3]
    with pytest.raises(InputError, match="bits_up"):
        trials(made, x="bits_upp")


@pytest.mark.thorough
def test_trials_the_verb(swept):
    raw = pd.read_csv(io.StringIO(cli("rank", swept, "--trials", 2, "--format", "csv").out))
    want = trials(swept)
    want = want[want["trials"] == np.minimum(2, want["grid"])].set_index("method")
    assert set(raw["method"]) == set(want.index)
    np.testing.assert_allclose(raw["cost"], want.loc[raw["method"], "cost"])
    assert raw["cost"].is_monotonic_increasing
    results = frames(swept)
    best = results.tuned("method").set_index("method")
    np.testing.assert_allclose(raw["whole_grid"], best.loc[raw["method"], "cost"])
    said = cli("rank", swept, "--trials", 99, "--by", "algorithm", "--link", "1Gbit,ring").out
    tidy(said)
    assert all(words in said for words in ("marina", "imulated", "which is smaller"))
    assert "Round after 3 trials" in after_trials(replace(results, cost_column="round"), 3).head


# -- two sources ------------------------------------------------------------------------------------


def test_costs_and_pairs_by_hand():
    one, two = make(reaching(1.0, 4, 5, 6)), make(reaching(1.0, 2, 2, 3, 9))
    (row,) = compare(one, two, 0.1).to_dict("records")
    assert (row["cells_a"], row["cells_b"], row["pairs"]) == (3, 4, 3)
    assert (row["cost_a"], row["cost_b"]) == (50.0, 25.0)
    assert row["ratio"] == pytest.approx(0.5)
    assert (row["effect"], row["p_value"], row["verdict"]) == (-1.0, 0.25, "not shown")
    fast, slow = make(reaching(1.0, *[2] * 8)), reaching(1.0, *[3] * 8)
    slower = compare(fast, make(slow), 0.1).iloc[0]
    assert (slower["verdict"], slower["p_value"]) == ("dearer", 2 / 256)
    every = (
        [*runs, *({**run, "k": 2} for run in runs)] for runs in (reaching(1.0, *[2] * 8), slow)
    )
    two = compare(*map(make, every), 0.1)
    assert two["p_value"].tolist() == [2 / 256] * 2
    assert two["p_adjusted"].tolist() == [4 / 256] * 2, "Holm: there are two rows"
    lost = compare(fast, make([{**run, "status": "diverged"} for run in slow]), 0.1).iloc[0]
    assert (lost["reached_b"], lost["ratio"], lost["verdict"]) == (0, math.inf, "dearer")


def test_one_side_alone_arrives_where_the_costs_beside_it_say_so():
    """Of two pairs one has a seed of A that misses the target, and A's median seed reaches it."""
    late, early = reaching(1.0, 4, 4, 4), reaching(1.0, 3, 3)
    late[0]["g"] = [1.0] * 60
    for first, second, said in ((late, early, "0.375×"), (late[:1], early[:1], "B alone")):
        sheet = comparison(*(replace(frames_of(make(runs)), asked=0.1) for runs in (first, second)))
        assert sheet.fields[sheet.head.index("B ÷ A")].texts == [said]


def test_what_all_cells_differ_in_does_not_keep_them_apart():
    a, b = (
        make([{"g": [1, 0.01], **own}, {"g": [1, 0.1], "k": k, **own}])
        for k, own in ((2, {"params": {"p": 0.1}}), (3, {"params": {"p": 0.5}}))
    )
    assert differences(a, b) == {"algorithm.p": ("0.1", "0.5")}
    result = compare(a, b, 0.5)
    verdicts = dict(zip(result["k"], result["verdict"], strict=True))
    assert verdicts == {1: "same", 2: "only a", 3: "only b"}
    with pytest.raises(InputError, match="in common"):
        compare(a, make([{"g": [1], "algorithm": "gd"}, {"g": [1], "algorithm": "sgd"}]))


def test_compare_the_verb(swept, other):
    table = ran("compare", swept, other)
    tidy(table.out)
    assert "They differ in problem.clients 4 → 6; rounds 20 → 12" in table.out
    want = compare(swept, other, by="series")
    assert want["pairs"].max() == 1
    raw = pd.read_csv(io.StringIO(cli("compare", swept, other, "--format", "csv").out))
    np.testing.assert_allclose(raw["ratio"], want["ratio"])
    same = cli("compare", swept, swept, "--by", "step", "--format", "markdown")
    rows = [line for line in same.out.splitlines() if line.startswith("|")][2:]
    assert len(rows) == len(compare(swept, swept))
    assert all("identical" in row for row in rows)


def test_groups_that_the_differing_key_alone_tells_apart_are_never_pooled():
    """Runs with two splits against some with a third: each row is that of one split."""

    def runs_of(splits):
        runs = []
        for j, split in enumerate(splits):
            for multiple in (1.0, 4.0):
                costs = [round((start + 4 * j) / multiple) for start in (12, 20, 40)]
                runs += reaching(multiple, *costs, params={"split": split})
        curves, cells = make(runs)
        for row, text in cells["config"].items():
            config = json.loads(text)
            config["problem"]["params"] |= config["algorithm"].pop("params")
            cells.loc[row, "config"] = json.dumps(config)
        return frames_of((curves, cells))

    two, third = runs_of(["contiguous", "sorted_by_label"]), runs_of(["shuffled"])
    own = to_target(two, 0.1, by=("facet", "step"))
    costs = own.set_index(["facet", "step"])["bits_up"].to_dict()
    assert len(set(costs.values())) == 4
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
    assert "A → B" in comparison(two, third).head
    assert "A → B" not in comparison(two, two).head


# -- steps that are chosen on some seeds and reported on the others ------------------------------------


@settings(max_examples=5)
@given(
    st.lists(st.lists(st.integers(1, 50), min_size=4, max_size=4), min_size=2, max_size=4),
    st.sets(st.integers(0, 3), min_size=1, max_size=3),
)
def test_a_step_chosen_on_some_seeds_is_what_loops_find(costs, seeds):
    made = make([run for j, own in enumerate(costs) for run in reaching(2.0**j, *own)])
    (row,) = tuned(*made, target=0.1, tuning_seeds=seeds).to_dict("records")
    chooses = [np.median([own[s] for s in seeds]) for own in costs]
    j = int(np.log2(row["step_multiple"]))
    assert chooses[j] == min(chooses)
    others = [costs[j][s] for s in range(4) if s not in seeds]
    want = (10 * np.median(others), len(others), True)
    assert (row["cost"], row["seeds"], row["held_out"]) == want
    assert "held_out" not in tuned(*made, target=0.1)
    # so with trials: after the whole grid the step is the chosen one, paid by the other seeds
    table = trials(made, 0.1, tuning_seeds=seeds)
    assert table["seeds"].tolist() == [len(others)] * len(costs)
    first = min(range(len(costs)), key=lambda j: (chooses[j], j))
    assert chooses.count(chooses[first]) > 1 or table["expected"].iloc[-1] == row["cost"]


def test_a_step_that_fails_on_other_seeds_is_shown_with_its_failure():
    fast = reaching(2.0, 5, 5, 5)
    fast[2]["status"] = "diverged"
    made = make([*reaching(1.0, 10, 10, 10), *fast])
    (row,) = tuned(*made, target=0.1, tuning_seeds=[0, 1]).to_dict("records")
    assert (row["step_multiple"], row["diverged"], row["eligible"]) == (2.0, 1, False)
    assert np.isnan(row["cost"])
    table = closing_table(choosing_on(frames_of(made), [0, 1]), target=0.1).iloc[0]
    assert (table["step_multiple"], table["diverged"]) == (2.0, 1)


def test_a_method_that_ran_once_is_reported_on_its_only_seed():
    once = {"algorithm": "gd", "compressor": None, "k": None}
    made = make([*reaching(1.0, 10, 20, 30), *reaching(1.0, 40, **once)])
    for seeds in ([0], [1, 2]):
        result = tuned(*made, target=0.1, tuning_seeds=seeds).set_index("algorithm")
        assert result["held_out"].to_dict() == {"ef21": True, "gd": False}
        assert result.loc["gd", "cost"] == 400.0
        assert result.loc["ef21", "cost"] == (250.0 if seeds == [0] else 100.0)


def test_frames_choose_for_all_that_is_made_of_them():
    """Seed 0 prefers the second step, seeds 1 and 2 the first: all is reported of the second, on seeds 1 and 2."""
    other = {"algorithm": "diana"}
    runs = [*reaching(1.0, 30, 10, 10), *reaching(2.0, 20, 40, 44)]
    made = make([*runs, *reaching(1.0, 25, 25, 25, **other)])
    result = replace(frames_of(made), asked=0.1)
    assert instances(result)["EF21 Top-K"].tolist() == [300.0, 100.0, 100.0]
    held = choosing_on(result, [0])
    table = instances(held)
    assert table.index.tolist() == [("", 1), ("", 2)]
    assert table["EF21 Top-K"].tolist() == [400.0, 440.0]
    assert rank(result)["method"].iloc[0] == "EF21 Top-K"
    assert rank(held)["method"].iloc[0] == "DIANA Top-K"
    assert (rank(held)["instances"] == 2).all()
    own = trials(held)
    assert own.loc[own["method"] == "EF21 Top-K", "expected"].tolist()[-1] == 420.0
    drawn = figure(held, x="round", methods=["ef21"])
    assert set(drawn.data["step"]) == {"x2"}
    assert drawn.data["cells"].max() == 2
    assert "chosen on seeds 0" in drawn.band


# -- an audit: every reading is what the table says under it ---------------------------------------


@pytest.fixture(scope="module")
def audited(swept):
    """Return an audit, which takes long."""
    return audit(swept)


def test_readings_are_those_of_the_table(swept, audited):
    result = audited
    own = result.readings[result.readings["own"]].set_index("method")["cost"]
    want = closing_table(swept).set_index("method")["bits_to_target"].dropna()
    assert own.to_dict() == want.to_dict()
    some = [("32", "none", "free"), ("dtype", "explicit", "counted"), ("32", "bitmask", "counted")]
    for values, indices, first in some:
        how = {"value_bits": 32 if values == "32" else "dtype", "index_bits": indices}
        how["count_init"] = first == "counted"
        want = closing_table(swept, how).set_index("method")["bits_to_target"].dropna()
        part = result.readings.query("values == @values and indices == @indices")
        part = part.query("first == @first and side == 'up' and steps == 'tuned'").set_index(
            "method"
        )["cost"]
        assert part.to_dict() == want.to_dict()
    curves, cells = raybench.load(swept), raybench.store.cells(swept)
    both = curves.assign(bits_up=curves["bits_up"] + curves["bits_down"])
    target = closing_table(swept)["target"].iloc[0]
    want = closing_table((both, cells), target=target).set_index("method")["bits_to_target"]
    part = result.readings.query("values == 'dtype' and indices == 'auto' and first == 'counted'")
    part = part.query("side == 'up + down' and steps == 'tuned'").set_index("method")["cost"]
    assert part.to_dict() == want.dropna().to_dict()


@pytest.mark.parametrize("how", ["value_bits=7,index_bits=none", "paper:3pc"])
def test_costs_of_an_audit_are_those_of_the_table_under_the_same_accounting(
    swept, how, monkeypatch
):
    """A width that is neither 32 nor the cells' own is a reading; one that is theirs by another name is none besides."""
    monkeypatch.setattr("raybench.analysis.readings.INDEX_BITS", ("auto", "none"))
    results = frames_of(frames(swept, how), {"algorithm": ["gd", "ef21"], "k": [math.nan, 3]})
    said = audit(results)
    want = closing_table(results).set_index("method")["bits_to_target"]
    for row in said.pairs.itertuples():
        assert row.cost_better == want[row.better] < want[row.worse] == row.cost_worse
    assert len(said.pairs)
    widths = {"dtype", "32", "7"} if how[0] == "v" else {"dtype", "32"}
    assert set(said.readings["values"]) == widths
    assert said.readings.groupby("own")["values"].nunique()[True] == 1


def test_what_turns_an_order_round_is_found():
    table = pd.DataFrame(
        [(v, i, s) for v in ("dtype", "32") for i in ("auto", "explicit", "none") for s in ("up", "up + down")],
        columns=["values", "indices", "side"],
    )  # fmt: skip
    explicit, both = table["indices"] == "explicit", table["side"] == "up + down"
    wide = table["values"] == "dtype"
    said = {
        "indices = explicit": explicit,
        "indices = explicit or none": table["indices"] != "auto",
        "values = dtype and indices = explicit": wide & explicit,
        "indices = explicit, or values = dtype and side = up + down": explicit | (wide & both),
    }
    for text, hit in said.items():
        assert explained(table, hit.to_numpy()) == text
    assert explained(table, np.zeros(len(table), bool)) == ""
    odd = explained(table, (wide ^ both ^ explicit).to_numpy())
    assert odd.count(", or ") > 2, "no short rule says it"


@pytest.mark.thorough
def test_it_is_told_and_drawn(swept, tmp_path):
    said = ran("audit", swept, "--accounting", "paper:ef21", "--out", tmp_path / "figures")
    assert sorted(p.name for p in (tmp_path / "figures").iterdir()) == [
        "audit.csv", "audit.pdf", "audit.png", "audit_pairs.csv"
    ]  # fmt: skip
    result = audit(frames(swept, "paper:ef21"))
    assert set(told(result)[:-1]) <= set(said.out.splitlines())
    moved = result.pairs[result.pairs["flipped"] > 0]
    assert sum(" unless " in line for line in told(result)) == min(12, len(moved))
    count = len(result.readings.drop_duplicates([*FACTORS]))
    rest = result.pairs[["decided", "absent", "missed", "equal"]].sum(axis=1)
    assert (rest == count).all()
    np.testing.assert_allclose(shares(result.readings).sum(axis=1), 1.0)
