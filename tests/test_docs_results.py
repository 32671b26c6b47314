"""The examples of docs/results.md and docs/concepts.md run on the results of the quickstart, made small."""

import contextlib
import io
import re
from pathlib import Path

import pytest
from cli_kit import cli

import raybench
from raybench import spec
from raybench.core import yaml

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "results.md").read_text()
CONCEPTS = (ROOT / "docs" / "concepts.md").read_text()
SMALL = ["rounds=60", "step_size={theory: [1, 16]}"]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("here")
    for name, sets in (("quickstart", []), ("other", ["problem.lambda=0.2"])):
        sweep = ROOT / "sweeps" / "quickstart.yaml"
        raybench.sweep(sweep, folder / "results" / name, sets=[*SMALL, *sets], inline=True)
    return folder


def section(name):
    return TEXT.split(f"## {name}\n")[1].split("\n## ")[0]


def test_the_python_of_the_analysis_runs(here, monkeypatch):
    monkeypatch.chdir(here)
    blocks = re.findall(r"```python\n(.*?)```", section("The analysis in Python"), re.S)
    assert len(blocks) >= 7
    names = {}
    with contextlib.redirect_stdout(io.StringIO()) as said:
        for block in blocks:
            exec(compile(block, "results.md", "exec"), names)
    assert "EF21 Top-1" in said.getvalue()


def test_the_commands_on_tables_run(here, monkeypatch):
    monkeypatch.chdir(here)
    lines = re.findall(r"^raybench (.*)$", section("Tables"), re.M)
    assert len(lines) >= 7
    for line in lines:
        said = cli(*line.partition("#")[0].split())
        assert said.code == 0, (line, said.err)
        assert "EF21 Top-K" in said.out


def test_every_function_that_is_listed_exists():
    import raybench.analysis

    names = re.findall(r"^\| `(\w+)\(", section("The analysis in Python"), re.M)
    assert len(names) == 10
    assert set(names) <= set(raybench.analysis.__all__)


def test_the_commands_of_the_page_on_concepts_run(here, monkeypatch):
    monkeypatch.chdir(here)
    blocks = "".join(re.findall(r"```sh\n(.*?)```", CONCEPTS, re.S))
    fenced = [line.partition("#")[0] for line in re.findall(r"^raybench (.*)$", blocks, re.M)]
    lines = {*fenced, *re.findall(r"`raybench ([^`]*)`", CONCEPTS)}
    assert len(lines) >= 7
    for line in lines:
        verb, *rest = line.split()
        if verb == "sweep" or not rest:  # that sweep has made the folder; a bare verb is no command
            continue
        if verb == "plan":
            rest = [ROOT / rest[0]]
        said = cli(verb, *rest)
        assert said.code == 0, (line, said.err)


def test_the_numbers_on_the_page_on_concepts_are_those_of_the_sweep(here):
    sweep = spec.load(yaml.parse((ROOT / "sweeps" / "quickstart.yaml").read_text()))
    assert f"anything runs: {len(sweep.cells)} in this case" in " ".join(CONCEPTS.split())
    readings = cli("audit", here / "results" / "quickstart").out.split(" ")[0]
    assert f"There are {readings} readings of this folder" in " ".join(CONCEPTS.split())


# Recipes for other programs ------------------------------------------------------------------------

RECIPES = ["README.md", "docs/how-to.md", "docs/results.md"]
PROGRAMS = ("raybench.load(", "duckdb.sql(", "polars", "pandas.read_parquet(")


def recipes(page):
    """Return the Python of a page that reads curves on this machine, in the order in which it stands there."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    told = [b for b in blocks if any(name in b for name in PROGRAMS) and "print(" in b]
    return [b for b in told if "s3://" not in b and "raybench.analysis" not in b]


@pytest.fixture(scope="module")
def two_splits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("splits")
    data = {"name": "logistic", "dataset": "breast_cancer", "scale": "columns", "clients": 4}
    sweep = {
        "name": "two",
        "problem": {**data, "split": ["shuffled", "sorted_by_label"]},
        "algorithm": "ef21",
        "compressor": {"name": "top_k", "k": 3},
        "step_size": {"theory": [4, 16]},
        "seed": [0, 1, 2],
        "rounds": 100,
    }
    for name in ("quickstart", "first_study", "a", "b"):
        raybench.sweep(sweep, folder / "results" / name, inline=True)
    return folder


@pytest.mark.parametrize("page", RECIPES)
def test_recipes_have_a_row_for_each_split(two_splits, monkeypatch, page):
    monkeypatch.chdir(two_splits)
    found = recipes(page)
    assert len(found) == {"README.md": 1, "docs/how-to.md": 4, "docs/results.md": 1}[page]
    for block in found:
        reachable = re.sub(r"<= \d+e-\d+", "<= 1e-2", block)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(compile(reachable, page, "exec"), {})
        assert "shuffled" in said.getvalue(), block
        assert "sorted_by_label" in said.getvalue(), block
