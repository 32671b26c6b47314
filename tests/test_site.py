"""The documentation site builds and needs no network, its examples run; the wheel works outside the checkout."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from cli_kit import call, cli, ran

import raybench
from raybench import spec
from raybench.core import yaml as core_yaml

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parent.parent
PACKAGES = ("mkdocs", "material")
missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
needs_mkdocs = pytest.mark.skipif(
    bool(missing), reason="mkdocs-material is not installed: pip install 'raybench[docs]'"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site strictly: a link that leads nowhere, or a page that no one finds, ends it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = call(*command, cwd=ROOT, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@needs_mkdocs
def test_pages_fetch_nothing(site: Path) -> None:
    """No page names a script, a style, a font or a picture that is elsewhere."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    loads = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"'> ]+")
    links = re.compile(r"<link\b[^>]*\bhref=[\"']?(?:https?:)?//[^\"'> ]+[^>]*>")
    for page in pages:
        text = page.read_text()
        result = [*loads.findall(text), *links.findall(text)]
        assert not result, f"{page.relative_to(site)}: {result}"


KNOWN = """a article aside blockquote body br button circle code details div em form h1 h2 h3 h4 h5 h6 head header hr html
img input label li link main meta nav noscript ol p path pre script section span strong style summary svg table tbody td
th thead title tr ul footer"""


@needs_mkdocs
def test_formulas_are_taken_for_no_markup(site: Path) -> None:
    """What Markdown takes for a tag (``<E C(x), x>``) or for emphasis (two ``x*``) would be lost on the page."""
    for page in site.glob("*.html"):
        text = page.read_text()
        tags = {name.lower() for name in re.findall(r"<([A-Za-z][\w-]*)", text)}
        assert tags <= {*KNOWN.split()}, f"{page.name}: {sorted(tags - {*KNOWN.split()})}"
        for said in re.findall(r"<em>(.*?)</em>", text, re.DOTALL):
            assert said.count("(") == said.count(")"), f"{page.name}: {said}"
            assert "<code" not in said, f"{page.name}: {said}"


@needs_mkdocs
def test_files_beside_the_pages_are_shown(site: Path) -> None:
    """Links to files outside of docs/ lead to pages of the site."""
    cluster = (site / "cluster.html").read_text()
    assert 'href="files/cluster/gcp.yaml.html"' in cluster
    shown = (site / "files" / "cluster" / "gcp.yaml.html").read_text()
    assert "max_workers" in shown
    assert (site / "files" / "examples" / "heavy_ball.py.html").is_file()
    assert (site / "files" / "SECURITY.html").is_file()


@needs_mkdocs
def test_search_runs_from_disk(site: Path) -> None:
    assert "glossary.html" in (site / "search" / "search_index.js").read_text()
    assert "assets/iframe-worker.js" in (site / "index.html").read_text()
    assert (site / "assets" / "iframe-worker.js").is_file()


def test_sweep_file_of_the_tutorial_is_what_the_page_says() -> None:
    """The file, and the file with the lines that the page changes, have the numbers of cells that it prints."""
    text = (ROOT / "docs" / "tutorial.md").read_text()
    first, change = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    sweep = core_yaml.parse(first)
    assert len(spec.load(sweep).cells) == 372
    assert "372 cells: 372 to run" in text
    later = {**sweep, **core_yaml.parse("algorithm:\n" + change)}
    assert len(spec.load(later).cells) == 492
    assert "492 cells: 492 ok" in text


# The examples of the pages, on the results of the quickstart, made small --------------------------

TEXT = (ROOT / "docs" / "results.md").read_text()
HOW_TO = {
    name: (ROOT / "docs" / "how-to" / f"{name}.md").read_text()
    for name in ("figures", "folders", "tables")
}
CONCEPTS = (ROOT / "docs" / "concepts.md").read_text()
SMALL = ["rounds=60", "step_size={theory: [1, 16]}"]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("here")
    for name, sets in (("quickstart", []), ("other", ["problem.lambda=0.2"])):
        sweep = ROOT / "sweeps" / "quickstart.yaml"
        raybench.sweep(sweep, folder / "results" / name, sets=[*SMALL, *sets], inline=True)
    return folder


def test_the_python_of_the_analysis_runs(here, monkeypatch):
    monkeypatch.chdir(here)
    analysis = TEXT.split("## The analysis in Python\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", analysis, re.S)
    assert len(blocks) >= 3
    names = {}
    with contextlib.redirect_stdout(io.StringIO()) as said:
        for block in blocks:
            exec(compile(block, "results.md", "exec"), names)
    assert "EF21 Top-1" in said.getvalue()


def commands(page):
    """Return the words after ``raybench`` of a page's commands that read these results, or look things up."""
    text = page.replace("\\\n", "").replace(" DIR", " results/quickstart")
    lines = re.findall(r"^raybench (.*)$|`raybench ([^`]*)`", text, re.M)
    every = {tuple(shlex.split((a or b).partition("#")[0])) for a, b in lines}
    return sorted(w for w in every if "results/quickstart" in w or w[0] in ("show", "ls"))


@pytest.mark.parametrize(
    ("page", "least"), [("figures", 5), ("folders", 3), ("tables", 7), ("concepts", 4)]
)
def test_the_commands_of_the_pages_run(here, monkeypatch, page, least):
    monkeypatch.chdir(here)
    lines = commands({**HOW_TO, "concepts": CONCEPTS}[page])
    assert len(lines) >= least
    for words in lines:
        said = ran(*words)
        assert page != "tables" or "--out" in words or "EF21 Top-K" in said.out


def test_the_numbers_on_the_page_on_concepts_are_those_of_the_sweep(here):
    sweep = spec.load(core_yaml.parse((ROOT / "sweeps" / "quickstart.yaml").read_text()))
    assert f"anything runs: {len(sweep.cells)} in this case" in " ".join(CONCEPTS.split())
    readings = cli("audit", here / "results" / "quickstart").out.split(" ")[0]
    assert f"There are {readings} readings of this folder" in " ".join(CONCEPTS.split())


# Recipes for other programs ------------------------------------------------------------------------

RECIPES = {"docs/how-to/query.md": 4, "docs/results.md": 1}  # pages and how many blocks they have
PROGRAMS = ("raybench.load(", "duckdb.sql(", "polars", "pandas.read_parquet(")


def recipes(page):
    """Return the Python of a page that reads curves on this machine, in the order in which it stands there."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    told = [b for b in blocks if any(name in b for name in PROGRAMS) and "print(" in b]
    return [b for b in told if "s3://" not in b and "raybench.analysis" not in b]


@pytest.fixture(scope="module")
def two_splits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("splits")
    sweep = {
        "name": "two",
        "problem": {"name": "logistic", "dataset": "breast_cancer", "clients": 4}
        | {"scale": "columns", "split": ["shuffled", "sorted_by_label"]},
        "algorithm": "ef21",
        "compressor": {"name": "top_k", "k": 3},
        "step_size": {"theory": [4, 16]},
        "seed": [0, 1, 2],
        "rounds": 100,
    }
    raybench.sweep(sweep, folder / "results" / "quickstart", inline=True)
    for name in ("first_study", "a", "b"):
        shutil.copytree(folder / "results" / "quickstart", folder / "results" / name)
    return folder


@pytest.mark.parametrize("page", RECIPES)
def test_recipes_have_a_row_for_each_split(two_splits, monkeypatch, page):
    monkeypatch.chdir(two_splits)
    blocks = recipes(page)
    assert len(blocks) == RECIPES[page]
    for block in blocks:
        reachable = re.sub(r"<= \d+e-\d+", "<= 1e-2", block)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(compile(reachable, page, "exec"), {})
        assert "shuffled" in said.getvalue(), block
        assert "sorted_by_label" in said.getvalue(), block


# What ships ---------------------------------------------------------------------------------------


PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of what git would ship, with the installed build tools."""
    setuptools = pytest.importorskip("setuptools")
    if int(setuptools.__version__.split(".")[0]) < 77:
        pytest.skip(f"setuptools {setuptools.__version__} is older than the build needs")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    files = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
    call("cp", "-r", *files, "sweeps", "raybench", source, cwd=ROOT, check=True)
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(folder)!r})"
    done = call(sys.executable, "-c", build, cwd=source)
    assert done.returncode == 0, done.stderr[-2000:]
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_holds_the_package_its_data_and_the_sweeps(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for sweep in (ROOT / "sweeps").glob("*.yaml"):
        assert f"raybench/sweeps/{sweep.name}" in names
    for file in (ROOT / "raybench").rglob("*"):
        if file.suffix in (".py", ".html", ".css", ".json", ".typed") or file.name == "py.typed":
            assert file.relative_to(ROOT).as_posix() in names
    stray = {n for n in names if not n.startswith(("raybench/", "raybench-"))}
    assert not stray, f"the wheel would install {sorted(stray)} beside the package"


def test_wheel_runs_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Unpacked into a folder of its own that comes first on the path, away from the checkout."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    work = tmp_path / "work"
    work.mkdir()
    env = {**os.environ, "PYTHONPATH": str(site)}

    where = "import raybench; print(raybench.__file__)"
    imported = call(sys.executable, "-c", where, cwd=work, env=env, check=True)
    assert Path(imported.stdout.strip()).parent == site / "raybench"
    for args in (("cp", "quickstart", "my.yaml"), ("plan", "my.yaml")):
        done = call(sys.executable, "-m", "raybench", *args, cwd=work, env=env)
        assert done.returncode == 0, done.stderr
    assert (work / "my.yaml").read_text() == (ROOT / "sweeps" / "quickstart.yaml").read_text()


ATTACHED = """
import torch, torch.distributed as dist, raybench.torch
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo", init_method="file://{rendezvous}", rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(4, 2))
with raybench.torch.attach(model, "ef21", "top_k:k=1") as hook:
    model(torch.ones(3, 4)).sum().backward()
    print(hook.report())
dist.destroy_process_group()
"""


@pytest.mark.thorough
def test_an_installed_wheel_sweeps_advises_and_trains(wheel: Path, tmp_path: Path) -> None:
    """By pip into an empty folder, which comes first on the path, away from the checkout."""
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    pip = ("pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel)
    call(sys.executable, "-m", *pip, check=True)
    env = {
        **os.environ,
        "PYTHONPATH": str(site),
        "RAYBENCH_DATA": str(work),
    }  # no data but what scikit-learn has
    small = ("--inline", "--set", "rounds=5", "--set", "seed=0", "--set", "step_size={theory: 1}")
    advice = (
        "resnet20:depth=8 --batch 2 --compressor top_k:k=1% --gpus 8 --link 1Gbit --backward 0.02"
    )
    for args in (("sweep", "quickstart", *small), ("advise", *advice.split())):
        done = call(sys.executable, site / "bin" / "raybench", *args, cwd=work, env=env)
        assert done.returncode == 0, done.stderr
    assert (work / "results" / "quickstart" / "report.html").is_file()
    code = ATTACHED.replace("{rendezvous}", str(tmp_path / "meet"))
    done = call(sys.executable, "-c", code, cwd=work, env=env)
    assert done.returncode == 0, done.stderr
    assert "ef21" in done.stdout


def test_the_citation_is_of_this_version() -> None:
    """The required keys of Citation File Format 1.2.0, and no other than these."""
    cited = core_yaml.parse((ROOT / "CITATION.cff").read_text())
    keys = {"cff-version", "message", "title", "authors"}
    more = {"type", "version", "date-released", "license", "keywords"}
    assert keys <= set(cited) <= keys | more
    assert cited["cff-version"] == "1.2.0"
    assert cited["type"] == "software"
    assert all(set(author) == {"name"} for author in cited["authors"])
    about = PYPROJECT["project"]
    assert (cited["version"], cited["license"]) == (about["version"], about["license"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", cited["date-released"])


def test_constraints_agree_with_the_requirements_and_what_is_installed() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    parts = [line.split("==") for line in lines if "==" in line]
    pinned = {_key(name): number for name, number in parts}
    project = PYPROJECT["project"]
    needed = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = [_key(re.split(r"[\[<>=!~ ]", text, maxsplit=1)[0]) for text in needed]
    missing = [name for name in names if name not in pinned and name != "pandas-stubs"]
    assert not missing, f"constraints.txt lacks {missing}"
    assert pinned["ray"] == version("ray"), "the tests run on another Ray than constraints.txt pins"


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_no_package_registry_is_named() -> None:
    """Installing works with whatever index pip is configured for."""
    files = ["Makefile", ".ci/run", "constraints.txt", "pyproject.toml", "cluster.yaml", "setup.py"]
    files += [file.relative_to(ROOT).as_posix() for file in (ROOT / "cluster").iterdir()]
    hosts = ["pypi." + "org", "python" + "hosted", "download." + "pytorch", "--index" + "-url"]
    for name in files:
        text = (ROOT / name).read_text()
        assert not [host for host in hosts if host in text], f"{name} names a registry"


def test_make_names_tests_that_exist() -> None:
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    (names,) = re.findall(r"^INVARIANTS := \$\(addprefix tests/test_,(.*)\)$", text, re.MULTILINE)
    assert not [n for n in names.split() if not (ROOT / "tests" / f"test_{n}").is_file()]
