"""Robust servers in a plan: steps, memory, and what they do not go with."""

import numpy as np
import pytest
from cli_kit import cli
from toys import RAND, TOP, Alike, registered

import raybench
from raybench import spec
from raybench.analysis import describe
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


def resolve(name, compressor=None, size=0.1, **more):
    """Return what a method on unlike clients resolves to."""
    step = {"value": size} if size else {"theory": 1}
    (cell,) = spec.load(Method(name, {}, compressor, UNLIKE, more=more).config(step, 0)).cells
    return Resolver(bool(size)).resolve(cell)


MEDIAN, IDENTITY = {"rule": "median"}, {"name": "identity"}
SUM = "the server has their sum alone"


@pytest.mark.parametrize(
    ("method", "robust", "error", "says"),
    [
        (("gd",), {"byzantine": 7}, InputError, "7 of 7 clients leave nobody"),
        (("gd",), {"byzantine": 1.5}, InputError, "a share of the clients such as 10%"),
        (("gd",), {"byzantine": 4}, InputError, "cannot resist 4 of 7 clients"),
        (("gd",), {"rule": "krum", "byzantine": 3, "bucket": 2}, InputError,
         "cannot resist 3 of 4 buckets of 7"),
        (("gd",), {"rule": "trimmed_mean", "tolerate": "60%"}, InputError, "cannot resist 4 of 7"),
        (("gd",), {"rule": "medain"}, InputError, "median"),
        (("gd",), {"attack": "label"}, InputError, "label_flip"),
        (("gd",), {"bucket": 0}, InputError, "bucket"),
        (("gd",), {"byzantine": 1, "attack": "label_flip"}, Skip, "needs labels"),
        *((("ef21", {**IDENTITY, "collective": how}), MEDIAN, InputError,
           f"by compressor.collective: {how} {SUM}") for how in ("reduce", "all_to_all")),
        *((method, MEDIAN, Skip, f"what the server of {method[0]} steps along is no mean")
          for method in (("ef21_plus", TOP), ("ef21_w", TOP), ("sign_sgd",), ("scaffold",),
                         ("adiana", TOP))),
        (("ef21", TOP, None), MEDIAN, Skip, "no theoretical step"),
        (("byz_vr_marina", RAND, None), {"rule": "krum", "byzantine": 1}, Skip,
         "kappa is unknown here"),
        (("byz_vr_marina", RAND, None), {"bucket": 2}, Skip, "kappa is unknown here"),
    ],
)  # fmt: skip
def test_what_it_does_not_go_with(method, robust, error, says):
    with pytest.raises(error) as said:
        resolve(*method, robust=robust)
    assert says in str(said.value)


def test_a_relayed_sum_is_refused():
    with pytest.raises(InputError, match="downlink: aggregate"):
        resolve("ef21", TOP, robust={}, downlink="aggregate")


def test_a_majority_of_attackers_may_be_studied():
    for robust in ({"byzantine": 5, "tolerate": 1}, {"rule": "mean", "byzantine": 6}):
        more = {"robust": {**robust, "attack": "inner_product"}}
        finished(Method("gd", {}, None, UNLIKE, step=0.1, rounds=2, more=more).batch())


def test_methods_without_a_server_do_not_hear_it():
    config = Method("extra", {}, None, UNLIKE, more={"robust": {"rule": "median"}})
    loaded = spec.load(config.config({"value": 0.1}, 0))
    assert loaded.cells[0].robust is None
    assert loaded.notes == ("extra has no server to step: robust ignored",)


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


def sweep(**more):
    return spec.load(
        {
            "problem": {"name": "quadratic", "dim": 100, "clients": 50},
            "algorithm": {"name": "ef21", "compressor": TOP},
            "step_size": {"value": [0.1, 0.2]},
            "rounds": 2,
            **more,
        }
    )


def test_the_plan_knows_what_the_server_keeps():
    """n d values of 8 bytes for each of the two cells of the batch; nothing where a mean is all that it needs."""
    need = need_of(make_plan(sweep(robust={"rule": "median"})))
    assert need.server == 2 * 50 * 100 * 8
    plain = need_of(make_plan(sweep()))
    assert plain.server == 0
    assert need.tensors == plain.tensors + need.server
    assert need_of(make_plan(sweep(robust={"rule": "mean"}))).server == 0


def test_the_plan_says_it(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(sweep(robust={"rule": "median"}).text)
    said = cli("plan", file, "--out", tmp_path / "out")
    line = next(line for line in said.out.splitlines() if "robust server" in line)
    assert line.strip().startswith("78.1 KiB of a batch are n d values a cell")


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
    result = describe(cells(tmp_path / "out"))
    assert sorted(set(result["facet"])) == ["1 Byzantine", "2 Byzantine"]
    assert result["method"].nunique() == 4
    assert not result["method"].str.contains("byzantine").any()
