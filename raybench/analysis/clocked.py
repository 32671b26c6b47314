"""A clock for sweeps that ran without one: what synchronous rounds would have taken on simulated clients.

The seconds of a synchronous round depend on counts alone: how many gradients each client takes, and how long its
messages are. Where all clients do the same in a round, both follow from the rows of a curve, and the seconds are those
of a run with the clock in its sweep file, exactly. Where they do not follow, the cell is refused with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from raybench.core.counts import MIX
from raybench.core.errors import InputError
from raybench.store.reader import flatten

if TYPE_CHECKING:
    from raybench.clock.clients import Clients

CLOCK = "clock_seconds"
IN_SWEEP = "put the clock into the sweep file and run it again"
TOLERANCE = 1e-9


class _Unclear(Exception):
    """What the rows of a cell do not tell."""


def with_clock(curves: pd.DataFrame, cells: pd.DataFrame, clock: Mapping[str, Any]) -> pd.DataFrame:
    """Return the curves, by cell and round, with the column ``clock_seconds`` of a typed clock.

    curves, cells: as ``raybench.load`` and ``raybench.store.cells`` return them, with every row of every cell. Raises
    InputError where the rows of a cell do not tell what its clients did: methods that live on a clock, graphs, clients
    that sit out or send messages of different length, rounds of different work, and rows of many rounds.
    """
    # here, since those who read no clock need not wait for torch
    from raybench.clock.clients import Clients

    curves = curves.sort_values(["cell", "round"], kind="stable", ignore_index=True)
    batches = np.array([_batch(text) for text in cells["config"]], float)
    facts = cells.assign(batch=batches).set_index("cell")[["on_clock", "exchange", "batch"]]
    told = facts.to_dict("index")
    groups: dict[tuple[int, float, bytes, bytes], list[tuple[Any, ...]]] = {}
    for cell, rows in curves.groupby("cell", sort=False):
        try:
            counts, calls, up, down = _work(rows, told[str(cell)], clock)
        except _Unclear as why:
            label = rows["label"].iloc[0]
            raise InputError.of("--clock", f"{label}: {why}", IN_SWEEP) from None
        rounds, size = counts
        n = int(rows["clients"].iloc[0])
        key = (n, size, rounds.tobytes(), calls.tobytes())
        place = rows.index.to_numpy(), int(rows["seed"].iloc[0]), up, down
        groups.setdefault(key, []).append(place)
    seconds = np.full(len(curves), np.nan)
    for (n, size, spans, works), members in groups.items():
        clients = Clients(clock, n, [seed for _, seed, _, _ in members], [int(size)] * n)
        up, down = (np.stack([m[k] for m in members]) for k in (2, 3))
        every = _seconds(clients, np.frombuffer(spans), np.frombuffer(works), size, up, down)
        for (rows_of, *_), spent in zip(members, every, strict=True):
            seconds[rows_of] = spent
    return curves.assign(**{CLOCK: seconds})


def _seconds(
    clients: Clients,
    rounds: np.ndarray,
    calls: np.ndarray,
    size: float,
    up: np.ndarray,
    down: np.ndarray,
) -> np.ndarray:
    """Return the clock (B, T) of T rows: rounds and calls in each of their rounds (T,), bytes of such a round (B, T)."""
    from raybench.clock.clients import Rounds

    clock, out = Rounds(clients), np.zeros(up.shape)
    broadcast = np.zeros(len(up))
    for t, (count, each) in enumerate(zip(rounds, calls, strict=True)):
        for _ in range(int(count)):
            for _ in range(int(each)):
                clock.compute(slice(None), None, size)
            broadcast = broadcast + down[:, t]
            clock.end(np.repeat(up[:, t, None], clients.n, 1), broadcast)
        out[:, t] = clock.columns(len(up))[CLOCK]
    return out


def _work(
    rows: pd.DataFrame, facts: Mapping[str, Any], clock: Mapping[str, Any]
) -> tuple[tuple[np.ndarray, float], np.ndarray, np.ndarray, np.ndarray]:
    """Return (rounds, samples of a call), calls of a round, and bytes up and down of a round, per row (T,).

    Raises _Unclear.
    """
    if facts["on_clock"]:
        raise _Unclear("it ran on a clock of its own")
    if facts["exchange"] == MIX:
        raise _Unclear("its clients wait for their neighbours, which rows do not tell")

    def steps(name: str) -> np.ndarray:
        values = rows[name].to_numpy(float)
        if np.isnan(values).any():
            raise _Unclear(f"{name} is unknown")
        return np.diff(values, prepend=0.0)

    evals, up, most, down = (
        steps(n) for n in ("grad_evals", "bytes_up", "bytes_up_max", "bytes_down")
    )
    if not np.allclose(up, most, rtol=TOLERANCE, atol=TOLERANCE):
        raise _Unclear("some clients sit out, or their messages differ in length")
    rounds = np.diff(rows["round"].to_numpy(float), prepend=0.0)
    begins = evals[0] > 0 or up[0] > 0 or down[0] > 0
    rounds[0] = float(begins)  # what is sent and computed before the first round counts as one
    per = np.maximum(rounds, 1.0)
    size = _samples(rows, facts["batch"], clock)
    calls, full = evals / per / size, _full(rows)
    begun = round(evals[0] / full)
    if size != full and begun > 0 and np.isclose(evals[0], begun * full, rtol=TOLERANCE):
        # a method of minibatches that begins with full gradients: one call each, however many samples
        if clock["per"] == "sample":
            raise _Unclear(
                "it begins with full gradients, and rows do not tell of how many samples"
            )
        calls[0] = begun
    if not np.allclose(calls, np.round(calls), rtol=0, atol=1e-6):
        raise _Unclear("its rounds do not take the same number of gradients each")
    later = np.round(calls)[1:]
    if size != full and len(later) and (later != later[0]).any():
        raise _Unclear("its rounds mix minibatches and full gradients")
    if (per > 1).any():
        link = clock["link"] or {}
        uneven = any(isinstance(link.get(way), list | tuple) for way in ("up", "down"))
        counts = []
        if uneven or link.get("shared"):
            counts += [up, down]
        if link.get("latency"):
            counts += [steps("messages_up"), steps("messages_down")]
        means = [(count / per)[1:] for count in counts]
        if not all(np.allclose(mean, mean[:1], rtol=TOLERANCE, atol=0.0) for mean in means):
            raise _Unclear(
                "its messages differ from round to round, and rows are many rounds apart"
            )
    return (rounds, size), np.round(calls), up / per, down / per


def _full(rows: pd.DataFrame) -> float:
    """Return the samples of a full gradient, mean per client."""
    evaluated = rows[rows["epoch"] > 0]
    if evaluated.empty:
        return 1.0
    return float(evaluated["grad_evals"].iloc[-1] / evaluated["epoch"].iloc[-1])


def _batch(config: str) -> float:
    """Return the samples that a cell's config (JSON) names for a gradient, NaN where it takes all of them."""
    flat = flatten(config)
    batch = flat.get("resolved.algorithm.batch", flat.get("algorithm.batch"))
    return float(batch) if isinstance(batch, int) else math.nan


def _samples(rows: pd.DataFrame, batch: float, clock: Mapping[str, Any]) -> float:
    """Return the samples of a call of a gradient. Raises _Unclear where they differ between clients."""
    if batch == batch:
        return batch
    if clock["per"] == "sample":
        raise _Unclear(
            "it takes full gradients, and rows do not tell how many samples each client has"
        )
    return _full(rows)
