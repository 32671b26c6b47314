"""Matrices of a MATLAB file that anybody may have made, read by scipy in a process of its own.

``scipy.io.loadmat`` ends the process on some damaged files, and takes what memory a file's lengths promise. So this
file is also a program, which reads with bounded memory and writes what it read as an ``.npz``.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import numpy as np

FIX = "save numeric matrices with save(file, ..., '-v7')"
SECONDS = 600  # that reading may take
VERSIONS = (b"\0\1IM", b"\1\0MI")  # of the formats 5 to 7, in both byte orders
WIDTHS = (8, 16, 32, 64)
TYPES = {
    "double": "f8",
    "single": "f4",
    "logical": "u1",
}  # of matrices; files may hold narrower ones
TYPES |= {
    f"{sign}int{width}": f"{sign or 'i'}{width // 8}" for sign in ("", "u") for width in WIDTHS
}
COPIES = 3  # of the matrices that are in memory while they are read


def matrices(path: Path, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Return the real matrices of a file, by default all, as MATLAB stored them: two axes or more.

    Nothing of a file is run. Raises InputError where the file is damaged, of another version than 5 to 7, holds
    something asked for that is no matrix of real numbers, or takes more memory than a data set may.
    """
    from raybench.core.room import FREE, GROWTH, SHARE, check_fits, memory_here
    from raybench.data.files import DATASET_KEY, data_error

    try:
        size = path.stat().st_size
        check_fits(DATASET_KEY, str(path), size, "save fewer rows")
        with path.open("rb") as file:
            version = file.read(128)[124:]
    except OSError as error:
        raise data_error(f"cannot read {path.name}: {error}", FIX) from error
    if version not in VERSIONS:
        what = f"cannot read {path.name}: it is in another format of MATLAB, or in none"
        raise data_error(what, FIX)
    most = COPIES * min(max(FREE, GROWTH * size), memory_here() // SHARE)
    asked = json.dumps(None if names is None else sorted(names))
    command = [sys.executable, "-I", __file__, str(path), str(most), asked]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise data_error(f"cannot read {path.name} in {SECONDS} seconds", FIX) from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = said[-1] if said and done.returncode == 1 else "the file is damaged"
        raise data_error(f"cannot read {path.name}: {reason}"[:300], FIX)
    with np.load(io.BytesIO(done.stdout), allow_pickle=False) as stored:
        return dict(stored)


def _main(path: str, most: str, asked: str) -> str | None:
    """Write the matrices of a file to standard output; return what is wrong with it."""
    import resource

    import psutil
    import scipy.io

    limit = psutil.Process().memory_info().vms + int(most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    names = json.loads(asked)
    try:
        classes = {name: kind for name, _, kind in scipy.io.whosmat(path)}
        arrays = scipy.io.loadmat(path, variable_names=[*classes] if names is None else names)
    except MemoryError:
        return "it takes more memory than a data set may"
    except Exception as error:  # scipy raises a dozen kinds on files that are damaged
        return " ".join(f"{type(error).__name__}: {error}".split())
    matrices = {}
    for name in classes.keys() & arrays.keys():
        value, kind = arrays[name], classes[name]
        if kind not in TYPES or value.dtype.kind == "c":
            return f"{name} is {'complex' if kind in TYPES else kind}, not real numbers"
        matrices[name] = value.astype(TYPES[kind])
    np.savez(sys.stdout.buffer, **matrices)
    return None


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
