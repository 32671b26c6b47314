"""Matrices of a MATLAB file that anybody may have made, read by scipy in a process of its own.

``scipy.io.loadmat`` ends the process on some damaged files, and takes what memory a file's lengths promise. So this
file is also a program, which reads with bounded memory and writes what it read as an ``.npz``.
"""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import numpy as np

FIX = "save numeric matrices with save(file, ..., '-v7')"
SECONDS = 600  # that reading may take
COPIES = 3  # of the matrices that are in memory while they are read


def matrices(path: Path, names: Collection[str] = ()) -> dict[str, np.ndarray]:
    """Return the real matrices of a file, by default all, as MATLAB stored them: two axes or more.

    Nothing of a file is run. Raises InputError where the file is damaged, of another version than 5 to 7, holds
    something asked for that is no matrix of real numbers, or takes more memory than a data set may.
    """
    from raybench.core.limits import FREE, GROWTH, SHARE, check_fits, memory_here
    from raybench.data.files import DATASET_KEY, data_error

    try:
        size = path.stat().st_size
        check_fits(DATASET_KEY, str(path), size, "save fewer rows")
        most = COPIES * int(min(max(FREE, GROWTH * size), memory_here() // SHARE))
        command = [sys.executable, "-I", __file__, str(path), str(most), *sorted(names)]
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise data_error(f"cannot read {path.name}: {error}", FIX) from error
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1] if lines and done.returncode == 1 else "the file is damaged"
        raise data_error(f"cannot read {path.name}: {reason}"[:300], FIX)
    with np.load(io.BytesIO(done.stdout), allow_pickle=False) as stored:
        return dict(stored)


def _main(path: str, most: str, *names: str) -> str | None:
    """Write the matrices of a file to standard output; return what is wrong with it."""
    import scipy.io

    memory = Path("/proc/self/statm")
    if memory.exists():  # other systems than Linux do not enforce a bound on the address space
        import resource

        limit = int(memory.read_text().split()[0]) * resource.getpagesize() + int(most)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        classes = {name: kind for name, _, kind in scipy.io.whosmat(path)}
        arrays = scipy.io.loadmat(path, variable_names=[*(names or classes)])
    except MemoryError:
        return "it takes more memory than a data set may"
    except Exception as error:  # scipy raises a dozen kinds on files that are damaged
        return " ".join(f"it is damaged, or in another format than 5 to 7: {error}".split())
    matrices = {name: arrays[name] for name in classes.keys() & arrays.keys()}
    for name, value in matrices.items():
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
            kind = (
                "complex" if getattr(value, "dtype", np.dtype("O")).kind == "c" else classes[name]
            )
            return f"{name} is {kind}, not real numbers"
    np.savez(sys.stdout.buffer, **matrices)
    return None


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
