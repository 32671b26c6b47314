"""The raybench that runs here, as a wheel: what a cluster installs is what made the plan."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from importlib import metadata
from pathlib import Path

WHEEL = "Wheel-Version: 1.0\nGenerator: raybench\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def build(folder: Path) -> Path:
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
