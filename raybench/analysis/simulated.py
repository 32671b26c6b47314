"""Simulated seconds: how long a finished run would have taken on a network, from what it sent and computed.

A row of a curve has cumulative counts. Between two rows lie r rounds; on average each of them sent up bytes in m
messages, and the model of ``links`` turns that into seconds of travel. A client computes on a machine of its own, as
fast as the one that was measured: of the seconds that gradients and compressors took for all n clients it takes 1/n,
times the number of workers that shared them. With t for a row:

    seconds_simulated(t) = sum_{s <= t} [ r_s travel(up_s / r_s, ...) + (gradient_s + compress_s) workers / n ]

What was sent before the first round counts as a round. Packing, unpacking and the method's own steps are left out.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from raybench.clock import links
from raybench.clock.links import LinkNetwork
from raybench.core.counts import GATHER

SECONDS = "seconds_simulated"
"""The column that ``simulated`` adds."""

COUNTS = ("bytes_up", "bytes_down", "bytes_up_max", "messages_up", "messages_down", "values_up")
PARTS = ("seconds_gradient", "seconds_compress")


SENT = ("up", "down", "up_max", "messages_up", "messages_down")


def work(curves: pd.DataFrame) -> pd.DataFrame:
    """Return what happened between the rows of curves, which are sorted by cell and round.

    curves: as ``raybench.load`` returns them. Columns, counts and bytes being those of a mean round: cell, the number of
    the row's cell; clients; rounds, how many; those of ``SENT`` and exchange, as ``links.travel`` takes them; dense,
    whether the messages are whole vectors; compute, the seconds of one client, all rounds together. An unknown
    exchange is taken for ``gather``, unknown seconds for none (``unmeasured`` tells of which cells).
    """
    cell = pd.factorize(curves["cell"])[0]
    first = np.ones(len(cell), bool)
    first[1:] = cell[1:] != cell[:-1]

    def steps(name: str) -> np.ndarray:
        values = _column(curves, name)
        values = pd.Series(values).groupby(cell).ffill().fillna(0.0).to_numpy()
        before = np.where(first, 0.0, np.roll(values, 1))
        return np.maximum(values - before, 0.0)

    rounds = np.maximum(steps("round"), 1.0)
    up, down, most, sent, told, values = (steps(name) for name in COUNTS)
    width = _column(curves, "d")
    dense = (sent > 0) & (values >= width * sent * (1 - 1e-9))
    clients = np.maximum(_column(curves, "clients", 1.0), 1.0)
    workers = np.maximum(_column(curves, "workers", 1.0), 1.0)
    compute = (steps(PARTS[0]) + steps(PARTS[1])) * np.minimum(workers / clients, 1.0)
    columns = {
        "up": up / rounds,
        "down": down / rounds,
        "up_max": np.maximum(most, up) / rounds,
        # a round in which some clients are silent waits for the others all the same
        "messages_up": np.where(sent > 0, np.maximum(sent / rounds, 1.0), 0.0),
        "messages_down": np.where(told > 0, np.maximum(told / rounds, 1.0), 0.0),
    }
    columns |= {"cell": cell, "clients": clients, "rounds": rounds, "dense": dense}
    exchange = curves["exchange"].fillna(GATHER).to_numpy(object)
    return pd.DataFrame({**columns, "compute": compute, "exchange": exchange})


def travel(done: pd.DataFrame, network: LinkNetwork) -> np.ndarray:
    """Return the seconds that the messages of each row of ``work`` travel."""
    spent = np.zeros(len(done))
    for (exchange, dense), rows in done.groupby(["exchange", "dense"]).indices.items():
        part = done.iloc[rows]
        sent = {name: part[name].to_numpy() for name in SENT}
        n = part["clients"].to_numpy()
        spent[rows] = links.travel(network, n, exchange, dense=dense, **sent) * part["rounds"]
    return spent


def _column(curves: pd.DataFrame, name: str, default: float = np.nan) -> np.ndarray:
    if name not in curves:
        return np.full(len(curves), default)
    results = curves[name].to_numpy(float, na_value=np.nan)
    return np.where(np.isnan(results), default, results)


def simulated(curves: pd.DataFrame, network: LinkNetwork) -> pd.DataFrame:
    """Return the curves, by cell and round, with the column ``seconds_simulated``: cumulative seconds on a network.

    By the formula at the top of this module. curves: as for ``work``. Unknown where the bytes are.
    """
    curves = curves.sort_values(["cell", "round"], kind="stable", ignore_index=True)
    done = work(curves)
    spent = done["compute"] + travel(done, network)
    total = spent.groupby(done["cell"]).cumsum()
    return curves.assign(**{SECONDS: total.where(curves["bytes_up"].notna())})


def unmeasured(curves: pd.DataFrame) -> list[str]:
    """Return what a reader of simulated seconds should know: what was not measured, in how many cells."""
    columns = [c for c in ("bytes_up", *PARTS) if c in curves]
    ended = curves.groupby("cell", sort=False)[columns].max()
    lines, every = [], f"{len(ended):,} cells"
    if "bytes_up" in ended and (none := int(ended["bytes_up"].isna().sum())):
        lines.append(f"{none:,} of {every} did not count bytes: they have no simulated seconds")
    for name, word in zip(PARTS, ("gradients", "compressors"), strict=True):
        none = int(ended[name].isna().sum()) if name in ended else len(ended)
        if none:
            what = f"the seconds of {word} were not measured in {none:,} of {every}"
            lines.append(f"{what}: there they count as none")
    return lines
