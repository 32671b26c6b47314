"""The command line: bad input ends with exit code 2 and a few lines; verbs that look things up."""

import json
import math
import os
import re
from pathlib import Path

import cli_kit
import numpy as np
import pandas as pd
import pytest
import yaml
from cli_kit import SWEEP, cli, refused, succeeds, tidy, tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import raybench
from raybench import spec
from raybench.core import registry
from raybench.execution.resolve import Resolver

LOGISTIC = """
problem: {name: logistic, dataset: DATA, clients: 3}
algorithm: ef21
compressor: {name: top_k, k: 2}
rounds: 5
"""
LINES = "+1 1:0.5 3:1\n-1 2:1\n+1 1:1 2:2 3:3\n-1 3:0.25\n"
here = cli_kit.here
pytestmark = pytest.mark.usefixtures("here")


def left_alone(here: Path, *args: object, says: tuple[str, ...]) -> None:
    """Assert that the call is refused and writes nothing."""
    before = tree(here)
    refused(*args, says=says, complaints=None)
    assert tree(here) == before
    assert not (here / "results").exists()


BAD = {
    "unknown key": (SWEEP + "ruonds: 3\n", ("ruonds", "did you mean rounds?")),
    "unknown name": (SWEEP.replace("ef21", "ef12"), ("algorithm[1]", "did you mean ef21?")),
    "wrong type": (SWEEP.replace("rounds: 20", "rounds: many"), ("rounds", "an integer")),
    "k above d": (SWEEP.replace("k: 3", "k: 13"), ("compressor.k", "13 of 12", "from 1 to 12")),
    "k zero": (SWEEP.replace("k: 3", "k: 0"), ("compressor[1].k", "0 is out of range")),
    "duplicate key": (SWEEP + "name: twice\n", ("line", "duplicate key 'name'")),
    "empty grid": (SWEEP.replace("0..1", "[]"), ("seed", "empty list leaves no cells")),
    "all excluded": (SWEEP + "exclude: [{seed: [0, 1]}]\n", ("exclude",)),
    "no YAML": ("problem: [", ("line",)),
    "a list": ("- problem\n", ("s.yaml",)),
    "empty": ("", ("s.yaml", "empty")),
    "missing plug-in": (SWEEP + "plugins: nowhere.py\n", ("nowhere.py", "no such file")),
    "markup": (SWEEP.replace("gd", "'[bold]x[/bold]'"), ("[bold]x[/bold]",)),
}


@pytest.mark.parametrize("verb", ["sweep", "plan"])
@pytest.mark.parametrize("case", BAD)
def test_bad_sweep_files(case, verb, here):
    text, says = BAD[case]
    (here / "s.yaml").write_text(text)
    left_alone(here, verb, "s.yaml", *(["--inline"] if verb == "sweep" else []), says=says)


@pytest.mark.parametrize(
    ("data", "change", "says"),
    [
        (LINES.replace("2:1\n", "2:one\n"), "", ("line 2", "'2:one' is not index:value")),
        (LINES.replace("3:0.25", "3:0.25 2:1"), "", ("line 4", "do not rise")),
        (LINES, "clients: 5", ("problem.clients", "5 clients on 4 rows")),
        (LINES, "clients: 0", ("problem.clients", "0 is out of range")),
        ("+1 1:1\n+1 2:1\n", "", ("single class",)),
        ("", "", ("empty",)),
        (None, "", ("problem.dataset", "no file", "data.libsvm")),
    ],
)
def test_bad_data(data, change, says, here):
    if data is not None:
        (here / "data.libsvm").write_text(data)
    text = LOGISTIC.replace("DATA", "./data.libsvm")
    (here / "s.yaml").write_text(text.replace("clients: 3", change or "clients: 2"))
    left_alone(here, "sweep", "s.yaml", "--inline", says=says)


def test_no_such_sweep_file(here):
    left_alone(here, "sweep", "nowhere.yaml", says=("nowhere.yaml", "No such file"))
    left_alone(here, "plan", "quickstart", says=("raybench cp quickstart quickstart.yaml",))
    left_alone(here, "sweep", ".", says=("directory",))


def test_another_sweeps_folder_is_left_alone(here):
    (here / "s.yaml").write_text(SWEEP)
    raybench.sweep("s.yaml", "out", inline=True, sets=["seed=0", "algorithm=gd"])
    (here / "other.yaml").write_text(SWEEP.replace("clients: 4", "clients: 5"))
    for verb in (["sweep", "--inline"], ["sweep", "--inline", "--fresh"], ["plan"]):
        says = ("holds another sweep", "problem.clients: 4 there, 5 here")
        left_alone(here, verb[0], "other.yaml", *verb[1:], "--out", "out", says=says)
    left_alone(here, "sweep", "s.yaml", "--set", "name=x", "--out", "out", says=("name",))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--algorithm", "marinna"], ("did you mean marina?",)),
        (
            ["--algorithm", "marina", "--compressor", "top_k:k=3"],
            ("--compressor rand_k:k=10%", "allow_unproven"),
        ),
        (["--compressor", "top_k"], ("compressor.k: required",)),
        (["--compressor", "top_k:5"], ("not key=value",)),
        (["--compressor", "top_k:k=999"], ("999 of 30",)),
        (["--clients", "9999"], ("9999 clients on 569 rows",)),
        (["--dataset", "mushroom"], ("unknown data set 'mushroom'", "did you mean mushrooms?")),
        (["--rounds", "0"], ("rounds",)),
        (["--rounds", "ten"], ("--rounds",)),
        (["--step", "1", "--step-value", "1"], ("together",)),
        (["--step", "-1"], ("step_size", "out of range")),
        (["--set", "seed=0..3"], ("grid of 4 cells",)),
        (["--set", "problem.clinets=3"], ("clinets", "did you mean clients?")),
        (["--set", "seed"], ("seed",)),
        (["--plugin", "nowhere.py"], ("nowhere.py",)),
        (["--algorithm", "dgc"], ("no theoretical step", "--step-value 0.1")),
        (["--algorithm", "vertical_marina"], ("--problem vertical_least_squares",)),
        (
            ["--algorithm", "prox_lead", "--set", "graph={name: erdos_renyi, p: 0.0001}"],
            ("graph.p: 0.0001 leaves 10 clients unconnected", "a larger p"),
        ),
    ],
)
def test_bad_flags_of_run(args, says, here):
    left_alone(here, "run", "--rounds", "3", *args, says=says)


PLUGINS = {
    "missing": (None, ("no such file",)),
    "syntax": ("def f(:\n", ("line 1", "SyntaxError")),
    "raises": ("x = 1\nraise KeyError('x')\n", ("line 2", "KeyError")),
    "nothing": ("x = 1\n", ("registers nothing", "raybench.plugins")),
}


@pytest.mark.parametrize("case", PLUGINS)
def test_bad_plugin_files(case, here):
    text, says = PLUGINS[case]
    if text is not None:
        (here / "p.py").write_text(text)
    left_alone(here, "check", "p.py", says=("p.py", *says))
    left_alone(here, "ls", "--plugin", "p.py", says=("p.py", *says))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=80) | st.binary(max_size=80))
def test_garbage_files_are_refused(text, here):
    mode = "w" if isinstance(text, str) else "wb"
    with open("s.yaml", mode, **({"encoding": "utf-8", "newline": ""} if mode == "w" else {})) as f:
        f.write(text if isinstance(text, bytes) else text.encode("utf-8", "replace").decode())
    left_alone(here, "plan", "s.yaml", says=())


MOODY = """
from raybench.plugins import Algorithm, InputError, algorithm


@algorithm("moody", up=None, theory=None)
class Moody(Algorithm):
    def round(a, net, s, c):
        raise InputError.of("weather", "it rains", "take an umbrella")
"""


def test_a_run_that_fails_prints_the_whole_message(here):
    """The cause stands in the line before the advice."""
    (here / "moody.py").write_text(MOODY)
    args = ("--plugin", "moody.py", "--algorithm", "moody", "--step-value", 0.1, "--rounds", 3)
    said = cli("run", *args)
    assert said.code == 1
    assert "weather: it rains; take an umbrella" in said.out


def test_a_dimension_below_one_and_a_target_below_zero(here):
    left_alone(here, "show", "top_k", "--d", -1, says=("--d", "greater than or equal to 1"))
    left_alone(here, "table", "nowhere", "--target", -1, says=("--target", "a number > 0"))


@pytest.mark.parametrize("verb", [["run", "--rounds", 5], ["sweep", "s.yaml", "--inline"]])
def test_results_do_not_go_into_a_file(verb, here):
    (here / "s.yaml").write_text(SWEEP)
    (here / "there").write_text("mine")
    refused(*verb, "--out", "there", says="there is a file")
    assert (here / "there").read_text() == "mine"


def test_rounds_may_be_written_as_a_power(here):
    said = cli("run", "--problem", "quadratic:dim=5,clients=2", "--rounds", "1e2", "--out", "r")
    assert "after 100 rounds" in said.out, said.err
    args = ("--problem", "quadratic:dim=5,clients=2", "--rounds", "1.5", "--out", "r")
    refused("run", *args, says="rounds: expected an integer")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["sweep", "x.yaml"], "not a text file"),
        (["plan", "x.yaml"], "not a text file"),
        (["run", "--dataset", "x.yaml", "--rounds", 5], "x.yaml is no text, but Parquet"),
    ],
)
def test_bytes_of_a_parquet_file_do_not_reach_the_terminal(here, args, says):
    pd.DataFrame({"label": [0, 1], "x": [0.5, 1.5]}).to_parquet(here / "x.yaml")
    assert refused(*args, says=says).replace("\n", "").isprintable()


# Verbs that look things up ------------------------------------------------------------------------


def test_cp_copies_every_shipped_sweep(here):
    listed = re.findall(r"^ (\w+)  ", cli("ls", "sweeps").out, re.M)
    assert "quickstart" in listed
    for name in (n for n in listed if n != "sweeps"):
        said = succeeds("cp", name)
        assert said.out.startswith(f"{name}.yaml\nnext: raybench plan {name}.yaml")
        assert yaml.safe_load((here / f"{name}.yaml").read_text())["problem"]
    (here / "sub").mkdir()
    assert cli("cp", "quickstart", "sub").out.startswith("sub/quickstart.yaml")
    assert cli("cp", "quickstart.yaml", "sub/mine.yaml").code == 0
    (here / "sub" / "mine.yaml").write_text("mine")
    refused("cp", "quickstart", "sub/mine.yaml")
    assert (here / "sub" / "mine.yaml").read_text() == "mine"
    refused("cp", "quickstart", "nowhere/mine.yaml")
    refused("cp", "quickstrat", says="did you mean quickstart?")


def test_ls(here):
    every = succeeds("ls")
    for kind in ("algorithm", "compressor", "problem", "metric"):
        said = cli("ls", f"{kind}s")
        assert said.out == cli("ls", kind).out
        for name in registry.names(kind):
            assert re.search(rf"^ {name}  ", said.out, re.M)
            assert re.search(rf"^ {name}  ", every.out, re.M)
    assert re.search(r"^ breast_cancer +569 +30 +comes with scikit-learn$", every.out, re.M)
    assert re.search(r"^ mushrooms +8,124 +112  ", cli("ls", "datasets").out, re.M)
    refused("ls", "compresor", says="did you mean compressors?")
    example = Path(__file__).parents[1] / "examples" / "largest.py"
    assert re.search(
        r"^ largest +max_j \|x_j\|\.$", cli("ls", "metrics", "--plugin", example).out, re.M
    )


def test_show_an_operator():
    said = succeeds("show", "top_k", "--d", 10_000)
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
    said = succeeds("show", "wrong", "--d", 30, "--plugin", here / "wrong.py")
    tidy(said.out)
    assert said.out.count(" biased") == 7
    assert "holds" not in said.out


def test_show_an_algorithm_with_its_step(data_folder):
    said = succeeds(
        *("show", "ef21", "--problem", "logistic", "--dataset", "mushrooms", "--clients", 20),
        *("--compressor", "top_k:k=5"),
    )
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
    refused("show", "topk", says="did you mean top_k?")


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
    said = succeeds("doctor")
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
