"""Bad input at the command line: exit 2, a few lines that name the key, nothing written."""

from __future__ import annotations

import cli_kit
import pandas as pd
import pytest
from cli_kit import SWEEP, cli, refused
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import raybench

LOGISTIC = """
problem: {name: logistic, dataset: DATA, clients: 3}
algorithm: ef21
compressor: {name: top_k, k: 2}
rounds: 5
"""
LINES = "+1 1:0.5 3:1\n-1 2:1\n+1 1:1 2:2 3:3\n-1 3:0.25\n"
here = cli_kit.here
pytestmark = pytest.mark.usefixtures("here")


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
    refused(verb, "s.yaml", *(["--inline"] if verb == "sweep" else []), says=says)


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
    refused("sweep", "s.yaml", "--inline", says=says)


def test_no_such_sweep_file():
    refused("sweep", "nowhere.yaml", says=("nowhere.yaml", "No such file"))
    refused("plan", "quickstart.yaml", says=("raybench cp quickstart",))
    refused("sweep", ".", says=("directory",))


def test_another_sweeps_folder_is_left_alone(here):
    (here / "s.yaml").write_text(SWEEP)
    raybench.sweep("s.yaml", "out", inline=True, sets=["seed=0", "algorithm=gd"])
    (here / "other.yaml").write_text(SWEEP.replace("clients: 4", "clients: 5"))
    for verb in (["sweep", "--inline"], ["sweep", "--inline", "--fresh"], ["plan"]):
        says = ("holds another sweep", "problem.clients: 4 there, 5 here")
        refused(verb[0], "other.yaml", *verb[1:], "--out", "out", says=says)
    refused("sweep", "s.yaml", "--set", "name=x", "--out", "out", says=("name",))


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
def test_bad_flags_of_run(args, says):
    refused("run", "--rounds", "3", *args, says=says)


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
    refused("check", "p.py", says=("p.py", *says))
    refused("ls", "--plugin", "p.py", says=("p.py", *says))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=80) | st.binary(max_size=80))
def test_garbage_files_are_refused(text):
    mode = "w" if isinstance(text, str) else "wb"
    with open("s.yaml", mode, **({"encoding": "utf-8", "newline": ""} if mode == "w" else {})) as f:
        f.write(text if isinstance(text, bytes) else text.encode("utf-8", "replace").decode())
    refused("plan", "s.yaml")


def test_a_dimension_below_one_and_a_target_below_zero():
    refused("show", "top_k", "--d", -1, says=("--d", "greater than or equal to 1"))
    refused("table", "nowhere", "--target", -1, says=("--target", "a number > 0"))


@pytest.mark.parametrize("verb", [["run", "--rounds", 5], ["sweep", "s.yaml", "--inline"]])
def test_results_do_not_go_into_a_file(verb, here):
    (here / "s.yaml").write_text(SWEEP)
    (here / "there").write_text("mine")
    refused(*verb, "--out", "there", says=("there is a file",))


def test_rounds_may_be_written_as_a_power():
    args = ("run", "--problem", "quadratic:dim=5,clients=2", "--out", "r", "--rounds")
    refused(*args, "1.5", says=("rounds: expected an integer",))
    assert "after 100 rounds" in cli(*args, "1e2").out


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
    refused(*args, says=(says,))


def test_very_many_long_complaints_are_cut_and_counted(here):
    (here / "s.yaml").write_text(SWEEP + "".join(f"{'k' * 1000}{j}: 1\n" for j in range(300)))
    said = refused("plan", "s.yaml", says=("and 280 complaints more",), longest=41)
    assert len(said) < 20_000
