"""``raybench bench link``: exchanges between processes over gloo, timed, and the link that explains their times best."""

from __future__ import annotations

import datetime
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np
import torch
import torch.distributed as dist
from scipy.optimize import curve_fit
from scipy.stats import t as student

from raybench.clock.links import Link, LinkNetwork, all_gather, all_reduce
from raybench.wire.transport import Distributed

SIZES = (64, 4096, 65536, 524288, 2**22, 2**24)
"""Bytes of a message, from latency alone to bandwidth alone."""
EXCHANGES = ("pair", "gather", "all_reduce")
REPEATS = 7
BURST_SECONDS, BURST_MOST = 0.02, 50
SHORT_BURST = 3  # exchanges in a row at least: then the ranks need not start together
TIMEOUT = datetime.timedelta(seconds=120)
OUTLYING = 0.1  # relative errors beyond about this count less than by their square


@dataclass(frozen=True)
class ExchangeTiming:
    """What an exchange took: ``pair``, ``gather`` or ``all_reduce``; n machines, bytes of each, seconds."""

    what: str
    n: int
    size: int
    seconds: tuple[float, ...]


# Timing --------------------------------------------------------------------------------------


def timed(what: str, size: int, transport: Distributed, repeats: int = REPEATS) -> ExchangeTiming:
    """Return the seconds of an exchange of ``size`` bytes of each rank, as the slowest rank sees them.

    Each is the mean of several in a row: three, or as many as last 20 ms, after one that does not count. ``pair`` goes
    to rank 1 and back, and counts half.
    """
    rank = transport.rank
    data, vector = torch.zeros(size, dtype=torch.uint8), torch.zeros(max(1, size // 4))

    def there_and_back() -> None:
        if rank < 2:
            turns = (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send)
            for turn in turns:
                turn(data, 1 - rank)

    go: Callable[[], object] = {
        "pair": there_and_back,
        "gather": lambda: transport.gathered(data[None]),
        "all_reduce": lambda: dist.all_reduce(vector),
    }[what]
    once = max(in_a_row(go, 1), 1e-6)
    burst = min(BURST_MOST, max(SHORT_BURST, round(BURST_SECONDS / once)))
    ways = 2 if what == "pair" else 1
    seconds = tuple(in_a_row(go, burst) / ways for _ in range(repeats))
    return ExchangeTiming(what, transport.size, size, seconds)


def in_a_row(go: Callable[[], object], burst: int) -> float:
    """Return the seconds of one of so many calls in a row, as the slowest rank sees them."""
    dist.barrier()
    go()
    began = time.perf_counter()
    for _ in range(burst):
        go()
    spent = torch.tensor((time.perf_counter() - began) / burst, dtype=torch.float64)
    dist.all_reduce(spent, dist.ReduceOp.MAX)
    return float(spent)


def joined() -> bool:
    """Return whether this process was started as one of several, by torchrun or by hand: RANK, WORLD_SIZE, ..."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(os.environ)


def measure_joined(
    repeats: int = REPEATS, meet: str = "env://", rank: int = -1, size: int = -1
) -> tuple[int, list[ExchangeTiming]]:
    """Return this process's rank and the times of every exchange at every size, having met the others.

    meet: where. rank, size: of this process and of all, by default those in the environment.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meet, timeout=TIMEOUT, rank=rank, world_size=size)
    try:
        transport = Distributed()
        times = [timed(what, s, transport, repeats) for what in EXCHANGES for s in SIZES]
        dist.barrier()
        return transport.rank, times
    finally:
        dist.destroy_process_group()


def measure_here(processes: int, repeats: int = REPEATS) -> list[ExchangeTiming]:
    """Return the times between so many processes of this machine. Raises RuntimeError if one of them fails."""
    with (
        tempfile.TemporaryDirectory(prefix="raybench-link-") as folder,
        ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool,
    ):
        meet = f"file://{folder}/meet"
        ranks = pool.map(partial(measure_joined, repeats, meet, size=processes), range(processes))
        (_, times), *_ = ranks
        return times


# Fitting -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeasuredLink:
    """A link as it was measured: latency (s) and bandwidth (bytes/s), each with a 95 % interval.

    misfit: the median over the sizes of |predicted/measured - 1|.
    """

    link: Link
    latency: tuple[float, float]
    bandwidth: tuple[float, float]
    misfit: float


def expected(what: str, link: Link, n: int, size: float | np.ndarray) -> float | np.ndarray:
    """Return the seconds that the model gives an exchange of ``size`` bytes for each of n machines.

    pair: one message from one machine to another. gather, all_reduce: raybench's train mode over gloo.
    """
    if what == "pair":
        return link.latency + np.asarray(size, float) / link.bandwidth
    net = LinkNetwork(link, "gather")
    return all_gather(net, n, size) if what == "gather" else all_reduce(net, n, size)


def fit(timings: Sequence[ExchangeTiming]) -> MeasuredLink:
    """Return the link that explains the times of one kind of exchange best.

    Minimises sum_j rho(log(predicted_j / measured_j)) over the logarithms of latency and bandwidth, measured_j the
    median of the repeats at a size and rho(r) = 2 s^2 (sqrt(1 + (r/s)^2) - 1) with s = 0.1: squares for small errors,
    absolute values for outliers; relative errors, as times span orders of magnitude. The intervals are those of
    Student's t with the covariance (J'J)^-1 times the mean of rho at the minimum.
    """
    kind, n, sizes = timings[0].what, timings[0].n, np.array([t.size for t in timings])
    measured = np.log(np.maximum([np.median(t.seconds) for t in timings], 1e-9))
    largest = int(np.argmax(sizes))
    start = [min(measured), np.log(sizes[largest]) - measured[largest]]
    bounds = (np.log([1e-9, 1.0]), np.log([1e4, 1e15]))

    def predicted(sizes: np.ndarray, latency: float, bandwidth: float) -> np.ndarray:
        link = Link(float(np.exp(latency)), float(np.exp(bandwidth)))
        return np.log(np.maximum(expected(kind, link, n, sizes), 1e-12))

    best, covariance = curve_fit(
        predicted, sizes, measured, start, bounds=bounds, loss="soft_l1", f_scale=OUTLYING
    )
    spread = student.ppf(0.975, len(timings) - 2) * np.sqrt(np.diag(covariance))
    low, high = (np.exp(np.clip(best + sign * spread, *bounds)) for sign in (-1, 1))
    latency, bandwidth = zip(low.tolist(), high.tolist(), strict=True)
    misfit = float(np.median(np.abs(np.expm1(predicted(sizes, *best) - measured))))
    return MeasuredLink(Link(*np.exp(best).tolist()), latency, bandwidth, misfit)
