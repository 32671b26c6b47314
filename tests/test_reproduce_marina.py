"""The reproductions of MARINA, PermK and the vertical experiments: they are in the setting that their claims are about."""

from __future__ import annotations

from functools import cache

import pytest

from raybench import spec
from raybench.execution.plan import Plan, make_plan
from raybench.reproduce import find

pytestmark = pytest.mark.thorough

NAMES = (
    "marina_diana",
    "vr_marina_diana",
    "permk_hessian_variance",
    "vertical_regression",
    "multimodal_forward",
)


@cache
def planned(name: str) -> Plan:
    sweep = find(name).sweep
    assert sweep is not None
    return make_plan(spec.load(sweep))


@pytest.fixture
def plan(request, data_folder) -> Plan:
    return planned(request.param)


def of(*names: str):
    return pytest.mark.parametrize("plan", names, indirect=True)


@of(*NAMES)
def test_all_cells_run(plan):
    assert not plan.skipped
    assert not plan.notes
    assert all(cell.step_size > 0 for cell in plan.cells)


@pytest.mark.parametrize("name", NAMES)
def test_a_sweep_asks_a_question_and_has_its_published_scale(name):
    what = find(name)
    assert what.sweep is not None
    head = what.sweep.read_text().split("\nname:")[0].splitlines()
    assert head[0].endswith("?")
    assert any("2 cores" in line for line in head)
    assert spec.load(what.sweep).name == name
    full = spec.load(what.sweep, sets=what.full)
    longest = max(cell.rounds for cell in spec.load(what.sweep).cells)
    assert min(cell.rounds for cell in full.cells) >= longest * 0.8


@of("marina_diana")
def test_marina_and_diana_send_alike_at_every_k(plan):
    for cell in plan.cells:
        facts = plan.facts[spec.parts.canonical(cell.cell.problem.config())]
        p = cell.params.get("p", 0.0)
        sent = cell.cell.rounds * (p * facts["d"] + (1 - p) * cell.k)
        assert sent == pytest.approx(8_000, rel=0.09), cell.label
    rules = {(c.cell.algorithm.name, c.cell.step.number, c.cell.step.rule) for c in plan.cells}
    for name in ("marina", "diana"):
        assert {(name, 1.0, "paper"), (name, 1.0, "released"), (name, 64.0, "nonconvex")} <= rules
    assert ("diana", 1.0, "nonconvex") in rules


@of("vr_marina_diana")
def test_minibatches_are_one_per_cent_of_a_clients_rows(plan):
    for cell in plan.cells:
        constants = plan.facts[spec.parts.canonical(cell.cell.problem.config())]
        rows = {"mushrooms": 8124, "a9a": 32561, "w8a": 49749}[cell.cell.problem.params["dataset"]]
        batch = cell.params["batch"]
        assert batch == rows // constants["clients"] // 100 + 1


@of("permk_hessian_variance")
def test_all_operators_keep_a_clients_share(plan):
    for cell in plan.cells:
        facts = plan.facts[spec.parts.canonical(cell.cell.problem.config())]
        if cell.k is not None:
            assert cell.k * facts["clients"] == facts["d"]
        if cell.cell.algorithm.name == "marina":
            assert cell.params["p"] == pytest.approx(1 / facts["clients"])


@of("multimodal_forward")
def test_forward_compression_keeps_the_shares_of_the_source(plan):
    shares = {c.k / 1000 for c in plan.cells if c.params.get("batch") == 100 and c.k is not None}
    for share, kept in zip(sorted(shares), (50, 100, 500, 768), strict=True):
        assert share == pytest.approx(kept / 768, abs=0.002)
