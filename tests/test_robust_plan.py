"""Robust servers in a plan: steps, memory, and what they do not go with."""

from __future__ import annotations

import numpy as np
import pytest
from cli_kit import cli
from toys import RAND, TOP, Alike, registered

import raybench
from raybench import spec
from raybench.analysis import describe
from raybench.core import registry
from raybench.core.errors import InputError
from raybench.execution.checks import Skip
from raybench.execution.costs import need_of
from raybench.execution.plan import make_plan
from raybench.execution.resolve import Resolver
from raybench.store import cells
from raybench.testing.trial import Method, finished

UNLIKE = {"name": "quadratic", "dim": 10, "clients": 7, "mu": 0.1, "seed": 1}


@pytest.fixture(autouse=True)
def _alike():
    with registered("problem", alike=Alike):
        yield


# What it does not go with -----------------------------------------------------------------------------


def refused(name, compressor=None, problem=UNLIKE, error=InputError, **more):
    method = Method(name, {}, compressor, problem, step=0.1, more=more)

    def planned():
        (cell,) = spec.load(method.config({"value": 0.1}, 0)).cells
        return Resolver(True).resolve(cell)

    with pytest.raises(error) as said:
        planned()
    return str(said.value)


@pytest.mark.parametrize(
    ("robust", "says"),
    [
        ({"byzantine": 7}, "7 of 7 clients leave nobody"),
        ({"byzantine": 1.5}, "a share of the clients such as 10%"),
        ({"byzantine": 4}, "cannot resist 4 of 7 clients"),
        ({"rule": "krum", "byzantine": 3, "bucket": 2}, "cannot resist 3 of 4 buckets of 7"),
        ({"rule": "trimmed_mean", "tolerate": "60%"}, "cannot resist 4 of 7"),
        ({"rule": "medain"}, "median"),
        ({"attack": "label"}, "label_flip"),
        ({"bucket": 0}, "bucket"),
    ],
)
def test_numbers_that_make_no_sense_are_errors(robust, says):
    assert says in refused("gd", robust=robust)


def test_a_majority_of_attackers_may_be_studied():
    for robust in ({"byzantine": 5, "tolerate": 1}, {"rule": "mean", "byzantine": 6}):
        more = {"robust": {**robust, "attack": "inner_product"}}
        finished(Method("gd", {}, None, UNLIKE, step=0.1, rounds=2, more=more).batch())


@pytest.mark.parametrize("how", ["reduce", "all_to_all"])
def test_averaged_on_the_way_no_client_can_be_judged(how):
    identity = {"name": "identity", "collective": how}
    assert f"by compressor.collective: {how} the server has their sum alone" in refused(
        "ef21", identity, robust={"rule": "median"}
    )
    assert "downlink: aggregate" in refused("ef21", TOP, robust={}, downlink="aggregate")


@pytest.mark.parametrize("name", ["ef21_plus", "ef21_w", "sign_sgd", "scaffold", "adiana"])
def test_methods_that_make_no_mean_of_estimates_are_skipped(name):
    up = registry.lookup("algorithm", name).facts.up
    compressor = None if up is None else TOP
    said = refused(name, compressor, error=Skip, robust={"rule": "median"})
    assert f"what the server of {name} steps along is no mean" in said


def test_label_flip_needs_labels():
    lie = {"byzantine": 1, "attack": "label_flip"}
    assert "needs labels" in refused("gd", error=Skip, robust=lie)


def test_methods_without_a_server_do_not_hear_it():
    config = Method("extra", {}, None, UNLIKE, more={"robust": {"rule": "median"}})
    loaded = spec.load(config.config({"value": 0.1}, 0))
    assert loaded.cells[0].robust is None
    assert loaded.notes == ("extra has no server to step: robust ignored",)


def test_other_methods_have_no_theory_with_a_rule():
    method = Method("ef21", {}, TOP, UNLIKE, more={"robust": {"rule": "median"}})
    (cell,) = spec.load(method.config({"theory": 1}, 0)).cells
    with pytest.raises(Skip, match="no theoretical step"):
        Resolver().resolve(cell)


# What it takes --------------------------------------------------------------------------------------


def test_the_step_of_a_preset_is_that_of_the_honest_clients_and_of_the_rule():
    """Alike clients: L and L_tilde stay, n is the number of honest ones, kappa = f/(n - 2f)."""
    given = {"params": {"p": 0.25, "batch": 1}, "compressor": {"name": "rand_k", "k": 5}}
    robust = {"rule": "trimmed_mean", "byzantine": 2, "attack": "inner_product"}
    more = {"problem": {"name": "alike"}, "more": {"robust": robust}}
    kappa, p, l = (
        2 / 3,
        0.25,
        7 / 5,
    )  # omega, L and L_tilde are 1; Lcal^2 of some may be n/h times as large
    V, S = ((1 + l) + l) / 5, 2 * (1 + l)
    ratio = 2 * (1 - p) / p * ((1 + p / 2) * V + (1 + 2 / p) * kappa * S)
    step = Method("byz_vr_marina", **given, **more).cell().step_size
    assert step == pytest.approx(1 / (1 + np.sqrt(ratio)), rel=1e-9)


def test_of_krum_and_of_buckets_no_step_is_proved():
    for robust in ({"rule": "krum", "byzantine": 1}, {"bucket": 2}):
        method = Method("byz_vr_marina", {}, RAND, UNLIKE, more={"robust": robust})
        (cell,) = spec.load(method.config({"theory": 1}, 0)).cells
        with pytest.raises(Skip, match="kappa is unknown here"):
            Resolver().resolve(cell)


def sweep(**more):
    return spec.load(
        {
            "problem": {"name": "quadratic", "dim": 1000, "clients": 50},
            "algorithm": {"name": "ef21", "compressor": TOP},
            "step_size": {"value": [0.1, 0.2]},
            "rounds": 2,
            **more,
        }
    )


def test_the_plan_knows_what_the_server_keeps():
    """n d values of 8 bytes for each of the two cells of the batch; nothing where a mean is all that it needs."""
    need = need_of(make_plan(sweep(robust={"rule": "median"})))
    assert need.server == 2 * 50 * 1000 * 8
    plain = need_of(make_plan(sweep()))
    assert plain.server == 0
    assert need.tensors == plain.tensors + need.server
    assert need_of(make_plan(sweep(robust={"rule": "mean"}))).server == 0


def test_the_plan_says_it(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(sweep(robust={"rule": "median"}).text)
    said = cli("plan", file, "--out", tmp_path / "out")
    line = next(line for line in said.out.splitlines() if "robust server" in line)
    assert line.strip().startswith("781 KiB of a batch are n d values a cell")


def test_how_many_attack_tells_problems_apart_and_not_methods(tmp_path):
    """f is the mean over honest clients, so that cells with other numbers of them minimise another function."""

    asked = {
        "name": "attacked",
        "problem": {"name": "quadratic", "dim": 6, "clients": 9},
        "algorithm": ["gd", {"name": "ef21", "compressor": {"name": "top_k", "k": 2}}],
        "robust": {"rule": ["median", "mean"], "byzantine": [1, 2], "attack": "sign_flip"},
        "step_size": {"value": 0.01},
        "rounds": 3,
    }
    raybench.sweep(asked, tmp_path / "out", inline=True)
    found = describe(cells(tmp_path / "out"))
    assert sorted(set(found["facet"])) == ["1 Byzantine", "2 Byzantine"]
    assert found["method"].nunique() == 4
    assert not found["method"].str.contains("byzantine").any()
