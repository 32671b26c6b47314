"""What tests of data share: refusals in few lines, time and memory, and archives whose headers are lies."""

from __future__ import annotations

import io
import time
import zipfile

import numpy as np
import pytest
from processes import memory, reset_peak

from raybench.core.errors import InputError

MOST = 100 * 10**6  # bytes of memory, beside ten times what a file has


def complaint(call, *args, **kwargs) -> str:
    """Return what a call says that must be refused."""
    with pytest.raises(InputError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def refused(read, given, *words, file_size=0, seconds=10.0, **kwargs) -> None:
    """Assert that a data set is refused in few lines, in little memory and CPU time, with these words."""
    before, begin = reset_peak(), time.process_time()
    said = complaint(read, given, **kwargs)
    took, grown = time.process_time() - begin, memory("VmHWM") - before
    assert all(word in said for word in words), said
    assert said.startswith("problem.dataset: ")
    assert len(said) < 1200
    assert said.count("\n") < 6
    assert took < seconds
    assert grown < MOST + 10 * file_size


def forged_npz(path, **members):
    """Write an .npz of raw members, compressed."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return path


def npy(array, **header):
    """Return the bytes of an array, with some fields of its header replaced."""
    out = io.BytesIO()
    about = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape, **header}
    np.lib.format.write_array_header_1_0(out, about)
    return out.getvalue() + array.tobytes()
