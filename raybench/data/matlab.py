"""Matrices of a MATLAB file that anybody may have made: versions 5 to 7, every length checked before it is used.

``scipy.io.loadmat`` ends the process on some damaged files, so the few kinds of elements that a matrix of numbers
is made of are read here. Format: MATLAB, MAT-File Format, R2024.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raybench.core.errors import InputError
from raybench.core.limits import check_fits, check_growth

DATASET_KEY = "problem.dataset"
FIX = "save numeric matrices with save(file, ..., '-v7')"
HEADER, TAG = 128, 8  # bytes of the file's header, and of the tag of an element
MATRIX, PACKED = 14, 15  # types of elements: a matrix, and one that is compressed
STORED = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
}
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}  # fmt: skip
OTHERS = {1: "cells", 2: "a structure", 3: "an object", 4: "text", 5: "a sparse matrix"}
COMPLEX = 0x800  # a bit of the flags
PIECE = 1 << 20


class _Damaged(Exception):
    """What is wrong with a file."""


def matrices(path: Path, wanted: Callable[[str], bool]) -> dict[str, np.ndarray]:
    """Return the real matrices of a file whose names are wanted, as MATLAB stored them: two axes or more.

    What else the file holds (text, cells, structures, objects) is neither read nor run. Raises InputError
    where the file is damaged, of another version, holds something wanted that is no matrix of real
    numbers, or takes more memory than a data set may.
    """
    found: dict[str, np.ndarray] = {}
    try:
        check_fits(DATASET_KEY, str(path), path.stat().st_size, "save fewer rows")
        for order, raw in _elements(path):
            matrix = _Matrix.of(raw, order)
            if not wanted(matrix.name):
                continue
            whole = f"{path.name}: {matrix.name}"
            if matrix.kind not in CLASSES or matrix.flags & COMPLEX:
                kind = OTHERS.get(matrix.kind, f"a matrix of class {matrix.kind}")
                what = (
                    f"{whole} is {'complex' if matrix.kind in CLASSES else kind}, not real numbers"
                )
                raise InputError.of(DATASET_KEY, what, FIX)
            check_fits(DATASET_KEY, whole, 8 * math.prod(matrix.shape), "save fewer rows")
            found[matrix.name] = matrix.values()
    except (OSError, zlib.error, struct.error, _Damaged) as error:
        what = f"cannot read {path.name}: {error}"
        raise InputError.of(DATASET_KEY, what[:300], FIX) from error
    return found


def _elements(path: Path) -> Iterator[tuple[str, memoryview]]:
    """Yield (byte order, content) of every matrix of a file, unpacked to no more than a file may become."""
    packed, seen = path.stat().st_size, 0
    with path.open("rb") as file:
        header = file.read(HEADER)
        order = {b"IM": "<", b"MI": ">"}.get(header[126:128], "")
        if not order or struct.unpack(f"{order}H", header[124:126]) != (0x0100,):
            raise _Damaged("it is in another format of MATLAB, or in none")
        while tag := file.read(TAG):
            kind, length = struct.unpack(f"{order}II", tag)
            if length > packed - file.tell():
                raise _Damaged("it ends within a matrix")
            content: bytes | bytearray = file.read(length)
            if kind == PACKED:
                unpacker, whole, rest = zlib.decompressobj(), bytearray(), content
                while piece := unpacker.decompress(rest, PIECE):
                    whole += piece
                    seen += len(piece)
                    check_growth(DATASET_KEY, path.name, packed, seen)
                    check_fits(DATASET_KEY, path.name, seen, "save fewer rows")
                    rest = unpacker.unconsumed_tail
                kind, at = struct.unpack(f"{order}II", whole[:TAG])
                if not unpacker.eof or at > len(whole) - TAG:
                    raise _Damaged("a compressed matrix is cut off")
                content = whole[TAG:]
            if kind == MATRIX:
                yield order, memoryview(content)


@dataclass(frozen=True)
class _Matrix:
    """A matrix whose numbers are not read yet; data: (what they are stored as, their bytes)."""

    name: str
    kind: int
    flags: int
    shape: tuple[int, ...]
    data: tuple[int, memoryview] | None
    order: str

    @classmethod
    def of(cls, raw: memoryview, order: str) -> _Matrix:
        parts = _parts(raw, order)
        try:
            (_, flags), (_, sizes), (_, name) = (next(parts) for _ in range(3))
        except (ValueError, RuntimeError):  # fewer than three
            raise _Damaged("a matrix lacks its header") from None
        (bits,) = struct.unpack(f"{order}I", flags[:4])
        shape = tuple(np.frombuffer(sizes, f"{order}i4").tolist()) if len(sizes) % 4 == 0 else ()
        if not 2 <= len(shape) <= 32 or min(shape) < 0:
            raise _Damaged(f"a matrix has the shape {shape}")
        text = bytes(name).decode("latin-1")
        kind = bits & 0xFF
        data = next(parts, None) if kind in CLASSES else None
        return cls(text, kind, bits, shape, data, order)

    def values(self) -> np.ndarray:
        """Return the numbers in the type of their class; MATLAB may store them in a narrower one."""
        stored, data = self.data or (0, memoryview(b""))
        width = np.dtype(STORED.get(stored, "V1")).itemsize
        if stored not in STORED or len(data) != math.prod(self.shape) * width:
            what = f"{self.name} has {len(data):,} bytes of type {stored} for {self.shape}"
            raise _Damaged(what)
        flat = np.frombuffer(data, f"{self.order}{STORED[stored]}").astype(CLASSES[self.kind])
        return flat.reshape(self.shape, order="F")


def _parts(raw: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Yield (type, content) of the elements within one; up to four bytes stand in the tag itself."""
    at = 0
    while at + TAG <= len(raw):
        kind, length = struct.unpack(f"{order}II", raw[at : at + TAG])
        if kind >> 16:
            yield kind & 0xFFFF, raw[at + 4 : at + 4 + min(kind >> 16, 4)]
            at += TAG
            continue
        if length > len(raw) - at - TAG:
            raise _Damaged("an element is longer than its matrix")
        yield kind, raw[at + TAG : at + TAG + length]
        at += TAG + length + -length % 8
