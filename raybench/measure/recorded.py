"""Gradients that ``raybench.torch.record`` kept of somebody's training run: checked before they are read.

The format is described in ``raybench.core.layout``. A folder may come from anybody: nothing in it is
unpickled, and sizes are found from headers before memory is taken.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybench.core.layout import FORMAT, INDEX, Layout, step_file
from raybench.core.limits import check_fits
from raybench.data.files import data_error, input_errors, open_archive

KEY = "gradients"
FIX = "record them anew: raybench.torch.record(path, model)"
MOST_INDEX = 16 * 2**20  # bytes of record.json
MOST_TENSORS = 1_000_000


@dataclass(frozen=True)
class Recorded:
    """A folder of recorded gradients: which steps, of which tensors, and the run they come from.

    seconds_backward: of a backward pass on the machine of the run; None where it was not timed. world_size:
    processes of the run.
    """

    folder: Path
    steps: tuple[int, ...]
    layout: Layout
    seconds_backward: float | None
    world_size: int

    def gradient(self, step: int) -> Tensor:
        """Return the gradient (d,), float32, of a recorded step.

        Raises InputError where its file is missing or damaged, does not hold the tensors of the index, or holds
        numbers that are not finite.
        """
        path = self.folder / step_file(step)
        out = torch.empty(self.layout.dim)
        with open_archive(path, FIX, KEY) as archive:
            for (name, shape), view in zip(self.layout, self.layout.views(out), strict=True):
                array = archive.read(name)
                if array.shape != shape or array.dtype != np.dtype(np.float32):
                    what = (
                        f"{path.name}: {name} is {array.dtype} {array.shape}, not float32 {shape}"
                    )
                    raise data_error(what, FIX, KEY)
                view.copy_(torch.from_numpy(np.array(array, np.float32)))
        if not bool(out.isfinite().all()):
            what = f"{path.name} holds numbers that are not finite"
            raise data_error(what, "record steps at which the run had not diverged", KEY)
        return out

    def gradients(self) -> Iterator[Tensor]:
        """Yield the gradients (d,) of all recorded steps in order."""
        return map(self.gradient, self.steps)


def recorded(path: str) -> Recorded:
    """Return what a folder of recorded gradients says of itself; the gradients are read when asked for.

    Raises InputError where it is no such folder, or its ``record.json`` is not of the format.
    """
    folder = Path(path).expanduser()
    file = folder / INDEX
    if not file.is_file():
        raise data_error(f"{path} holds no {INDEX}", FIX, KEY)
    if file.stat().st_size > MOST_INDEX:
        raise data_error(f"{file} is larger than {MOST_INDEX:,} bytes", FIX, KEY)
    with input_errors(KEY, f"cannot read {file}", FIX):
        index = json.loads(file.read_text(encoding="utf-8"))
        steps, seconds, world = index["steps"], index["seconds_backward"], index["world_size"]
        layout, version = _layout(index["tensors"]), index["format"]
    whole = isinstance(steps, list) and all(_whole(t, 0) for t in steps)
    timed = seconds is None or (isinstance(seconds, int | float) and 0 < seconds < math.inf)
    distinct = whole and steps and len(set(steps)) == len(steps)
    if not (version == FORMAT and distinct and timed and _whole(world, 1)):
        raise data_error(f"{file} is no index of format {FORMAT}", FIX, KEY)
    check_fits(KEY, f"a gradient of {path}", 4 * layout.dim, "a machine with more memory")
    return Recorded(folder, tuple(sorted(steps)), layout, seconds, world)


def _layout(listed: list[tuple[str, list[int]]]) -> Layout:
    """Return the layout of pairs of a name and a shape, each name once; raises ValueError or TypeError for others."""
    tensors = {name: tuple(shape) for name, shape in listed}
    for name, shape in tensors.items():
        sizes = all(_whole(size, 1) for size in shape) and math.prod(shape) < 2**53
        if not (isinstance(name, str) and sizes):
            raise ValueError(f"{str(name)[:60]} is no tensor")
    if not 0 < len(tensors) == len(listed) <= MOST_TENSORS:
        raise ValueError(f"{len(listed):,} tensors with {len(tensors):,} names")
    return Layout(tuple(tensors.items()))


def _whole(value: Any, low: int) -> bool:
    return type(value) is int and low <= value < 2**53
