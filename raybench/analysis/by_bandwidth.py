"""Which method is fastest on which network: simulated seconds to the target against the bandwidth of the link."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pandas as pd

from raybench.analysis.curves import first_crossing
from raybench.analysis.simulated import SECONDS, travel, work
from raybench.analysis.statistics import interval
from raybench.analysis.tuned import candidates, set_apart
from raybench.clock.links import LinkNetwork

SLOWEST, FASTEST = 100e6, 400e9  # bits per second
POINTS = 49
SAME, ENDS = (
    ("facet", "series", "step", "group", "k", "dense"),
    ("seconds", "low", "high", "coverage"),
)
COLUMNS = ["facet", "bandwidth", "method", "series", "step", "group", "k", "target", *ENDS]
COLUMNS += ["seeds", "dense", "fastest"]


def by_bandwidth(
    curves: pd.DataFrame,
    cells: pd.DataFrame,
    network: LinkNetwork,
    targets: dict[str, float],
    y: str = "grad_norm_sq",
    at: np.ndarray | None = None,
    tuning_seeds: Collection[int] | None = None,
) -> pd.DataFrame:
    """Return per facet, bandwidth and method the simulated seconds to the target at its best K and step there.

    curves, cells: annotated and described, as in ``Frames``; targets: of each facet; at: bandwidths in bits per second,
    by default 49 from 100 Mbit/s to 400 Gbit/s, each put in the place of that of the network's link, whose latency
    stays. A method's K and step are chosen anew at each bandwidth by the rule of ``candidates``, with ``tuning_seeds``
    on these and reported on the others. Columns: facet, bandwidth, method, series, step, group, k, target, seconds (the
    median over seeds, inf where it misses the target), low, high, coverage, seeds, dense (whether all messages of the
    method are whole vectors), fastest (whether no method has fewer seconds).
    """
    at = np.geomspace(SLOWEST, FASTEST, POINTS) if at is None else at
    pieces = [
        _facet(curves[curves["facet"] == facet], part, network, targets[facet], y, at, tuning_seeds)
        for facet, part in cells.groupby("facet", sort=True)
        if facet in targets and np.isfinite(targets[facet])
    ]
    results = pd.concat(pieces, ignore_index=True) if pieces else pd.DataFrame(columns=COLUMNS)
    return results[COLUMNS]


def _facet(
    curves: pd.DataFrame,
    cells: pd.DataFrame,
    network: LinkNetwork,
    target: float,
    y: str,
    at: np.ndarray,
    tuning_seeds: Collection[int] | None,
) -> pd.DataFrame:
    apart = set_apart(cells, "method", tuning_seeds)
    # the budget at which settings that miss the target are compared; they are not drawn
    x = SECONDS if SECONDS in curves else "round"
    table = candidates(curves, cells[~apart], target, "method", y, x)
    table = table[table["eligible"]] if len(table) else table
    if table.empty:
        return pd.DataFrame(columns=COLUMNS)
    others = apart | ~apart.groupby(cells["method"]).transform("any")
    cells = cells.assign(chooses=~apart, reports=others)[cells["status"].isin(["ok", "failed"])]
    cells = cells[cells["method"].isin(table["method"])].reset_index(drop=True)
    ended = cells.loc[cells["status"] == "ok", "cell"]  # what failed takes infinitely long
    curves = curves[curves["cell"].isin(ended)]
    curves = curves.sort_values(["cell", "round"], kind="stable", ignore_index=True)
    reached = first_crossing(curves, target, "round", y, settled=True)
    rows = curves[curves["round"] <= curves["cell"].map(reached)]
    rows = rows[np.isfinite(rows["cell"].map(reached))].reset_index(drop=True)
    done, names = work(rows), pd.unique(rows["cell"])
    thin = pd.unique(rows["cell"][(done["messages_up"] > 0) & ~done["dense"]])
    dense = ~cells["method"].isin(cells.loc[cells["cell"].isin(thin), "method"])
    cells = cells.assign(dense=dense)
    seconds = np.full((len(at), len(cells)), np.inf)
    column = pd.Index(cells["cell"]).get_indexer(names)
    compute = np.bincount(done["cell"], done["compute"], len(names))
    for row, bits in zip(seconds, at):
        net = replace(network, link=replace(network.link, bandwidth=bits / 8, name=""))
        row[column] = compute + np.bincount(done["cell"], travel(done, net), len(names))
    return _best(seconds, cells, table, at).assign(target=target)


def _best(
    seconds: np.ndarray, cells: pd.DataFrame, table: pd.DataFrame, at: np.ndarray
) -> pd.DataFrame:
    """Return per bandwidth and method its best setting of ``candidates``, from the seconds (bandwidths, cells)."""
    settings = cells.groupby(["series", "step"], sort=False).indices
    chooses, reports = (cells[name].to_numpy(bool) for name in ("chooses", "reports"))
    rows = []
    for method, part in table.groupby("method", sort=False):
        places = [settings[key] for key in zip(part["series"], part["step"], strict=True)]
        medians = np.array([np.median(seconds[:, p[chooses[p]]], axis=1) for p in places])
        # in the order of ``candidates``: by tier, and within it the fewest seconds
        first = part["tier"].to_numpy() == part["tier"].min()
        for j, which in enumerate(np.where(first[:, None], medians, np.inf).argmin(axis=0)):
            place = places[which]
            head, shown = cells.iloc[place[0]], place[reports[place]]
            ends = zip(ENDS, interval(seconds[j, shown]), strict=True)
            facts = {"bandwidth": at[j], "method": method, "seeds": len(shown), **dict(ends)}
            rows.append({**head[list(SAME)], **facts})
    results = pd.DataFrame(rows, columns=[c for c in COLUMNS if c not in ("target", "fastest")])
    least = results.groupby("bandwidth")["seconds"].transform("min")
    return results.assign(fastest=(results["seconds"] <= least) & np.isfinite(results["seconds"]))
