"""Whether a method goes on from its state: in another process, and on another number of ranks."""

from __future__ import annotations

import io
import sys

import torch
from torch import Tensor

from raybench.core import registry
from raybench.execution.run import Run
from raybench.execution.saved import share
from raybench.testing import elsewhere
from raybench.testing.trial import Method, started
from raybench.wire.transport import Transport, on_virtual_ranks, share_of

BEFORE = 5  # rounds until the run is interrupted
MULTIPLES, SEEDS = (1.0, 0.5), (3, 4)
TIMES = ("seconds", "seconds_gradient", "seconds_compress", "seconds_communicate")


def interrupted(m: Method) -> bytes:
    """Return the state of a run after a few rounds, as the bytes of a file."""
    run = started(m.batch(MULTIPLES, SEEDS))
    run.advance(BEFORE)
    file = io.BytesIO()
    torch.save(run.state(), file)
    return file.getvalue()


def continued(m: Method, saved: bytes, transport: Transport | None = None) -> Run:
    """Return a run that took the state over and went on to the end."""
    state = torch.load(io.BytesIO(saved), weights_only=True)
    run = started(m.batch(MULTIPLES, SEEDS), transport=transport)
    if transport is not None:
        state = share(state, share_of(transport.rank, transport.size, run.problem.n))
    run.load(state)
    run.advance(run.rounds)
    return run


def curves(run: Run) -> dict[str, Tensor]:
    """Return what a run ended with: what it recorded, and the last point."""
    return {**recorded(run), "x": run.a.point(run.net, run.s, run.c).clone()}


def recorded(run: Run) -> dict[str, Tensor]:
    """Return every recorded column but the times."""
    names = [name for name in run.recorder.names if name not in TIMES]
    return {name: torch.from_numpy(run.recorder.column(name).copy()) for name in names}


def in_another_process(m: Method, saved: bytes) -> dict[str, Tensor]:
    """Return the curves of the run that a new process continues.

    Methods that no other process could import (those of a test's own file) continue in this one.
    """
    module = m.entry.target.__module__
    plugin = str(sys.modules[module].__file__) if m.entry.source else ""
    if not plugin and not module.startswith("raybench."):
        return curves(continued(m, saved))
    return torch.load(io.BytesIO(elsewhere.process().submit(_go_on, m, saved, plugin).result()))


def on_ranks(m: Method, saved: bytes, size: int) -> list[dict[str, Tensor]]:
    """Return what every one of so many virtual ranks records that share the clients and go on."""
    return on_virtual_ranks(size, lambda transport: recorded(continued(m, saved, transport)))


def _go_on(m: Method, saved: bytes, plugin: str) -> bytes:
    if plugin:
        registry.load_plugin(plugin)
    file = io.BytesIO()
    torch.save(curves(continued(m, saved)), file)
    return file.getvalue()
