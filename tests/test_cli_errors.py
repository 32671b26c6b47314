"""Bad input at the command line, and what cannot fit: exit 2, a few lines that name the key, nothing written."""

from __future__ import annotations

import math
import resource
from pathlib import Path
from types import SimpleNamespace

import cli_kit
import pytest
from cli_kit import SWEEP, cli, refused
from tiers import first_of_each

import raybench
from raybench import problems, spec
from raybench.core import limits, yaml
from raybench.core.errors import InputError
from raybench.execution import costs as admission
from raybench.execution import resolve
from raybench.execution.costs import DISK_PER_ROW, check_memory_and_disk, need_of
from raybench.execution.plan import make_plan
from raybench.runtime.driver import drive, mode_of
from raybench.runtime.queue import Queue
from raybench.store.identity import check_same_sweep

here = cli_kit.here
pytestmark = pytest.mark.usefixtures("here")


BAD = {
    "unknown key": (SWEEP + "ruonds: 3\n", ("ruonds", "did you mean rounds?")),
    "k above d": (SWEEP.replace("k: 3", "k: 13"), ("compressor.k", "13 of 12", "from 1 to 12")),
    "duplicate key": (SWEEP + "name: twice\n", ("line", "duplicate key 'name'")),
    "no YAML": ("problem: [", ("line",)),
    "missing plug-in": (SWEEP + "plugins: nowhere.py\n", ("nowhere.py", "no such file")),
    "markup": (SWEEP.replace("gd", "'[bold]x[/bold]'"), ("[bold]x[/bold]",)),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_sweep_files(case, here):
    text, says = BAD[case]
    (here / "s.yaml").write_text(text)
    for verb in (["plan"], ["sweep", "--inline"]):
        refused(*verb, "s.yaml", says=says)


def test_no_such_sweep_file_and_numbers_out_of_range():
    refused("show", "top_k", "--d", -1, says=("--d", "greater than or equal to 1"))
    refused("table", "nowhere", "--target", -1, says=("--target", "a number > 0"))
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
    slip = {"name": "a", "problem": {"name": "logistic", "dataset": "breast_cancr"}}
    meant = 'did you mean "breast_cancer"'
    with pytest.raises(InputError, match=meant):
        check_same_sweep(str(slip).replace("cancr", "cancer"), slip, "out")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("seed: 0", "remainder: drop"),
        ("clients: [2, 4]", "clients: 2^1..2^2"),
        ("clients: 2..4", "clients: [4, 2]"),
        ("scale: none", "lambda: [0.1, 0.5]"),
    ],
)
def test_two_spellings_of_a_problem_are_one_sweep(tmp_path, first, second):
    """A default written out, a range for a list and an added value are the sweep that the folder holds."""
    problem = {"name": "logistic", "dataset": "breast_cancer", "clients": 4}
    for text in (first, second):
        changed = problem | yaml.parse(text, "test")
        method = {"algorithm": "gd", "step_size": 1.0, "rounds": 1}
        raybench.sweep(
            {"name": "same", "problem": changed, **method}, tmp_path / "out", inline=True
        )


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (
            ["--algorithm", "marina", "--compressor", "top_k:k=3"],
            ("--compressor rand_k:k=10%", "allow_unproven"),
        ),
        (["--compressor", "top_k:5"], ("not key=value",)),
        (["--clients", "9999"], ("9999 clients on 569 rows",)),
        (["--step-multiple", "1", "--step-size", "1"], ("together",)),
        (["--set", "seed=0..3"], ("grid of 4 cells",)),
        (["--algorithm", "dgc"], ("no theoretical step", "--step-size 0.1")),
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


def test_very_many_long_complaints_are_cut_and_counted(here):
    (here / "s.yaml").write_text(SWEEP + "".join(f"{'k' * 1000}{j}: 1\n" for j in range(300)))
    said = refused("plan", "s.yaml", says=("and 280 complaints more",), longest=41)
    assert len(said) < 20_000


# What cannot fit is refused before anything is allocated ------------------------------------------


TOO_LARGE = {
    "quadratic": (
        "problem: {name: quadratic, dim: 1000000}\nalgorithm: gd\n",
        ("problem:", "10 matrices of 1,000,000 x 1,000,000", "146 TiB", "problem.dim"),
    ),
    "least squares": (
        "problem: {name: least_squares, dataset: DATA, clients: 2}\nalgorithm: gd\n",
        ("problem:", "2 matrices of 2,000 x 2,000", "122 MiB", "problem.clients"),
    ),
    "wide": (
        "problem: {name: least_squares, dataset: DATA, clients: 1, split: shuffled, rows: 1999}\nalgorithm: gd\n",
        ("problem:", "1 matrices of 1,999 rows and 2,000 features", "30.5 MiB", "problem.rows"),
    ),
    "vertical": (
        "problem: {name: vertical_least_squares, dataset: DATA, clients: 2}\nalgorithm: vertical_gd\n",
        ("problem:", "4,000 rows of 2,000 features", "122 MiB", "problem.rows"),
    ),
    "graph": (
        "problem: {name: tridiagonal, dim: 2, clients: 3000000}\n"
        "algorithm: {name: dgd, step_size: {value: 0.1}}\ngraph: ring\n",
        ("graph:", "65.5 TiB", "a method with a server"),
    ),
    "state": (
        "problem: {name: tridiagonal, dim: 2000000, clients: 300000}\n"
        "algorithm: ef21\ncompressor: {name: top_k, k: 1}\n",
        ("problem:", "8.73 TiB", "what the clients remember", "fewer problem.clients"),
    ),
    "rows": (
        SWEEP.replace("rounds: 20", "rounds: 1000000000000"),
        ("record:", "memory at least", "disk at least", "points: 400"),
    ),
}
SMALL = 30 << 20  # bytes of a machine that the small data set of these tests does not fit
ONLY_SMALL = {"least squares", "wide", "vertical"}


def sparse_rows(file: Path, count: int) -> None:
    """Write a data set of so many rows and 2,000 features, each row with a single feature."""
    file.write_text("".join(f"{(-1) ** j} {j % 2000 + 1}:1\n" for j in range(count)))


@pytest.mark.parametrize("what", TOO_LARGE)
@pytest.mark.parametrize("verb", first_of_each([["plan"], ["sweep", "--inline"], ["sweep"]]))
def test_what_cannot_fit_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, what: str, verb: list[str]
) -> None:
    text, says = TOO_LARGE[what]
    if what in ONLY_SMALL:
        sparse_rows(here / "data.txt", 2000 if what == "wide" else 4000)
        monkeypatch.setattr(limits, "memory_here", lambda: SMALL)
    (here / "s.yaml").write_text(text.replace("DATA", str(here / "data.txt")))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(verb[0], here / "s.yaml", *verb[1:], says=says, longest=6)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most
    assert grown < 600 << 10, "kilobytes: it was refused only after it had been allocated"


@pytest.mark.parametrize("rounds", [10**9, 10**12])
def test_an_endless_run_with_few_rows_or_a_stop_rule_is_planned(rounds: int) -> None:
    for keys in (
        "record: {points: 400}",
        "stop: {grad_norm_sq: 1.0e-8}",
        "record: {every: 10000000000000000}",
    ):
        text = SWEEP.replace("rounds: 20", f"rounds: {rounds}\n{keys}")
        need = check_memory_and_disk(make_plan(spec.load(text)), ".")
        assert need.sure == ("stop" not in keys)
        assert need.tensors < 1 << 20


@pytest.mark.thorough
def test_an_estimate_is_below_what_a_run_takes(tmp_path: Path) -> None:
    """Cells that run all their rounds take more disk, and their tables more memory, than was estimated."""
    sweep = spec.load(SWEEP.replace("rounds: 20", "rounds: 400"))
    plan = make_plan(sweep)
    need = need_of(plan)
    assert need.sure
    assert need.disk == plan.missing * 401 * DISK_PER_ROW
    assert drive(sweep, tmp_path / "out", inline=True).exit_code == 0
    files = list((tmp_path / "out" / "curves").glob("*.parquet"))
    assert need.disk < sum(file.stat().st_size for file in files)
    most = max(len(b.cells) for b in plan.batches)
    assert need.rows == most * 401 * admission.MEMORY_PER_ROW


def test_a_full_disk_is_foreseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = spec.load(SWEEP)
    need = need_of(make_plan(sweep))
    monkeypatch.setattr(limits.shutil, "disk_usage", lambda _: SimpleNamespace(free=need.disk))
    assert drive(sweep, tmp_path / "fits", inline=True).exit_code == 0
    monkeypatch.setattr(limits.shutil, "disk_usage", lambda _: SimpleNamespace(free=need.disk - 1))
    with pytest.raises(InputError, match="of disk at least, and"):
        drive(sweep, tmp_path / "out", inline=True)
    assert not (tmp_path / "out").exists()
    # what is committed already needs no room
    assert drive(sweep, tmp_path / "fits", inline=True).exit_code == 0


PLUGIN = """
from raybench.plugins import Problem, problem

@problem("greedy")
class Greedy(Problem):
    def __init__(self):
        super().__init__(2, 3)
        raise MemoryError("Unable to allocate 9 PiB")
"""


def test_a_plug_in_that_runs_out_of_memory_is_no_traceback(here: Path) -> None:
    (here / "greedy.py").write_text(PLUGIN)
    (here / "s.yaml").write_text("problem: greedy\nalgorithm: gd\nplugins: greedy.py\n")
    said = cli("sweep", "s.yaml", "--inline")
    assert said.code == 2
    assert said.err == (
        "error: problem: out of memory: Unable to allocate 9 PiB\n"
        "    a smaller problem, or fewer clients\n"
    )


def test_limits_of_a_container_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = limits.memory_here()
    assert 1 << 28 < machine < math.inf
    monkeypatch.setattr(limits, "CGROUP", tmp_path)
    outer = tmp_path / "pod"
    (outer / "job").mkdir(parents=True)
    real = Path.read_text
    own = {"/proc/self/cgroup": "0::/pod/job\n"}
    monkeypatch.setattr(Path, "read_text", lambda self: own.get(str(self)) or real(self))
    (outer / "job" / "memory.max").write_text("max\n")
    (outer / "memory.max").write_text("104857600\n")
    assert limits.memory_here() == 100 << 20
    (outer / "job" / "memory.max").write_text("52428800\n")
    assert limits.memory_here() == 50 << 20


def test_few_problems_are_built_for_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning, admission and queueing build each of 12 problems a few times, not once for every batch."""
    sweep = spec.load(
        "problem: {name: quadratic, dim: 20, clients: 2..13}\nalgorithm: ef21\n"
        "compressor: {name: top_k, k: 1..12}\nrounds: 5\n"
    )
    built: list[object] = []
    build = problems.build
    monkeypatch.setattr(problems, "build", lambda *a: built.append(a) or build(*a))
    resolve.problem_of.cache_clear()
    plan = make_plan(sweep)
    check_memory_and_disk(plan, ".")
    assert mode_of(plan) == "simulate"
    assert len(plan.batches) == 144
    queue = Queue(plan.batches, [plan.work(b) for b in plan.batches], 3, False, {})
    while queue.take("worker", None) is not None:
        pass
    assert 12 <= len(built) <= 36
