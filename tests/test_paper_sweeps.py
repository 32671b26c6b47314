"""Sweeps and scripts of reproductions: the problem that diverges, what theorems promise, what tables hold."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from raybench import spec
from raybench.core.registry import load_plugin, lookup
from raybench.execution.plan import make_plan

pytestmark = pytest.mark.thorough

FOLDER = Path(__file__).parent.parent / "sweeps" / "paper"
ON_DATA = (
    "clag_tuned",
    "dasha_marina",
    "ef14_rates",
    "ef21_heterogeneity",
    "ef21_top_k_a9a",
    "ef21_variants",
)
SYNTHETIC = ("dcgd_divergence", "three_pc_v2")


def script(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(f"paper_{name}", FOLDER / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SYNTHETIC + ON_DATA)
def test_a_sweep_says_what_it_asks_and_plans_without_skipping(name, request):
    head = (FOLDER / f"{name}.yaml").read_text().split("\nname:")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    assert head.splitlines()[0].endswith("?")
    for part in ("What came out", "Source:", "2 cores"):
        assert part in head
    if name in ON_DATA:
        request.getfixturevalue("data_folder")
    sweep = spec.load(FOLDER / f"{name}.yaml")
    plan = make_plan(sweep)
    assert sweep.name == name
    assert not plan.skipped
    assert plan.missing == len(sweep.cells)


def test_three_quadratics_have_the_gradients_and_constants_that_they_state():
    load_plugin(FOLDER / "three_quadratics.py")
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
    found = rates(problem, {"name": "identity"}, [0.5], 200)
    mu, L = found["mu"].iloc[0], found["L"].iloc[0]
    late = -2 * np.log1p(-mu / (2 * L))
    assert found["rate"].to_numpy() == pytest.approx(late, rel=0.01)
    assert (found["whole"] > found["rate"]).all()


def test_savings_have_a_row_per_law_dimension_and_k():
    rows = script("top_k_savings").measure(full=False)
    uniform = rows[(rows["law"] == "uniform") & (rows["kind"] == "saving")]
    assert uniform["saving"].to_numpy() == pytest.approx(3, rel=0.05)
    left = rows[rows["kind"] == "residual"]
    assert left["saving"].to_numpy() == pytest.approx((1 - left["left"]) * left["d"] / left["k"])
