"""What compression cost and did in a training loop: counts, times and norms of every step."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from raybench.core.counts import Counts
from raybench.core.errors import InputError

MEANS = ("bits_up", "bytes_up", "bits_down", "bytes_down", "messages_up")
SECONDS = ("seconds_encode", "seconds_send", "seconds_decode")
SPANS = ("began", "seconds_exchanged", "seconds_exposed")
NORMS = ("residual_norm", "compression_error")
COLUMNS = ("step", "dense", *MEANS, *SECONDS, *SPANS, *NORMS, "skipped")


def row(step: int, **values: float) -> dict[str, float]:
    """Return what is kept of an exchange; of one in which nothing was sent by default."""
    blank = {name: math.nan if name in (*NORMS, "began") else 0.0 for name in COLUMNS}
    return {**blank, "step": float(step), **values}


def bits(counts: Counts, dtype: torch.dtype) -> float:
    """Return modelled bits: values of the gradient's width, indices as packed, raw bits."""
    return float(counts.values * dtype.itemsize * 8 + counts.index_auto + counts.raw)


@dataclass(frozen=True)
class Report:
    """What a loop's messages cost and did; printing it gives a line for a log.

    Means per step of the optimizer unless it says otherwise, of the exchanges so far and this rank. steps: of the
    optimizer; exchanges: fewer with local steps, more where an optimizer evaluates gradients several times. skipped:
    exchanges, or local steps of this rank, that held NaN or infinity. dense_steps: exchanges in which gradients were
    sent as they are. bits_up is modelled, bytes_up are packed bytes, both the mean over the ranks; bytes_dense is what
    data-parallel training sends for the same steps, in the type that gradients have. encode_ms: on compressors. send_ms:
    on exchanging and adding up messages. decode_ms: the rest of the method. residual_norm: of what is not sent
    yet; compression_error: ||C(v) - v||^2/||v||^2 of the newest message watched; None where there is no such thing.

    Seconds in all, on this rank: exchanged: from the begin to the end of exchanges. exposed: those of them in which the
    training loop waited. hidden: the others, in which it went on. computed: from the begin of the first exchange to the
    end of the last, without the exposed ones. ``timeline`` draws them.
    """

    algorithm: str
    compressor: str
    ranks: int
    steps: int
    exchanges: int
    skipped: int
    dense_steps: int
    bits_up: float
    bytes_up: float
    bits_down: float
    bytes_dense: float
    encode_ms: float
    send_ms: float
    decode_ms: float
    residual_norm: float | None
    compression_error: float | None
    computed: float
    exchanged: float
    hidden: float
    exposed: float
    # (exchanges of all parts, 3): SPANS, seconds since the first began
    spans: np.ndarray = field(repr=False)
    rows: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        times = f"encode {self.encode_ms:.1f} + send {self.send_ms:.1f} + decode {self.decode_ms:.1f} ms"
        dense, sent = self.bytes_dense, self.bytes_up
        less = f"{dense / sent if sent else math.inf:.3g}x less"
        ratio = f"{sent / dense:.3g}x more" if sent > dense else less
        parts = [
            f"{self.algorithm} {self.compressor}".strip(),
            f"step {self.steps}",
            f"{_size(sent)} a step ({ratio})",
            times,
        ]
        if self.exchanges != self.steps:
            parts.insert(2, f"{self.exchanges} exchange{'s' * (self.exchanges != 1)}")
        if self.hidden > 0.005 * self.exchanged:
            parts.append(f"{self.hidden / self.exchanged:.0%} hidden")
        if self.skipped:
            parts.append(f"{self.skipped} skipped")
        if self.residual_norm is not None:
            parts.append(f"residual {self.residual_norm:.3g}")
        if self.compression_error is not None:
            parts.append(f"error {self.compression_error:.3g}")
        return " · ".join(parts)

    def timeline(self, path: str | os.PathLike[str], steps: int = 4) -> None:
        """Draw when this rank computed and when it exchanged in the last ``steps`` exchanges, to a file such as a PNG.

        Raises InputError where nothing was exchanged.
        """
        from matplotlib.figure import Figure

        if not len(self.spans):
            raise InputError.of("timeline", "nothing was exchanged", "a step that exchanges")
        parts = max(1, len(self.spans) // max(self.exchanges, 1))
        spans = self.spans[-steps * parts :]
        began, exchanged, exposed = spans.T
        began = began - began.min()
        ended = began + exchanged
        figure = Figure(figsize=(6.4, 1.6), layout="constrained")
        axes = figure.subplots()
        axes.barh(0, ended.max(), color="#4c72b0")
        axes.barh(0, exposed, left=ended - exposed, color="white")
        axes.barh(1, exchanged - exposed, left=began, color="#9ecae1")
        axes.barh(2, exposed, left=ended - exposed, color="#d62728")
        axes.set_yticks([0, 1, 2], ["computing", "exchange, hidden", "exchange, exposed"])
        axes.invert_yaxis()
        axes.set_xlabel(f"seconds, the last {min(steps, self.exchanges)} exchanges of one rank")
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, dpi=200)

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write a row for every exchange, with the columns of ``rows``."""
        import pandas as pd

        heads = {"algorithm": self.algorithm, "compressor": self.compressor}
        pd.DataFrame({**heads, **self.rows}).to_parquet(path, index=False)


def report(
    logs: Sequence[Sequence[Mapping[str, float]]],
    ranks: int,
    names: tuple[str, str],
    steps: int,
    skipped: int,
    bytes_dense: float,
) -> Report:
    """Return the report of exchanges that take the parts of one gradient, of each a row for every exchange.

    steps: of the optimizer, with those ``skipped``. bytes_dense: of the gradients of all these steps as they are.
    """
    count = min(map(len, logs), default=0)

    def together(name: str) -> np.ndarray:
        every = np.array([[r[name] for r in log[:count]] for log in logs]).reshape(len(logs), count)
        if name in ("step", "dense", "skipped"):
            return every.max(0, initial=0.0)
        if name == "began":
            return every.min(0)
        if name == "residual_norm":
            return np.sqrt((every**2).sum(0))
        # of the errors of several messages the mean, each by itself being relative
        return every.mean(0) if name == "compression_error" else every.sum(0)

    rows = {name: together(name) for name in COLUMNS} if logs else {}

    def mean(name: str) -> float:
        return sum(r[name] for log in logs for r in log) / max(steps, 1)

    def newest(name: str) -> float | None:
        measured = rows[name][~np.isnan(rows[name])] if count else []
        return float(measured[-1]) if len(measured) else None

    every = [[r[name] for name in SPANS] for log in logs for r in log if not r["skipped"]]
    spans = np.array(sorted(every)).reshape(-1, len(SPANS))
    ended = (spans[:, 0] + spans[:, 1]).max(initial=-math.inf)
    spans[:, 0] -= (first := spans[:, 0].min(initial=math.inf))
    exchanged, exposed = spans[:, 1:].sum(0).tolist()

    values: dict[str, Any] = {name: mean(name) for name in ("bits_up", "bytes_up", "bits_down")}
    values |= {
        f"{part}_ms": 1000 * mean(f"seconds_{part}") for part in ("encode", "send", "decode")
    }
    values |= {name: newest(name) for name in NORMS}
    return Report(
        *names,
        ranks=ranks,
        steps=steps,
        exchanges=count,
        skipped=skipped,
        dense_steps=int(rows["dense"].sum()) if count else 0,
        bytes_dense=bytes_dense / max(steps, 1),
        computed=max(0.0, ended - first - exposed),
        exchanged=exchanged,
        hidden=exchanged - exposed,
        exposed=exposed,
        spans=spans,
        rows=rows,
        **values,
    )


def _size(amount: float) -> str:
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} GB"
