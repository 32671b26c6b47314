"""What is shown and measured: step sizes with their factors, noise and heterogeneity, gradients counted."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
import torch
from cli_kit import ran

from raybench import theory
from raybench.cli import main
from raybench.cli.show import PROVED
from raybench.core.streams import Sample
from raybench.execution.plan import facts_of
from raybench.problems import build, minimum

pytestmark = pytest.mark.thorough

LOGISTIC = {"dataset": "breast_cancer", "clients": 5, "scale": "columns"}
RIDGE = "logistic:dataset=breast_cancer,scale=columns,clients=5,regularizer=l2"


def said(*words) -> str:
    shown = ran("show", *words)
    return shown.out


def number(text: str, name: str) -> float:
    (result,) = re.findall(rf"^  {re.escape(name)} +(\S+)$", text, re.M)
    return float(result)


# Theory shown --------------------------------------------------------------------------------


def test_show_breaks_the_step_into_its_factors():
    text = said("ef21", "--problem", RIDGE, "--compressor", "top_k:k=3")
    L, mu = number(text, "L"), number(text, "mu")
    alpha, far = 3 / 30, number(text, "L_tilde = √mean L_i²")
    theta = 1 - math.sqrt(1 - alpha)
    beta = (1 - alpha) / theta
    for name, value in (
        ("α", alpha),
        ("θ = 1 − √(1−α)", theta),
        ("β = (1−α)/θ", beta),
        ("nonconvex", 1 / (L + far * math.sqrt(beta / theta))),
        ("pl", min(1 / (L + far * math.sqrt(2 * beta / theta)), theta / (2 * mu))),
        ("arithmetic", 1 / (L + number(text, "mean L_i") * math.sqrt(beta / theta))),
    ):
        assert number(text, name) == pytest.approx(value, rel=1e-5), name
    factors = {"ρ": theta, "B": beta * far**2, "√(B/ρ)": far * math.sqrt(beta / theta)}
    for name, value in factors.items():
        result = re.findall(
            rf"[ :]{re.escape(name)} = ([\d.e-]+\d)",
            section(text, "nonconvex") + section(text, "pl"),
        )
        assert result, name
        assert all(float(one) == pytest.approx(value, rel=1e-5) for one in result), name
    # the guarantees, with their numbers: f(0) = log 2, inf f >= the minimum
    gap = math.log(2) - build("logistic", {**LOGISTIC, "regularizer": "l2"}).constants.f_inf
    first = 2 * gap / number(text, "nonconvex")
    words = " ".join(text.split())
    assert f"at most ({first:.4g} + {1 / theta:.4g} G⁰)/T" in words
    shrink = number(text, "pl") * mu
    assert f"γμ = {shrink:.4g}" in words
    rounds = int(re.findall(r"tenfold every ([\d,]+) rounds", words)[0].replace(",", ""))
    assert (1 - shrink) ** rounds <= 0.1 < (1 - shrink) ** (rounds - 2)


def section(text: str, rule: str) -> str:
    """What ``show`` says of a rule, below the table of steps."""
    return re.split(rf"\n  (?:{'|'.join(theory.RULES)})\n", text.split(f"\n  {rule}\n")[1])[0]


def test_show_says_theorem_assumptions_and_source():
    text = said("ef21", "--problem", RIDGE)
    for rule in ("nonconvex", "pl"):
        part = section(text, rule)
        assert f"theorem ({PROVED}): Richtarik, Sokolov, Fatkhullin 2021" in part
        assert "holds: the compressor is contractive" in part
        assert "does not hold" not in part
    assert section(text, "paper").strip() == "the same as nonconvex"
    assert "released code, no theorem: IgorSokoloff/ef21" in section(text, "released")
    broken = said("dcgd", "--problem", "quadratic")
    assert "does not hold here: every f_i is bounded below" in section(broken, "nonconvex")
    assert "holds: the compressor is unbiased" in section(broken, "nonconvex")
    assert "none: the theorem assumes that every f_i is bounded below" in " ".join(broken.split())
    assert "as recalled; neither proved nor checked here" in section(
        said("adiana", "--problem", RIDGE), "paper"
    )


def test_show_says_without_a_problem_what_a_step_rests_on():
    marina = said("marina")
    assert "assumes that the compressor is unbiased" in section(marina, "nonconvex")
    assert "max_ij L_ij" in section(marina, "released")
    assert "no theorem: give step_size.value" in said("power_sgd")
    lead = section(said("lead"), "nonconvex")
    assert "rule of thumb, no theorem" in lead
    assert "assumes" not in lead


def test_show_promises_nothing_that_is_not_proved():
    marina = said("marina", "--problem", "quadratic")
    assert "no theorem" in section(marina, "released")
    assert "≤" not in section(marina, "released")
    assert "beside the floor of the noise" not in marina
    assert "beside the floor of the noise" in said("sgd", "--problem", RIDGE)
    assert "G⁰" not in said("gd", "--problem", RIDGE)
    none = said("power_sgd", "--problem", "quadratic")
    assert none.count("none: the method has none") == len(theory.RULES)
    assert "where it comes from" not in none
    own = section(said("dasha", "--problem", "quadratic"), "nonconvex")
    assert "2 Δ₀/(γ T)" in own
    lasso = said("gd", "--problem", RIDGE.replace("l2", "l1"))
    assert "gradient mapping" in lasso


def test_show_fits_a_narrow_screen(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    for method in ("ef21", "dasha", "adiana"):
        with pytest.raises(SystemExit):
            main(["show", method, "--problem", RIDGE])
        text = capsys.readouterr().out
        assert "where it comes from" in text
        assert max(map(len, text.splitlines())) <= 80


# Noise and heterogeneity at x* -----------------------------------------------------------------

STRONG = {
    "logistic": ("logistic", {**LOGISTIC, "regularizer": "l2", "lambda": 0.01}),
    "uneven": ("logistic", {**LOGISTIC, "regularizer": "l2", "lambda": 1e-3, "remainder": "last"}),
    "weak": ("logistic", {**LOGISTIC, "regularizer": "l2", "lambda": 1e-7}),
    "digits": ("logistic", {"dataset": "digits", "positive": [1, 7], "clients": 3,
                            "regularizer": "l2", "lambda": 0.1}),
    "ridge": ("least_squares", {**LOGISTIC, "regularizer": "l2", "lambda": 0.1}),
    "squares": ("least_squares", {**LOGISTIC, "regularizer": "none"}),
    "classes": ("least_squares", {"dataset": "digits", "clients": 4, "regularizer": "none"}),
    "quadratic": ("quadratic", {"dim": 9, "clients": 4}),
    "tridiagonal": ("tridiagonal", {"dim": 50, "clients": 4}),
}  # fmt: skip


@pytest.mark.parametrize("name", STRONG)
def test_minimizer_is_one(name):
    problem = build(*STRONG[name])
    best, c = problem.minimizer(), problem.constants
    grads, losses = problem.oracle(torch.stack([best, torch.zeros_like(best)]))
    sizes = grads.mean(1).norm(dim=-1)
    assert sizes[0] < 1e-9 * sizes[1]
    assert float(losses[0].mean()) == pytest.approx(c.f_star, rel=1e-12, abs=1e-13)
    assert c.f_inf == c.f_star
    near = best + 1e-3 * torch.randn(20, len(best), dtype=best.dtype, generator=_seeded())
    assert (problem.oracle(near)[1].mean(1) >= c.f_star).all()


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_minimizer_where_there_is_none_or_it_takes_long(monkeypatch):
    for name, params in (
        ("logistic", {"regularizer": "none"}),
        ("logistic", {"regularizer": "l1"}),
        ("logistic", {"regularizer": "nonconvex"}),
        ("logistic", {"regularizer": "l2", "lambda": 0.0}),
        ("least_squares", {"regularizer": "l1"}),
        ("least_squares", {"regularizer": "nonconvex"}),
        ("nonconvex_classification", {}),
    ):
        problem = build(name, {**LOGISTIC, **params})
        assert problem.minimizer() is None
        facts = facts_of(problem)
        assert facts["heterogeneity"] is None
        assert json.loads(facts["constants"])["noise_at_minimizer"] is None
    monkeypatch.setattr(minimum, "MOST_PRODUCTS_DENSE", 1.0)
    problem = build(*STRONG["logistic"])
    assert problem.minimizer() is None
    assert (problem.constants.f_star, problem.constants.f_inf) == (None, 0.0)


@pytest.mark.parametrize("name", STRONG)
def test_heterogeneity_and_noise_by_hand(name, monkeypatch):
    problem = build(*STRONG[name])
    facts = facts_of(problem)
    best, d = problem.minimizer(), problem.dim
    grads = problem.grad(best[None])[0]
    assert facts["heterogeneity"] == pytest.approx(float(grads.square().sum(-1).mean()), rel=1e-9)
    C = json.loads(facts["constants"])["noise_at_minimizer"]
    if max(problem.samples) == 1:
        assert C is None
        return
    each = []
    for i, m in enumerate(problem.samples):
        own = problem.host(range(i, i + 1))
        rows = torch.arange(m)[:, None, None]
        single = own.grad(best.expand(m, d).contiguous(), Sample.at(rows))[:, 0]
        assert torch.allclose(single.mean(0), grads[i], atol=1e-9 * float(single.abs().max()))
        each.append(float(single.var(0, correction=0).sum()))
    assert pytest.approx(np.mean(each), rel=1e-8) == C
    monkeypatch.setattr(minimum, "VALUES_AT_ONCE", 1)
    assert minimum.noise(problem) == pytest.approx(C, rel=1e-12)
    monkeypatch.setattr(minimum, "MOST_GRADIENT_VALUES", 1)
    assert minimum.noise(problem) is None


def test_minimum_of_sparse_rows_is_that_of_dense_ones():
    rows = build(*STRONG["uneven"]).rows
    random = np.random.default_rng(1)
    A = np.where(random.random(rows.features.shape) < 0.3, rows.features, 0.0)
    weights = random.random(len(A)) / len(A)
    dense = minimum.logistic_minimum(A, rows.labels, weights, 1e-3)
    sparse = minimum.logistic_minimum(scipy.sparse.csr_array(A), rows.labels, weights, 1e-3)
    assert dense[0] == pytest.approx(sparse[0], rel=1e-13)
    np.testing.assert_allclose(dense[1], sparse[1], rtol=0, atol=1e-9 * np.abs(dense[1]).max())
    assert minimum.logistic_minimum(A, rows.labels, weights, 1e-12) is not None  # nearly flat


def test_show_says_how_noisy_and_how_different_the_clients_are():
    text = said(RIDGE)
    facts = facts_of(build("logistic", {**LOGISTIC, "regularizer": "l2"}))
    C = json.loads(facts["constants"])["noise_at_minimizer"]
    assert number(text, "D = mean ‖∇fᵢ(x*)‖²") == pytest.approx(facts["heterogeneity"], rel=1e-5)
    assert number(text, "C, noise of a sample at x*") == pytest.approx(C, rel=1e-5)
    assert number(text, "f*") == pytest.approx(facts["f_star"], rel=1e-5)


# Memory ----------------------------------------------------------------------------------------


FAULTS = """
import resource, torch
from raybench.core.process import keep_freed
kept = keep_freed()
for j in range(40):
    if j == 20:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(6 << 20, dtype=torch.float64)
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_large_arrays_reuse_the_pages_of_those_before():
    """Without it every array of 48 MiB costs 12,288 faults of a page."""
    shown = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True
    )
    kept, faults = map(int, shown.stdout.split())
    if not kept:
        pytest.skip("not the C library that it is for")
    assert faults < 20 * 12_288 / 4
