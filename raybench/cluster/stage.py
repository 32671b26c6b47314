"""What travels to a cluster: a wheel of raybench, the sweep, its plug-ins, its data, a token of its own."""

from __future__ import annotations

import base64
import hashlib
import secrets
import shlex
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from raybench.cluster.states import write_private
from raybench.core import yaml
from raybench.data import catalogue
from raybench.spec import Sweep

TOKEN, PROGRESS, ENDED, PID, LOG = "token", "progress.json", "ended", "driver.pid", "job.log"
LEASE = 'sh "$HOME/.raybench-lease/lease.sh"'
WHEEL = "Wheel-Version: 1.0\nGenerator: raybench\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def gather(folder: Path, sweep: Sweep, words: Sequence[str]) -> None:
    """Fill ``folder`` with all that a host needs; words: with which its job calls ``job.sh``, one beside this file.

    A token that is there stays, else one is made.
    """
    token = (folder / TOKEN).read_text() if (folder / TOKEN).exists() else secrets.token_hex(32)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    write_private(folder / TOKEN, token)
    wheel(folder)
    (folder / "constraints.txt").write_text(constraints())
    raw = yaml.parse(sweep.text, "the sweep")
    (folder / "sweep.yaml").write_text(yaml.dump(_moved(raw, folder)))
    (folder / "data").mkdir()
    keys, problems = ("dataset", "test_set"), [cell.problem.params for cell in sweep.cells]
    names = {params.get(key) for params in problems for key in keys}
    for name in sorted(name for name in names if isinstance(name, str)):
        for file in catalogue.files_of(name):
            _copy(file, folder / "data" / file.relative_to(catalogue.folder().absolute()))
    script = Path(__file__).with_name("job.sh").read_text()
    (folder / "job.sh").write_text(f"set -- {shlex.join(words)}\n{script}")


def _moved(value: Any, folder: Path) -> Any:
    """Return a document with every path of this machine in it replaced by one in ``folder``, where the file is copied.

    ``Sweep.text`` has absolute paths wherever a key names a file that exists, so a text that begins with
    a slash and exists is such a path; ``own.py:function`` is one with a function behind it.
    """
    if isinstance(value, Mapping):
        return {key: _moved(part, folder) for key, part in value.items()}
    if isinstance(value, list):
        return [_moved(part, folder) for part in value]
    if not isinstance(value, str) or not value.startswith("/"):
        return value
    file, colon, rest = value.rpartition(".py:")
    path, behind = (Path(file + ".py"), f":{rest}") if colon else (Path(value), "")
    if not path.exists():
        return value
    place = f"files/{hashlib.sha256(str(path).encode()).hexdigest()[:8]}/{path.name}"
    _copy(path, folder / place)
    return place + behind


def _copy(path: Path, target: Path) -> None:
    """Copy a file or a folder, unless it is there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, target, dirs_exist_ok=True)
    else:
        shutil.copy2(path, target)


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
    record = f"{info}/RECORD,,\n"
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    files[f"{info}/RECORD"] = record.encode()
    target = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in files.items():
            # its date is always the same, so that the same files make the same wheel
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return target


def constraints() -> str:
    """Return the versions of all packages that are installed here: one ``name==version`` a line.

    Drivers and workers must agree on them. A local part such as ``+cpu`` is left out: that is the machine's.
    """
    versions = {one.name: one.version.split("+")[0] for one in metadata.distributions()}
    versions.pop("raybench", None)
    return "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))
