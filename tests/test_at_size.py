"""What a large sweep costs beside its rounds, and how problems get to its workers."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_store
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from cli_kit import own_plugins
from hypothesis import given
from hypothesis import strategies as st

from raybench import problems, spec
from raybench.analysis import closing_table, frames
from raybench.analysis.frames import framed
from raybench.core import registry
from raybench.execution import build, resolve
from raybench.execution.execute import execute
from raybench.execution.plan import Plan, make_plan
from raybench.execution.resolve import Resolver
from raybench.execution.rows import resolved
from raybench.execution.run import Options
from raybench.report import content
from raybench.runtime.driver import drive
from raybench.runtime.shipping import SHARED_FROM, pack, unpack
from raybench.runtime.worker import load_shipped
from raybench.store import Store, load, reader
from raybench.store.files import LocalFolder
from raybench.store.log import ATTEMPTS as TRIES

pytestmark = pytest.mark.thorough

GRID = {
    "problem": {"name": "quadratic", "dim": 12, "clients": 4, "seed": [0, 1]},
    "algorithm": ["marina", "diana", "ef21"],
    "compressor": [{"name": "rand_k", "k": [1, "25%"]}, {"name": "top_k", "k": 3}],
    "step_size": {"theory": "2^0..2^9"},
    "seed": "0..13",
    "rounds": 10,
}


# Planning ------------------------------------------------------------------------------------------


def test_a_plan_builds_problems_and_operators_and_resolves_forms_once(monkeypatch):
    asked = spec.load(GRID)
    assert len(asked.cells) == 2 * 3 * 3 * 10 * 14
    built, result, bound = [], [], []

    def count(owner, name, calls):
        plain = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, **k: (calls.append(a), plain(*a, **k))[1])

    resolve.problem_of.cache_clear()
    count(problems, "build", built)
    count(Resolver, "_form", result)
    build._fitted.cache_clear()
    plan = make_plan(asked)
    bound = build._fitted.cache_info().misses
    assert len(built) == 2
    assert len(result) == 2 * 3 * 3  # of each problem, method and compressor
    assert bound <= 2 * 3 * 3
    assert len(plan.cells) == 2 * 7 * 140  # marina and diana take no top_k
    assert len(plan.skipped) == 2 * 2 * 140
    assert len({id(cell.form) for cell in plan.cells}) == 2 * 7


def test_a_cell_comes_out_of_a_plan_as_it_does_alone():
    steps = [{"theory": [1, 4], "rule": ["nonconvex", "paper"]}, {"value": [0.1, 0.2]}]
    more = {"schedule": ["constant", "sqrt"]}
    asked = spec.load({**GRID, "step_size": [*steps, {"value": 0.3, **more}], "seed": "0..1"})
    cells = {cell.id: cell for cell in make_plan(asked).cells}
    for cell in asked.cells[::3]:
        try:
            alone = Resolver().resolve(cell)
        except resolve.Skip:
            assert cell.id not in cells
            continue
        if cell.id in cells:  # else merged
            assert cells[cell.id] == alone
            assert resolved(cells[cell.id]) == resolved(alone)


def test_a_changed_cell_is_not_taken_for_the_one_it_was_made_of():
    """Ids and groups stay as they were where a test replaces a field: a form is known by the fields."""
    resolver = Resolver()
    rand = {"name": "rand_k", "k": 2}
    cell = spec.load({**GRID, "algorithm": "diana", "compressor": rand}).cells[0]
    before = resolver.resolve(cell)
    other = replace(cell, compressor=spec.Section("rand_k", {**cell.compressor.params, "k": 6}))
    assert (before.k, resolver.resolve(other).k) == (2, 6)
    top = replace(cell, compressor=spec.Section("top_k", {"k": 2}))
    with pytest.raises(resolve.Skip):
        resolver.resolve(top)


def test_a_plan_grows_by_little_for_each_cell():
    def peak(seeds: int) -> int:
        tracemalloc.start()
        plan = make_plan(spec.load({**GRID, "algorithm": "diana", "seed": f"0..{seeds - 1}"}))
        result = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(plan.cells) == 40 * seeds
        return result

    peak(5)
    small, large = peak(20), peak(120)
    assert (large - small) / (40 * 100) < 3000


# The store -----------------------------------------------------------------------------------------


def test_what_is_saved_of_tries_does_not_grow_with_the_sweep(tmp_path, monkeypatch):
    sizes = []
    plain = LocalFolder.write

    def write(self, rel, data):
        if rel == TRIES:
            sizes.append(len(json.loads(data)))
        plain(self, rel, data)

    monkeypatch.setattr(LocalFolder, "write", write)
    few = {**GRID, "algorithm": "diana", "seed": "0..6", "rounds": 2, "name": "tries"}
    outcome = drive(spec.load(few), tmp_path / "out", inline=True)
    assert outcome.counts["ok"] == 280
    assert len(sizes) > 2
    assert max(sizes) <= 64


# The closing table ---------------------------------------------------------------------------------


@pytest.mark.parametrize("methods", [fake_store.METHODS, fake_store.STOCHASTIC])
def test_a_folder_read_in_parts_says_what_one_in_memory_does(tmp_path, methods):
    fake_store.fill(Store(tmp_path), methods, datasets=("mushrooms", "phishing"), rounds=60)
    parts, whole = frames(tmp_path), framed(*reader.frames(tmp_path))
    for by in ("method", "series"):
        one, other = closing_table(parts, by=by), closing_table(whole, by=by)
        pd.testing.assert_frame_equal(one, other, check_dtype=False)
    for one, other in zip(content.build(parts), content.build(whole), strict=True):
        assert one.name == other.name
        pd.testing.assert_frame_equal(one.data, other.data, check_dtype=False)
    pd.testing.assert_frame_equal(parts.curves[whole.curves.columns], whole.curves)
    assert parts.metric == whole.metric


def test_a_cell_in_two_shards_counts_once_wherever_it_is_read(tmp_path):
    store = Store(tmp_path)
    shards = fake_store.fill(store, fake_store.METHODS[:2], rounds=30)
    _, curves, cells = shards[0]
    one = cells["cell"][0].as_py()
    store.commit(one, curves.filter(pa.compute.equal(curves["cell"], one)), cells.slice(0, 1))
    parts, whole = frames(tmp_path), framed(*reader.frames(tmp_path))
    pd.testing.assert_frame_equal(closing_table(parts), closing_table(whole), check_dtype=False)
    assert len(parts.rows([one], ["loss"])) == (load(tmp_path)["cell"] == one).sum()


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 10**6)


@given(seed=st.integers(0, 10**9), number=NUMBERS, size=NUMBERS, word=TEXTS, inner=NUMBERS)
def test_configs_without_seed_and_step_keep_all_else(seed, number, size, word, inner):
    config = {
        "algorithm": {"name": "ef21", "params": {"seed": seed, "step_size": inner, "w": word}},
        "local": {"optimizer": "sgd", "step_size": inner},
        "problem": {"name": word, "params": {"seed": 3, word: '"seed": 3, "step_size": {'}},
        "resolved": {"algorithm": {"w": word}, "basis": None, "k": 2, "step_size": size},
        "rounds": 7,
        "seed": seed,
        "step_size": {"kind": "theory", "number": number, "of": None, "rule": "paper"},
        "stop": {"loss": inner},
    }
    text = json.dumps(config, sort_keys=True)
    short = reader.shared(text)
    assert reader.shared(short) == short
    del config["seed"], config["step_size"]["number"], config["resolved"]["step_size"]
    assert json.loads(short) == json.loads(json.dumps(config))


# Problems on their way to workers: the same numbers, read in place, and nobody writes to them -----


MANY = SHARED_FROM // 8  # float64
MLP = {"model": "mlp:hidden=[300]", "dataset": "digits", "clients": 4, "batch": 32}
PROBLEMS: dict[str, dict[str, Any]] = {
    "dense": {"name": "logistic", "dataset": "digits", "clients": 3, "positive": [[0, 2, 4]]},
    "quadratic": {"name": "quadratic", "dim": 100, "clients": 3},
    "network": {"name": "network", **MLP},
    "normalised": {"name": "network", **MLP, "model": "resnet20", "rows": 40, "clients": 2},
}


def inside(part: torch.Tensor, whole: np.ndarray) -> bool:
    begin = whole.ctypes.data
    return begin <= part.data_ptr() < begin + whole.nbytes


def test_large_numbers_are_not_copied_and_keep_their_shape() -> None:
    x = torch.arange(2.0 * MANY, dtype=torch.float64).reshape(2, MANY)
    a = np.arange(MANY, dtype=float)
    thing = {"x": x, "turned": x.T, "row": x[1], "a": a, "few": torch.ones(3), "f": lambda: 5}
    parcel = pack(thing)
    got = unpack(parcel)
    assert len(parcel.pickled) < 5000
    tensor, array = parcel.arrays
    assert all(inside(got[name], tensor) for name in ("x", "turned", "row"))
    assert not inside(got["few"], tensor)
    assert np.shares_memory(got["a"], array)
    assert got["turned"].stride() == x.T.stride()
    got["x"][1, 0] = -1  # as in the object that was packed, both are views of the same numbers
    assert got["row"][0] == -1
    assert torch.equal(got["few"], thing["few"])
    assert got["f"]() == 5


@given(
    st.lists(
        st.tuples(
            st.sampled_from([torch.float64, torch.float32, torch.int64, torch.uint8, torch.bool]),
            st.lists(st.sampled_from([0, 1, 3, 200]), min_size=0, max_size=3),
            st.booleans(),
        ),
        max_size=4,
    )
)
def test_any_tensors_arrive_as_they_were(kinds: list[tuple[torch.dtype, list[int], bool]]) -> None:
    sent = []
    for number, (dtype, shape, turned) in enumerate(kinds):
        size = int(np.prod(shape))
        x = ((torch.arange(size) + number) % 2).to(dtype).reshape(shape)
        sent += [x.T if turned and x.ndim == 2 else x, x]
    got = unpack(pack(sent))
    for one, other in zip(sent, got, strict=True):
        assert one.dtype == other.dtype
        assert one.stride() == other.stride()
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", PROBLEMS)
def test_no_problem_writes_to_what_it_shares(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the workers of a node would spoil each other's data. Curves are those of the problem itself."""
    sweep = {
        "problem": PROBLEMS[name],
        "algorithm": "ef21",
        "compressor": {"name": "top_k", "k": "10%"},
        "step_size": {"value": [0.01, 0.02]},
        "rounds": 4,
    }
    plan = make_plan(spec.load(sweep))
    (section,) = {b.cells[0].cell.problem for b in plan.batches}
    want = losses(plan)
    parcel = pack(resolve.problem_of(section))
    shared = parcel.arrays
    assert sum(a.nbytes for a in shared) > SHARED_FROM, "nothing is shared: this test sees nothing"
    before = [a.copy() for a in shared]
    monkeypatch.setattr(resolve, "_adopted", {section: lambda: unpack(parcel)})
    resolve.problem_of.cache_clear()
    try:
        assert losses(plan) == want
    finally:
        resolve.problem_of.cache_clear()
    assert all(np.array_equal(a, b) for a, b in zip(shared, before, strict=True))


def losses(plan: Plan) -> list[float]:
    result: list[float] = []

    def keep(shard: str, curves: Any, cells: Any, files: Any) -> None:
        assert set(cells["status"].to_pylist()) == {"ok"}
        result.extend(curves["loss"].to_pylist())

    for _ in execute(plan.batches, Options(), keep):
        pass
    return result


# Plug-in files ---------------------------------------------------------------------------------------

PLUGIN = b"""
from raybench.plugins import metric

@metric("test_shipped_norm")
def norm(problem, x):
    return x.norm(dim=-1)
"""


@pytest.mark.parametrize("there", ["the same", "another", "none"])
def test_a_plugin_of_the_drivers_node_loads_on_any(tmp_path: Path, there: str) -> None:
    file = tmp_path / "mine.py"
    if there != "none":
        file.write_bytes(PLUGIN if there == "the same" else b"raise SystemExit")
    with own_plugins():
        load_shipped(str(file), PLUGIN)
        entry = registry.lookup("metric", "test_shipped_norm")
        assert entry.source == hashlib.sha256(PLUGIN).hexdigest()[:16]
