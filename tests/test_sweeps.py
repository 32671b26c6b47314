"""The sweeps that ship and those of reproductions: they explain themselves, plan, and have the setting that they state."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch
from test_spec_keys import DIGESTS

from raybench import spec
from raybench.core.registry import load_plugin, lookup
from raybench.data.catalogue import EMBEDDED
from raybench.execution.plan import Plan, make_plan
from raybench.reproduce import catalogue, find
from raybench.reproduce.claims import Side
from raybench.spec.cells import Sweep

pytestmark = pytest.mark.thorough

FOLDER = Path(__file__).parent.parent / "sweeps"
SHIPPED = {file.stem: file for file in sorted(FOLDER.glob("*.yaml"))}
REPRODUCED = [name for name in sorted(catalogue()) if find(name).sweep is not None]
FILES = {name: find(name).sweep for name in REPRODUCED} | SHIPPED


@cache
def loaded(name: str) -> Sweep:
    return spec.load(FILES[name])


@cache
def planned(name: str) -> Plan:
    return make_plan(loaded(name))


@pytest.fixture
def plan(request: pytest.FixtureRequest) -> Plan:
    """The plan of a sweep; skips where it needs LIBSVM data and there is none."""
    cells = loaded(request.param).cells
    if {cell.problem.params.get("dataset") for cell in cells} - {None, *EMBEDDED}:
        request.getfixturevalue("data_folder")
    return planned(request.param)


def of(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("plan", names, ids=names, indirect=True)


# What all of them keep to --------------------------------------------------------------------


@of(*FILES)
def test_a_sweep_plans_without_skipping(plan):
    name = plan.sweep.name
    assert not plan.skipped
    assert plan.missing == (DIGESTS[name][0] if name in SHIPPED else len(plan.cells))
    assert all(cell.step_size > 0 for cell in plan.cells)
    assert all("rule of thumb, no theorem" in note for note in plan.notes)
    if name in SHIPPED:
        assert not plan.sweep.notes, "no duplicates and no idle exclusions"
        assert len(plan.notes) == (name in ("ring", "lead"))  # methods without a server


@pytest.mark.parametrize("name", FILES)
def test_a_sweep_asks_a_question_and_says_where_it_comes_from(name):
    assert loaded(name).name == FILES[name].stem
    head = FILES[name].read_text().split("\nname:")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    assert head.splitlines()[0].endswith("?"), "the first line is the question it answers"
    assert ("2 cores" if name in SHIPPED else "Source:") in head


@pytest.mark.parametrize("name", REPRODUCED)
def test_the_published_scale_is_a_sweep_too(name):
    what = find(name)
    full = spec.load(what.sweep, sets=what.full).cells if what.full else loaded(name).cells
    longest = max(cell.rounds for cell in loaded(name).cells)
    assert max(cell.rounds for cell in full) >= longest * 0.8


@pytest.mark.parametrize("name", REPRODUCED)
def test_every_side_of_a_claim_means_cells_that_are_planned(name, data_folder):
    cells = pd.DataFrame(
        {
            "label": cell.label,
            "algorithm": cell.cell.algorithm.name,
            "compressor": cell.cell.compressor.name if cell.cell.compressor else None,
            "k": cell.k,
            "clients": cell.cell.problem.params.get("clients"),
            "step_multiple": cell.cell.step.number,
        }
        for cell in planned(name).cells
    ).astype(object)
    for claim in find(name).claims:
        for side in (claim.left, claim.right):
            where = side.where.items() if isinstance(side, Side) else ()
            wanted = {k: v if isinstance(v, list) else [v] for k, v in where if k in cells}
            for key, values in wanted.items():
                rest = cells
                for other in wanted.keys() - {key}:
                    rest = rest[rest[other].isin(wanted[other])]
                missing = set(values) - set(rest[key])
                assert not missing, f"{claim.name}: no cell with {key} = {missing}"


# Scripts --------------------------------------------------------------------------------------


def script(name: str) -> ModuleType:
    result = importlib.util.spec_from_file_location(
        f"paper_{name}", FOLDER / "paper" / f"{name}.py"
    )
    assert result is not None
    assert result.loader is not None
    module = importlib.util.module_from_spec(result)
    result.loader.exec_module(module)
    return module


def test_three_quadratics_have_the_gradients_and_constants_that_they_state():
    load_plugin(FOLDER / "paper" / "three_quadratics.py")
    problem = lookup("problem", "three_quadratics").target()
    x = torch.tensor([[0.3, -1.2, 2.0]], dtype=torch.float64, requires_grad=True)
    hessians = []
    for i in range(3):
        value = problem.f_i(i, x).sum()
        (slope,) = torch.autograd.grad(value, x)
        assert torch.allclose(slope, problem.grad_i(i, x))
        unit = torch.eye(3, dtype=torch.float64)
        hessians.append(problem.grad_i(i, unit).detach().numpy())
    assert np.linalg.eigvalsh(hessians).max(-1) == pytest.approx(problem.L_i)
    of_mean = np.linalg.eigvalsh(np.mean(hessians, axis=0))
    assert of_mean == pytest.approx([problem.mu, problem.L, problem.L])


def test_the_classes_of_gradient_descent_promise_what_the_theorems_say():
    classes = script("cgd_rates").classes
    assert classes({"name": "top_k", "k": 5}, 100)["B3"] == pytest.approx((1, 0.05))
    natural = classes({"name": "natural"}, 100)
    assert natural["B1"] == pytest.approx((8 / 9, 64 / 81))
    assert natural["B2"] == natural["B3"] == pytest.approx((8 / 9, 8 / 9))
    rand_k = {"name": "as_contractive", "of": "rand_k:k=5"}
    assert classes(rand_k, 100)["B3"] == pytest.approx((1, 0.05))


def test_rates_are_slopes_of_the_logarithm():
    """Gradient descent with step 1/(2L) on one quadratic: in the end f - f* shrinks by (1 - mu/(2L))^2 a round."""
    rates = script("cgd_rates").rates
    problem = {"name": "quadratic", "dim": 5, "clients": 1, "mu": 0.1}
    result = rates(problem, {"name": "identity"}, [0.5], 200)
    mu, L = result["mu"].iloc[0], result["L"].iloc[0]
    late = -2 * np.log1p(-mu / (2 * L))
    assert result["rate"].to_numpy() == pytest.approx(late, rel=0.01)
    assert (result["whole"] > result["rate"]).all()


def test_savings_have_a_row_per_law_dimension_and_k():
    rows = script("top_k_savings").measure(full=False)
    uniform = rows[(rows["law"] == "uniform") & (rows["kind"] == "saving")]
    assert uniform["saving"].to_numpy() == pytest.approx(3, rel=0.05)
    left = rows[rows["kind"] == "residual"]
    assert left["saving"].to_numpy() == pytest.approx((1 - left["left"]) * left["d"] / left["k"])
