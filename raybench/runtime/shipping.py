"""Built problems on their way to workers: their large arrays lie once on a node and are read in place.

Ray keeps the NumPy arrays of an object in memory that all processes of a node share, and whoever gets the
object reads them there; but torch pickles a tensor's numbers into the object's bytes, so that every worker
would have a copy of the data. Here the numbers of tensors and arrays travel as NumPy arrays beside the
pickle, from ``SHARED_FROM`` bytes on. Views, strides, and tensors that share their numbers stay as they are.
What is shared must not be written to: a problem never changes its own data.
"""

from __future__ import annotations

import io
import pickle
import warnings
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch.storage import TypedStorage

SHARED_FROM = 1 << 16  # bytes; what is smaller is copied


@dataclass(frozen=True)
class Parcel:
    """A pickled object, and the bytes of its large arrays and tensors, uint8 of shape (length,) each."""

    pickled: bytes
    arrays: list[np.ndarray]


def pack(thing: object) -> Parcel:
    """Return an object as a parcel; its large arrays are not copied yet."""
    file, arrays = io.BytesIO(), []

    def stays(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < SHARED_FROM:
            return True
        arrays.append(np.frombuffer(raw, np.uint8))
        return False

    _Pickler(file, protocol=5, buffer_callback=stays).dump(thing)
    return Parcel(file.getvalue(), arrays)


def unpack(parcel: Parcel) -> Any:
    """Return the object of a parcel; its large arrays are those of the parcel, not copies."""
    return pickle.loads(parcel.pickled, buffers=parcel.arrays)


class _Pickler(cloudpickle.Pickler):
    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.numbers: dict[int, np.ndarray] = {}  # by where a storage begins

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, TypedStorage) and obj._untyped_storage.device.type == "cpu":
            raw = obj._untyped_storage  # obj.device warns that it is deprecated
            numbers = torch.empty(0, dtype=torch.uint8).set_(raw).numpy()
            return _storage, (obj.dtype, self.numbers.setdefault(raw.data_ptr(), numbers))
        return super().reducer_override(obj)


def _storage(dtype: torch.dtype, numbers: np.ndarray) -> TypedStorage:
    with warnings.catch_warnings():  # that the array is not to be written to is known
        warnings.simplefilter("ignore", UserWarning)
        raw = torch.from_numpy(numbers).untyped_storage()
    return TypedStorage(wrap_storage=raw, dtype=dtype, _internal=True)
