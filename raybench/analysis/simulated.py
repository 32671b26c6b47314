"""Simulated seconds: how long a finished run would have taken on a network, from what it sent and computed.

A row of a curve has cumulative counts. Between two rows lie r rounds; on average each of them sent up bytes in m
messages, and the model of ``links`` turns that into seconds of travel. A client computes on a machine of its own, as
fast as the one that was measured: of the seconds that gradients and compressors took for all n clients it takes 1/n,
times the number of workers that shared them. With t for a row:

    seconds_simulated(t) = sum_{s <= t} [ r_s travel(up_s / r_s, ...) + (gradient_s + compress_s) workers / n ]

What was sent before the first round counts as a round. Packing, unpacking and the method's own steps are left out.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from raybench.clock.links import Network, seconds_of_round

SECONDS = "seconds_simulated"
"""The column that ``simulated`` adds."""

GATHER, REDUCE, ALL_TO_ALL = "gather", "reduce", "all_to_all"  # ``collective`` of a compressor
COUNTS = ("bytes_up", "bytes_down", "bytes_up_max", "messages_up", "messages_down", "values_up")
PARTS = ("seconds_gradient", "seconds_compress")


SENT = ("up", "down", "up_max", "messages_up", "messages_down")


def work(curves: pd.DataFrame, cells: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return what happened between the rows of curves, which are sorted by cell and round.

    curves: as ``raybench.load`` returns them. cells: as ``raybench.store.cells`` does, which tell which methods run on
    a graph. Columns, counts and bytes being those of a mean round: cell, the number of the row's cell; clients; rounds,
    how many; those of ``SENT``, as ``seconds_of_round`` takes them; dense, whether the messages are whole vectors,
    which can be summed on their way; compute, the seconds of one client, all rounds together; how, the ``collective``
    of the compressor, or ``gossip`` for methods on a graph. Unknown counts are filled: no message counts as one for a
    round, the largest client as a mean one; unknown seconds as none (``unmeasured`` tells of which cells).
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
    up, down, most, sent, down_messages, values = (steps(name) for name in COUNTS)
    unknown = np.isnan(_column(curves, "messages_up"))
    sent = np.where(unknown, np.where(up > 0, rounds, 0.0), sent)
    down_messages = np.where(unknown, np.where(down > 0, rounds, 0.0), down_messages)
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
        "messages_down": np.where(down_messages > 0, np.maximum(down_messages / rounds, 1.0), 0.0),
    }
    columns |= {"cell": cell, "clients": clients, "rounds": rounds, "dense": dense}
    return pd.DataFrame({**columns, "compute": compute, "how": _hows(curves, cells)})


def travel(done: pd.DataFrame, network: Network) -> np.ndarray:
    """Return the seconds that the messages of each row of ``work`` travel.

    Dense messages are summed on their way, as ``collective: reduce`` does with all; ``all_to_all`` is two-shot.
    A server takes everything as it is. raybench's own ``gather`` gathers dense messages too. On a graph
    every machine sends to its neighbours one after the other, whatever the form.
    """

    def seconds(rows: np.ndarray, form: str = network.form, reduced: bool = False) -> Any:
        part = {name: done[name].to_numpy()[rows] for name in ("clients", *SENT)}
        return seconds_of_round(
            replace(network, form=form), part.pop("clients"), **part, reduced=reduced
        )

    served, how = network.form == "server", done["how"].to_numpy()
    gossip, shot = how == "gossip", (how == ALL_TO_ALL) & (not served)
    summed = (how == REDUCE) | (done["dense"].to_numpy() & (network.form != "gather"))
    summed &= ~gossip & ~shot & (not served)
    # dense vectors: the two-shot form is as long as the ring
    ring = "ring" if network.form == "two_shot" else network.form
    sent, most = done["messages_up"].to_numpy(), done["up_max"].to_numpy()
    spent = sent * network.link.latency + most / network.link.bandwidth
    spent[shot] = seconds(shot, "two_shot")
    spent[summed] = seconds(summed, ring, True)
    others = ~(gossip | shot | summed)
    spent[others] = seconds(others)
    return np.asarray(done["rounds"] * spent)


def _column(curves: pd.DataFrame, name: str, default: float = np.nan) -> np.ndarray:
    if name not in curves:
        return np.full(len(curves), default)
    results = curves[name].to_numpy(float, na_value=np.nan)
    return np.where(np.isnan(results), default, results)


def _hows(curves: pd.DataFrame, cells: pd.DataFrame | None) -> np.ndarray:
    """Return per row the collective of its compressor, or ``gossip``."""
    graphs: set[str] = set()
    if cells is not None:
        pairs = [(c, t) for c, t in zip(cells["cell"], cells["config"]) if isinstance(t, str)]
        graphs = {cell for cell, text in pairs if json.loads(text).get("graph") is not None}
    how = pd.Series(GATHER, index=curves.index, dtype=object)
    if "compressor_params" in curves:
        texts = curves["compressor_params"]
        collectives = {t: json.loads(t).get("collective", GATHER) for t in texts.dropna().unique()}
        how = texts.map(collectives).astype(object).where(texts.notna(), GATHER)
    return how.mask(curves["cell"].isin(graphs), "gossip").to_numpy(object)


def simulated(
    curves: pd.DataFrame, network: Network, cells: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return the curves, by cell and round, with the column ``seconds_simulated``: cumulative seconds on a network.

    By the formula at the top of this module. curves, cells: as for ``work``. Unknown where the bytes are.
    """
    curves = curves.sort_values(["cell", "round"], kind="stable", ignore_index=True)
    done = work(curves, cells)
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
