"""THE round loop: one batch of cells, any method, any transport; and what a run remembers, to go on elsewhere."""

from __future__ import annotations

import datetime
import math
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from raybench.algorithms.events import Asynchronous
from raybench.clock.clients import Clients, Rounds
from raybench.core import registry
from raybench.core.cells import PerCell, State, joined, mapped
from raybench.core.counts import EXCHANGES, Counts
from raybench.core.parallel import one_thread
from raybench.core.streams import stream
from raybench.execution import rows
from raybench.execution.batch import Batch
from raybench.execution.build import collective_of, graph_of, method_of, relays, start_of, uplink
from raybench.execution.checks import attackers, robust_of
from raybench.execution.net import Poisoned, ProblemEventNet, ProblemNet
from raybench.execution.recorder import (
    CHEAP_MEASURES,
    COSTLY_MEASURES,
    EXCHANGE,
    RecordedRounds,
    Recorder,
    measured,
)
from raybench.execution.search import Halving
from raybench.problems.abilities import Trained
from raybench.problems.base import OF_GRADIENTS, OF_LOSSES, Problem
from raybench.spec.model import Evaluate, Prune, Record
from raybench.store.accounting import Accounting
from raybench.wire.transport import Transport

# a cell whose loss or squared gradient norm grew by this factor has diverged
DIVERGENCE_FACTOR = 1e12
# in rounds that are not recorded, how often iterates are tested for infinities and NaN
ROUNDS_BETWEEN_LOOKS = 50
# points of a curve at which accuracy and the like are evaluated: each is a pass over the data
EVALUATIONS_PER_CURVE = 50
ARRAYS = ("index", "live", "clock", "first_size")  # of a run, in its state
COLUMNS_OF_SECONDS = ("seconds", "seconds_gradient", "seconds_compress", "seconds_communicate")


@dataclass(frozen=True)
class Options:
    """How a sweep records, accounts and prunes; the same for all its batches."""

    record: Record = field(default_factory=Record)
    accounting: Accounting = field(default_factory=Accounting)
    evaluate: Evaluate = field(default_factory=Evaluate)
    prune: Prune = field(default_factory=Prune)


class Run:
    """A batch at work: ``advance`` until it says it is done, then ``tables``.

    problem: hosting this rank's clients. ``state`` after any round, and ``load`` in a new run of the same batch, go
    on where it was. Raises what the method raises.
    """

    def __init__(
        self,
        batch: Batch,
        problem: Problem,
        options: Options | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.batch, self.problem, self.options = batch, problem, options or Options()
        self.started = datetime.datetime.now(datetime.UTC)
        first = batch.cells[0].cell
        self.first, self.rounds, self.B = first, first.rounds, len(batch.cells)
        self.entry = registry.lookup("algorithm", first.algorithm.name)
        roots = stream([c.cell.seed for c in batch.cells], problem.device)
        graph = graph_of(first.graph, problem.n) if self.entry.facts.decentralised else None
        compressor = uplink(first, self.entry)
        how = relays(first.downlink), collective_of(compressor)
        rounds: Rounds | None = None
        if first.clock is not None:
            seeds = [c.cell.seed for c in batch.cells]
            clients = Clients(first.clock, problem.n, seeds, problem.samples)
            rounds = Rounds(clients, None if graph is None else graph.W.numpy() != 0)
        if issubclass(self.entry.target, Asynchronous):
            assert rounds is not None, "checked as the sweep was planned"
            self.net: ProblemNet = ProblemEventNet(problem, roots, rounds)
        else:
            self.net = ProblemNet(problem, roots, transport, graph, *how)
            self.net.oracle.rounds = rounds
        self.a = method_of(batch.cells, problem, self.net.clock)
        self.net.per_client = self.a.robust is not None
        self.bad = attackers(first, problem)  # f is the mean over the other clients
        if robust_of(first).poisons(problem.n):
            self.net.poisoned = Poisoned(problem, self.bad)
        self.s, self.c = State(), State()
        self.s.x = start_of(first.x0, problem, roots)
        if self.a.D is not None and self.entry.facts.broadcast:
            self.s.y = self.s.x.clone()
        self.gamma: PerCell = self.a.gamma  # the step size before the schedule's factor
        self.average: Average | None = None
        if first.iterate != "last":
            mu = float(batch.facts.get("mu") or 0.0) if first.iterate == "weighted" else 0.0
            # w_t = (1 - gamma mu/2)^-(t+1)
            self.average = Average((self.gamma.values * mu / 2).clamp(max=0.5))
        record = self.options.record
        stochastic = self.entry.facts.stochastic or problem.costly
        points = 1 if record.clock is not None else record.points
        self._wanted = RecordedRounds.of(self.rounds, record.every, points, stochastic)
        self._ticks = 0  # how often so many simulated seconds have passed
        self.recorder = Recorder(self.B, self._wanted.count)
        self._halving = Halving(batch, self.options.prune, self.rounds)
        self._evaluate_each = max(1, self._wanted.count // EVALUATIONS_PER_CURVE)
        self.index = np.arange(self.B)  # numbers of the cells that are in the tensors
        self.live = np.ones(self.B, bool)  # by number: whether the cell still runs
        self.running = self.B  # how many do
        self.status = np.full(self.B, "ok", object)
        self.clock = np.zeros((len(COLUMNS_OF_SECONDS), self.B))
        self.t = -1
        # seconds of what each row measures; where it is costly, of the rows that take passes over the data
        self.looks: list[float] = []
        self.first_size: np.ndarray | None = None  # ||grad f||^2 and |f| at x^0, at least 1
        self._initial: dict[str, np.ndarray] = {}  # counts of the messages before round 1

    # The loop --------------------------------------------------------------------------------

    @torch.no_grad()
    def advance(self, rounds: int) -> bool:
        """Run so many rounds (fewer at the end); return whether the batch is done.

        Rounds, not seconds: all ranks must pause after the same round.
        """
        with one_thread(self.net.B * self.net.n_here * self.problem.message_dim):
            if self.t < 0:
                self._step(self.a.start, 0)
            until = min(self.t + rounds, self.rounds)
            while self.running and self.t < until:
                t, step = self.t + 1, self.first.step
                self.net.begin(t)
                if step.schedule != "constant" or step.warmup:
                    self.a.gamma = self.gamma * factor(step.schedule, step.warmup, t, self.rounds)
                self._step(self.a.round, t)
        return not self.running or self.t >= self.rounds

    def _step(self, work: Callable[[ProblemNet, State, State], None], t: int) -> None:
        net = self.net
        each = self.options.record.clock
        due = t in self._wanted
        net.oracle.loss_wanted = due or each is not None
        before = net.oracle.record_seconds, *net.clock.parts
        began = perf_counter()
        work(net, self.s, self.c)
        net.end_round()
        if each is not None and net.timing is not None:  # the last cell decides for all
            ticks = int(net.timing.columns(net.B)["clock_seconds"].min() // each)
            due, self._ticks = due or ticks > self._ticks, ticks
        if t == 0:
            self._initial = {"up": net.ledger.up.copy(), "down": net.ledger.down.copy()}
        elapsed = perf_counter() - began + net.oracle.record_seconds
        parts = zip((elapsed, *net.clock.parts), before, strict=True)
        spent = np.array([after - then for after, then in parts]) / max(1, self.running)
        whole = self.running == self.clock.shape[1]  # as a rule: an index costs more than the sum
        self.clock[:, slice(None) if whole else self.index[self.live]] += spent[:, None]
        self.t = t
        if self.average is not None:
            self.average.add(self.a.point(net, self.s, self.c))
        if due:
            self._record(t)
        elif t % ROUNDS_BETWEEN_LOOKS == 0:
            finite = torch.isfinite(self.a.point(net, self.s, self.c)).all(-1).cpu().numpy()
            self._leave(self.live & ~finite, "diverged")
        if 0 < self.running < len(self.index) / 2:  # what has ended is let go
            keep = torch.as_tensor(np.flatnonzero(self.live), device=self.problem.device)
            self.index = self.index[self.live]
            self.live = np.ones(len(self.index), bool)
            self._select(keep)
            self.s, self.c = self.s.select(keep), self.c.select(keep)

    def _record(self, t: int) -> None:
        net = self.net
        x, estimate = self.a.point(net, self.s, self.c), None
        if self.average is None:
            # by convention s.g is a method's estimate of grad f(x); some keep none
            estimate = vars(self.s).get("g")
            if self.net.per_client and estimate is not None:
                estimate = self.a.pooled(net, estimate)
        elif self.average.value is not None:
            x = self.average.value
        fully, live = self._fully(t), self.live.copy()
        row = self._measured(x, estimate, fully)
        apart = self.a.disagreement(net, self.s, self.c)
        if apart is not None:
            row["consensus_error"] = apart.double().cpu().numpy()
        row |= {**net.oracle.pop_minibatch_losses(self.bad), "grad_evals": net.oracle.evals}
        if net.timing is not None:
            row.update(net.timing.columns(net.B))
        row.update(zip(COLUMNS_OF_SECONDS, self.clock[:, self.index], strict=True))
        self.recorder.add(t, self.index, self.live, row)
        self.recorder.add_counts(net.ledger, self.index)
        self._judge(row)
        due = self._halving.due(self.recorder.rounds)
        if due and t < self.rounds:  # in the last round all have run anyway
            pruned = self._halving.ends(due, self.recorder, self.status)
            self._leave(self.live & np.isin(self.index, net.transport.agree(pruned)), "pruned")
        ended = live & ~self.live
        if ended.any() and not fully:  # a cell's last row is measured in full, whatever ends it
            self.recorder.amend(self.index, ended, self._measured(x, estimate, True))

    def _measured(self, x: Tensor, estimate: object, fully: bool) -> dict[str, np.ndarray]:
        began = perf_counter()
        f_star = self.first.f_star
        no_minimum = f_star is None and not self.bad
        facts = self.batch.facts if no_minimum else {**self.batch.facts, "f_star": f_star}
        row = measured(
            self.net,
            x,
            self._what(fully),
            facts,
            bad=self.bad,
            estimate=estimate if isinstance(estimate, Tensor) else None,
            metrics=self.options.evaluate.metrics if fully else (),
        )
        if fully or not self.problem.costly:
            self.looks.append(perf_counter() - began)
        return row

    def evaluation(self) -> float:
        """Return the seconds of all that is measured for the record, by those after round 0, or one now."""
        if len(self.looks) < 2:
            self._measured(self.a.point(self.net, self.s, self.c), None, True)
        every, rows = self.options.evaluate.every, self._wanted.count
        often = rows
        if self.problem.costly:
            often = self.rounds // every if every else rows // self._evaluate_each
        return (1 + min(often, rows)) * float(np.median(self.looks[1:]))

    def _fully(self, t: int) -> bool:
        """Return whether the row of round t measures what takes a pass over the data."""
        every = self.options.evaluate.every
        if t == self.rounds:
            return True
        if every is None:
            return len(self.recorder.rounds) % self._evaluate_each == 0
        return t % every == 0

    def _what(self, fully: bool) -> frozenset[str]:
        """Return what a row measures: the columns that cost a pass over the data in some rows only."""
        if not fully and self.problem.costly:
            return frozenset()
        what = CHEAP_MEASURES | COSTLY_MEASURES if fully else CHEAP_MEASURES
        gradient, loss = self.options.evaluate.gradient, self.options.evaluate.loss
        network = isinstance(self.problem, Trained) and self.problem
        if gradient is None:
            gradient = not network or not OF_GRADIENTS.isdisjoint(self.first.stop)
        if loss is None:
            needed = self.first.f_star is not None or not OF_LOSSES.isdisjoint(self.first.stop)
            loss = gradient or needed or not network or not network.tested
        what = what if gradient else what - OF_GRADIENTS
        return what if loss else what - OF_LOSSES

    def _judge(self, row: Mapping[str, np.ndarray]) -> None:
        unknown = np.ones(len(self.index))  # a quantity that is not measured cannot show divergence
        loss = row.get("loss", unknown)
        if self.options.evaluate.loss is None and "loss" not in row and "minibatch_loss" in row:
            loss = np.nan_to_num(row["minibatch_loss"], nan=1.0, posinf=np.inf)
        size = np.stack((row.get("grad_norm_sq", unknown), np.abs(loss)))
        if self.first_size is None:
            self.first_size = np.maximum(size, 1.0)
        sound = np.isfinite(size) & (size <= DIVERGENCE_FACTOR * self.first_size[:, self.index])
        self._leave(self.live & ~sound.all(0), "diverged")
        done = np.zeros(len(self.index), bool)
        for name, threshold in self.first.stop.items():
            if name in ("bits_up", "bits_down"):
                done |= self.bits(name.removeprefix("bits_")) >= threshold
            elif name == "clock":
                done |= row["clock_seconds"] >= threshold
            elif name == "seconds":
                done |= self.net.transport.agree(row["seconds"] >= threshold)
            elif name in row:
                done |= row[name] <= threshold
        self._leave(self.live & done, "ok")

    def bits(self, side: str) -> np.ndarray:
        """Return the bits (cells here,) booked so far under the sweep's accounting."""
        counts, start = getattr(self.net.ledger, side), self._initial[side][:, self.index]
        width = self.problem.dtype.itemsize * 8
        return self.options.accounting.bits(Counts(*counts), width, Counts(*start))

    def _leave(self, who: np.ndarray, status: str) -> None:
        self.status[self.index[who]] = status
        self.live &= ~who
        self.running = int(self.live.sum())

    def _select(self, keep: Tensor) -> None:
        """Keep some cells of everything but what the method remembers."""
        self.net.select(keep)
        self.gamma = self.gamma[keep]
        if self.average is not None:
            self.average = self.average.select(keep)
        self.a = self.a.select(keep)

    # Going on elsewhere ------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return all that the run remembers: tensors, numbers and texts in dicts and lists.

        Of several ranks each has the part of its clients: ``whole`` puts the parts together.
        """
        arrays = {name: getattr(self, name) for name in ARRAYS}
        return {
            **{n: None if a is None else torch.from_numpy(a.copy()) for n, a in arrays.items()},
            "t": self.t,
            "status": self.status.tolist(),
            "started": self.started.isoformat(),
            "initial": {side: torch.from_numpy(v.copy()) for side, v in self._initial.items()},
            "s": self.s.state(),
            "c": self.c.state(),
            "ledger": self.net.ledger.state(),
            "oracle": self.net.oracle.state(vars(self.s)),
            "average": None if self.average is None else self.average.state(),
            "recorder": self.recorder.state(),
            "timing": {
                name: torch.from_numpy(value)
                for name, value in (self.net.timing.state() if self.net.timing else {}).items()
            },
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from what ``state`` returned, in a run of the same batch that has not begun.

        The curve is the same, bit for bit on the same machine with the same clients hosted here.
        """
        assert self.t < 0, "only a run that has not begun can take over another's state"

        def here(value: object) -> Any:
            return mapped(value, lambda tensor: tensor.to(self.problem.device))

        saved = {**saved, **{name: here(saved[name]) for name in ("s", "c", "average")}}
        oracle = {**saved["oracle"], "buffers": here(saved["oracle"]["buffers"])}
        for name in ARRAYS:
            setattr(self, name, None if saved[name] is None else saved[name].numpy().copy())
        self.running = int(self.live.sum())
        self._select(saved["index"].to(self.problem.device))
        # makes anew what a method keeps on ``a``
        self.a.setup(self.net, State.of({"x": saved["s"]["x"]}), State())
        self.s, self.c, self.t = State.of(saved["s"]), State.of(saved["c"]), saved["t"]
        self.net.begin(max(self.t, 0))
        self.status = np.array(saved["status"], object)
        self.started = datetime.datetime.fromisoformat(saved["started"])
        self._initial = {side: v.numpy().copy() for side, v in saved["initial"].items()}
        self.net.ledger.load(saved["ledger"])
        self.net.oracle.load(oracle, vars(self.s))
        if self.net.timing is not None:
            self.net.timing.load({k: v.numpy() for k, v in saved["timing"].items()})
            if self.options.record.clock is not None:
                now = self.net.timing.columns(self.net.B)["clock_seconds"].min()
                self._ticks = int(now // self.options.record.clock)
        if self.average is not None:
            self.average.load(saved["average"])
        self.recorder.load(saved["recorder"])

    # Results ---------------------------------------------------------------------------------

    def files(self) -> dict[str, bytes]:
        """Return what is kept beside the tables, by its place in the results folder; asked on every rank."""
        if self.first.train is None or self.first.train["save"] == "none":
            return {}
        assert isinstance(self.problem, Trained)
        x, means = self.a.point(self.net, self.s, self.c), self.net.oracle.means()
        buffers = {name: mean[0] for name, mean in means.items()}
        return {f"weights/{self.first.id}.pt": self.problem.weights(x[0], buffers)}

    def tables(self, host: Mapping[str, object]) -> tuple[pa.Table, pa.Table]:
        """Return the curves and the cells rows; ``host`` holds the columns of where it ran."""
        recorder, accounting = self.recorder, self.options.accounting
        width = self.problem.dtype.itemsize * 8
        facts = rows.curve_facts(self.batch)
        samples = float(np.mean(self.problem.samples))
        curves = recorder.table(facts, accounting, width, samples)
        at, cells = recorder.last_row(), np.arange(self.B)
        norms = recorder.smallest("grad_norm_sq")
        rounds = np.array(recorder.rounds)[at]
        final = {
            "status": self.status,
            "reason": [
                f"halving: behind other steps after {t:,} of {self.rounds:,} rounds"
                if cut
                else None
                for cut, t in zip(self.status == "pruned", rounds, strict=True)
            ],
            "rounds": rounds,
            "best_grad_norm_sq": np.where(np.isfinite(norms), norms, np.nan),
            **{name: recorder.last(name) for name in ("loss", "grad_norm_sq", "seconds")},
            "accuracy": np.ma.masked_invalid(recorder.newest("accuracy")),
            **{f"bits_{w}": recorder.bits(w, accounting, width)[cells, at] for w in ("up", "down")},
            **{f"bytes_{w}": recorder.last(f"bytes_{w}") for w in ("up", "down")},
            "started": self.started,
            "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "device": str(self.problem.device),
            "value_bits": width,
            "exchange": [EXCHANGES[int(i)] if i >= 0 else None for i in recorder.last(EXCHANGE)],
        }
        return curves, rows.cell_table(self.batch, {**final, **host})


class Average:
    """A running mean of points (B, d): sum_t w_t x^t / sum_t w_t.

    decay (B,): w_t = (1 - decay)^-t, so later points weigh more; 0 is the plain average. The weights
    are kept relative to the last one, so nothing overflows.
    """

    def __init__(self, decay: Tensor) -> None:
        self.keep = (1 - decay)[:, None]
        self.total = torch.zeros_like(self.keep)
        self.value: Tensor | None = None

    def add(self, x: Tensor) -> Tensor:
        """Take in x (B, d) and return the mean so far."""
        self.total = self.keep * self.total + 1
        if self.value is None:
            self.value = x.clone()
        else:
            self.value = torch.lerp(self.value, x, 1 / self.total)
        return self.value

    def select(self, cells: Tensor) -> Average:
        """Return the averages of some cells."""
        rest = Average(torch.zeros(0))
        rest.keep, rest.total = self.keep[cells], self.total[cells]
        rest.value = None if self.value is None else self.value[cells]
        return rest

    def state(self) -> dict[str, Tensor | None]:
        """Return what the average remembers."""
        value = None if self.value is None else self.value.clone()
        return {"total": self.total.clone(), "value": value}

    def load(self, saved: Mapping[str, Tensor | None]) -> None:
        """Go on from what ``state`` returned."""
        assert saved["total"] is not None
        self.total, self.value = saved["total"], saved["value"]


def factor(schedule: str, warmup: int, t: int, rounds: int) -> float:
    """Return the factor of round t = 1..rounds: the schedule's, times t/warmup while that is below 1.

    constant: 1. sqrt: 1/sqrt(t). inverse: 1/t. cosine: (1 + cos(pi (t-1)/rounds))/2, from 1 towards
    0. linear: 1 - (t-1)/rounds.
    """
    past = (t - 1) / rounds
    shape = {
        "constant": 1.0,
        "sqrt": 1 / math.sqrt(t),
        "inverse": 1 / t,
        "cosine": (1 + math.cos(math.pi * past)) / 2,
        "linear": 1 - past,
    }[schedule]
    return shape * min(1.0, t / warmup) if warmup else shape


# States of several ranks: put together, and dealt out to another number of ranks --------------------


Part: TypeAlias = Callable[[], dict[str, Any]]
"""Reads the state that one rank has saved."""


class CheckpointStore(Protocol):
    """Keeps states of batches at work, so that another process can go on; all ranks call it together.

    every: seconds of a batch between saves.
    """

    every: float

    def find(self, batch: Batch) -> Sequence[Part]:
        """Return what reads the newest state of a batch, rank by rank as it was saved; empty for none."""

    def save(self, batch: Batch, t: int, state: Mapping[str, Any]) -> None:
        """Keep a batch's state after round t, in place of an earlier one."""


def of_rank(parts: Sequence[Part], rank: int, size: int, clients: range) -> dict[str, object]:
    """Return the state of one of ``size`` ranks, which hosts these clients, from what any number saved."""
    if len(parts) == size:
        return parts[rank]()
    return share(whole([read() for read in parts]), clients)


def whole(parts: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return the state of all clients from those of the ranks, in rank order (``Run.state``)."""
    return _with_clients(parts[0], lambda get: joined([get(part) for part in parts]))


def share(state: Mapping[str, object], clients: range) -> dict[str, object]:
    """Return the part of a whole state (``Run.state``) that belongs to some consecutive clients."""

    def part(tensor: Tensor) -> Tensor:
        return tensor[:, clients.start : clients.stop].clone()

    return _with_clients(state, lambda get: mapped(get(state), part))


def _with_clients(
    state: Mapping[str, Any], made: Callable[[Callable[[Mapping[str, Any]], Any]], Any]
) -> dict[str, object]:
    """Return the state with the values that belong to clients replaced by what is ``made`` of them."""
    return {
        **state,
        "c": made(lambda part: part["c"]),
        "oracle": {**state["oracle"], "buffers": made(lambda part: part["oracle"]["buffers"])},
    }
