"""Problems on their way to workers: the same numbers read in place, and nobody writes to them."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_kit import own_plugins
from hypothesis import given
from hypothesis import strategies as st

from raybench.core import registry
from raybench.execution import resolve
from raybench.execution.execute import execute
from raybench.execution.plan import Plan, make_plan
from raybench.execution.run import Options
from raybench.runtime.shipping import SHARED_FROM, pack, unpack
from raybench.runtime.worker import load_shipped
from raybench.spec import load

pytestmark = pytest.mark.thorough

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
    plan = make_plan(load(sweep))
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
