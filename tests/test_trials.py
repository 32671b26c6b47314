"""Costs after a few random trials of a grid: against every subset there is, and as the command line shows them."""

import io
import itertools
import math

import numpy as np
import pandas as pd
import pytest
from cli_kit import SWEEP, cli, tidy
from fake_runs import make
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import raybench
from raybench.analysis import frames, opened, trials
from raybench.analysis.examples import example
from raybench.analysis.trials import DRAWS, after, chosen
from raybench.core.errors import InputError
from raybench.report.own import figure

COSTS = st.sampled_from([1.0, 2.0, 3.0, 5.0, 8.0, math.inf])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("swept") / "results"
    raybench.sweep(SWEEP, out, inline=True)
    return out


def drawn(costs, m):
    """Return the costs of the seeds (draws, seeds) of the first candidate of each set of m."""
    return np.array([costs[min(subset)] for subset in itertools.combinations(range(len(costs)), m)])


@settings(deadline=None, max_examples=80)
@given(arrays(float, st.tuples(st.integers(1, 7), st.integers(1, 4)), elements=COSTS))
def test_means_medians_and_shares_are_those_of_all_subsets(costs):
    found = after(costs)
    for m in range(1, len(costs) + 1):
        every = drawn(costs, m)
        at = {name: values[m - 1] for name, values in found.items()}
        assert at["reach"] == pytest.approx(np.isfinite(every).mean())
        assert at["expected"] == pytest.approx(np.median(every.mean(axis=0)))
        middle = np.median(every, axis=0)
        assert at["cost"] == np.median(middle)
        if costs.shape[1] > 1:  # up to five seeds the interval is their range
            assert (at["cost_low"], at["cost_high"]) == (middle.min(), middle.max())
        both = np.sort(every.ravel())
        for name, share in (("draws_low", (1 - DRAWS) / 2), ("draws_high", (1 + DRAWS) / 2)):
            assert at[name] == both[math.ceil(share * len(both) - 1e-9) - 1]


@pytest.mark.parametrize("count", [1, 2, 9, 40, 300])
def test_the_first_of_those_drawn_has_the_law_of_an_order_statistic(count):
    weights = chosen(count)
    for m in {1, min(2, count), count // 2 or 1, count}:
        ways = [math.comb(count - j, m - 1) for j in range(1, count + 1)]
        want = [way / math.comb(count, m) for way in ways]
        np.testing.assert_allclose(weights[m - 1], want, rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-12)


def test_the_expected_minimum_never_rises():
    """One seed, candidates by cost: the first drawn is the cheapest drawn."""
    costs = np.sort(np.random.default_rng(0).lognormal(size=30))[:, None]
    found = after(costs)
    for name in ("expected", "cost", "draws_low", "draws_high"):
        assert (np.diff(found[name]) <= 1e-12).all(), name
    assert found["expected"][0] == pytest.approx(costs.mean())
    assert found["expected"][-1] == costs.min()


def grid(algorithm, *rounds, seeds=1, **more):
    """Return runs, a step for each number of rounds that 0.1 takes it; of None it is never reached."""
    more = {"algorithm": algorithm, **more}
    for j, count in enumerate(rounds):
        g = [1.0] * 40 if count is None else [1.0] * count + [0.01] * (40 - count)
        for seed in range(seeds):
            yield {"g": g, "multiple": 2.0**j, "seed": seed, **more}


def test_a_narrow_range_of_good_steps_does_not_win_by_a_larger_grid():
    narrow = grid(
        "ef21", *[None] * 7, 5, *[None] * 4
    )  # one step of twelve, and the cheapest of all
    wide = grid("diana", 10, 11, 12)  # every step of three
    found = trials(make([*narrow, *wide]), 0.1).set_index(["method", "trials"])
    assert found.loc[("EF21 Top-K", 12), "cost"] == 50 < found.loc[("DIANA Top-K", 3), "cost"]
    for m in (1, 2, 3):
        assert found.loc[("EF21 Top-K", m), "cost"] == math.inf
        assert found.loc[("EF21 Top-K", m), "reach"] == pytest.approx(m / 12)
        assert found.loc[("DIANA Top-K", m), "reach"] == 1.0
    assert [found.loc[("DIANA Top-K", m), "expected"] for m in (1, 2, 3)] == pytest.approx(
        [110.0, (100 * 2 + 110) / 3, 100.0]
    )


def test_more_cells_of_the_same_kind_change_nothing():
    """Of each step twice as many: after one trial a method is where it was."""
    once = trials(make(list(grid("ef21", 5, 10, 20, None))), 0.1)
    twice = [*grid("ef21", 5, 10, 20, None), *grid("ef21", 5, 10, 20, None, k=2)]
    found = trials(make(twice), 0.1)
    assert found["reach"].iloc[0] == once["reach"].iloc[0] == 0.75
    assert found["cost"].iloc[0] == once["cost"].iloc[0] == 150.0


def test_a_step_that_diverges_or_fails_is_a_trial_that_costs_infinitely_much():
    runs = [
        *grid("ef21", 5, 10, seeds=2),
        *grid("ef21", 1, seeds=2, k=2, status="diverged"),
        *grid("ef21", 1, k=3, status="failed"),
        *grid("ef21", 1, k=4, status="skipped"),  # was never one
    ]
    found = trials(make(runs), 0.1)
    assert found["grid"].tolist() == [4] * 4
    assert found["reach"].tolist() == pytest.approx([2 / 4, 1 - 1 / 6, 1.0, 1.0])
    assert found["expected"].tolist() == [math.inf, math.inf, 62.5, 50.0]


def test_a_step_that_diverges_for_one_seed_is_chosen_for_none():
    half = [
        *grid("ef21", 1, k=2),
        *({**run, "seed": 1} for run in grid("ef21", 1, k=2, status="diverged")),
    ]
    found = trials(make([*grid("ef21", 5, 10, seeds=2), *half]), 0.1)
    assert found["reach"].tolist() == pytest.approx([2 / 3, 1.0, 1.0])
    assert found["draws_low"].tolist() == [50.0] * 3


def test_after_the_whole_grid_it_is_what_the_table_says():
    source = opened(example(("a", "b"), seeds=4))
    best = source.tuned("method", 1e-3).set_index(["facet", "method"])
    found = trials(source, 1e-3)
    last = found[found["trials"] == found["grid"]].set_index(["facet", "method"])
    for name in ("cost", "cost_low", "cost_high", "coverage"):
        assert last[name].to_dict() == best[name].to_dict()


def test_trials_are_chosen_on_tuning_seeds_and_cost_what_others_pay():
    def run(multiple, *rounds):
        return [
            {"g": [1.0] * n + [0.01] * (40 - n), "multiple": multiple, "seed": s}
            for s, n in enumerate(rounds)
        ]

    made = make([*run(1.0, 5, 20), *run(2.0, 10, 3)])
    found = trials(made, 0.1, tuning_seeds=[0])
    assert found["expected"].tolist() == [(200 + 30) / 2, 200.0]
    assert found["seeds"].tolist() == [1, 1]
    assert trials(made, 0.1, tuning_seeds=[1])["expected"].tolist() == [75.0, 100.0]


def test_rounds_series_and_algorithms():
    made = make([*grid("ef21", 5, 10), *grid("ef21", 7, k=2)])
    assert trials(made, 0.1, x="round")["cost"].tolist() == [7.0, 5.0, 5.0]
    assert trials(made, 0.1, by="series")["grid"].tolist() == [2, 2, 1]
    assert trials(made, 0.1, by="algorithm")["grid"].tolist() == [3, 3, 3]
    assert trials(made, where={"algorithm": "none of them"}).empty
    with pytest.raises(InputError, match="bits_up"):
        trials(made, x="bits_upp")


def test_the_verb(folder):
    said = cli("rank", folder, "--trials", 2)
    assert said.code == 0
    tidy(said.out)
    raw = pd.read_csv(io.StringIO(cli("rank", folder, "--trials", 2, "--format", "csv").out))
    want = trials(folder)
    want = want[want["trials"] == np.minimum(2, want["grid"])].set_index("method")
    assert set(raw["method"]) == set(want.index)
    np.testing.assert_allclose(raw["cost"], want.loc[raw["method"], "cost"])
    assert raw["cost"].is_monotonic_increasing
    best = frames(folder).tuned("method").set_index("method")
    np.testing.assert_allclose(raw["whole_grid"], best.loc[raw["method"], "cost"])
    assert "marina" in cli("rank", folder, "--trials", 2, "--by", "algorithm").out
    assert "Round after 3 trials" in cli("rank", folder, "--trials", 3, "--x", "round").out
    assert "imulated" in cli("rank", folder, "--trials", 3, "--link", "1Gbit,ring").out
    assert "which is smaller" in cli("rank", folder, "--trials", 99).out


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--trials", "0"], "a whole number from 1"),
        (["--trials", "2", "--by", "algoritm"], "did you mean algorithm"),
        (["--by", "algorithm"], "allowed: method, series"),
        (["--trials", "2", "--x", "rond"], "did you mean round"),
        (["--x", "rond"], "did you mean round"),
    ],
)
def test_bad_questions(folder, asked, said):
    wrong = cli("rank", folder, *asked)
    assert (wrong.code, wrong.complaints, wrong.out) == (2, 1, "")
    assert said in wrong.err


def test_the_figure_is_that_table(folder, tmp_path):
    made = figure(folder, kind="trials")
    want = trials(folder).set_index(["method", "trials"])
    assert len(made.data) == len(want)
    for row in made.data.itertuples():
        own = want.loc[(row.series, row.x)]
        assert (row.y, row.low, row.high) == (own["cost"], own["draws_low"], own["draws_high"])
    assert (
        cli("plot", folder, "--kind", "trials", "--format", "csv,png", "--out", tmp_path).code == 0
    )
    written = pd.read_csv(tmp_path / "trials.csv")
    np.testing.assert_allclose(written["bits_up"], made.data["y"])
    one = figure(folder, kind="trials", methods=["EF21 Top-K"], x="round", labels={"ef21": "ours"})
    assert {look.label for look in one.looks.values()} == {"ours, 6 cells"}
    assert one.y == "round"


def test_a_band_that_misses_the_target_is_open_above():
    runs = [*grid("ef21", 5, 10, 20, 30, None), *grid("diana", None, None)]
    made = figure(make(runs), kind="trials", target=0.1)
    assert made.data["high"].tolist() == [math.inf, 200.0, 100.0, 100.0, 50.0]
    assert "DIANA Top-K" in made.band
    assert set(made.data["series"]) == {"EF21 Top-K"}
    canvas = raybench.plot(make(runs), kind="trials", target=0.1)
    (axis,) = canvas.axes
    (band,) = axis.collections
    top = axis.get_ylim()[1]
    assert band.get_paths()[0].vertices[:, 1].max() == pytest.approx(top)
    with pytest.raises(InputError, match="no method reaches the target"):
        figure(make(list(grid("diana", None, None))), kind="trials", target=0.1)
