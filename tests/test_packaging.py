"""What ships: the wheel works outside the checkout, versions agree, texts name no hosts."""

import os
import re
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from cli_kit import call

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parent.parent
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
    call(sys.executable, "-c", build, cwd=source, check=True)
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
        call(sys.executable, "-m", "raybench", *args, cwd=work, env=env, check=True)
    assert (work / "my.yaml").read_text() == (ROOT / "sweeps" / "quickstart.yaml").read_text()


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


def test_make_refuses_an_old_python_in_one_line(tmp_path: Path) -> None:
    old = tmp_path / "python-old"
    old.write_text("#!/bin/sh\n[ \"$1\" = -V ] && echo 'Python 3.9.1' && exit 0\nexit 1\n")
    old.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "setup.py"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    done = call("make", f"PYTHON={old}", "demo", cwd=tmp_path)
    said = done.stderr.splitlines()
    assert done.returncode != 0
    assert said[0].startswith("error: raybench needs Python 3.11")
    assert "Python 3.9.1" in said[0]
    assert not (tmp_path / ".venv").exists()
