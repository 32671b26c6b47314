"""The study of compressors: formulas, vectors, rows, figures, the verb."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import torch

from raybench.core.errors import InputError
from raybench.measure import study
from raybench.measure.study import FORMULAS, against_sign, drawn, gradients, top_k_energy

pytestmark = pytest.mark.thorough

SMALL = {"Top-k": ["top_k:k=1%", "top_k:k=10%", "top_k:k=100%"], "scaled sign": ["scaled_sign"]}


def quantile_share(absolute, k):
    """The residual by definition: sort, drop the k largest."""
    squares = absolute.double().square().sort(dim=-1).values
    return squares[..., : squares.shape[-1] - k].sum(-1) / squares.sum(-1)


@pytest.mark.parametrize(
    ("family", "share", "left"),  # computed independently
    [("gaussian", 0.05, 0.721), ("laplace", 0.05, 0.576), ("uniform", 0.1, 0.729)],
)
def test_published_values(family, share, left):
    assert round(FORMULAS[family](10**6, int(share * 10**6)), 3) == left


@pytest.mark.parametrize("family", FORMULAS)
@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
def test_order_statistics(family, share):
    d = 20_000
    x = drawn(d, 12)[family]
    found = quantile_share(x.abs(), int(share * d))
    error = float(found.std()) / math.sqrt(12)
    assert abs(float(found.mean()) - FORMULAS[family](d, int(share * d))) < 5 * error + 1e-4


def test_vectors_depend_on_the_seed_alone():
    one, two, other = drawn(50, 3), drawn(50, 5), drawn(50, 3, seed=1)
    assert all(torch.equal(one[n], two[n][:3]) for n in one)
    assert not any(torch.equal(one[n], other[n]) for n in one)
    state = torch.get_rng_state()
    first = gradients(2, steps=3)
    assert torch.equal(state, torch.get_rng_state())
    again = gradients(2, steps=3)
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert {tuple(g.shape) for g in first.values()} == {(2, 51_946)}
    assert all(float(g.norm()) > 0 for g in first.values())


def test_rows_are_what_they_say():
    x = drawn(400, 6)
    rows = study.measure({"gaussian": x["gaussian"]}, {**SMALL, "Rand-k": ["rand_k:k=10%"]})
    assert len(rows) == 5
    by = rows.set_index("operator")
    assert by.loc["top_k:k=100%", "error"] == 0
    kept = quantile_share(x["gaussian"].abs(), 40)
    assert by.loc["top_k:k=10%", "error"] == pytest.approx(float(kept.mean()), rel=1e-6)
    low = 3  # Elias-Fano: floor(log2(400/40)) bits of each index, the rest in unary
    assert by.loc["top_k:k=10%", "bits"] == 40 * (32 + low) + 40 + (399 >> low)
    one = x["gaussian"].double()
    sign = 1 - one.abs().sum(-1).square() / 400 / one.square().sum(-1)
    assert by.loc["scaled_sign", "error"] == pytest.approx(float(sign.mean()), rel=1e-5)
    rand = by.loc["rand_k:k=10%"]
    assert rand["factor"] == pytest.approx(0.1)
    assert rand["error"] > 3 > 1 > rand["error_scaled"] >= rand["error_best"]
    assert (rows["error_scaled"] <= rows["bound"] + 5 * rows["error_scaled_se"] + 1e-9).all()


def test_against_sign_interpolates_and_admits():
    def row(curve, bits, error):
        return {"family": "f", "curve": curve, "wire_per_coordinate": bits, "error_best": error}

    rows = [row("scaled sign", 1.0, 0.1), row("Top-k", 1.0, 0.2), row("Top-k", 4.0, 0.0)]
    found = against_sign(pd.DataFrame([*rows, row("dithering", 3.0, 0.5)])).iloc[0]
    assert found["Top-k"] == pytest.approx(2.0)
    assert found["dithering"] == math.inf
    assert found["cheapest"] == "scaled sign"
    rows[1] = row("Top-k", 0.5, 0.05)
    found = against_sign(pd.DataFrame(rows)).iloc[0]
    assert (found["cheapest"], found["Top-k"], found["below"]) == ("Top-k", 0.5, ["Top-k"])


def test_study_writes_rows_and_figures(tmp_path):
    rows = study.compressors(tmp_path / "s", d=300, draws=2, operators=SMALL)
    saved = pd.read_parquet(tmp_path / "s" / "study.parquet")
    pd.testing.assert_frame_equal(saved, rows, check_dtype=False)
    assert set(rows["family"]) == {*drawn(1, 1), "gradient, start", "gradient, trained"}
    assert len(top_k_energy(rows)) == 8 * 3
    paths = study.figures(rows, tmp_path / "s")
    assert {p.suffix for p in paths} == {".png", ".pdf", ".csv"}
    assert all(p.stat().st_size > 500 for p in paths)


def test_bad_input_writes_nothing(tmp_path):
    for bad in ({"d": 0}, {"draws": 0}, {"operators": {"x": ["top_q"]}}):
        with pytest.raises(InputError):
            study.compressors(tmp_path / "s", **{"d": 10, "draws": 2, **bad})
    assert not (tmp_path / "s").exists()
