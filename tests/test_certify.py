"""``raybench certify``: values by hand and by other programs, which methods qualify, replays, refutations."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from cli_kit import cli, here, refused  # noqa: F401 - a fixture
from hypothesis import given, settings
from hypothesis import strategies as st

import raybench
from raybench.certificates import certify as verbs
from raybench.certificates import curve
from raybench.certificates.cases import replay
from raybench.certificates.question import question
from raybench.certificates.space import abstract
from raybench.core import registry
from raybench.core.errors import InputError, Notice
from raybench.core.facts import Role
from raybench.testing.certificates import certified

pytest.importorskip("cvxpy")
certify = raybench.certify

# worst cases of EF21 by a program that was written by hand for it, to four digits: by T
FULL = {1: 2.0, 2: 1.5, 3: 1.2096, 5: 0.8321}
FREE = {1: 2.0, 2: 1.5297, 3: 1.2210, 5: 0.8538}
TIGHT = {0.5: 0.96925, 0.8: 0.95122, 1.0: 0.93937, 1.01: 0.94527, 1.1: 1.0, 1.25: 1.09766}
CLIENTS_AND_ROUNDS = [
    (1, 1),
    (1, 5),
    (2, 2),
    *(pytest.param(n, T, marks=pytest.mark.thorough) for n, T in ((1, 2), (1, 3), (2, 3), (2, 5))),
]

HASTY = '''
from raybench.algorithms.ef21 import EF21
from raybench.plugins import Contractive, algorithm, theory


def recursion(k):
    """EF21's recursion, of sqrt(alpha)."""
    theta, beta = theory.contraction(k.need("alpha") ** 0.5)
    return theory.Rate(rho=theta, B=beta * k.need("L_tilde") ** 2)


@algorithm("hasty", up=Contractive, theory=recursion)
class Hasty(EF21):
    """EF21 at another step."""
'''


# Values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "T"), CLIENTS_AND_ROUNDS)
@pytest.mark.parametrize(("init", "want"), [("full", FULL), ("compressed", FREE)])
def test_ef21(n, T, init, want):
    c = certify(f"ef21:init={init}", alpha=0.5, clients=n, rounds=T)
    assert c.worst == pytest.approx(want[T], abs=1e-4)
    assert c.replay == pytest.approx(c.worst, rel=1e-6)
    assert c.status == "optimal"
    assert c.gap < 1e-6
    step = 1 / (1 + math.sqrt(0.5) / (1 - math.sqrt(0.5)))
    assert c.step_size == pytest.approx(step)
    assert c.bound == pytest.approx(2 / (step * T))
    assert c.ratio == pytest.approx(c.worst / c.bound)
    assert not c.refuted


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("T", [1, 4])
def test_gradient_descent_is_as_slow_as_its_theorem_says(n, T):
    c = certify("gd", clients=n, rounds=T)
    assert (c.worst, c.bound) == pytest.approx((2 / T, 2 / T), rel=1e-6)


def test_gradient_descent_on_convex_functions():
    """f(x^T) - f* <= L ||x^0 - x*||^2/(4 T + 2) at 1/L, exactly (Drori, Teboulle 2014); (1 - mu/L)^(2 T) of distances."""
    c = certify("gd", rounds=3, mu=0, measure="gap", start="distance")
    assert c.worst == pytest.approx(1 / 14, abs=1e-6)
    c = certify("gd", rounds=2, mu=0.1, measure="distance", start="distance")
    assert c.worst == pytest.approx(0.9**4, abs=1e-5)
    c = certify("gd", rounds=1, mu=0.1, rule="pl")  # the bound is 1 - mu/L, the truth its square
    assert (c.measure, c.worst, c.bound) == ("gap", pytest.approx(0.81, abs=1e-5), 0.9)


def test_a_problem_of_another_scale():
    """L = 100: gradients are 10 times as long where f begins at 1, and steps a hundredth."""
    c, unit = certify("ef21", rounds=2, L=100), certify("ef21", rounds=2)
    assert (c.worst, c.step_size) == pytest.approx((100 * unit.worst, unit.step_size / 100))


@pytest.mark.parametrize("name", ["ef21", "ef14"])
@pytest.mark.parametrize(
    "multiple",
    [1.0, 1.01, *(pytest.param(m, marks=pytest.mark.thorough) for m in (0.5, 0.8, 1.1, 1.25))],
)
def test_the_tight_step(name, multiple):
    options = {"rounds": 1, "mu": 0.1, "rule": "tight", "measure": "lyapunov"}
    c = certify(name, step_multiple=multiple, alpha=0.5, **options)
    assert c.theory_step == pytest.approx(0.31195, abs=1e-5)
    assert c.worst == pytest.approx(TIGHT[multiple], abs=1e-4)
    if multiple <= 1:  # its factor is the truth
        assert c.bound == pytest.approx(c.worst, abs=1e-5)
    else:
        assert c.bound is None
        assert "steps up to" in c.why


@pytest.mark.parametrize("T", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_the_tight_step_where_clients_differ(T):
    """Exactly, where mu_i/L_i is the same for all; else what it says holds."""
    options = {"clients": 2, "rounds": T, "rule": "tight"}
    even = certify("ef21", L=(1, 3), mu=(0.1, 0.3), **options)
    assert even.worst == pytest.approx(TIGHT[1.0] ** T, abs=1e-4)
    assert even.bound == pytest.approx(even.worst, abs=1e-5)
    uneven = certify("ef21", L=(1, 3), mu=(0.3, 0.1), **options)
    assert uneven.ratio < 1
    same = certify("ef14", same=True, mu=0.1, **options)
    assert same.worst == pytest.approx(TIGHT[1.0] ** T, abs=1e-4)
    with pytest.raises(InputError, match="clients have functions of their own"):
        certify("ef14", mu=0.1, **options)


def test_best_and_projection():
    """One gradient step on strongly convex functions is best at 2/(L + mu). What Top-K is beside contractive makes a case no worse."""
    asked = {"rounds": 1, "mu": 0.1, "measure": "distance", "start": "distance"}
    least = verbs.best("gd", **asked)
    assert least.step_size == pytest.approx(2 / 1.1, rel=0.01)
    assert least.worst == pytest.approx((0.9 / 1.1) ** 2, rel=0.01)
    any_one, top_k = (certify("ef21:init=full", rounds=2, projection=p) for p in (False, True))
    assert top_k.worst <= any_one.worst + 1e-6
    assert "<C(v), v>" in top_k.conditions[0]


# Which methods qualify ----------------------------------------------------------------------------


QUALIFY = (
    *(
        "gd",
        "heavy_ball",
        "dcgd",
        "ef14",
        "ef21",
        "ef21_hb",
        "ef21_w",
        "ef21_prox",
        "ef21_p",
        "ef21_bc",
    ),
    *(
        "double_squeeze",
        "econtrol",
        "ef_bv",
        "ef21_sgdm",
        "three_pc_v1",
        "three_pc_v4",
        "local_sgd",
    ),
    *("fedprox", "scaffold", "local_ef21", "dgd", "diffusion", "extra", "exact_diffusion"),
    *(
        "gradient_tracking",
        "lead",
        "choco_sgd",
        "sgd",
        "momentum_sgd",
        "ef21_sgd",
        "ec_sgd",
        "diana",
    ),
    *("ec_diana", "prox_lead", "gossip", "fedavg", "easgd"),
)
REFUSED = {
    "ef21_plus": "choices by size",
    "clip21_sgd2m": "norms",
    "ef21_normalized": "norms",
    "ef_sign_sgd": "signs",
    "lag": "choices by size",
    "clag": "choices by size",
    "sign_sgd": "signs",
    "lsgd": "asks for losses",
    "ef21_pp": "tosses coins",
    "ef21_page": "tosses coins",
    "rennala_sgd": "speed of clients",
    "codistillation": "predictions",
    "vertical_gd": "features",
}
FEW = ("gd", "ef21", "ef21_bc", "econtrol", "scaffold", "gradient_tracking", "lead")


def runs(name, rounds=2, **options):
    role = registry.lookup("algorithm", name).facts.up
    if role == Role.UNBIASED or name == "ec_diana":
        options["alpha"] = 1
    about = question(name, rounds=rounds, **{"clients": 3, **options})
    return about.at(about.unit)


@pytest.mark.parametrize(
    "name", [n if n in FEW else pytest.param(n, marks=pytest.mark.thorough) for n in QUALIFY]
)
def test_a_method_runs_on_unknown_vectors(name):
    about = runs(name)
    trace = abstract(about.subject)
    assert len(trace.points) == 3
    assert trace.count > 3


@pytest.mark.parametrize("name", REFUSED)
def test_a_method_is_refused_with_the_reason(name):
    with pytest.raises(InputError, match=REFUSED[name]):
        certify(name, rounds=3, step_size=0.1)


def test_what_is_random_is_refused():
    with pytest.raises(InputError, match="unbiased compressor, and so a random one"):
        certify("marina", rounds=3, step_size=0.1)
    with pytest.raises(InputError, match="tosses coins"):
        certify("marina", alpha=1, rounds=3, step_size=0.1)
    with pytest.raises(InputError, match="second compressor is unbiased"):
        certify("three_pc_v2", step_size=0.1)


def test_an_orthogonal_basis_would_let_norms_through(monkeypatch):
    """In the first basis alone normalised steps look linear."""
    monkeypatch.setattr("raybench.certificates.certify.BASES", 0)
    about = runs("ef21_normalized", clients=1).at(0.1)
    assert abstract(about.subject, bases=0).count > 3


@pytest.mark.thorough
def test_so_many_methods_qualify():
    names = []
    for name in registry.names("algorithm"):
        needs = {"mu": 0.1} if registry.lookup("algorithm", name).facts.minimizer else {}
        try:
            verbs.at_step(runs(name, **needs, clients=2), 0.1)
        except InputError:
            continue
        names.append(name)
    assert {*QUALIFY} <= {*names}
    assert not {*REFUSED, "marina"} & {*names}
    assert len(names) >= 40


def test_acceleration_without_compression_holds_its_promise_on_every_convex_function():
    """f(x^T) - f* <= ||x^0 - x*||^2/(2 A_T), for which no test of examples is enough."""
    asked = {"mu": 0.0, "rule": "convex", "measure": "gap", "start": "distance"}
    result = raybench.certify("adef", alpha=1.0, rounds=5, **asked)
    A = 0.0
    for _ in range(5):
        A += (1 + math.sqrt(1 + 4 * A)) / 2
    assert result.step_size == 1.0
    assert 0.5 / (2 * A) < result.worst < 1 / (2 * A)
    assert result.replay == pytest.approx(result.worst, rel=1e-5)


# Theorems ----------------------------------------------------------------------------------------


WITH_THEOREMS = [
    name
    for name in registry.names("algorithm")
    if registry.lookup("algorithm", name).facts.theory is not None
]


@pytest.mark.thorough
@pytest.mark.parametrize("name", WITH_THEOREMS)
def test_no_theorem_of_ours_is_refuted(name):
    results = list(certified(registry.lookup("algorithm", name)))
    assert not [str(one) for one in results if not one.ok]
    assert (
        name not in FEW
        or name in ("lead", "scaffold", "gradient_tracking")
        or any(one.claimed for one in results)
    )


# Replays and refutations ----------------------------------------------------------------------------


def test_a_case_is_saved_and_replayed(tmp_path):
    file = tmp_path / "case.npz"
    c = certify("ef21", clients=2, rounds=2, save=file)
    assert replay(file) == pytest.approx(c.worst, rel=1e-6)
    with np.load(file, allow_pickle=False) as case:
        arrays = {name: case[name] for name in case.files}
    arrays["f"] = 0.9 * arrays["f"]  # below what gradients of that length allow
    np.savez(file, **arrays)
    assert replay(file) is None
    (tmp_path / "other.npz").write_text("nothing")
    with pytest.raises(InputError, match="raybench certify"):
        replay(tmp_path / "other.npz")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A worst case in a file."""
    file = tmp_path_factory.mktemp("saved") / "case.npz"
    certify("ef21", clients=2, rounds=2, save=file)
    return file


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_file_that_was_changed_is_refused_or_replayed(saved, data):
    """Random values in the JSON, or random bytes of the archive: a number, None, or InputError."""
    with np.load(saved, allow_pickle=False) as case:
        arrays = {name: case[name] for name in case.files}
    text = json.loads(str(arrays["text"]))
    part = data.draw(st.sampled_from([text, text["asked"], text["script"], text["script"][-1]]))
    key = data.draw(st.sampled_from([*part] if isinstance(part, dict) else range(len(part))))
    small = st.integers(-2, 9) | st.floats() | st.text(max_size=3) | st.none()
    part[key] = data.draw(small | st.lists(small, max_size=4))
    place = saved.with_name("changed.npz")
    np.savez(place, **{**arrays, "text": np.array(json.dumps(text))})
    if data.draw(st.booleans()):
        content = bytearray(place.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        place.write_bytes(content)
    with contextlib.suppress(InputError):
        assert isinstance(replay(place), float | None)


def test_without_a_solver_a_check_says_that_theorems_are_not_tried(monkeypatch):
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.warns(Notice, match=r"pip install 'raybench\[certify\]'"):
        assert not [*certified(registry.lookup("algorithm", "ef21"))]


def test_a_wrong_step_is_refuted(here):  # noqa: F811
    (here / "hasty.py").write_text(HASTY)
    said = cli("certify", "hasty", "--plugin", "hasty.py", "--rounds", 10)
    assert said.code == 1
    assert "REFUTED: a function on which the theorem fails is in refuted_hasty.npz" in said.out
    value = replay(here / "refuted_hasty.npz")
    said = cli("certify", "hasty", "--rounds", 10, "--json")
    result = json.loads(said.out)
    assert said.code == 1
    assert value == pytest.approx(result["worst"], rel=1e-6)
    assert value > 1.1 * result["bound"]
    assert result["refuted"] is True


def test_the_figure_of_a_method_is_printed(here):  # noqa: F811
    said = cli("certify", "ef21", "--set", "init=full", "--rounds", 2)
    assert said.code == 0
    assert "worst case   1.5 = mean ‖∇f(xᵗ)‖², t < 2" in said.out
    assert "theorem      3.41421: holds, 2.28 times the truth" in said.out
    assert not list(here.iterdir())
    result = json.loads(
        cli("certify", "double_squeeze", "--step-size", 0.1, "--rounds", 1, "--json").out
    )
    assert result["bound"] is result["ratio"] is None
    assert result["why"] == "no theorem under the rule nonconvex"
    assert {"worst", "status", "gap", "step_size"} <= {*result}


def test_clients_that_differ_need_a_condition_more():
    """EF14's are bounded by its theorem's f_low; without one the missing condition is added, and told."""
    c = certify("double_squeeze", clients=2, rounds=2, step_size=0.2)
    assert c.conditions[0] == "every f_i is bounded below, inf f the mean of their bounds"
    assert math.isfinite(c.worst)
    c = certify("ef14", clients=2, rounds=2, mu=0.1, step_size=0.2, measure="distance")
    assert c.conditions[0] == "mean ||grad f_i(x*)||^2 <= 1"


@pytest.mark.thorough
def test_worst_and_measured_in_one_figure(here):  # noqa: F811
    problem = {"name": "quadratic", "dim": 10, "clients": 2, "seed": 1}
    raybench.sweep(
        {
            "name": "beside",
            "problem": problem,
            "algorithm": {"name": "ef21", "init": "full"},
            "compressor": {"name": "top_k", "k": 5},
            "step_size": {"theory": [0.5, 1]},
            "rounds": 3,
        },
        out=here / "beside",
        inline=True,
    )
    options = ("--set", "init=full", "--rounds", 3, "--curve", "figure.png", "--beside", "beside")
    assert cli("certify", "ef21", *options).code == 0
    import pandas as pd

    rows = pd.read_csv(here / "figure.csv").groupby("series")["value"]
    assert rows.size()["measured"] == 2
    assert rows.max()["measured"] < rows.min()["worst case"]
    assert rows.min()["worst case"] > 0
    assert (here / "figure.png").stat().st_size > 10_000
    with pytest.raises(InputError, match="no such run of gd"):
        curve.measured(here / "beside", certify("gd", rounds=2))


# What users get wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("ef22",), "did you mean ef21?"),
        (("ef21", "--alpha", "1.5"), "0 < alpha <= 1"),
        (("gd", "--alpha", "0.5"), "the method has no such compressor"),
        (("ef21", "--mu", "2"), "is not below L = 1"),
        (("ef21", "--L", "1,2,3", "--clients", "2"), "3 numbers for 2 clients"),
        (("ef21", "--L", "one"), "'one' is no number"),
        (("ef21", "--L", "0"), "out of range"),
        (("ef21", "--rule", "tigth"), "did you mean tight?"),
        (("ef21", "--rule", "tight"), "strongly convex"),
        (("ef21", "--measure", "gapp"), "did you mean gap?"),
        (("ef21", "--measure", "distance"), "needs convex functions"),
        (
            ("ef14", "--measure", "lyapunov", "--rule", "paper", "--mu", "0.1"),
            "told in words alone",
        ),
        (("ef21", "--start", "x"), "unknown start"),
        (("ef21", "--rounds", "0"), "an integer from 1 on"),
        (("ef21", "--step-size", "-1"), "a number > 0"),
        (("double_squeeze",), "give --step-size"),
        (("ef21", "--set", "init=ful"), "did you mean full?"),
        (("ef21", "--same", "--L", "1,2", "--clients", "2"), "one function has one L"),
        (("ef21", "--beside", "x"), "--curve"),
        (("ef21", "--curve", "x.gif"), "is no figure"),
        (("ef21", "--best", "--step-size", "1"), "leave the step out"),
        (("dgd", "--graph", "rin"), "did you mean ring?"),
        (("ec_gd_star",), "needs x*"),
        (("ef21_plus",), "choices by size"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else None,
)
def test_mistakes(here, options, says):  # noqa: F811
    refused("certify", *options, says=[says])


def test_without_the_solver_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "clarabel", None)
    with pytest.raises(InputError, match=r"pip install 'raybench\[certify\]'"):
        certify("gd", rounds=1)


def without_G(name: str):
    """The question about a method whose recursion does not say what G is."""
    about = question(name, rounds=2)
    rate = about.backing.formula
    bare = replace(about.backing, formula=lambda k: replace(rate(k), G=None))
    return replace(about, backing=bare)


def test_where_nothing_tells_what_G_is_the_first_step_does():
    """Of heavy ball that is all of G^0; of EF21 it is 0 after exact messages, and of EF-BV, which has sent none, unknown."""
    ball = without_G("heavy_ball")
    told = certify("heavy_ball", rounds=2)
    assert verbs.at_step(ball, told.step_size).worst == pytest.approx(told.worst, rel=1e-5)
    ef21 = without_G("ef21")
    exact = certify("ef21:init=full", rounds=2)
    assert verbs.at_step(ef21, exact.step_size).worst == pytest.approx(exact.worst, rel=1e-5)
    why = "its recursion does not tell G^0: give theory.Rate(.., G=..)"
    assert without_G("ef_bv").at(0.1).bound() == (None, why)
