"""The sweeps that ship: each loads, says what it asks, and plans where its data is there."""

from pathlib import Path
from typing import Any

import pytest
from test_spec_keys import DIGESTS

from raybench import spec
from raybench.data.catalogue import EMBEDDED
from raybench.execution.plan import Plan, make_plan

pytestmark = pytest.mark.thorough

FOLDER = Path(__file__).parent.parent / "sweeps"
SWEEPS = sorted(FOLDER.glob("*.yaml"))


def plan_of(file: Path, request: pytest.FixtureRequest) -> Plan:
    """Return the plan of a sweep; skips where it needs LIBSVM data and there is none."""
    sweep = spec.load(file)
    if {cell.problem.params.get("dataset") for cell in sweep.cells} - {None, *EMBEDDED}:
        request.getfixturevalue("data_folder")
    return make_plan(sweep)


def values(sweep: spec.Sweep, get: Any) -> set[Any]:
    return {get(cell) for cell in sweep.cells}


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.stem)
def test_a_sweep_explains_itself_and_plans_without_skipping(
    file: Path, request: pytest.FixtureRequest
) -> None:
    sweep = spec.load(file)
    assert sweep.name == file.stem
    assert not sweep.notes, "a shipped sweep has no duplicates and no idle exclusions"
    head = file.read_text().split("\nname:")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    assert head.splitlines()[0].endswith("?"), "the first line is the question it answers"
    assert "2 cores" in head, "say how long it takes"
    plan = plan_of(file, request)
    assert plan.missing == DIGESTS[file.stem][0]
    assert not plan.skipped
    thumbs = [note for note in plan.notes if "rule of thumb, no theorem" in note]
    assert len(thumbs) == (file.stem in ("ring", "lead"))  # methods without a server
    assert list(plan.notes) == thumbs
    assert all(cell.step_size > 0 for cell in plan.cells)


def test_ef21_a9a_is_booked_as_the_authors_do(request: pytest.FixtureRequest) -> None:
    plan = plan_of(FOLDER / "ef21_a9a.yaml", request)
    assert spec.load(FOLDER / "ef21_a9a.yaml").accounting.as_dict() == {
        "value_bits": 32,
        "index_bits": "none",
        "count_init": True,
    }
    (facts,) = plan.facts.values()
    assert (facts["d"], facts["clients"]) == (123, 20)


def test_marina_k_spends_alike_and_has_all_rules(request: pytest.FixtureRequest) -> None:
    sweep = spec.load(FOLDER / "marina_k.yaml")
    steps = values(sweep, lambda c: (c.step.number, c.step.rule))
    assert steps == {(m, "nonconvex") for m in (1.0, 8.0, 64.0, 256.0)} | {
        (1.0, "paper"),
        (1.0, "released"),
    }
    assert values(sweep, lambda c: c.problem.params["dataset"]) == {"mushrooms", "a9a", "w8a"}
    assert values(sweep, lambda c: c.seed) == {0, 1, 2}
    plan = plan_of(FOLDER / "marina_k.yaml", request)
    for cell in plan.cells:
        facts = plan.facts[spec.parts.canonical(cell.cell.problem.config())]
        k, p = cell.k, cell.params.get("p", 0.0)
        assert k is not None
        values_sent = cell.cell.rounds * (p * facts["d"] + (1 - p) * k)
        assert values_sent == pytest.approx(30_000, rel=0.05), cell.label


def test_multimodal_has_a_client_per_view(request: pytest.FixtureRequest) -> None:
    plan = plan_of(FOLDER / "multimodal.yaml", request)
    (facts,) = plan.facts.values()
    assert (facts["clients"], facts["d"]) == (2, 10 * (128 + 10))
    assert {cell.k for cell in plan.cells if cell.params.get("batch") == 100} == {
        None,
        50,
        200,
        1000,
    }


def test_vertical_has_a_feature_per_client(request: pytest.FixtureRequest) -> None:
    plan = plan_of(FOLDER / "vertical.yaml", request)
    (facts,) = plan.facts.values()
    assert facts["clients"] == facts["d"] == 112
    assert '"message_dim": 6093' in facts["constants"]
