"""A sweep with all that another machine needs for it in one folder: its files, its data, this raybench, the versions."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from raybench.core import yaml
from raybench.core.errors import InputError
from raybench.data import catalogue
from raybench.spec import Sweep
from raybench.spec.values import parted

WHEEL = "Wheel-Version: 1.0\nGenerator: raybench\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write(folder: Path, sweep: Sweep) -> None:
    """Write ``sweep.yaml`` with what it names beside it, data sets under ``data``, a wheel, and ``constraints.txt``."""
    wheel(folder)
    # drivers and workers must agree on versions; a local part such as +cpu is the machine's
    versions = {one.name: one.version.split("+")[0] for one in metadata.distributions()}
    lines = (f"{name}=={versions[name]}\n" for name in sorted(versions.keys() - {"raybench"}))
    (folder / "constraints.txt").write_text("".join(lines))
    files: dict[Path, str] = {}  # by their paths here, those there
    document = _moved(yaml.parse(sweep.text, "the sweep"), files)
    (folder / "sweep.yaml").write_text(yaml.dump(document))
    (folder / "data").mkdir()
    problems, here = [cell.problem.params for cell in sweep.cells], catalogue.folder().absolute()
    for name in {params.get(key) for params in problems for key in ("dataset", "test_set")}:
        for file in catalogue.files_of(name) if isinstance(name, str) else ():
            files[file] = f"data/{file.absolute().relative_to(here)}"
    for path, place in files.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if path.is_dir() else shutil.copy2)(path, folder / place)


def check_bundle(folder: Path) -> None:
    """Plan the sweep of a bundle in a process that sees nothing else. Raises InputError where it cannot be planned."""
    (made,) = folder.glob("raybench-*.whl")
    with tempfile.TemporaryDirectory() as apart:
        zipfile.ZipFile(made).extractall(apart)
        env = {**os.environ, "PYTHONPATH": apart, "RAYBENCH_DATA": str(folder.absolute() / "data")}
        words = [sys.executable, "-m", "raybench", "plan", "sweep.yaml", "--out", f"{apart}/out"]
        done = subprocess.run(
            words, cwd=folder, env=env, capture_output=True, text=True, check=False
        )
    if done.returncode:
        what = f"where only its own files are it cannot be planned: {' '.join(done.stderr.split())}"
        fix = "does a plug-in import a module beside it? put all into one file"
        raise InputError.of("launch", what, fix)


def _moved(value: Any, files: dict[Path, str]) -> Any:
    """Return a document with every path of this machine in it replaced by one beside it, which ``files`` gets to know.

    ``Sweep.text`` has absolute paths wherever a key names a file that exists, so a text that begins with
    a slash and exists is such a path; ``own.py:function`` is one with a function behind it.
    """
    if isinstance(value, Mapping):
        return {key: _moved(part, files) for key, part in value.items()}
    if isinstance(value, list):
        return [_moved(part, files) for part in value]
    if not isinstance(value, str) or not value.startswith("/"):
        return value
    file, behind = parted(value)
    path = Path(file)
    if not path.exists():
        return value
    files[path] = f"files/{hashlib.sha256(file.encode()).hexdigest()[:8]}/{path.name}"
    return files[path] + behind


def wheel(folder: Path) -> Path:
    """Write a wheel of the raybench that is imported here, installed or a checkout, and return its path.

    It holds the package's files and the metadata of its installation; nothing is built and nothing fetched.
    """
    there = metadata.distribution("raybench")
    package = Path(__file__).parents[1]
    stem = f"raybench-{there.version}"
    info = f"{stem}.dist-info"
    files = {
        f"raybench/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    # beside a checkout lies what its build wrote, where the metadata have their old name
    about = there.read_text("METADATA") or there.read_text("PKG-INFO")
    assert about, "raybench is imported from a folder that no installation knows"
    files[f"{info}/METADATA"] = about.encode()
    files[f"{info}/entry_points.txt"] = (there.read_text("entry_points.txt") or "").encode()
    files[f"{info}/WHEEL"] = WHEEL.encode()
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]).encode()
    target = folder / f"{stem}-py3-none-any.whl"
    # their date is always the same, so that the same files make the same wheel
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return target
