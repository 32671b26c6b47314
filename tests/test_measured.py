"""What is shown and measured: step sizes with their factors, noise and heterogeneity, gradients counted."""

from __future__ import annotations

import math
import re

import pytest
from cli_kit import cli

from raybench import registry, theory
from raybench.cli import main
from raybench.problems import build

LOGISTIC = {"name": "logistic", "dataset": "breast_cancer", "clients": 5, "scale": "columns"}
RIDGE = "logistic:dataset=breast_cancer,scale=columns,clients=5,regularizer=l2"


def said(*words) -> str:
    shown = cli("show", *words)
    assert shown.code == 0, shown.err
    return shown.out


def number(text: str, name: str) -> float:
    (found,) = re.findall(rf"^  {re.escape(name)} +(\S+)$", text, re.M)
    return float(found)


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
        ("ρ", theta),
        ("B", beta * far**2),
        ("√(B/ρ)", far * math.sqrt(beta / theta)),
        ("nonconvex", 1 / (L + far * math.sqrt(beta / theta))),
        ("pl", min(1 / (L + far * math.sqrt(2 * beta / theta)), theta / (2 * mu))),
    ):
        assert number(text, name) == pytest.approx(value, rel=1e-5), name
    # the guarantees, with their numbers: f(0) = log 2, inf f >= the minimum
    gap = math.log(2) - build("logistic", _params()).constants.f_inf
    first = 2 * gap / number(text, "nonconvex")
    words = " ".join(text.split())
    assert f"at most ({first:.4g} + {1 / theta:.4g} G⁰)/T" in words
    shrink = number(text, "pl") * mu
    assert f"γμ = {shrink:.4g}" in words
    rounds = int(re.findall(r"tenfold every ([\d,]+) rounds", words)[0].replace(",", ""))
    assert (1 - shrink) ** rounds <= 0.1 < (1 - shrink) ** (rounds - 2)


def _params() -> dict:
    return {**{k: v for k, v in LOGISTIC.items() if k != "name"}, "regularizer": "l2"}


def test_show_promises_nothing_that_is_not_proved():
    marina = said("marina", "--problem", "quadratic")
    assert "not proved here" in marina.split("  paper\n")[-1]
    assert "floor" not in marina
    assert "minibatches" in said("sgd", "--problem", RIDGE)
    assert "G⁰" not in said("gd", "--problem", RIDGE)
    none = said("power_sgd", "--problem", "quadratic")
    assert none.count("none: ") == 3
    assert "where it comes from" not in none
    own = said("dasha", "--problem", "quadratic").split("  nonconvex\n")[-1].split("  pl\n")[0]
    assert "a step of its own" in own
    assert "≤" not in own
    lasso = said("gd", "--problem", RIDGE.replace("l2", "l1"))
    assert "gradient mapping" in lasso


@pytest.mark.parametrize("columns", [80, 120])
def test_show_fits_the_screen(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    for method in ("ef21", "dasha", "adiana"):
        with pytest.raises(SystemExit):
            main(["show", method, "--problem", RIDGE])
        text = capsys.readouterr().out
        assert "where it comes from" in text
        assert max(map(len, text.splitlines())) <= columns


def test_show_takes_ten_clients_where_none_are_asked_for():
    text = said("ef21", "--problem", "logistic", "--dataset", "breast_cancer")
    assert number(text, "n") == 10
    assert number(said("logistic", "--dataset", "breast_cancer"), "n") == 10
    assert number(said("ef21", "--problem", RIDGE), "n") == 5


@pytest.mark.parametrize("name", registry.names("algorithm"))
def test_every_theory_explains_itself(name):
    """The text of a theory is what ``show`` prints under the step."""
    rule = registry.lookup("algorithm", name).meta.get("theory")
    if rule is not None:
        assert len(rule.__doc__ or "") > 20
        assert rule is not theory.Rate
