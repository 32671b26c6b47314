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
from raybench.core.errors import InputError
from raybench.data import catalogue
from raybench.spec import Sweep

TOKEN, PROGRESS, ENDED, PID, LOG = "token", "progress.json", "ended", "driver.pid", "job.log"
LEASE = 'sh "$HOME/.raybench-lease/lease.sh"'
MOST_BYTES = 8 << 30
WHEEL = "Wheel-Version: 1.0\nGenerator: raybench\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
JOB = """\
#!/bin/bash
# What the cluster's job runs: the sweep's driver, on the head. It leaves its exit code behind, and keeps the lease.
job={job}
cd "$(dirname "$0")" && mkdir -p "$job" || exit 2
rm -f "$job/{ended}"
echo $$ >"$job/{pid}"
({lease}; while kill -0 $$ 2>/dev/null; do {push}; sleep 10; done) >/dev/null 2>&1 &
export RAYBENCH_DATA="$PWD/data" RAYBENCH_PROGRESS="$job/{progress}"
{command} 2>&1 | tee "$job/{log}"
code=${{PIPESTATUS[0]}}
echo "$code" >"$job/{ended}.new" && mv "$job/{ended}.new" "$job/{ended}"
exit "$code"
"""


def job(
    folder: str, out: str, flags: Sequence[str] = (), python: str = "python3", lease: str = "push"
) -> str:
    """Return the script that a job of the cluster runs.

    folder: what it tells lies there. out: where its results go. flags: of ``raybench sweep``. python: the interpreter there.
    lease: ``push`` while it runs, or ``hold`` until its results are fetched.
    """
    words = f"{python} -m raybench sweep sweep.yaml --address auto --out".split()
    words += [out, *flags]
    command = " ".join(w if w.startswith("~/") else shlex.quote(w) for w in words)
    names = {"ended": ENDED, "pid": PID, "progress": PROGRESS, "log": LOG}
    leases = {"lease": f"{LEASE} {lease}", "push": f"{LEASE} push"}
    return JOB.format(command=command, job=shlex.quote(folder), **leases, **names)


def gather(folder: Path, sweep: Sweep, script: str) -> int:
    """Fill ``folder`` with all that a host needs, the script of its job too, and return the bytes of data in it.

    A token that is there stays, else one is made. Raises InputError for files that are too large.
    """
    token = (folder / TOKEN).read_text() if (folder / TOKEN).exists() else secrets.token_hex(32)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    folder.chmod(0o700)
    write_private(folder / TOKEN, token)
    wheel(folder)
    (folder / "constraints.txt").write_text(constraints())
    raw = yaml.parse(sweep.text, "the sweep")
    data = _Files(folder)
    (folder / "sweep.yaml").write_text(yaml.dump(data.moved(raw)))
    for name in sorted(data_sets(sweep)):
        for file in catalogue.files_of(name):
            data.copy(file, Path("data") / file.relative_to(catalogue.folder().absolute()))
    (folder / "data").mkdir(exist_ok=True)
    (folder / "job.sh").write_text(script)
    return data.bytes


def data_sets(sweep: Sweep) -> set[str]:
    """Return the data sets that a sweep's problems name."""
    keys = ("dataset", "test_set")
    given = {cell.problem.params.get(key) for cell in sweep.cells for key in keys}
    return {name for name in given if isinstance(name, str)}


class _Files:
    """Copies the files that a sweep names into the stage, and names them as they lie there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bytes = 0
        self.known: dict[str, str] = {}

    def moved(self, value: Any) -> Any:
        """Return a document with every path of this machine in it replaced by one beside the sweep file.

        ``Sweep.text`` has absolute paths wherever a key names a file that exists, so a text that begins with
        a slash and exists is such a path; ``own.py:function`` is one with a function behind it.
        """
        if isinstance(value, Mapping):
            return {key: self.moved(part) for key, part in value.items()}
        if isinstance(value, list):
            return [self.moved(part) for part in value]
        if not isinstance(value, str) or not value.startswith("/"):
            return value
        file, colon, rest = value.rpartition(".py:")
        path, behind = (file + ".py", f":{rest}") if colon else (value, "")
        if not Path(path).exists():
            return value
        if path not in self.known:
            place = Path("files") / str(len(self.known)) / Path(path).name
            self.copy(Path(path), place)
            self.known[path] = place.as_posix()
        return self.known[path] + behind

    def copy(self, path: Path, place: Path) -> None:
        """Copy a file or a folder to its place in the stage."""
        target = self.folder / place
        if target.exists():
            return
        parts = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
        self.bytes += sum(part.stat().st_size for part in parts)
        if self.bytes > MOST_BYTES:
            what = f"the sweep's data come to more than {MOST_BYTES >> 30} GiB"
            fix = "put them where the cluster's nodes find them, and start the sweep there"
            raise InputError.of(str(path), what, fix)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, target)
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
    record = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    target = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            # a fixed date: the same files make the same wheel
            archive.writestr(
                zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED
            )
    return target


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def constraints() -> str:
    """Return the versions of all packages that are installed here: one ``name==version`` a line.

    Drivers and workers must agree on them. A local part such as ``+cpu`` is left out: that is the machine's.
    """
    versions = {one.name: one.version.split("+")[0] for one in metadata.distributions()}
    versions.pop("raybench", None)
    return "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))
