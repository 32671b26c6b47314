"""What users bring in files of their own: functions by ``my.py:name``, and any map-style data set as arrays in memory."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybench.core.errors import InputError, nearest
from raybench.core.limits import check_fits
from raybench.core.registry import module_of
from raybench.data import Examples, Pair
from raybench.data.examples import digest
from raybench.data.files import input_errors
from raybench.data.images import inputs_of

DATA = "problem.dataset"
PARTS = "return a Dataset, a pair (train, test) or a mapping {train: .., test: ..}"
MOST_LABELS = 1 << 20  # tokens of a vocabulary; a label beyond that is a mistake
ROLES = ("input", "target")
TARGETS = ("label", "labels", "target", "targets", "y")
INPUTS = ("image", "img", "pixel_values", "input_ids", "input", "inputs", "x", "features")
"""Names of columns, where a sample is a mapping: as ``datasets.Dataset`` of Hugging Face gives them."""


def function(text: str, key: str) -> Callable[..., Any]:
    """Return the function that ``my.py:name`` names. Raises InputError where it cannot be had."""
    where, _, name = text.rpartition(":")
    with input_errors(key, where, "the file must import cleanly"):
        module = _module(where, key)
    value = vars(module).get(name)
    if not callable(value):
        names = [n for n, member in vars(module).items() if callable(member)]
        raise InputError.of(key, f"{where} has no function {name!r}", nearest(name, names))
    return value


def _module(where: str, key: str) -> Any:
    if not where.endswith(".py"):
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))  # as ``python -m`` does
        try:
            return importlib.import_module(where)
        except ImportError as error:
            fix = "a known name; or the path of a file, ./my_module.py:function"
            raise InputError.of(key, f"cannot import {where}: {error}", fix) from error
    path = Path(where).resolve()
    if not path.is_file():
        raise InputError.of(key, f"no file {where}", "the path of a Python file: ./my.py:function")
    # No name leads to the module afterwards: workers could not import it by that name, and what no name leads
    # to is sent to them whole.
    return module_of(path, f"raybench_network_{path.stem}")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let the random numbers of torch, numpy and Python begin at a seed, and go on afterwards where they were."""
    of_numpy, of_python = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(of_numpy)  # noqa: NPY002
            random.setstate(of_python)


# Data sets ------------------------------------------------------------------------------------------


def dataset(text: str) -> Pair:
    """Return the examples of the data set that a function of a user's returns, read into memory once.

    It takes no arguments and returns what ``parts`` takes. Raises InputError that names the sample which is
    not like the first, has a label that numbers no class, is not finite, or is another one when read again.
    """
    path = Path(text.rpartition(":")[0])
    return _dataset(text, path.stat().st_mtime_ns if path.is_file() else 0)


@lru_cache(maxsize=2)
def _dataset(text: str, changed: int) -> Pair:
    make = function(text, DATA)
    with seeded(0):
        with input_errors(DATA, text, PARTS):
            sets = make()
        return pair(sets, text)


def fingerprint(pair: Pair) -> str:
    """Return the SHA-256 (hex) of the examples of both parts."""
    parts = [part for part in (pair.train, pair.test) if part is not None]
    return digest(*(np.frombuffer(part.checksum.encode(), np.uint8) for part in parts))


def parts(value: Any, name: str) -> tuple[Any, Any]:
    """Return the training part and the test part (or None): of one data set, a pair, or a mapping of them."""
    if isinstance(value, Mapping):
        if "train" in value and set(value) <= {"train", "test"}:
            return value["train"], value.get("test")
        what = f"returned the parts {', '.join(map(str, value)) or 'of nothing'}"
    elif isinstance(value, tuple) and len(value) == 2:
        if not any(isinstance(part, Tensor | np.ndarray) for part in value):
            return value
        what = "returned two arrays: wrap them, torch.utils.data.TensorDataset(x, y)"
    elif isinstance(value, tuple) or not (
        hasattr(value, "__len__") and hasattr(value, "__getitem__")
    ):
        what = f"returned {type(value).__name__}, which has no length and no samples by number"
    else:
        return value, None
    raise InputError.of(DATA, f"{name} {what}", PARTS)


def pair(value: Any, name: str) -> Pair:
    """Return data sets as examples in memory; errors as of ``dataset``."""
    train, test = parts(value, name)
    every = [_arrays(train, name, "sample")]
    if test is not None:
        every.append(_arrays(test, name, "test sample", [array[0] for array in every[0]]))
    if every[0][0].dtype == np.uint8:
        fix = "pictures are uint8; others are floats"
        every = [[inputs_of(x, f"{name}: all inputs", fix), y] for x, y in every]
    inputs, targets = every[0]
    kind = {"u": "image", "f": "features"}.get(inputs.dtype.kind, "text")
    if targets.dtype.kind == "f":
        classes = int(targets[0].size)
    else:  # where targets are the next tokens there is one vocabulary
        words = [x.max() for x, _ in every] if kind == "text" and targets.ndim > 1 else []
        classes = 1 + int(max([*words, *(y.max() for _, y in every)]))
    short = name.rsplit("/", 1)[-1]
    sets = [Examples.of(short, x, y, classes=classes, source=name, kind=kind) for x, y in every]
    return Pair(sets[0], sets[1] if len(sets) > 1 else None)


def _arrays(
    part: Any, name: str, noun: str, like: list[np.ndarray] | None = None
) -> list[np.ndarray]:
    """Return inputs (N, ..) and targets (N, ..) of a part, whose samples are like those of ``like``."""

    def wrong(i: int, what: str, fix: str) -> InputError:
        return InputError.of(DATA, f"{name}: {noun} {i} {what}", fix)

    def read(i: int) -> list[np.ndarray]:
        with input_errors(DATA, f"{name}: {noun} {i}", "every sample must be readable"):
            item = part[i]
        values = _columns(item)
        if values is None:
            has = f"a {type(item).__name__}"
            has += f" of {', '.join(map(str, item))}" if isinstance(item, Mapping) else ""
            raise wrong(i, f"is {has}", "a pair (input, target), or such columns: image, label")
        arrays = [_array(value) for value in values]
        for role, value in zip(ROLES, arrays, strict=True):
            if value.dtype.kind not in "fiu" or not value.size:
                what = f"has as {role} {value.dtype.name} of shape {value.shape}"
                raise wrong(i, what, "tensors, arrays, numbers or pictures; texts become tokens")
        return arrays

    count = len(part) if hasattr(part, "__len__") else 0
    if not count:
        raise InputError.of(DATA, f"{name}: a part has no samples, or no length", PARTS)
    first = read(0)
    if any(a.tobytes() != b.tobytes() for a, b in zip(first, read(0), strict=True)):
        fix = "leave random transforms out; problem.augment: shift_flip shifts and mirrors pictures"
        raise wrong(0, "is another one when it is read again", fix)
    like = like or first
    size = count * sum(value.nbytes for value in like)
    check_fits(DATA, f"{name}: {count:,} samples", size, "return fewer samples")
    arrays = [np.empty((count, *value.shape), value.dtype) for value in like]
    for i in range(count):
        for role, value, array, want in zip(ROLES, read(i), arrays, like, strict=True):
            if (value.shape, value.dtype) != (want.shape, want.dtype):
                has, wanted = (f"{v.dtype.name} of shape {v.shape}" for v in (value, want))
                what = f"has as {role} {has}, and sample 0 has {wanted}"
                raise wrong(i, what, "all samples must be alike")
            array[i] = value
    for role, array in zip(ROLES, arrays, strict=True):
        flat = array.reshape(count, -1)
        if array.dtype.kind == "f" and not np.isfinite(flat).all():
            i = int((~np.isfinite(flat)).any(1).argmax())
            raise wrong(i, f"has a value as {role} that is not finite", "leave it out, or fill it")
    flat = arrays[1].reshape(count, -1)
    bad = ((flat < 0) | (flat >= MOST_LABELS)).any(1)
    if arrays[1].dtype.kind != "f" and bad.any():
        i = int(bad.argmax())
        low = int(flat[i].min())
        raise wrong(i, f"has the label {low if low < 0 else flat[i].max()}", "classes count from 0")
    return arrays


def _columns(item: Any) -> tuple[Any, Any] | None:
    """Return input and target of a sample: of a pair, or of a mapping by the names that are usual."""
    if isinstance(item, Mapping):
        target = [key for key in TARGETS if key in item]
        rest = [key for key in item if key not in target]
        inputs = [key for key in INPUTS if key in item] or (rest if len(rest) == 1 else [])
        return (item[inputs[0]], item[target[0]]) if target and inputs else None
    return tuple(item) if isinstance(item, tuple | list) and len(item) == 2 else None


def _array(value: Any) -> np.ndarray:
    """Return a tensor, an array, a number, a list or a picture of Pillow's as an array; truth values are 0 and 1."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
    elif hasattr(value, "mode") and hasattr(value, "convert") and value.mode not in ("L", "RGB"):
        value = value.convert("RGB")
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.asarray(value, object)
    if array.dtype.kind == "b" or (array.dtype.kind in "iu" and array.dtype != np.uint8):
        return array.astype(np.int64)
    return array.astype(np.float32) if array.dtype == np.float16 else array
