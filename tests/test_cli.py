"""The command line: every verb does its work, is tidy, and reads what it should; looking things up."""

from __future__ import annotations

import io
import json
import math
import re
import shutil
import sys
from pathlib import Path

import cli_kit
import numpy as np
import pandas as pd
import pytest
import yaml
from cli_kit import SWEEP, Said, call, cli, ran, refused, tidy, tree

import raybench
from raybench import spec, store
from raybench.cli import VERBS
from raybench.cli.shared import names_in
from raybench.core import registry
from raybench.execution.resolve import Resolver, problem_of

EXAMPLES = Path(__file__).parents[1] / "examples"
here = cli_kit.here
pytestmark = pytest.mark.usefixtures("here", "few_readings")


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> tuple[Path, Said]:
    """A sweep of one seed that was extended to two: its folder, and what the command said of the second."""
    folder = tmp_path_factory.mktemp("swept")
    (folder / "s.yaml").write_text(SWEEP)
    raybench.sweep(folder / "s.yaml", folder / "out", inline=True, sets=["seed=0"])
    return folder, cli("sweep", folder / "s.yaml", "--out", folder / "out", "--inline", firm=True)


# The frame -----------------------------------------------------------------------------------------


HEAVY = "torch ray pandas pyarrow numba numpy matplotlib plotly rich pydantic"
LIGHT = "import raybench.core.errors, raybench.spec.sections, raybench.store.accounting"
MAIN = "from raybench.cli import main; main()"


def imported(code: str, *args: str) -> tuple[set[str], int]:
    """Return which heavy modules a program imports, and its exit code."""
    there = f"print('HEAVY', *{{*'{HEAVY}'.split()}} & {{*sys.modules}})"
    program = f"import atexit, sys; atexit.register(lambda: {there}); {code}"
    done = call(sys.executable, "-c", program, *args)
    return set(done.stdout.splitlines()[-1].split()[1:]), done.returncode


def test_imports_and_help_are_light():
    assert imported(LIGHT) == (set(), 0)
    for option in ("--help", "--version"):
        assert imported(MAIN, option) == (set(), 0)
    heavy, status = imported(MAIN, "sweep", "--help")
    assert heavy <= {"pydantic"}
    assert status == 0


@pytest.mark.parametrize("args", [["mlq"], ["mlp", "--compressor", "top_j:k=1%"]])
def test_a_wrong_name_is_told_before_torch_is_imported(args):
    heavy, status = imported(MAIN, "advise", *args)
    assert status == 2
    assert "torch" not in heavy


def test_every_verb_is_listed_and_has_help():
    listed = cli("--help").out
    assert "..." not in listed.partition("COMMAND [ARGS]...")[2]
    assert len(listed.splitlines()) <= 50  # one screen
    for verb in (verb.__name__ for verbs in VERBS.values() for verb in verbs):
        assert re.search(rf"^  {verb}  ", listed, re.M)
        said = ran(verb, "--help")
        assert f"Usage: raybench {verb}" in said.out
        tidy("\n".join(line.rstrip() for line in said.out.splitlines()))


def test_unknown_verbs_and_options_suggest_the_nearest():
    refused("sweeep", "s.yaml", says=["Did you mean 'sweep'"])
    refused("sweep", "s.yaml", "--fesh", says=["--fresh"])


# Sweep ---------------------------------------------------------------------------------------------


def test_sweep_ends_with_table_report_and_next_command(swept):
    folder, said = swept
    out = folder / "out"
    assert said.code == 0
    tidy(said.out)
    assert "small  14 cells run in" in said.out
    assert ", 14 were there already" in said.out
    for word in ("GD", "EF21 Top-K", "EF21 Rand-K", "MARINA Rand-K", "Bits to target", "÷ GD"):
        assert word in said.out
    assert re.search(r"^skipped +8 cells: marina needs an unbiased compressor", said.out, re.M)
    assert re.search(rf"^report +{re.escape(str(out / 'report.html'))}$", said.out, re.M)
    assert re.search(r"^next +raybench plot ", said.out, re.M)
    # a line may end before the folder, whose name may be long
    order = r"^order +.* is first in \d+% of \d+ readings: raybench audit\s"
    assert re.search(order, said.out, re.M)
    assert "note: gd x 3 compressors: 18 cells merged to 6" in said.err
    assert "<html" in (out / "report.html").read_text()
    cells = pd.read_parquet(out / "cells")
    assert (cells["cell"].nunique(), (cells["status"] == "skipped").sum()) == (36, 8)
    assert set(cells["status"]) <= {"ok", "diverged", "skipped"}


def test_a_sweep_that_has_ended_runs_nothing_and_is_shown_again(swept, here, reads):
    shutil.copytree(swept[0], here / "w")
    file, out = here / "w" / "s.yaml", here / "w" / "out"
    before = tree(out / "cells")
    reads.clear()
    said = ran("sweep", file, "--out", out)
    assert "small  nothing was missing, 28 were there already" in said.out
    assert tree(out / "cells") == before
    # digest, table, rows far apart, figures, their K, own metrics
    assert max(reads.of("curves").values()) <= 8
    written = {rel.removeprefix("write ") for rel in reads if rel.startswith("write ")}
    assert written <= {"plan/owner.json", "plan/lock"}


def test_a_report_is_made_anew_only_where_it_would_be_another_one(swept, here):
    shutil.copytree(swept[0], here / "w")
    file, out = here / "w" / "s.yaml", here / "w" / "out"
    page = out / "report.html"

    def made() -> int:
        ran("sweep", file, "--out", out)
        return page.stat().st_mtime_ns

    first = made()
    assert made() == first
    ran("report", out, "--accounting", "value_bits=32")
    second = made()
    assert second > first
    assert "value_bits=32" not in page.read_text()
    (out / "cells" / "note.txt").write_text("the folder is another one")
    assert made() > second


SOMETIMES = """
from pathlib import Path
from raybench.plugins import *

@algorithm("sometimes", fail=Flag(True))
class Sometimes(Algorithm):
    def round(a, net, s, c):
        if a.fail and Path({flag!r}).exists():
            raise InputError.of("weather", "it rains [red]", "take an umbrella")
        s.x = s.x - a.gamma * net.up(Dense(net.grad(s.x))).mean()
"""


def test_failed_cells_exit_1_say_why_and_run_again_on_demand(here, monkeypatch):
    monkeypatch.setattr("raybench.report.html", lambda *a, **k: "unwritten")  # which takes longest
    flag = here / "flag"
    flag.touch()
    (here / "p.py").write_text(SOMETIMES.format(flag=str(flag)))
    (here / "s.yaml").write_text(
        "plugins: p.py\nproblem: quadratic\nstep_size: 0.1\nrounds: 5\n"
        "algorithm: {name: sometimes, fail: [true, false]}\n"
    )
    cause = "weather: it rains [red]; take an umbrella"  # in the line, before the advice
    said = cli("plan", "s.yaml")
    assert (said.code, "weather: it rains [red]" in said.out) == (0, True)
    assert "raises" not in cli("plan", "s.yaml", "--no-measure").out
    said = cli("run", "--plugin", "p.py", "--algorithm", "sometimes", "--step-size", 1)
    assert (said.code, cause in said.out) == (1, True)
    said = cli("sweep", "s.yaml", "--inline")
    assert said.code == 1
    assert f"1 cell: {cause}" in said.out
    assert re.search(r"^next +raybench sweep s.yaml --retry-failed$", said.out, re.M)
    flag.unlink()
    assert raybench.sweep("s.yaml", inline=True).exit_code == 1  # without --retry-failed it stays
    assert "2 cells: 0 to run, " in cli("plan", "s.yaml").out
    said = cli("plan", "s.yaml", "--retry-failed")
    assert "2 cells: 1 to run, 1 ok" in said.out
    assert cli("sweep", "s.yaml", "--inline", "--retry-failed").code == 0
    assert set(pd.read_parquet(here / "results" / "s" / "cells")["status"]) == {"ok"}


def test_a_sweep_where_nothing_ends_ok_still_says_why(here):
    text = "problem: quadratic\nalgorithm: marina\ncompressor: {name: top_k, k: 3}\n"
    (here / "s.yaml").write_text(text)
    said = cli("sweep", "s.yaml", "--inline")
    assert said.code == 1  # where all are skipped, nothing came of the sweep
    assert "no cell ended ok: 1 skipped" in said.out
    assert "1 cell: marina needs an unbiased compressor" in said.out
    assert "to run: an unbiased compressor, such as rand_k, or allow_unproven: true" in said.out


# Plan ----------------------------------------------------------------------------------------------


def test_plan_counts_estimates_and_writes_nothing(here, swept):
    (here / "s.yaml").write_text(SWEEP)
    before = tree(here)
    said = ran("plan", "s.yaml")
    tidy(said.out)
    assert tree(here) == before
    assert "small  36 cells: 28 to run, 8 skipped" in said.out
    assert "8 cells: marina needs an unbiased compressor and top_k is a biased one" in said.out
    rows = {line[:14].strip(): line for line in said.out.splitlines()}
    assert re.search(r"ef21 top_k +1, 3 +1, 2, 4 × +0, 1 +12 +0 ", said.out)
    # exact where messages have one length: 20 rounds of 12 float64
    assert " 15.4 kbit " in rows["gd"]
    assert "through Ray" in said.out
    assert "with --inline, which is quicker" in said.out

    folder, _ = swept
    said = cli("plan", folder / "s.yaml", "--out", folder / "out")
    assert "36 cells: 0 to run, " in said.out
    assert "15.4 kbit" in said.out
    assert "raybench table" in said.out


# Run -----------------------------------------------------------------------------------------------


def test_runs_on_one_problem_share_a_folder(here):
    said = ran("run", "--rounds", 30)
    tidy(said.out)
    (folder,) = (here / "results").iterdir()
    assert folder.name.startswith("run-logistic-breast_cancer-")
    assert "ok after 30 rounds" in said.out
    assert f"raybench report results/{folder.name}" in said.out
    assert cli("run", "--rounds", 30, "--algorithm", "marina", "--step-multiple", 8).code == 0
    assert cli("run", "--rounds", 30, "--algorithm", "gd", "--step-size", 0.1).code == 0
    cells = store.cells(folder).set_index("algorithm")
    assert sorted(cells.index) == ["ef21", "gd", "marina"]
    assert cells.loc["marina", "step_size"] == pytest.approx(8 * cells.loc["marina", "theory_step"])
    assert cells.loc["gd", "step_size"] == 0.1
    assert list((here / "results").iterdir()) == [folder]
    assert cli("run", "--rounds", 30, "--clients", 5).code == 0
    assert len(list((here / "results").iterdir())) == 2
    assert "was there already" in cli("run", "--rounds", 30).out


# Reading results -----------------------------------------------------------------------------------


def test_tables_book_bits_as_they_are_told_to(swept, here):
    out = swept[0] / "out"
    tidy(cli("table", out).out)
    frames = {}
    for how in ("value_bits=32", "paper:ef21"):
        ran("table", out, "--format", "csv", "--accounting", how, "--out", f"{how[:5]}.csv")
        frames[how] = pd.read_csv(here / f"{how[:5]}.csv").set_index("method")
    full = pd.read_csv(io.StringIO(cli("table", out, "--format", "csv").out)).set_index("method")
    one = "EF21 Rand-K"  # a message before the first round, then 20: three values, no indices
    assert full.loc[one, "bits_up"] == 21 * 3 * 64
    assert frames["value_bits=32"].loc[one, "bits_up"] == 21 * 3 * 32
    assert frames["paper:ef21"].loc[one, "bits_up"] == 20 * 3 * 32
    some = ("--methods", "gd,EF21 Rand-K", "--format", "csv")
    assert set(pd.read_csv(io.StringIO(cli("table", out, *some).out))["method"]) == {"GD", one}
    labels = "gd, EF21 Top-K (init=zero, p=0.1),DIANA"  # commas in brackets part nothing
    assert names_in(labels) == ["gd", "EF21 Top-K (init=zero, p=0.1)", "DIANA"]
    refused("rank", out, "--methods", "ef12", says=["--methods", "did you mean ef21?"])
    assert cli("table", out, "--target", 1e300).out.count("not reached") == 0
    for wrong in (["--accounting", "paper:ef12"], ["--format", "cvs"], ["--by", "methods"]):
        refused("table", out, *wrong, says=["did you mean"])


def test_merge_and_report(swept, here):
    raybench.sweep(swept[0] / "s.yaml", "b", inline=True, sets=["seed=5", "algorithm=gd"])
    said = cli("report", "b", "--out", "r.html", "--accounting", "paper:3pc")
    assert (said.code, said.out) == (0, "r.html\n")
    assert "value_bits=64, index_bits=none" in (here / "r.html").read_text()
    assert cli("merge", swept[0] / "out", "b", "--out", "c").code == 0
    ids = [set(store.cells(f)["cell"]) for f in (swept[0] / "out", "b", "c")]
    assert ids[2] == ids[0] | ids[1]
    refused("merge", swept[0] / "out", "b", "--out", "c")


@pytest.mark.parametrize("verb", ["table", "plot", "report", "status"])
def test_reading_verbs_without_results(verb, here):
    (here / "empty").mkdir()
    (here / "file.txt").write_text("no results")
    for folder in ("missing", "empty", "file.txt"):
        refused(verb, folder, says=[folder], longest=2)


def test_a_shipped_sweep_is_run_by_its_name(here):
    assert "351 cells" in cli("plan", "quickstart", "--no-measure").out
    refused("plan", "sub/quickstart.yaml", says=["is a shipped sweep"])
    (here / "quickstart").write_text(SWEEP)  # a file of that name is meant first
    assert "351 cells" not in cli("plan", "quickstart", "--no-measure").out


# Verbs that look things up and look at the machine ------------------------------------------------


def test_cp_copies_every_shipped_sweep(here):
    listed = re.findall(r"^ (\w+)  ", cli("ls", "sweeps").out, re.M)
    assert "quickstart" in listed
    for name in (n for n in listed if n != "sweeps"):
        said = ran("cp", name)
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
    every = ran("ls")
    for kind in ("algorithm", "compressor", "problem", "metric"):
        said = cli("ls", f"{kind}s")
        assert said.out == cli("ls", kind).out
        for name in registry.names(kind):
            assert re.search(rf"^ {name}  ", said.out, re.M)
            assert re.search(rf"^ {name}  ", every.out, re.M)
    assert re.search(r"^ breast_cancer +569 +30 +comes with scikit-learn$", every.out, re.M)
    assert re.search(r"^ mushrooms +8,124 +112  ", cli("ls", "datasets").out, re.M)
    refused("ls", "compresor", says=["did you mean compressors?"])
    said = cli("ls", "metrics", "--plugin", EXAMPLES / "largest.py")
    assert re.search(r"^ largest +max_j \|x_j\|\.$", said.out, re.M)


def test_show_an_operator():
    said = ran("show", "top_k", "--d", 10_000)
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


def test_show_an_algorithm_with_its_step():
    given = ("--problem", "least_squares:regularizer=nonconvex", "--dataset", "breast_cancer")
    said = ran("show", "ef21", *given, "--clients", 20, "--compressor", "top_k:k=5")
    problem = {"name": "least_squares", "dataset": "breast_cancer", "clients": 20}
    problem["regularizer"] = "nonconvex"
    config = {"problem": problem, "algorithm": "ef21", "compressor": {"name": "top_k", "k": 5}}
    cell = spec.load(config).cells[0]
    step, constants = Resolver().resolve(cell).step_size, problem_of(cell.problem).constants
    assert re.search(rf"^  nonconvex +{step:.6g}$", said.out, re.M)
    far = f"{float(constants.L_tilde):.6g}".replace("+", "[+]")
    assert re.search(rf"^  L_tilde.* {far}$", said.out, re.M)
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
    assert "rand_block" not in said.out
    assert "rand_block" in cli("schema", "--plugin", EXAMPLES / "rand_block.py").out


def test_doctor(here, monkeypatch):
    said = ran("doctor")
    tidy(said.out)
    for what in ("python", "torch", "ray", "numba", "cuda", "data", "results", "kernels"):
        assert re.search(rf"^ok  {what} ", said.out, re.M), said.out
    assert np.__version__ in said.out
    monkeypatch.setenv("RAYBENCH_DATA", str(here / "nowhere"))
    said = cli("doctor")
    assert said.code == 1
    assert re.search(r"^problem  data +no folder", said.out, re.M)
    assert "make it, or correct RAYBENCH_DATA" in said.out
