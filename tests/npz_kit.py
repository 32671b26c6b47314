"""Archives of arrays whose members, or whose headers, are not what they say."""

from __future__ import annotations

import io
import zipfile

import numpy as np


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
