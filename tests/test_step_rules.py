"""What surrounds the formulas of step sizes: which rules work, what a theorem says, what is taken for granted."""

from __future__ import annotations

import pytest
from known_problem import C, setting

from raybench import theory
from raybench.core import registry
from raybench.problems.base import Constants


def steps_of(name: str) -> theory.StepSizes:
    return theory.of(registry.lookup("algorithm", name).facts.theory)


def test_which_rules_work():
    """Those under which there is a step here, in the order of the rules, and no others."""
    assert theory.RULES == ("nonconvex", "pl", "convex", "arithmetic", "paper", "released")
    every = ["nonconvex", "pl", "arithmetic", "paper", "released"]
    assert steps_of("ef21").working(setting(alpha=0.5)) == every
    assert steps_of("ef21").working(setting()) == []
    unknown = setting(alpha=0.5, constants=Constants(L=1.0, L_i=(1.0, 2.0)))
    assert steps_of("ef21").working(unknown) == ["nonconvex", "arithmetic", "paper", "released"]
    assert steps_of("adiana").working(setting(omega=4.0, p=0.5)) == ["paper"]


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


def test_numbers_are_floats_whatever_was_given():
    assert type(theory.step_size(lambda k: 1, setting())) is float
    k = setting(constants=Constants(L=2), p=1)
    assert type(k.need("L")) is type(k.number("p")) is float


@pytest.mark.parametrize("mu", [0.0, -1.0])
def test_adiana_has_no_mu_where_f_is_not_strongly_convex(mu):
    rule = registry.lookup("algorithm", "adiana").facts.auto["mu"]
    with pytest.raises(theory.NoTheory, match="mu is not positive"):
        rule(setting(constants=Constants(L=2.0, mu=mu)))
    assert rule(setting(constants=Constants(L=2.0, mu=0.5))) == 0.5


def test_a_client_with_one_sample_has_no_minibatch():
    for samples, batch in ((1, None), (2, 1), (2.5, 1)):
        assert setting(m=samples, batch=1).minibatch == batch


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


def test_the_mean_of_correlated_messages_has_the_variance_a():
    assert setting(ab=(2.0, 0.5), omega=9.0).mean_omega == 2.0
    assert setting(common=True, omega=9.0).mean_omega == 9.0
    assert setting(omega=9.0).mean_omega == 3.0
