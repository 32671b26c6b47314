"""A few real gradients of a training run, kept for ``raybench advise``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from raybench.core.errors import InputError
from raybench.core.layout import FORMAT, INDEX, step_file
from raybench.core.safe_files import replacement
from raybench.torch.replicas import rank_here

TIMED = 16
"""Backward passes that are timed, the first one not counted: it allocates memory and compiles."""


class record:
    """Keep gradients of ``model`` in the folder ``path``: call ``step`` after every backward pass.

    ``every`` is the distance between recorded steps, counted from the first backward pass (step 0), and ``most``
    how many are kept. A gradient takes 4 bytes for each parameter on disk, as float32 arrays without pickling.
    The first rank alone writes; a parameter without a gradient counts as zeros. What ``.grad`` holds is recorded:
    under DistributedDataParallel that is the mean over the workers, under ``model.no_sync()`` the worker's own.
    The seconds of a backward pass, from the first gradient that is ready to the last one, are recorded too: the
    time behind which the exchange of gradients can hide. Use it as a context or call ``close``.

    Raises InputError where the folder cannot be used, ``every`` or ``most`` is below 1, or a parameter is sharded.

        rec = raybench.torch.record("gradients", model, every=100, most=3)
        ...
        loss.backward()
        rec.step()
    """

    def __init__(
        self, path: str | os.PathLike[str], model: nn.Module, every: int = 50, most: int = 3
    ) -> None:
        for key, number in (("every", every), ("most", most)):
            if type(number) is not int or number < 1:
                raise InputError.of(key, f"{number!r} is out of range", "an integer >= 1")
        self.folder, self.every, self.most = Path(path).expanduser(), every, most
        self.parameters = [
            (name.removeprefix("module."), p)
            for name, p in model.named_parameters()
            if p.requires_grad
        ]
        if not self.parameters:
            raise InputError.of("model", "no parameter requires a gradient", "give what is trained")
        for name, parameter in self.parameters:
            if hasattr(parameter, "full_tensor"):
                fix = "record on one process with the whole model, before it is sharded"
                raise InputError.of("model", f"{name} is sharded", fix)
        self.steps: list[int] = []
        self._seconds: list[float] = []
        self._at, self._marks = 0, _Marks(self.parameters)
        self._writes = rank_here() == 0
        if self._writes:
            self._claim()

    def step(self) -> None:
        """Count a backward pass, and record its gradients where it is its turn."""
        took = self._marks.seconds()
        if took is not None and self._at > 0 and len(self._seconds) < TIMED:
            self._seconds.append(took)
        if self._writes and self._at % self.every == 0 and len(self.steps) < self.most:
            self._write()
        if len(self.steps) >= self.most and len(self._seconds) >= TIMED:
            self._marks.close()
        self._at += 1

    def close(self) -> None:
        """Record nothing more, and write how long a backward pass took."""
        self._marks.close()
        if self._writes and self.steps:
            self._describe()

    def __enter__(self) -> record:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _claim(self) -> None:
        """Make the folder; refuse one that holds anything, so that no two runs mix."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            held = next(self.folder.iterdir(), None)
        except OSError as error:
            raise InputError.of("path", f"cannot make {self.folder}: {error}") from error
        if held is not None:
            raise InputError.of("path", f"{self.folder} is not empty", "give a new folder")

    def _write(self) -> None:
        grads = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in self.parameters}
        arrays = {name: g.detach().to("cpu", torch.float32).numpy() for name, g in grads.items()}
        with replacement(self.folder / step_file(self._at)) as fresh:
            np.savez(fresh, **arrays)  # type: ignore[arg-type]
        self.steps.append(self._at)
        self._describe()

    def _describe(self) -> None:
        about = {
            "format": FORMAT,
            "steps": self.steps,
            "seconds_backward": median(self._seconds) if self._seconds else None,
            "world_size": dist.get_world_size() if dist.is_initialized() else 1,
            "tensors": [[name, list(p.shape)] for name, p in self.parameters],
        }
        with replacement(self.folder / INDEX) as fresh:
            fresh.write_text(json.dumps(about, indent=1))


class _Marks:
    """When the first and the last gradient of a backward pass were ready; on a GPU by events of its stream."""

    def __init__(self, parameters: list[tuple[str, nn.Parameter]]) -> None:
        self.first: Any = None
        self.last: Any = None
        self.hooks = [p.register_post_accumulate_grad_hook(self._ready) for _, p in parameters]

    def _ready(self, parameter: Tensor) -> None:
        if parameter.is_cuda:
            now: Any = torch.cuda.Event(enable_timing=True)
            now.record()
        else:
            now = perf_counter()
        self.first, self.last = now if self.first is None else self.first, now

    def seconds(self) -> float | None:
        """Return the seconds between the marks and forget them; None where nothing was ready."""
        first, last = self.first, self.last
        self.first = self.last = None
        if first is None or first is last:
            return None
        if isinstance(first, float):
            return last - first
        last.synchronize()
        return first.elapsed_time(last) / 1e3

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks = []
