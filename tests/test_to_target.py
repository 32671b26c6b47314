"""What a target costs: against loops over rows, whatever the source, and from no more of a folder than is asked for."""

import math

import fake_store
import numpy as np
import pytest
from fake_runs import make

from raybench import store
from raybench.analysis import frames, to_target
from raybench.analysis.examples import example
from raybench.core.errors import InputError
from raybench.store import Store, log
from raybench.store.files import open_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "results"
    fake_store.fill(Store(out), rounds=60, multiples=(1.0, 8.0, 64.0), seeds=3)
    return out


def slow(curves, cells, target, x, y="grad_norm_sq"):
    """Return {(algorithm, k, multiple): costs} by loops."""
    found = {}
    for cell in cells.to_dict("records"):
        if cell["status"] == "skipped":
            continue
        rows = curves[curves["cell"] == cell["cell"]].sort_values("round").to_dict("records")
        there = [row[x] for row in rows if row[y] <= target]
        ok = cell["status"] == "ok" and there and rows[-1][y] <= target
        key = (cell["algorithm"], cell["k"] if cell["k"] == cell["k"] else None)
        key = (*key, cell["step_multiple"])
        found.setdefault(key, []).append(there[0] if ok else math.inf)
    return found


@pytest.mark.parametrize("x", ["bits_up", "round", "seconds", "grad_evals"])
def test_it_is_what_loops_find(folder, x):
    want = slow(store.load(folder), store.cells(folder), 1e-3, x)
    found = to_target(folder, 1e-3, x=x, by=["algorithm", "k", "step_multiple"])
    assert len(found) == len(want)
    assert found["reached"].sum() > 0
    for row in found.to_dict("records"):
        key = (row["algorithm"], row["k"] if row["k"] == row["k"] else None, row["step_multiple"])
        costs = sorted(want[key])
        assert row["cells"] == len(costs)
        assert row["reached"] == sum(map(math.isfinite, costs))
        assert row[x] == np.median(costs)
        if len(costs) > 1:
            assert (row[f"{x}_low"], row[f"{x}_high"]) == (costs[0], costs[-1])


def test_every_source_gives_the_same(folder):
    curves, cells = store.load(folder), store.cells(folder)
    want = to_target(folder, [1e-2, 1e-3])
    assert set(want["target"]) == {1e-2, 1e-3}
    for source in (str(folder), frames(folder), (curves, cells)):
        assert to_target(source, [1e-2, 1e-3]).equals(want)


def test_the_default_target_is_that_of_the_table(folder):
    own = frames(folder).tuned("method")["target"].iloc[0]
    assert to_target(folder).equals(to_target(folder, own))
    two = to_target(example(("a", "b")))
    assert two.groupby("facet")["target"].nunique().tolist() == [1, 1]


def test_a_cell_that_did_not_end_ok_has_not_reached_it():
    runs = [{"g": [1, 0.01], "status": s, "seed": i} for i, s in enumerate(("ok", "diverged"))]
    (row,) = to_target(make(runs), 0.1).to_dict("records")
    assert (row["cells"], row["reached"], row["bits_up"]) == (2, 1, math.inf)


def test_only_files_and_columns_that_are_asked_for_are_read(folder, monkeypatch):
    read, names = [], []
    rows, plain = log.rows, type(open_folder(folder)).read

    def noted_rows(file, schema, columns):
        names.append(set(columns))
        return rows(file, schema, columns)

    def noted_read(self, rel):
        read.append(rel)
        return plain(self, rel)

    monkeypatch.setattr(log, "rows", noted_rows)
    monkeypatch.setattr(type(open_folder(folder)), "read", noted_read)
    found = to_target(folder, 1e-3, where={"algorithm": "ef21", "k": [1, 5]})
    assert set(found["series"]) == {"EF21 Top-1", "EF21 Top-5"}
    assert sum(rel.startswith("curves/") for rel in read) == 2  # a shard for each K
    assert names[-2:] == [{"cell", "round", "bits_up", "grad_norm_sq"}] * 2
    everything = to_target(folder, 1e-3)
    own = everything[everything["series"].isin(["EF21 Top-1", "EF21 Top-5"])]
    assert found.equals(own.reset_index(drop=True))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"target": -1.0}, "a number > 0"),
        ({"target": [1e-3, math.nan]}, "a number > 0"),
        ({"x": "bits_upp"}, "did you mean bits_up"),
        ({"y": "label"}, "no column of numbers"),
        ({"by": "methd"}, "did you mean method"),
        ({"where": {"algorthm": "gd"}}, "did you mean algorithm"),
    ],
)
def test_bad_questions(asked, said):
    with pytest.raises(InputError, match=said):
        to_target(example(), **asked)


def test_no_cells_are_an_empty_table(folder):
    found = to_target(folder, 1e-3, where={"algorithm": "none of them"})
    assert len(found) == 0
    assert "bits_up_low" in found
    assert len(to_target(folder, where={"algorithm": "none of them"})) == 0
