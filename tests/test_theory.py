"""Step sizes against formulas written anew from the papers and the released code, and their assumptions.

Every method's formulas stand a second time in ``formulas.py``, in plain arithmetic, and must agree to rounding in several settings, the degenerate ones included: so a
constant that is off by 2 % fails.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from formulas import AUTO, CASES
from hypothesis import given, settings
from hypothesis import strategies as st
from known_problem import BREAKS, MOST, C, L, easy, setting

from raybench import theory
from raybench.core import registry
from raybench.execution.resolve import Skip, problem_of
from raybench.problems.base import Constants, Fact
from raybench.testing.trial import TrialMethod, started
from raybench.theory import Setting

sqrt = math.sqrt
NONCONVEX = {"name": "quadratic", "dim": 10, "clients": 6, "mu": 0.05}
NONCONVEX |= {"heterogeneity": 0.7, "seed": 2}
RAND = {"name": "rand_k", "k": 2}


def steps_of(name: str) -> theory.StepSizes:
    result = theory.of(registry.lookup("algorithm", name).facts.theory)
    assert result is not None
    return result


def title(value) -> str:
    if not isinstance(value, dict):
        return str(value)
    plain = (float, int, str)  # reprs of objects differ between processes, and ids must not
    return "-".join(f"{k}{v if isinstance(v, plain) else ''}" for k, v in value.items())


@pytest.mark.parametrize(("name", "rule", "given", "want"), CASES, ids=title)
def test_step_by_hand(name, rule, given, want):
    assert steps_of(name).step(setting(**given), rule) == pytest.approx(want, rel=1e-12)


def test_an_operator_that_may_send_nothing_is_not_contractive():
    assert theory.CONTRACTIVE.holds(setting(alpha=1e-9))
    assert not theory.CONTRACTIVE.holds(setting(alpha=0.0))


def test_every_step_has_a_formula_here():
    stated = {
        (name, rule)
        for name in registry.names("algorithm")
        if registry.lookup("algorithm", name).facts.theory is not None
        for rule in theory.RULES
        if steps_of(name).under(rule) is not None
    }
    shared = {  # the same formula as that of another rule or method, by identity
        ("ec_sgd", "pl"): ("ef14", "pl"),
        ("ec_sgd", "paper"): ("ef14", "paper"),
        ("ef_sign_sgd", "pl"): ("ef14", "pl"),
        ("ef_sign_sgd", "paper"): ("ef14", "paper"),
        ("one_bit_sgd", "pl"): ("ef14", "pl"),
        ("one_bit_sgd", "paper"): ("ef14", "paper"),
        ("ef21_prox", "pl"): ("ef21", "pl"),
        ("ef21_plus", "pl"): ("ef21", "pl"),
        ("ef21_plus", "released"): ("ef21", "released"),
        ("ef21_sgd", "paper"): ("ef21_sgdm", "paper"),
        ("ef21_w", "paper"): ("ef21_w", "nonconvex"),
        ("ef21_prox", "arithmetic"): ("ef21", "arithmetic"),
        ("ef21_plus", "arithmetic"): ("ef21", "arithmetic"),
        ("ef21_p", "pl"): ("ef21_p", "nonconvex"),
        ("momentum_sgd", "pl"): ("heavy_ball", "pl"),
        ("vr_marina", "pl"): ("vr_marina", "nonconvex"),
        ("pp_marina", "pl"): ("pp_marina", "nonconvex"),
    }
    for (a, b), (c, d) in shared.items():
        one, other = steps_of(a).under(b), steps_of(c).under(d)
        assert one is not None
        assert other is not None
        assert one.formula is other.formula, (a, b)
    assert stated - {(name, rule) for name, rule, _, _ in CASES} == set(shared)


# Assumptions ----------------------------------------------------------------------------------


def settled(name: str, rule: str) -> dict:
    """The numbers that the papers of DIANA fix, and full rounds where a theorem is about them."""
    own = {"a": 0.2} if rule == "paper" and name in ("diana", "vr_diana", "adiana") else {}
    if name in ("vertical_ef21", "econtrol"):  # theorems on full rounds
        return {"batch": "full", "eta": 0.1}
    if name == "ef21_normalized":
        return {"batch": "full", "eta": 1.0}
    if name in ("ringmaster_asgd", "rennala_sgd", "malenia_sgd", "shadowheart_sgd"):
        numbers = {"target": 0.1, "threshold": 5, "collect": 5, "noise": 1.0}
        return {**numbers, "omega": 0.0}  # whole gradients
    if name in ("locodl", "bicolor"):
        return {"eta": 0.001}
    if name == "adef":  # a theorem without compression
        return {"alpha": 1.0}
    return {**own, "a": 1 / 9} if "dasha" in name else own


THEOREMS = [
    (name, rule)
    for name in registry.names("algorithm")
    if registry.lookup("algorithm", name).facts.theory is not None
    for rule in theory.RULES
    if isinstance(steps_of(name).under(rule), theory.Theorem)
]


@pytest.mark.parametrize(("name", "rule"), THEOREMS)
def test_a_theorem_needs_each_of_its_assumptions(name, rule):
    theorem = steps_of(name).under(rule)
    assert theorem.failing(easy(**settled(name, rule))) == []
    assert theorem.step(easy(**settled(name, rule))) > 0
    assert theorem.assumes
    for one in theorem.assumes:
        broken = easy(**{**settled(name, rule), **BREAKS[one]})
        assert one in theorem.failing(broken)
        with pytest.raises(theory.NoTheory, match="the theorem assumes that"):
            theorem.step(broken)
    assert theorem.promises
    assert theorem.source
    assert len(theory.explained(theorem)) > 20


def test_unstated_facts_are_not_assumed():
    for one in BREAKS:
        bare = Constants(L=1.0)
        if one in (theory.CONVEX_CLIENTS, theory.CONVEX_SAMPLES, theory.BOUNDED_CLIENTS):
            assert not one.holds(setting(constants=bare))
    assert not theory.BOUNDED_NOISE.holds(setting(constants=Constants(L=1.0), batch=1))
    assert theory.BOUNDED_NOISE.holds(setting(constants=Constants(L=1.0), batch=1, m=1.0))
    assert theory.BOUNDED_NOISE.holds(setting(constants=Constants(L=1.0), batch="full"))


def test_with_a_nonsmooth_part_linear_rates_need_strong_convexity():
    """PL of the smooth part alone says nothing of f + psi."""
    weak = replace(C, facts=frozenset({Fact.CONVEX_PENALTY}))
    k = setting(constants=weak, alpha=0.5, nonsmooth=True)
    assert steps_of("ef21").nonconvex.failing(k) == []
    assert steps_of("ef21").pl.failing(k) == [theory.PL]


def test_proximal_methods_have_theorems_that_hold_with_a_nonsmooth_part():
    """Or a rule of thumb, or none on it: never a theorem about smooth f."""
    for name in registry.names("algorithm"):
        entry = registry.lookup("algorithm", name)
        steps = theory.of(entry.facts.theory)
        if steps is None:
            continue
        smooth_only = {
            rule
            for rule in theory.RULES
            if isinstance(steps.under(rule), theory.Theorem)
            and theory.PROXIMABLE not in steps.under(rule).assumes
        }
        for rule in smooth_only:
            assert theory.SMOOTH in steps.under(rule).assumes, (name, rule)
        if entry.facts.proximal:
            allowed = {"dcgd": {"nonconvex"}, "ef21_sgd": {"paper"}, "ef21_sgdm": {"paper"}}
            allowed["ef21"] = {"tight"}
            assert smooth_only == allowed.get(name, set()), name


@pytest.mark.parametrize(
    ("name", "given", "rule", "says"),
    [
        ("dcgd", {"alpha": 0.5}, "nonconvex", "unbiased"),
        ("ef21", {"alpha": 0.5, "constants": Constants()}, "nonconvex", "L_tilde is unknown"),
        ("ef21", {}, "nonconvex", "contractive"),
        ("marina", {"p": 0.5}, "nonconvex", "unbiased"),
        ("marina", {"omega": 4.0}, "nonconvex", "depends on p"),
        ("marina", {"omega": 4.0, "p": 0.5, "common": True}, "paper", "independent"),
        ("diana", {"omega": 4.0, "a": 0.0}, "nonconvex", "alpha"),
        ("ef21_p_diana", {"omega": 4.0, "a": 0.3, "down_alpha": 0.5}, "nonconvex", "alpha"),
        ("ef_bv", {"omega": 4.0, "lam": 0.0, "nu": 1.0}, "nonconvex", "do not come nearer"),
        ("ef_bv", {"omega": 4.0, "lam": 0.4, "nu": 1.0}, "paper", "do not come nearer"),
        ("ef_bv", {"lam": 0.4, "nu": 1.0}, "nonconvex", "neither"),
        ("econtrol", {"alpha": 0.5, "eta": 0.21}, "nonconvex", "feeds back more"),
        ("econtrol", {"alpha": 0.5, "eta": 0.1, "batch": 2}, "pl", "takes minibatches"),
        ("marina_p", {"p": 0.5}, "nonconvex", "downlink"),
        ("diana", {"omega": 4.0, "a": 0.202}, "nonconvex", "alpha"),
        ("diana", {"omega": 4.0, "a": 0.19}, "paper", "alpha"),
        ("vr_diana", {"omega": 4.0, "a": 0.2, "batch": 1, "p": 0.06}, "paper", "p is b/m"),
        ("vr_diana", {"omega": 4.0, "a": 0.202, "batch": 1, "p": 0.1}, "nonconvex", "alpha"),
        ("vr_diana", {"omega": 4.0, "a": 0.0, "batch": 1, "p": 0.1}, "nonconvex", "alpha"),
        ("vr_diana", {"omega": 4.0, "a": 0.2, "batch": 1, "estimator": "saga"}, "nonconvex", "saga"),
        ("dasha", {"omega": 4.0, "a": 0.112}, "nonconvex", "alpha"),
        ("dasha", {"omega": 4.0, "a": 0.112}, "pl", "alpha"),
        ("dasha", {"omega": 4.0, "a": 0.0}, "nonconvex", "alpha"),
        ("dasha", {"omega": 4.0, "a": 1.0}, "paper", "the paper's alpha"),
        ("dasha", {"omega": 4.0, "a": 0.02}, "paper", "the paper's alpha"),
        ("adiana", {"omega": 4.0, "a": 0.3, "p": 0.1}, "paper", "alpha"),
        ("adiana", {"omega": 4.0, "a": 0.2, "p": 0.1, "mu": 0.11}, "paper", "mu is above"),
        ("ef21_bc", {"alpha": 0.5, "down_alpha": 0.5}, "pl", "under the rule 'pl'"),
        ("ef21_sgdm", {"alpha": 0.5, "double": True}, "nonconvex", "double momentum"),
        ("heavy_ball", {"momentum": 0.5, "nesterov": True}, "nonconvex", "Nesterov"),
        ("ef14", {"alpha": 0.5, "memory": "gradient", "steady": False}, "nonconvex", "constant"),
        ("one_bit_sgd", {"alpha": 0.5, "memory": "gradient", "steady": False}, "paper", "constant"),
        ("three_pc_v2", {"alpha": 0.5}, "nonconvex", "compressor first"),
        ("vertical_marina", {"omega": 1.0, "p": 0.5, "constants": replace(C, extra={})}, "pl", "blocks"),
        ("lead", {}, "pl", "under the rule 'pl'"),
    ],
)  # fmt: skip
def test_no_theory_says_why(name, given, rule, says):
    with pytest.raises(theory.NoTheory, match=says):
        theory.step_size(steps_of(name), setting(**given), rule)


def test_a_method_without_theory():
    with pytest.raises(theory.NoTheory, match="the method has none"):
        theory.step_size(registry.lookup("algorithm", "power_sgd").facts.theory, setting())


def test_a_lent_step_is_a_number_whatever_its_theorem_assumes():
    k = setting(constants=replace(C, facts=frozenset()), omega=4.0)
    with pytest.raises(theory.NoTheory, match="convex"):
        steps_of("dcgd").step(k, "pl")
    assert steps_of("dcgd").lent(k, "pl") == pytest.approx(1 / (C.L + 8 * MOST / 3))


def test_plugins_may_give_a_function():
    """Of the recursion, or of the step itself."""

    def rate(k):
        return theory.Rate(rho=0.5, B=2.0 * k.need("L") ** 2)

    assert theory.step_size(rate, setting()) == pytest.approx(1 / (L + 2 * L))
    assert theory.step_size(rate, setting(), "pl") == pytest.approx(1 / (L + sqrt(8) * L))
    assert theory.step_size(lambda k: 0.25, setting()) == 0.25
    with pytest.raises(theory.NoTheory, match="nonsmooth"):
        theory.step_size(rate, setting(nonsmooth=True, constants=Constants(L=1.0)))


@pytest.mark.parametrize("missing", ["L", "L_i", "mu"])
def test_an_unknown_constant_means_no_step(missing):
    constants = Constants(
        **{"L": 1.0, "L_i": (1.0,), "mu": 0.1, missing: () if missing == "L_i" else None}
    )
    with pytest.raises(theory.NoTheory):
        theory.step_size(steps_of("ef21"), Setting(constants, 1, 5, alpha=0.5), "pl")


@given(st.floats(1e-12, 1.0))
@settings(max_examples=200)
def test_contraction_solves_its_equations(alpha):
    theta, beta = theory.contraction(alpha)
    assert 0 < theta <= 1
    assert (1 - theta) ** 2 == pytest.approx(1 - alpha, abs=1e-15)
    assert theta * (2 - theta) == pytest.approx(alpha, rel=1e-9)
    assert beta == pytest.approx((1 - alpha) / theta)
    assert math.sqrt(beta / theta) <= (2 / alpha - 1) * (1 + 1e-9)


def test_where_noise_is_not_bounded_the_rule_that_does_without_is_named():
    problem = {"name": "least_squares", "dataset": "breast_cancer", "clients": 1}
    with pytest.raises(Skip, match="bounded for all x") as why:
        TrialMethod("sgd", {}, None, {**problem, "regularizer": "none"})._resolved(
            {"theory": 1.0}, 0
        )
    assert "step_size.rule: pl, which there is here" in why.value.fix


# What surrounds the formulas ------------------------------------------------------------------


def test_which_rules_work():
    """Those under which there is a step here, in the order of the rules, and no others."""
    rules = ("nonconvex", "pl", "convex", "arithmetic", "tight", "paper", "released")
    assert rules == theory.RULES
    every = ["nonconvex", "pl", "arithmetic", "tight", "paper", "released"]
    assert steps_of("ef21").working(setting(alpha=0.5)) == every
    assert steps_of("ef21").working(setting()) == []
    unknown = setting(alpha=0.5, constants=Constants(L=1.0, L_i=(1.0, 2.0)))
    assert steps_of("ef21").working(unknown) == ["nonconvex", "arithmetic", "paper", "released"]
    assert steps_of("adiana").working(setting(omega=4.0, a=0.2, p=0.5)) == ["paper"]


def test_noise_adds_its_floor_to_both_promises():
    steps = theory.recursive(lambda k: theory.Rate(1.0, 1.0), "here", floor=("N/rho", "N/(rho mu)"))
    assert steps.nonconvex.promises == f"{theory.NONCONVEX} + N/rho"
    bound, comma, what = theory.LINEAR.partition(",  ")
    assert steps.pl.promises == f"{bound} + N/(rho mu){comma}{what}"
    plain = theory.recursive(lambda k: theory.Rate(1.0, 1.0), "here")
    assert (plain.nonconvex.promises, plain.pl.promises) == (theory.NONCONVEX, theory.LINEAR)


def test_what_a_setting_takes_for_granted():
    """One sample a client, so that a minibatch is all of it; dense messages; a constant step."""
    k = theory.Setting(C, n=3, d=10, numbers={"batch": 1})
    assert k.minibatch is None
    assert k.noise == 0.0
    assert k.dense_share == 1.0
    assert theory.CONSTANT_STEP.holds(k)
    assert theory.SMOOTH.holds(k)
    assert not theory.CONTRACTIVE.holds(k)
    assert not theory.UNBIASED.holds(k)
    assert theory.INDEPENDENT.holds(k)


@pytest.mark.parametrize("mu", [0.0, -1.0])
def test_adiana_has_no_mu_where_f_is_not_strongly_convex(mu):
    rule = registry.lookup("algorithm", "adiana").facts.auto["mu"]
    with pytest.raises(theory.NoTheory, match="mu is not positive"):
        rule(setting(constants=Constants(L=2.0, mu=mu)))
    assert rule(setting(constants=Constants(L=2.0, mu=0.5))) == 0.5


def test_a_memory_of_gradients_has_a_theorem_for_constant_steps_only():
    """In units of steps, any schedule will do; in units of gradients, a constant step."""
    rule = steps_of("ef14")
    given = {"alpha": 0.3, "rounds": 100}
    want = rule.step(setting(**given, memory="step"), "nonconvex")
    for memory, constant in (("step", False), ("gradient", True)):
        own = setting(**given, memory=memory, steady=constant)
        assert rule.step(own, "nonconvex") == want
    with pytest.raises(theory.NoTheory, match="constant steps only"):
        rule.step(setting(**given, memory="gradient", steady=False), "nonconvex")


# Numbers that theory fills in ------------------------------------------------------------------


def filled(name, parameter, k) -> float:
    return registry.lookup("algorithm", name).facts.auto[parameter](k)


@pytest.mark.parametrize(("name", "parameter", "given", "want"), AUTO, ids=title)
def test_auto_by_hand(name, parameter, given, want):
    assert filled(name, parameter, setting(**given)) == pytest.approx(want, rel=1e-12)


def test_every_automatic_number_has_a_formula_here():
    stated = {
        (name, parameter)
        for name in registry.names("algorithm")
        for parameter in registry.lookup("algorithm", name).facts.auto
    }
    assert stated == {(name, parameter) for name, parameter, _, _ in AUTO}


def test_noise_and_convexity_of_a_setting():
    assert setting(batch=4).noise == 12.0 / 4
    assert setting(batch="full").noise == setting(batch=4, m=1.0).noise == setting().noise == 0.0
    assert setting(constants=replace(C, sample_variance=None), batch=4).noise is None
    small = setting(constants=replace(C, mu=0.01))
    assert theory.PL.holds(small)
    assert theory.STRONGLY_CONVEX.holds(small)
    for one in (theory.PL, theory.STRONGLY_CONVEX):
        assert not one.holds(setting(constants=replace(C, mu=0.0)))


@pytest.mark.parametrize(
    "name", ["marina", "vr_marina", "pp_marina", "dasha_sync_mvr", "three_pc_v5"]
)
def test_empty_messages_have_no_automatic_p(name):
    params = {"alpha": 0.5} if name == "dasha_sync_mvr" else {}
    with pytest.raises(
        Skip, match="p: auto has no value here: the compressor's messages are empty"
    ):
        TrialMethod(name, params, "zero", NONCONVEX, step=0.1).cell()
    assert (
        TrialMethod(name, {**params, "p": 0.5}, "zero", NONCONVEX, step=0.1).cell().step_size == 0.1
    )


@pytest.mark.parametrize("p", [0.1, 0.3, 0.7])
def test_automatic_p_of_messages_by_chance_is_that_of_their_mean_length(p):
    """Of a gate, which sends all or nothing, as of a coin for every coordinate."""
    for name, flag in (("lazy", 1 / 640), ("random_sparsification", 0.0)):
        cell = TrialMethod("marina", {}, {"name": name, "p": p}, NONCONVEX).cell()
        assert cell.params["p"] == pytest.approx(p + flag, abs=0.03)


def test_an_unbiased_operator_is_rescaled_where_a_contraction_is_needed():
    rescaled = TrialMethod("ef21", {}, RAND, NONCONVEX).cell()
    assert rescaled.alpha == pytest.approx(0.2)
    assert rescaled.omega is None
    c = problem_of(rescaled.cell.problem).constants
    theta = 1 - math.sqrt(0.8)
    assert rescaled.theory_step == pytest.approx(1 / (c.L + c.L_tilde * math.sqrt(0.8) / theta))
    run = started(TrialMethod("ef21", {}, RAND, NONCONVEX).batch())
    x = torch.randn(1, 6, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sent = run.a.C(x, run.net.stream("up")).decode()
    assert torch.allclose(sent[sent != 0], x[sent != 0])  # unscaled Rand-K
