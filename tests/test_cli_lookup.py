"""The command line: verbs that look things up and look at the machine."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path

import cli_kit
import numpy as np
import pytest
import yaml
from cli_kit import cli, refused, tidy

from raybench import spec
from raybench.core import registry
from raybench.execution.resolve import Resolver

here = cli_kit.here
pytestmark = pytest.mark.usefixtures("here")


def test_cp_copies_every_shipped_sweep(here):
    listed = re.findall(r"^ (\w+)  ", cli("ls", "sweeps").out, re.M)
    assert "quickstart" in listed
    for name in (n for n in listed if n != "sweeps"):
        said = cli("cp", name)
        assert said.code == 0
        files = [f"{name}.yaml", f"{name}.py"] if name == "network" else [f"{name}.yaml"]
        assert said.out.splitlines() == [*files, f"next: raybench plan {name}.yaml"]
        assert yaml.safe_load((here / f"{name}.yaml").read_text())["problem"]
    (here / "sub").mkdir()
    assert cli("cp", "quickstart", "sub").out.startswith("sub/quickstart.yaml")
    assert cli("cp", "quickstart.yaml", "sub/mine.yaml").code == 0
    (here / "sub" / "mine.yaml").write_text("mine")
    refused("cp", "quickstart", "sub/mine.yaml")
    refused("cp", "quickstart", "nowhere/mine.yaml")
    refused("cp", "quickstrat", says=["did you mean quickstart?"])


def test_ls(here):
    every = cli("ls")
    assert every.code == 0
    for kind in ("algorithm", "compressor", "problem", "metric"):
        said = cli("ls", f"{kind}s")
        assert said.out == cli("ls", kind).out
        for name in registry.names(kind):
            assert re.search(rf"^ {name}  ", said.out, re.M)
            assert re.search(rf"^ {name}  ", every.out, re.M)
    assert re.search(r"^ breast_cancer +569 +30 +comes with scikit-learn$", every.out, re.M)
    assert re.search(r"^ mushrooms +8,124 +112  ", cli("ls", "datasets").out, re.M)
    refused("ls", "compresor", says=["did you mean compressors?"])
    example = Path(__file__).parents[1] / "examples" / "largest.py"
    assert re.search(
        r"^ largest +max_j \|x_j\|\.$", cli("ls", "metrics", "--plugin", example).out, re.M
    )


def test_show_an_operator():
    said = cli("show", "top_k", "--d", 10_000)
    assert said.code == 0
    tidy(said.out)
    assert "contractive with alpha = k/d" in said.out
    rows = [line.split() for line in said.out.splitlines()]
    assert ["K", "1", "1%", "10%"] in rows
    assert ["ω", "–", "–", "–"] in rows
    assert ["α", "0.0001", "0.01", "0.1"] in rows
    assert ["B3:", "δ", "10000", "100", "10"] in rows
    # Elias-Fano with l low bits, as packed: K (l + 1) + floor((d - 1)/2^l); one index is listed
    index = [14, 100 * 7 + 9999 // 64, 1000 * 4 + 9999 // 8]
    values = [64 * k for k in (1, 100, 1000)]
    bits = [a + b for a, b in zip(values, index)]
    assert ["bits", *(f"{n:,}" for n in bits)] in rows
    assert ["values", *(f"{n:,}" for n in values)] in rows
    assert ["index", *(f"{n:,}" for n in index)] in rows
    assert ["raw", "0", "0", "0"] in rows
    assert ["of", "dense", *(f"{n / 640_000:.3%}" for n in bits)] in rows
    assert ["bytes", *(f"{math.ceil(n / 8):,}" for n in bits)] in rows
    assert "measured, K = 1%, 1 draw each" in said.out
    drawn = [row for row in rows if row[-1:] == ["holds"]]
    assert len(drawn) == 7
    assert ["flat", "0.99", "0", "0.99", "holds"] in drawn  # 1 - k/d, attained


def test_show_an_unbiased_operator():
    said = cli("show", "rand_k:k=5", "--d", 50)
    tidy(said.out)
    rows = [line.split() for line in said.out.splitlines()]
    for row in (["ω", "9"], ["α", "–"], ["B1:", "α,", "β", "1,", "10"], ["B3:", "δ", "10"]):
        assert row in rows
    for row in (["of", "C", "times", "0.1"], ["bits", "320"], ["of", "dense", "10.000%"]):
        assert row in rows
    assert ["bytes", "40"] in rows
    assert "unbiased" in said.out
    heads = ["vector", "error", "±", "s.e.", "bound", "bias", "by", "chance"]
    assert heads in rows
    drawn = [row for row in rows if row[-1:] == ["holds"]]
    assert len(drawn) == 7
    (flat,) = [row for row in drawn if row[0] == "flat"]
    assert flat[1:4] == ["9", "0", "9"]  # d/K - 1, whatever is drawn


def test_show_says_where_a_claim_does_not_hold(here):
    (here / "wrong.py").write_text(
        """from raybench.plugins import Compressor, Dense, compressor


@compressor("wrong")
class Wrong(Compressor):
    'C(x) = x/2, and says that it were unbiased.'

    deterministic = True

    def encode(self, x, stream):
        return Dense(x / 2)

    def omega(self, d):
        return 1.0
"""
    )
    said = cli("show", "wrong", "--d", 30, "--plugin", here / "wrong.py")
    assert said.code == 0, said.err
    tidy(said.out)
    assert said.out.count(" biased") == 7
    assert "holds" not in said.out


def test_show_an_algorithm_with_its_step(data_folder):
    said = cli(
        *("show", "ef21", "--problem", "logistic", "--dataset", "mushrooms", "--clients", 20),
        *("--compressor", "top_k:k=5"),
    )
    assert said.code == 0, said.err
    problem = {"name": "logistic", "dataset": "mushrooms", "clients": 20}
    config = {"problem": problem, "algorithm": "ef21", "compressor": {"name": "top_k", "k": 5}}
    step = Resolver().resolve(spec.load(config).cells[0]).step_size
    assert re.search(rf"^  nonconvex +{step:.6g}$", said.out, re.M)
    assert re.search(r"^  L_tilde.* 3\.49", said.out, re.M)
    assert re.search(r"^  pl +none: the theorem assumes that f satisfies the PL", said.out, re.M)


def test_show_takes_the_same_operator_as_run_where_none_is_given():
    said = cli("show", "marina", "--clients", 4)
    assert "numbers, with rand_k:k=10%" in said.out
    assert re.search(r"^  ω +9$", said.out, re.M)
    assert "numbers, with dense messages" in cli("show", "gd", "--clients", 4).out


def test_show_others():
    said = cli("show", "quadratic")
    assert re.search(r"^  d +100$", said.out, re.M)
    assert re.search(r"^  mu +0\.01$", said.out, re.M)
    assert "heterogeneity" in said.out
    assert cli("show", "logistic", "--dataset", "breast_cancer", "--clients", 5).code == 0
    assert "||x||_2" in cli("show", "iterate_norm").out
    refused("show", "topk", says=["did you mean top_k?"])


@pytest.mark.thorough
def test_every_plugin_can_be_shown():
    for kind in registry.BUILTIN_PACKAGES:
        for name in registry.names(kind):
            assert cli("show", name).code == 0, name


def test_schema_is_json_with_defaults():
    said = cli("schema")
    schema = json.loads(said.out)
    assert schema["properties"]["attempts"]["default"] == 2
    assert "top_k" in json.dumps(schema["$defs"]["compressor"])
    example = Path(__file__).parents[1] / "examples" / "rand_block.py"
    assert "rand_block" not in said.out
    assert "rand_block" in cli("schema", "--plugin", example).out


def test_doctor(here, monkeypatch):
    said = cli("doctor")
    assert said.code == 0, said.out
    tidy(said.out)
    for what in ("python", "torch", "ray", "numba", "cuda", "data", "results", "kernels"):
        assert re.search(rf"^ok  {what} ", said.out, re.M), said.out
    assert np.__version__ in said.out
    monkeypatch.setenv("RAYBENCH_DATA", str(here / "nowhere"))
    said = cli("doctor")
    assert said.code == 1
    assert re.search(r"^problem  data +no folder", said.out, re.M)
    assert "make it, or correct RAYBENCH_DATA" in said.out


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_doctor_without_write_access(here):
    here.chmod(0o500)
    said = cli("doctor")
    here.chmod(0o700)
    assert said.code == 1
    assert "a folder that you may write" in said.out
