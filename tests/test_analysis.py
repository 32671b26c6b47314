"""Analysis: crossings, tuned steps, bands and the closing table, against hand computation."""

import doctest
import importlib
import json
import math

import fake_store
import numpy as np
import pytest
from fake_runs import make
from hypothesis import given
from hypothesis import strategies as st

from raybench import spec, store
from raybench.analysis import (
    bands,
    curves,
    describe,
    final_vs_step,
    first_crossing,
    frames,
    to_target,
    tuned,
)
from raybench.analysis.aligned import interpolated
from raybench.analysis.examples import example
from raybench.core.errors import InputError
from raybench.store import Store, log
from raybench.store.files import open_folder


def test_first_crossing_is_the_first_recorded_point_at_or_below():
    curves, _ = make([{"g": [1, 0.5, 0.1, 0.3, 0.05]}, {"g": [1, 0.9]}, {"g": [0.1, 2]}])
    result = first_crossing(curves, 0.1)
    assert result.to_dict() == {"cell0": 20.0, "cell1": math.inf, "cell2": 0.0}
    shuffled = curves.sample(frac=1, random_state=0)
    assert first_crossing(shuffled, 0.1).to_dict() == result.to_dict()
    assert first_crossing(curves, math.nan).tolist() == [math.inf] * 3


@given(
    st.lists(
        st.tuples(st.floats(1e-3, 1e6), st.floats(0, 1e3)),
        min_size=1,
        max_size=12,
        unique_by=lambda p: p[0],
    ),
    st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=8, unique=True),
)
def test_interpolation_by_loops(points, grid):
    points, grid = sorted(points), sorted(grid)
    xs, ys = (np.array(v) for v in zip(*points, strict=True))
    for at, result in zip(grid, interpolated(xs, ys, np.array(grid)), strict=True):
        if at < xs[0] or at > xs[-1]:
            assert math.isnan(result)
            continue
        j = max(i for i in range(len(xs)) if xs[i] <= at)
        if xs[j] == at:
            want = ys[j]
        else:
            share = (math.log(at) - math.log(xs[j])) / (math.log(xs[j + 1]) - math.log(xs[j]))
            a, b = ys[j], ys[j + 1]
            want = a ** (1 - share) * b**share if min(a, b) > 0 else a + share * (b - a)
        assert result == pytest.approx(want, rel=1e-6, abs=1e-300)


def test_a_round_in_which_nobody_sends():
    runs, cells = make([{"g": [1, 0.5, 0.25, 0.125]}])
    runs["bits_up"] = [0.0, 10.0, 10.0, 20.0]
    result = curves((runs, cells), at=[5, 10, 20])
    np.testing.assert_allclose(result["grad_norm_sq"], [math.nan, 0.25, 0.125])


@pytest.mark.parametrize("at", [[], [0, 1], [2, 1], [1, math.inf], [[1, 2]], [math.nan]])
def test_bad_grids(at):
    with pytest.raises(InputError, match="positive and increasing"):
        curves(example(), at=at)


def test_describe_names_what_differs():
    _, cells = make(
        [
            {"g": [1], "dataset": "mushrooms", "params": {"init": "full", "p": 0.1}},
            {"g": [1], "dataset": "a9a", "params": {"init": "full", "p": 0.1}},
            {"g": [1], "dataset": "a9a", "params": {"init": "zero", "p": 0.1}},
            {"g": [1], "dataset": "a9a", "k": 5, "params": {"init": "zero", "p": 0.5}},
            {"g": [1], "dataset": "a9a", "algorithm": "gd", "compressor": None, "k": None},
        ]
    )
    result = describe(cells)
    assert result["facet"].tolist() == ["mushrooms", "a9a", "a9a", "a9a", "a9a"]
    # p follows K: it does not tell methods apart
    assert result["method"].tolist()[1:3] == ["EF21 Top-K (init=full)", "EF21 Top-K (init=zero)"]
    assert result["series"].tolist()[3:] == ["EF21 Top-5 (init=zero)", "GD"]
    assert result["step"].tolist() == ["x1"] * 5


def test_bands_are_step_functions():
    curves, _ = make(
        [{"g": [8, 4, 2], "per_round": 10.0}, {"g": [6, 3, 1], "per_round": 20.0, "seed": 1}]
    )
    result = bands(curves)
    # medians of the rounds' bits, up to the median end: 0, 15, 30
    assert result["bits_up"].tolist() == [0.0, 15.0, 30.0]
    assert result["low"].tolist() == [6.0, 4.0, 2.0]
    assert result["high"].tolist() == [8.0, 6.0, 3.0]
    assert result["grad_norm_sq"].tolist() == [7.0, 5.0, 2.5]
    by_round = bands(curves, x="round")
    assert by_round["grad_norm_sq"].tolist() == [7.0, 3.5, 1.5]


def test_final_vs_step():
    _, cells = make(
        [
            {"g": [1, 0.1], "multiple": 1.0, "seed": 0},
            {"g": [1, 0.3], "multiple": 1.0, "seed": 1},
            {"g": [1, 1e9], "multiple": 2.0, "seed": 0, "status": "diverged"},
            {"g": [1, 0.01], "multiple": 2.0, "seed": 1},
            {"g": [1], "multiple": 4.0, "status": "failed"},
        ]
    )
    result = final_vs_step(cells)
    assert result["at"].tolist() == [1.0, 2.0]
    assert result["diverged"].tolist() == [0, 1]
    assert result["grad_norm_sq"].tolist() == pytest.approx([0.2, 0.01])
    assert result["grad_norm_sq_low"].tolist() == [0.1, 0.01]
    assert result["grad_norm_sq_high"].tolist() == [0.3, 0.01]
    assert result["coverage"].tolist() == [0.5, 0.0]  # of two values, and of one
    assert result["seeds"].tolist() == [2, 1]
    assert result["cells"].tolist() == [2, 2]
    assert set(result["axis"]) == {"step_multiple"}
    assert set(result["series"]) == {"EF21 Top-1"}
    cells["step_multiple"] = np.nan
    by_size = final_vs_step(cells)
    assert set(by_size["axis"]) == {"step_size"}
    assert by_size["at"].tolist() == pytest.approx([0.1, 0.2])


def test_steps_of_two_theories_are_two_candidates():
    """x1 of the paper's step and x1 of ours are different step sizes: never averaged."""
    runs = [{"g": [1.0, 0.5], "seed": s, "multiple": m} for m in (1.0, 2.0) for s in (0, 1)]
    runs += [{"g": [1.0, 0.1], "seed": s, "multiple": 1.0} for s in (0, 1)]
    curves, cells = make(runs)
    rules = ["nonconvex"] * 4 + ["paper"] * 2
    cells["config"] = [
        json.dumps({**json.loads(text), "step_size": {"kind": "theory", "rule": rule, "of": None}})
        for text, rule in zip(cells["config"], rules, strict=True)
    ]
    assert list(describe(cells)["step"]) == ["x1", "x1", "x2", "x2", "x1 paper", "x1 paper"]
    (best,) = tuned(curves, cells, target=0.2).itertuples()
    assert best.step == "x1 paper"
    assert best.seeds == 2
    result = final_vs_step(cells)
    assert list(result["at"]) == [1.0, 2.0]
    assert list(result["cells"]) == [2, 2]


def test_what_changes_a_round_makes_methods_of_their_own():
    """With the configurations that a sweep really stores; seeds of one method stay together."""
    rules = {"theory": 1, "schedule": ["constant", "sqrt"], "warmup": [0, 20]}
    parts = [{"outer": {"optimizer": ["momentum", "adam"]}}]
    parts += [{"local": {"steps": 4}, "delay": {"rounds": [1, 2]}}]
    dcgd = [{"name": "dcgd", "step_size": {"value": 0.1}, **part} for part in parts]
    asked = {"problem": {"name": "quadratic", "dim": 4, "clients": 2}, "rounds": 10, "seed": [0, 1]}
    asked |= {"algorithm": [{"name": "ef21", "step_size": rules}, *dcgd]}
    cells_of = spec.load({**asked, "compressor": {"name": "top_k", "k": 1}}).cells
    runs = [
        {"g": [1.0, 0.5 / (1 + j)], "seed": c.seed, "algorithm": c.algorithm.name}
        for j, c in enumerate(cells_of)
    ]
    curves, cells = make(runs)
    cells["config"] = [json.dumps(c.config()) for c in cells_of]
    cells["group"] = [c.group for c in cells_of]
    names = describe(cells)["method"].unique()
    assert (len(cells), len(names)) == (16, 8)
    told = [f"(schedule={name}, warmup={n})" for name in ("constant", "sqrt") for n in (0, 20)]
    told += [f"outer.optimizer={name}" for name in ("adam", "momentum")]
    told += [f"delay.rounds={n}" for n in (1, 2)]
    assert all(sum(words in name for name in names) == 1 for words in told), names
    assert tuned(curves, cells, target=0.9, by="method")["seeds"].tolist() == [2] * 8


def test_a_plug_ins_title_travels_with_its_results():
    """Whoever reads the folder does not have the file that registers the plug-in."""
    cells = make([{"g": [1], "algorithm": "mine"}])[1]
    config = json.loads(cells["config"][0])
    for title, method in (("MyMethod", "MyMethod Top-K"), (None, "MINE Top-K")):
        plugin = {"kind": "algorithm", "name": "mine", "version": "1", "source": "ab"}
        cells["config"] = json.dumps({**config, "plugins": [{**plugin, "title": title}]})
        (row,) = describe(cells).to_dict("records")
        assert (row["method"], row["title"]) == (method, method.removesuffix(" Top-K"))


@pytest.mark.parametrize("name", ["aligned", "frames", "rankings", "to_target", "tuned"])
def test_the_examples_in_docstrings_print_what_they_say(name):
    module = importlib.import_module(f"raybench.analysis.{name}")
    done = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert done.attempted
    assert not done.failed


# -- what a target costs: whatever the source, from no more of a folder than is asked for ----------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "results"
    fake_store.fill(Store(out), fake_store.METHODS[:3], rounds=60, multiples=(1.0, 64.0), seeds=3)
    return out


AXES = ("bits_up", "round", "seconds", "grad_evals")


def test_costs_are_what_loops_find(folder):
    """Of every axis; the median over seeds and its range."""
    curves = {cell: rows.sort_values("round") for cell, rows in store.load(folder).groupby("cell")}
    want = {}
    for cell in store.cells(folder).query("status != 'skipped'").to_dict("records"):
        key = (cell["algorithm"], cell["k"] if cell["k"] == cell["k"] else None)
        costs = want.setdefault((*key, cell["step_multiple"]), [])
        costs.append(dict.fromkeys(AXES, math.inf))
        if cell["status"] == "ok" and curves[cell["cell"]]["grad_norm_sq"].iloc[-1] <= 1e-3:
            rows = curves[cell["cell"]]
            costs[-1] = rows[rows["grad_norm_sq"] <= 1e-3].iloc[0].to_dict()
    results = frames(folder)  # one, which keeps the columns that it read last
    for x in AXES:
        result = to_target(results, 1e-3, x=x, by=["algorithm", "k", "step_multiple"])
        assert len(result) == len(want)
        assert 0 < result["reached"].sum() < result["cells"].sum()
        for row in result.to_dict("records"):
            k = row["k"] if row["k"] == row["k"] else None
            costs = sorted(c[x] for c in want[row["algorithm"], k, row["step_multiple"]])
            assert (row["cells"], row["reached"]) == (len(costs), sum(map(math.isfinite, costs)))
            assert row[x] == np.median(costs)
            if len(costs) > 1:
                assert (row[f"{x}_low"], row[f"{x}_high"]) == (costs[0], costs[-1])


def test_only_files_and_columns_that_are_asked_for_are_read(folder, monkeypatch):
    read, names = [], []
    rows, plain = log.rows, type(open_folder(folder)).read

    def noted_rows(file, schema, columns, **how):
        names.append(set(columns))
        return rows(file, schema, columns, **how)

    def noted_read(self, rel):
        read.append(rel)
        return plain(self, rel)

    monkeypatch.setattr(log, "rows", noted_rows)
    monkeypatch.setattr(type(open_folder(folder)), "read", noted_read)
    result = to_target(folder, 1e-3, where={"algorithm": "ef21", "k": [1, 5]})
    assert set(result["series"]) == {"EF21 Top-1", "EF21 Top-5"}
    assert sum(rel.startswith("curves/") for rel in read) == 2  # a shard for each K
    assert names[-2:] == [{"cell", "round", "bits_up", "grad_norm_sq"}] * 2
    everything = to_target(folder, 1e-3)
    own = everything[everything["series"].isin(["EF21 Top-1", "EF21 Top-5"])]
    assert result.equals(own.reset_index(drop=True))


def test_bad_questions():
    runs = example(seeds=1)
    for asked, said in (
        ({"target": -1.0}, "a number > 0"),
        ({"target": [1e-3, math.nan]}, "a number > 0"),
        ({"x": "bits_upp"}, "did you mean bits_up"),
        ({"y": "label"}, "no column of numbers"),
        ({"by": "methd"}, "did you mean method"),
        ({"where": {"algorthm": "gd"}}, "did you mean algorithm"),
    ):
        with pytest.raises(InputError, match=said):
            to_target(runs, **asked)
