"""The clients of a simulated clock: what each call of a gradient takes, and what a message takes to travel.

Client i needs tau_i seconds for a gradient (``per: call``) or for each of its samples (``per: sample``), drawn once;
``jitter`` is drawn anew for every call and added. All draws are a hash of seed, client, and how often the client has
computed before, so they depend neither on the method, nor on K, nor on the step size: methods race on the same
clients. By ``dropout`` a client vanishes in the middle of a call with probability p, at a place drawn uniformly, and
comes back after a while to begin anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raybench.core.errors import InputError
from raybench.core.streams import stream

Array = np.ndarray
COMPUTING, SENDING, AWAY, WAITING = range(4)  # what a client does
Span = tuple[int, int, float, float]
"""A client, what it does, from when, until when; ``AWAY``: it computes what nobody uses."""


def uniform(keys: Array, counter: Array) -> Array:
    """Return numbers uniform on (0, 1) of 64-bit keys and counters, which broadcast: splitmix64 as the streams use."""
    with np.errstate(over="ignore"):
        z = keys + (counter.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return ((z >> np.uint64(11)).astype(float) + 0.5) * 2.0**-53


def quantile(distribution: Mapping[str, Any], u: Array) -> Array:
    """Return the quantiles of a typed distribution at u, its seconds."""
    ((name, p),) = distribution.items()
    if name == "lognormal":
        from scipy.special import ndtri

        return p["median"] * np.exp(p["sigma"] * ndtri(u))
    if name == "uniform":
        return p["low"] + (p["high"] - p["low"]) * u
    if name == "exponential":
        return -p["mean"] * np.log1p(-u)
    return p["scale"] * (1 - u) ** (-1 / p["shape"])  # pareto


def mean(distribution: Mapping[str, Any] | None) -> float:
    """Return the mean of a typed distribution, 0 of none; infinite where it has none."""
    if distribution is None:
        return 0.0
    ((name, p),) = distribution.items()
    if name == "lognormal":
        return p["median"] * math.exp(p["sigma"] ** 2 / 2)
    if name == "uniform":
        return (p["low"] + p["high"]) / 2
    if name == "exponential":
        return p["mean"]
    return p["scale"] * p["shape"] / (p["shape"] - 1) if p["shape"] > 1 else math.inf


class Clients:
    """n clients for each of B seeds; arrays (B, n).

    clock: typed (``spec.clocks.typed``). samples: of each client. A call is counted where it begins: the k-th call of a
    client takes the same seconds in every run of the seed. Raises InputError where the clock names another number of
    clients, or its trace cannot be read.
    """

    def __init__(
        self, clock: Mapping[str, Any], n: int, seeds: Sequence[int], samples: Sequence[int]
    ) -> None:
        self.clock, self.n, self.samples = clock, n, np.asarray(samples, float)
        root = stream(list(seeds)).fold("clock")
        self._keys = {
            purpose: root.fold(purpose).each(range(n)).keys.numpy().view(np.uint64)
            for purpose in ("tau", "jitter", "dropout", "place")
        }
        self.per_sample = clock["per"] == "sample"
        self._trace: list[Array] | None = None
        self.tau = np.broadcast_to(self._seconds(), (len(seeds), n))
        drop = clock["dropout"] or {"p": 0.0, "back_after": 0.0}
        self.leave, self.back_after = drop["p"], drop["back_after"]
        link = clock["link"] or {}
        self.latency, self.shared = link.get("latency", 0.0), link.get("shared", False)
        self.up_rate = self._each(link["up"], "link.up") if link else None
        down = link.get("down")
        self.down_rate = None if down is None else self._each(down, "link.down")

    def _seconds(self) -> Array:
        """Return tau, (B, n) or (n,)."""
        ((name, given),) = self.clock["compute"].items()
        if name == "fixed":
            return self._each(given, "compute.fixed")
        if name == "power":
            return np.arange(1.0, self.n + 1) ** given["exponent"]
        if name == "trace":
            self._trace = traced(given)
            means = [float(t.mean()) for t in self._trace]
            return np.array([means[i % len(means)] for i in range(self.n)])
        keys = self._keys["tau"]
        return quantile({name: given}, uniform(keys, np.zeros(1, np.uint64)))

    def _each(self, value: float | Sequence[float], where: str) -> Array:
        if isinstance(value, list | tuple) and len(value) != self.n:
            what = f"{len(value)} numbers for {self.n} clients"
            raise InputError.of(f"clock.{where}", what, "one number, or one for each client")
        return np.broadcast_to(np.asarray(value, float), (self.n,))

    def call(self, count: Array, size: float | Array) -> Array:
        """Return the seconds of the ``count``-th call (B, n), from 0, of every client, of ``size`` samples each.

        A client that vanishes is away in them: from the place where it stopped until it has begun anew and ended.
        """
        spent = self.once(count, size)
        if not self.leave:
            return spent
        total = np.zeros_like(spent)
        gone, attempt = np.ones(spent.shape, bool), 0
        while True:
            gone = gone & self.vanishes(count, attempt)
            if not gone.any():
                return total + spent
            away = self.place(count, attempt) * spent + self.back_after
            total += np.where(gone, away, 0.0)
            attempt += 1

    def once(self, count: Array, size: float | Array, who: Any = slice(None)) -> Array:
        """Return the seconds of a call that nobody leaves: tau, times the samples, and jitter.

        With one seed and one client ``count`` (m, 1) may be many calls.
        """
        spent = self.tau[:, who]
        if self._trace is not None:
            table = [self._trace[i % len(self._trace)] for i in np.arange(self.n)[who]]
            at = np.broadcast_to(count, np.broadcast_shapes(np.shape(count), spent.shape))
            spent = np.stack([t[at[:, j].astype(int) % len(t)] for j, t in enumerate(table)], -1)
        if self.per_sample:
            spent = spent * size
        jitter = self.clock["jitter"]
        if jitter is None:
            return np.broadcast_to(spent, np.broadcast_shapes(spent.shape, np.shape(count)))
        return spent + quantile(jitter, uniform(self._keys["jitter"][:, who], count))

    def within(self, p: float, size: float | Array) -> tuple[Array, Array]:
        """Return seconds (B, n) within which a call of ``size`` samples is done with a probability of about p, and that
        probability (n,), of which clients that vanish take their share.

        Raises InputError for a trace with jitter, of whose sum no quantile is known.
        """
        most, share = self.tau, np.ones(self.n)
        jitter = self.clock["jitter"]
        if self._trace is not None:
            if jitter is not None:
                fix = "a trace without jitter, or another compute"
                raise InputError.of("clock", "no quantile of a trace with jitter is known", fix)
            ends = [float(np.quantile(t, p, method="higher")) for t in self._trace]
            reached = [float((t <= end).mean()) for t, end in zip(self._trace, ends, strict=True)]
            which = np.arange(self.n) % len(ends)
            most, share = (
                np.broadcast_to(np.array(ends)[which], most.shape),
                np.array(reached)[which],
            )
        most = most * size if self.per_sample else most
        if jitter is not None:
            most, share = most + quantile(jitter, np.array(p)), share * p
        return most * (1 + 1e-12), share * (1 - self.leave)

    def vanishes(self, count: Array, attempt: int | Array, who: Any = slice(None)) -> Array:
        """Return whether clients vanish in the ``attempt``-th try (from 0) of a call, bool (B, m)."""
        return uniform(self._keys["dropout"][:, who], _slot(count, attempt)) < self.leave

    def place(self, count: Array, attempt: int | Array, who: Any = slice(None)) -> Array:
        """Return at which share of a call clients vanish, uniform on (0, 1), (B, m)."""
        return uniform(self._keys["place"][:, who], _slot(count, attempt))

    def up(self, size: Array, who: Any = slice(None)) -> Array:
        """Return the seconds in which messages of ``size`` bytes travel to the server: none, of no bytes."""
        if self.up_rate is None:
            return np.zeros(np.shape(size))
        return np.where(size > 0, self.latency + size / self.up_rate[who], 0.0)

    def down(self, size: Array, who: Any = slice(None)) -> Array:
        """Return the seconds in which messages of ``size`` bytes travel from the server."""
        if self.down_rate is None:
            return np.zeros(np.shape(size))
        return np.where(size > 0, self.latency + size / self.down_rate[who], 0.0)

    def select(self, cells: Array) -> Clients:
        """Return the clients of some of the seeds."""
        some = object.__new__(Clients)
        vars(some).update(vars(self))
        some.tau = self.tau[cells]
        some._keys = {purpose: keys[cells] for purpose, keys in self._keys.items()}
        return some


def _slot(count: Array, attempt: int | Array) -> Array:
    return np.asarray(count, np.uint64) * np.uint64(2**20) + np.asarray(attempt, np.uint64)


def traced(path: str) -> list[Array]:
    """Return the seconds of each client's calls in a trace, in its order, taken again from the start at its end.

    A Parquet file with the columns ``client`` (numbers from 0) and ``seconds``. Raises InputError.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    where = "clock.compute.trace"
    try:
        table = pq.read_table(path, columns=["client", "seconds"]).to_pandas()
    except (OSError, pa.ArrowException, KeyError) as error:
        fix = "a Parquet file with the columns client and seconds"
        raise InputError.of(where, f"cannot read {path}: {error}"[:120], fix) from None
    seconds = table["seconds"].to_numpy(float)
    if not len(seconds) or not (np.isfinite(seconds) & (seconds > 0)).all():
        raise InputError.of(where, f"{path} has seconds that are not above 0", "positive numbers")
    return [group.to_numpy(float) for _, group in table.groupby("client", sort=True)["seconds"]]


class SimulatedClock:
    """A simulated clock: that of rounds, or the event queue.

    remembered: attributes that a run which goes on elsewhere must know. log: what the clients of the first cell do,
    where it is wanted.
    """

    remembered: tuple[str, ...] = ()
    clients: Clients
    log: list[Span] | None = None

    def columns(self, cells: int) -> dict[str, Array]:
        """Return what a row records, (cells,) each."""
        raise NotImplementedError

    def state(self) -> dict[str, Array]:
        """Return what a run that goes on elsewhere must know after a round, copied."""
        return {name: np.array(getattr(self, name)) for name in self.remembered}

    def load(self, saved: Mapping[str, Array]) -> None:
        """Go on from what ``state`` returned."""
        for name in self.remembered:
            setattr(self, name, np.array(saved[name])[()])

    def _note(self, client: int, kind: int, start: float, until: float) -> None:
        if self.log is not None and until > start:
            self.log.append((client, kind, float(start), float(until)))


class Rounds(SimulatedClock):
    """The clock of synchronous rounds: a round ends when the last message of its participants has arrived.

    A client receives the server's answer, computes its calls one after the other, then sends what it has in one
    transfer. On a graph a client begins its round when its neighbours' messages are there. times: when clients have
    ended their round, (B, n) on a graph, else (B, 1).
    """

    remembered = ("calls", "times", "told")

    def __init__(self, clients: Clients, neighbours: Array | None = None) -> None:
        self.clients, self.neighbours = clients, neighbours
        B, n = clients.tau.shape
        self.calls = np.zeros((B, n))
        self.times = np.zeros((B, 1 if neighbours is None else n))
        self._work, self.told = np.zeros((B, n)), np.zeros(B)
        self.most: Array | None = None  # seconds after which a call is cut
        self.repeat = 1  # calls that one gradient stands for, which share its samples

    def columns(self, cells: int) -> dict[str, Array]:
        return {"clock_seconds": self.times.max(1)}  # when the last client is done

    def compute(self, cells: Any, who: Array | None, size: float | Array) -> None:
        """Count ``repeat`` calls of the clients ``who`` (b, n), None for all, of some cells, on ``size`` samples each."""
        some = np.arange(len(self.calls))[cells]
        view = self.clients if len(some) == len(self.calls) else self.clients.select(some)
        mask = 1.0 if who is None else who
        for _ in range(self.repeat):
            spent = view.call(self.calls[some], size)
            if self.most is not None:
                spent = np.minimum(spent, self.most[some])
            self._work[some] += spent * mask
            self.calls[some] += mask

    def cut(self, most: Array | None, size: float | Array) -> Array:
        """Cut calls after ``most`` seconds (B, n) from now on, None for none.

        Return whose next call, of ``size`` samples, is done by then, bool (B, n): who vanishes is not.
        """
        self.most = most
        if most is None:
            return np.ones(self.calls.shape, bool)
        done = self.clients.once(self.calls, size) <= most
        return done & ~self.clients.vanishes(self.calls, 0)

    def end(self, up: Array, down: Array) -> None:
        """End a round: T = max over its participants of (down_i + work_i + up_i).

        up: bytes that clients sent in it, (B, n). down: what each was sent in all rounds so far, (B,).
        """
        clients, down = self.clients, down - self.told
        self.told = self.told + down
        # a server whose one link carries all sends one copy after the other
        copies = np.arange(1, clients.n + 1) if clients.shared else np.ones(clients.n)
        begin = self.times + clients.down(down[:, None] * copies)
        ready = begin + self._work
        there = _through(ready, up, clients) if clients.shared else ready + clients.up(up)
        if self.log is not None:
            for i in range(clients.n):
                self._note(i, COMPUTING, begin[0, i], ready[0, i])
                self._note(i, SENDING, ready[0, i], there[0, i])
        if self.neighbours is not None:
            # t_i = max over i and its neighbours j of (t_j + work_j + send_ji)
            reach = np.where(self.neighbours[None], there[:, None, :], -np.inf).max(2)
            self.times = np.maximum(reach, ready)
        else:
            busy = (self._work > 0) | (up > 0)  # who sits out is not waited for
            busy |= ~busy.any(1, keepdims=True)
            self.times = np.where(busy, there, self.times).max(1, keepdims=True)
        self._work[:] = 0

    def select(self, cells: Array) -> None:
        """Keep some cells only."""
        self.clients = self.clients.select(cells)
        for name in ("calls", "times", "_work", "told"):
            setattr(self, name, getattr(self, name)[cells])


def _through(ready: Array, size: Array, clients: Clients) -> Array:
    """Return when messages have come through the server's one link, first come first served, (B, n).

    The k-th to be ready is through at max over j <= k of (ready_j + the seconds of those from j to k).
    """
    assert clients.up_rate is not None
    order = np.argsort(ready, axis=1, kind="stable")
    at = np.take_along_axis(ready, order, 1)
    spent = np.take_along_axis(size / clients.up_rate, order, 1)
    total = np.cumsum(spent, 1)
    through = np.maximum.accumulate(at - (total - spent), 1) + total
    out = np.empty_like(through)
    np.put_along_axis(out, order, through, 1)
    return np.where(size > 0, out + clients.latency, ready)


# What waiting for slow workers costs -------------------------------------------------------------------

SEEDS, ROUNDS = 32, 32  # draws of the workers, and rounds of each
MOST_DRAWS = 4_000_000
SHARES = {"all": 1.0, "the fastest 90 %": 0.9, "the fastest half": 0.5}


@dataclass(frozen=True)
class WaitingServer:
    """A server that waits for so many of n workers in each round; for ``nobody``: a step for each gradient.

    rate: gradients per second that the server uses, mean over draws. wasted: the share of the workers' seconds in which
    they wait or compute what is thrown away.
    """

    who: str
    rate: float
    wasted: float


def waiting(clock: Mapping[str, Any], n: int) -> list[WaitingServer]:
    """Return what the server gets by waiting for all of n workers, for the fastest ones, and for nobody.

    clock: typed; its links are left out. A worker takes a gradient a round, stopped when the round ends.
    """
    seeds = min(SEEDS, max(1, MOST_DRAWS // n))
    rounds = min(ROUNDS, max(1, MOST_DRAWS // (n * seeds)))
    clients = Clients({**clock, "link": None}, n, range(seeds), [1] * n)
    each = np.stack([clients.call(np.full((seeds, n), k), 1.0) for k in range(rounds)], 1)
    ordered = np.sort(each, -1)  # (seeds, rounds, n)
    out = []
    for who, share in SHARES.items():
        count = max(1, math.ceil(share * n - 1e-9))
        ends = ordered[..., count - 1]
        used = ordered[..., :count].sum()
        out.append(
            WaitingServer(
                who, float((count / ends.mean(1)).mean()), float(1 - used / (n * ends.sum()))
            )
        )
    free = (1 / each.mean(1)).sum(1).mean()
    return [*out, WaitingServer("nobody", float(free), 0.0)]
