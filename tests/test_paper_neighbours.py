"""Reproductions of tensor compressors, methods near those of the papers, and networks: files that fit together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import raybench
from raybench import spec
from raybench.data.catalogue import EMBEDDED
from raybench.execution.plan import make_plan
from raybench.reproduce import catalogue, find, judge
from raybench.reproduce.claims import Side
from raybench.reproduce.evidence import Evidence, kept
from raybench.reproduce.judge import AGREES, DISAGREES

pytestmark = pytest.mark.thorough

CONVEX = ["hosvd", "exact_diffusion", "prox_lead", "lsgd", "codistillation"]
NETWORKS = [
    "dgc_cifar",
    "vgg11_tensors",
    "lgc",
    "mnist_dgc",
    "resnet_marina",
    "autoencoder",
    "resnet_cifar",
]
NETWORKS += ["mnist_dgc_table", "shakespeare_seeds", "shakespeare_tuning"]
NAMES = ("label", "algorithm", "compressor", "k", "clients", "step_multiple")
GROUP = ["dataset", "clients", "label", "k", "step_size"]
DOCS = Path(__file__).parent.parent / "docs" / "reproductions"


def sides(name: str) -> list[tuple[str, Side]]:
    """Return every side of every claim, with the claim's name."""
    found = find(name).claims
    return [(c.name, s) for c in found for s in (c.left, c.right) if isinstance(s, Side)]


@pytest.mark.parametrize("name", CONVEX + NETWORKS)
def test_every_side_of_a_claim_means_cells_that_are_planned(
    name: str, request: pytest.FixtureRequest
) -> None:
    what = find(name)
    assert what.sweep is not None
    sweep = spec.load(what.sweep)
    if {cell.problem.params.get("dataset") for cell in sweep.cells} - {None, *EMBEDDED}:
        request.getfixturevalue("data_folder")
    plan = make_plan(sweep)
    assert not plan.skipped
    assert all("rule of thumb, no theorem" in note for note in plan.notes)
    rows = [
        {
            "label": cell.label,
            "algorithm": cell.cell.algorithm.name,
            "compressor": cell.cell.compressor.name if cell.cell.compressor else None,
            "k": cell.k,
            "clients": cell.cell.problem.params["clients"],
            "step_multiple": cell.cell.step.number,
        }
        for cell in plan.cells
    ]
    for claim, side in sides(name):
        wanted = {
            key: value if isinstance(value, list) else [value]
            for key, value in side.where.items()
            if key in NAMES
        }
        for key, values in wanted.items():
            for value in values:
                others = {other: them for other, them in wanted.items() if other != key}
                assert any(
                    row[key] == value and all(row[o] in them for o, them in others.items())
                    for row in rows
                ), f"{claim}: no cell with {key} = {value}"


@pytest.mark.parametrize("name", CONVEX + NETWORKS)
def test_the_published_scale_is_a_sweep_too(name: str) -> None:
    what = find(name)
    assert what.sweep is not None
    assert spec.load(what.sweep, sets=what.full).cells


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_what_disagrees_is_explained(name: str) -> None:
    what = find(name)
    found = kept(what, DOCS)
    assert found is not None
    for verdict in judge(what, found):
        assert verdict.word != DISAGREES or verdict.claim.likely, verdict.claim.name


@pytest.mark.parametrize(
    "name", [n for n in sorted(catalogue()) if find(n).sweep is not None and find(n).spread == 0]
)
def test_nothing_is_drawn_where_a_file_says_so(
    name: str, data_folder: Path, tmp_path: Path
) -> None:
    sets = ["seed=[0, 1]", "rounds=3", *(["step_size.theory=16"] if name == "clag_tuned" else [])]
    raybench.sweep(find(name).sweep, tmp_path / "out", sets=sets, inline=True)
    curves = raybench.load(tmp_path / "out", params=True)
    numbers = ["round", "bits_up", "loss", "grad_norm_sq"]
    one, other = (
        curves[curves["seed"] == seed].sort_values([*GROUP, "round"], kind="stable")[numbers]
        for seed in (0, 1)
    )
    assert len(one) > 10
    assert np.array_equal(one.to_numpy(), other.to_numpy())


@pytest.mark.parametrize(("power", "holds"), [(1, False), (1.5, False), (2, True), (2.3, False)])
def test_another_law_of_the_savings_disagrees(power: float, holds: bool) -> None:
    what = find("top_k_savings")
    laws = [
        claim
        for claim in what.claims
        if claim.name in ("exponential_log_squared", "exponential_grows")
    ]
    assert len(laws) == 2
    d = np.array([100, 1000, 10_000, 100_000])
    saving = 0.5 * np.log(d) ** power
    rows = pd.DataFrame({"kind": "saving", "law": "exponential", "d": d, "saving": saving})
    rows["per_log_squared"] = saving / np.log(d) ** 2
    found = Evidence(rows, pd.DataFrame(), "made up")
    words = {verdict.word for verdict in judge(replace(what, claims=tuple(laws)), found)}
    assert (words == {AGREES}) == holds
