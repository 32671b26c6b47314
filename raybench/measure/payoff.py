"""When compression shortens a step of data-parallel training: seconds of a step, break-even, a recommendation.

A step is a forward pass of F seconds, a backward pass of T seconds and the exchange of the gradients of n
workers. The baseline exchanges d gradients in 16 bits (bfloat16) by an all-reduce in buckets while the backward
pass runs:

    F + max(T, (b - 1) T_bucket) + T_bucket,    the number b of buckets chosen to be the best of ``BUCKETS``.

A compressed method needs the whole gradient first, so its times add up: F + T + encode + exchange + decode.
``gather``: all workers get the messages of all, and decode n of them. ``reduce``: messages are summed on the way,
one is decoded. ``all_to_all``: worker j adds up part j of all messages, compresses the mean again, and all gather
the means: n parts are decoded twice and 1/n of a message is encoded again. Local steps exchange once in H steps.

A method breaks even at the bandwidth below which its step is the shorter one, latency and form of the network being
kept; it pays where it saves at least the share ``WORTH`` of the baseline's step. In bytes alone: k of d entries of c
bytes each, gathered by a ring, are fewer than a ring's all-reduce in 16 bits where (n - 1) c k < 2 (n - 1)/n 2 d, that
is k/d < 4/(c n).

Source: S. Agarwal, H. Wang, S. Venkataraman, D. Papailiopoulos, On the utility of gradient compression in
distributed training systems, MLSys 2022 (the baseline with overlap, and the sum of a compressed step's times).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from scipy.optimize import brentq

from raybench.clock.links import LinkNetwork, all_reduce, overlapped, travel
from raybench.core.counts import ALL_TO_ALL, GATHER, REDUCE
from raybench.core.errors import InputError

BUCKETS = 2.0 ** np.arange(8)
"""Numbers of buckets that the baseline is tuned over."""
# of a compressor that is named the next best: others send next to nothing of a gradient
MOST_ERROR = 0.9
WORTH = 0.05
"""Share of the baseline's step that must be saved for a method to be recommended: less is within the noise."""
BANDWIDTHS = np.geomspace(1e15, 1e2, 8 * 13 + 1)
"""Bytes per second between which break-even is looked for, from the fastest on, eight a decade."""


@dataclass(frozen=True)
class Exchange:
    """What a method's step sends and computes on a worker, whatever the network.

    collectives: the ways in which messages can become a mean, of which the fastest is taken. size: bytes of a message.
    dense: bytes of a gradient in 16 bits, what a server sends at most. encode, decode: seconds of making a message from
    a gradient, and of adding one message up. parts: exchanges one after the other in which the message travels. every:
    steps between exchanges. overlaps: whether it travels in buckets while the backward pass runs, where a codec is a
    cast that does not count. error: of the compressor, None where unknown.
    """

    name: str
    collectives: tuple[str, ...]
    size: float = math.nan
    dense: float = math.nan
    encode: float = 0.0
    decode: float = 0.0
    parts: int = 1
    every: int = 1
    overlaps: bool = False
    error: float | None = None


@dataclass(frozen=True)
class Compute:
    """Seconds that a worker computes in a step whatever is sent: the forward and the backward pass."""

    forward: float
    backward: float


@dataclass(frozen=True)
class TimedStep:
    """Seconds of a step, of its exchange alone, and by which collective."""

    seconds: float
    exchange: float
    collective: str


@dataclass(frozen=True)
class Payoff:
    """A method beside the baseline: its step, how many times as fast as the baseline's it is, and where it pays.

    pays_below: bytes per second, infinite where it pays at any bandwidth, 0 where at none. speedup_free,
    pays_below_free: the same for a codec that takes no time.
    """

    exchange: Exchange
    step: TimedStep
    speedup: float
    speedup_free: float
    pays_below: float
    pays_below_free: float

    @property
    def pays(self) -> bool:
        """Whether at least ``WORTH`` of the baseline's step is saved."""
        return 1 / self.speedup <= 1 - WORTH

    @property
    def near(self) -> bool:
        """Whether it may be named the next best: it compresses each gradient, with an error below ``MOST_ERROR``."""
        error = self.exchange.error
        return not self.exchange.overlaps and error is not None and error < MOST_ERROR


@dataclass(frozen=True)
class Case:
    """n workers on a network: the baseline's step, the verdicts on all methods, and what follows.

    link: the network as it was named. Whether more steps are needed is not known here: a method pays only while it
    needs fewer than ``speedup`` times the steps of the baseline.
    """

    n: int
    link: str
    network: LinkNetwork
    baseline: TimedStep
    verdicts: Sequence[Payoff]

    def best(self, local: bool = False, paying: bool = True) -> Payoff | None:
        """Return the fastest method that compresses every step, or with ``local`` exchanges once in several.

        paying: of those that pay; else of all but formats of whole gradients, with an error below ``MOST_ERROR``. None
        where there is none.
        """
        some = [v for v in self.verdicts if (v.exchange.every > 1) == local]
        some = [v for v in some if (v.pays if paying else v.near)]
        return max(some, key=lambda v: v.speedup, default=None)

    @property
    def gentlest(self) -> Payoff | None:
        """The one of least error of those that pay."""
        some = [v for v in self.verdicts if v.pays and v.exchange.error is not None]
        return min(some, key=lambda v: v.exchange.error or 0.0, default=None)


def case_of(
    link: str,
    network: LinkNetwork,
    n: int,
    compute: Compute,
    baseline: Exchange,
    exchanges: Sequence[Exchange],
) -> Case:
    """Return how exchanges do beside the baseline's for n workers on a network, named ``link``."""
    verdicts = [verdict(x, baseline, network, n, compute) for x in exchanges]
    return Case(n, link, network, step_of(baseline, network, n, compute), verdicts)


@lru_cache(maxsize=2**14)  # all methods on a network ask for the baseline at the same bandwidths
def step_of(exchange: Exchange, network: LinkNetwork, n: int, compute: Compute) -> TimedStep:
    """Return the step of n workers on a network, by the fastest of the exchange's collectives."""
    x = exchange
    if x.overlaps:
        buckets = all_reduce(network, n, x.size / BUCKETS)
        spent = overlapped(compute.backward, buckets, BUCKETS)
        at = int(np.argmin(spent))
        travel = float(BUCKETS[at] * buckets[at])
        return TimedStep(compute.forward + float(spent[at]), travel, x.collectives[0])
    steps = []
    for how in x.collectives:
        travel, encoded, decoded = _travel(x, how, network, n)
        codec = encoded * x.encode + decoded * x.decode
        spent = compute.forward + compute.backward + (codec + travel) / x.every
        steps.append(TimedStep(spent, travel / x.every, how))
    return min(steps, key=lambda step: step.seconds)


def _travel(x: Exchange, how: str, network: LinkNetwork, n: int) -> tuple[float, float, float]:
    """Return the seconds of travel, and how many messages a worker encodes and decodes."""
    up, down, sent = x.size, x.size, float(x.parts)
    if how == GATHER:  # what has been added up is no longer than a dense vector
        down = min(n * x.size, x.dense)
    elif how == ALL_TO_ALL:  # each keeps its own of n parts
        up, down, sent = (n - 1) / n * up, (n - 1) / n * down, (n - 1) * sent
    booked = travel(network, n, how, up=up, down=down, messages_up=sent, messages_down=sent)
    return float(booked), *{REDUCE: (1, 1), ALL_TO_ALL: (1 + 1 / n, 2), GATHER: (1, n)}[how]


def break_even(
    first: Callable[[float], float], second: Callable[[float], float], saved: float = 0.0
) -> float:
    """Return the largest bandwidth at which ``first`` saves that share of ``second``, both seconds at a bandwidth.

    Bytes per second: infinite where it does at the fastest of ``BANDWIDTHS``, 0 where it does at none; between two
    of them it is found to 1e-12 (Brent's method).
    """

    def lost(log: float) -> float:  # equal times differ by rounding
        return first(math.exp(log)) - (1 - max(saved, 1e-9)) * second(math.exp(log))

    logs = np.log(BANDWIDTHS)
    at = next((i for i, log in enumerate(logs) if lost(log) < 0), None)
    if at is None or at == 0:
        return 0.0 if at is None else math.inf
    return math.exp(brentq(lost, logs[at], logs[at - 1], xtol=1e-12))


def verdict(
    exchange: Exchange, baseline: Exchange, network: LinkNetwork, n: int, compute: Compute
) -> Payoff:
    """Return how a method does beside the baseline on a network of n workers."""

    def at(x: Exchange, bandwidth: float) -> float:
        link = replace(network.link, bandwidth=bandwidth)
        return step_of(x, replace(network, link=link), n, compute).seconds

    free = replace(exchange, encode=0.0, decode=0.0)
    base, step, least = (step_of(x, network, n, compute) for x in (baseline, exchange, free))
    faster = (base.seconds / step.seconds, base.seconds / least.seconds)
    limits = (break_even(partial(at, x), partial(at, baseline), WORTH) for x in (exchange, free))
    return Payoff(exchange, step, *faster, *limits)


# Codecs of a GPU -----------------------------------------------------------------------------

GPU_FORMAT = "raybench gpu 1"
GPU_COLUMNS = ("numbers", "encode", "decode", "feedback")
GPU_KEY = "--gpu"


@dataclass(frozen=True)
class Codecs:
    """A GPU's name, and by compressor (numbers, seconds to encode, to decode, of error feedback), smallest first."""

    device: str
    times: dict[str, list[tuple[float, ...]]]

    def at(self, compressor: str, d: int) -> tuple[float, ...]:
        """Return the seconds for d numbers: between two sizes along a power of d, beyond them in proportion."""
        sizes, *times = np.log(self.times[compressor]).T
        beyond = max(1.0, d / math.exp(sizes[-1]))
        return tuple(beyond * math.exp(np.interp(math.log(d), sizes, row)) for row in times)


def gpu_codecs(path: str) -> Codecs:
    """Return the times in a file of ``benchmarks/gpu.py``. Raises InputError for any other file."""
    times: dict[str, list[tuple[float, ...]]] = {}
    try:
        document = json.loads(Path(path).read_text("utf-8"))
        if document["format"] != GPU_FORMAT:
            raise ValueError(f"its format is not {GPU_FORMAT!r}")
        for row in document["parts"]["codecs"]["rows"]:
            if "said" in row or row["compressor"] == "copy":
                continue
            figures = tuple(float(row[key]) for key in GPU_COLUMNS)
            if not all(0 < figure < math.inf for figure in figures):
                raise ValueError(f"a time of {row['compressor']} is no number > 0")
            times.setdefault(str(row["compressor"]), []).append(figures)
        device = str(document["machine"]["device"])
        if not times:
            raise ValueError("it has no times of codecs")
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        fix = "a gpu.json that benchmarks/gpu.py wrote"
        raise InputError.of(GPU_KEY, f"{path} is not read: {what}", fix) from None
    return Codecs(device, {name: sorted(rows) for name, rows in times.items()})
