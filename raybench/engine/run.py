"""THE round loop: one batch of cells, any method, any transport."""

from __future__ import annotations

import datetime
import math
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from raybench.algorithms.base import Algorithm, PerCell, State
from raybench.compressors import Bound, Compressor, Role
from raybench.compressors.compose import build, named
from raybench.compressors.keeping import keeping
from raybench.core import registry
from raybench.core.counts import Counts
from raybench.core.layout import Layout
from raybench.core.parallel import narrow, wide
from raybench.core.streams import stream
from raybench.engine import rows
from raybench.engine.average import Average
from raybench.engine.net import Net
from raybench.engine.recorder import Recorder, rounds_recorded
from raybench.engine.schedule import factor
from raybench.planning.batch import Batch
from raybench.planning.graph import Mixing, mixing
from raybench.problems.base import Problem
from raybench.spec import Cell, Section
from raybench.spec.model import Record
from raybench.store.accounting import Accounting
from raybench.wire.transport import Transport

BLOW_UP = 1e12  # a loss or squared gradient norm that grew by this factor never comes back
LOOK = 50  # rounds between looks for non-finite iterates where nothing is recorded
EVALUATIONS = 50  # accuracy and the like cost a pass over the data: about so many per curve


@dataclass(frozen=True)
class Options:
    """How a sweep records and accounts; the same for all its batches."""

    record: Record = field(default_factory=Record)
    accounting: Accounting = field(default_factory=Accounting)
    metrics: tuple[str, ...] = ()


def operator(section: Section | None, d: int, n: int, layout: Any, role: Role) -> Bound:
    """Return the bound operator of a compressor section; None is the identity."""
    return unbound(section).bind(d, n, layout, role)


def unbound(section: Section | None) -> Compressor:
    """Return the operator of a compressor section as declared; None is the identity."""
    name, params = ("identity", {}) if section is None else (section.name, section.params)
    return registry.lookup("compressor", name).target(**params)


@dataclass(frozen=True)
class Timed:
    """A bound operator whose time is taken; calling it compresses.

    declared, n: what it was bound from, for ``fitted``; None where there is no such choice.
    """

    bound: Bound
    seconds: dict[str, float]
    declared: Compressor | None = None
    n: int = 1

    def __call__(self, x: Tensor, source: Any) -> Any:
        began = perf_counter()
        message = self.bound(x, source)
        self.seconds["compress"] += perf_counter() - began
        return message

    def fitted(self, layout: Layout, share: float | str | None = None) -> Timed:
        """Return the same operator for vectors of this layout, keeping that share of them.

        share: in place of its ``k``, wherever that is; None leaves it. Raises InputError where the
        operator has no ``k``.
        """
        assert self.declared is not None
        op = self.declared if share is None else keeping(self.declared, share)
        bound = op.bind(layout.dim, self.n, layout, self.bound.role)
        return Timed(bound, self.seconds, op, self.n)


def uplink(cell: Cell, entry: registry.Entry) -> Section | None:
    """Return the uplink operator's section: the method's ``own`` operator where it is bound to one."""
    own = entry.meta.get("own")
    return cell.compressor if own is None else Section(own, {})


def own_operators(
    entry: registry.Entry, params: Mapping[str, Any], dims: tuple[int, int, Any]
) -> dict[str, Bound]:
    """Return the bound operators that a method has as parameters, by name.

    ``operators`` of its decorator gives their roles. Raises InputError where one cannot play its role.
    """
    roles, out = entry.meta.get("operators", {}), {}
    for name, param in entry.params.items():
        if param.kind == "operator":
            role = roles.get(name, Role.ANY)
            with named(f"algorithm.{name}"):
                out[name] = build(params[name], name).bind(*dims, role)
    return out


@lru_cache(maxsize=64)  # every cell of a plan asks
def graph_of(section: Section | None, n: int) -> Mixing:
    """Return the graph of n clients that a graph section names, a ring by default."""
    asked = section or Section("ring", {})
    return mixing(asked.name, n, asked.params)


def relays(section: Section | None) -> bool:
    """Return whether a downlink section says that the server passes on the sum of what it receives."""
    return unbound(section).relay


class Run:
    """A batch at work: ``advance`` until it says it is done, then ``tables``.

    problem: hosting this rank's clients. Raises what the method raises.
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
        seeds = [c.cell.seed for c in batch.cells]
        roots = stream(seeds, problem.device)
        graph = graph_of(first.graph, problem.n) if self.entry.meta.get("decentralised") else None
        self.net = Net(problem, roots, transport, graph, relays(first.downlink))
        self.a: Any = self._method()
        self.s, self.c = State(), State()
        self.s.x = self._start()
        if self.a.D is not None and self.entry.meta.get("broadcast"):
            self.s.y = self.s.x.clone()
        self.gamma = self.a.gamma
        self.average = self._average()
        record = self.options.record
        wanted = rounds_recorded(
            self.rounds, record.every, record.points, bool(self.entry.meta.get("stochastic"))
        )
        self._wanted = set(wanted.tolist())
        self.recorder = Recorder(self.B, len(wanted))
        self._evaluate_each = max(1, len(wanted) // EVALUATIONS)
        self.index = np.arange(self.B)  # which cells are in the tensors
        self.live = np.ones(self.B, bool)  # which of those still run
        self.status = np.full(self.B, "ok", object)
        self.clock = np.zeros((4, self.B))  # seconds: all, gradient, compress, communicate
        self.t = -1
        self._first: np.ndarray | None = None  # loss and gradient at x^0

    # Setting up ------------------------------------------------------------------------------

    def _method(self) -> Algorithm:
        cells, problem = self.batch.cells, self.problem
        a: Any = self.entry.target()
        device, dtype = problem.device, problem.dtype
        for name, value in cells[0].params.items():
            if name in cells[0].numbers:
                values = [float(c.params[name]) for c in cells]
                value = PerCell(torch.tensor(values, dtype=dtype, device=device))
            setattr(a, name, value)
        steps = torch.tensor([c.step_size for c in cells], dtype=dtype, device=device)
        a.gamma = PerCell(steps)
        dims = (problem.message_dim, problem.n, problem.layout)
        for name, bound in own_operators(self.entry, cells[0].params, dims).items():
            setattr(a, name, self._timed(bound))
        up, down = cells[0].roles
        declared = unbound(uplink(self.first, self.entry))
        a.C = a.Q = self._timed(declared.bind(*dims, up), declared)
        a.D = None
        if self.entry.meta.get("down") or (self.first.downlink and not self.net.aggregate):
            a.D = self._timed(operator(self.first.downlink, *dims, down))
        return a

    def _average(self) -> Average | None:
        """Return what averages the recorded points; weighted: w_t = (1 - gamma mu/2)^-(t+1)."""
        if self.first.iterate == "last":
            return None
        mu = float(self.batch.facts.get("mu") or 0.0) if self.first.iterate == "weighted" else 0.0
        return Average((self.gamma.values * mu / 2).clamp(max=0.5))

    def _timed(self, bound: Bound, declared: Compressor | None = None) -> Timed:
        return Timed(bound, self.net.seconds, declared, self.problem.n)

    def _start(self) -> Tensor:
        problem, x0 = self.problem, self.first.x0
        if x0 == "zeros":
            x = torch.zeros(problem.dim, dtype=problem.dtype, device=problem.device)
        elif x0 == "problem":
            x = problem.start()
        elif isinstance(x0, Mapping):
            noise = self.net.roots.fold("x0").normal(problem.dim)
            return (noise * float(x0["normal"])).to(problem.dtype)
        else:
            x = torch.as_tensor(np.load(x0, allow_pickle=False)).to(problem.dtype)
            x = x.to(problem.device).reshape(problem.dim)
        return x.expand(self.B, -1).clone()

    # The loop --------------------------------------------------------------------------------

    @torch.no_grad()
    def advance(self, rounds: int) -> bool:
        """Run so many rounds (fewer at the end); return whether the batch is done.

        Rounds, not seconds: all ranks must pause after the same round.
        """
        with narrow(self.net.B * self.net.n_here * self.problem.message_dim):
            if self.t < 0:
                self._step(lambda: self.a.start(self.net, self.s, self.c), 0)
            until = min(self.t + rounds, self.rounds)
            while self.live.any() and self.t < until:
                self.net.begin(self.t + 1)
                self._schedule(self.t + 1)
                self._step(lambda: self.a.round(self.net, self.s, self.c), self.t + 1)
        return not self.live.any() or self.t >= self.rounds

    def _schedule(self, t: int) -> None:
        step = self.first.step
        if step.schedule != "constant" or step.warmup:
            self.a.gamma = self.gamma * factor(step.schedule, step.warmup, t, self.rounds)

    def _step(self, work: Callable[[], None], t: int) -> None:
        self.net.want_loss = t in self._wanted
        before = np.array([self.net.spared, *self.net.seconds.values()])
        began = perf_counter()
        work()
        if t == 0:
            self._initial = {side: getattr(self.net.ledger, side).copy() for side in ("up", "down")}
        elapsed = perf_counter() - began + self.net.spared
        spent = np.array([elapsed, *self.net.seconds.values()]) - before
        self.clock[:, self.index[self.live]] += spent[:, None] / max(1, self.live.sum())
        self.t = t
        if self.average is not None:
            self.average.add(self.a.point(self.net, self.s, self.c))
        if t in self._wanted:
            self._record(t)
        elif t % LOOK == 0:
            finite = torch.isfinite(self.a.point(self.net, self.s, self.c)).all(-1).cpu().numpy()
            self._leave(self.live & ~finite, "diverged")
        if 0 < self.live.sum() < len(self.index) / 2:
            self._gather()

    def _record(self, t: int) -> None:
        net, s = self.net, self.s
        x = self.a.point(net, s, self.c) if self.average is None else self.average.value
        oracle = net.oracle(x, loss=True)
        assert oracle.losses is not None
        grads, losses = self._mean(oracle.grads), self._mean(oracle.losses)
        if self.problem.has_prox:  # the gradient mapping with step 1/L
            L = float(self.batch.facts.get("L") or 1.0)
            grads, losses = (
                (x - self.problem.prox(x - grads / L, 1 / L)) * L,
                losses + self.problem.penalty(x),
            )
        values = {"loss": losses, "grad_norm_sq": grads.square().sum(-1)}
        f_star = self.first.f_star
        if f_star is None:
            f_star = self.batch.facts.get("f_star")
        if f_star is not None:
            values["suboptimality"] = losses - f_star
        g = getattr(s, "g", None)  # where a method keeps one, s.g is its estimate of grad f(x)
        own = self.average is None and not self.problem.has_prox
        if own and isinstance(g, Tensor) and g.shape == grads.shape:
            values["estimator_error_sq"] = (g - grads).square().sum(-1)
        if net.consensus is not None:
            values["consensus_error"] = net.consensus
        if len(self.recorder.rounds) % self._evaluate_each == 0 or t == self.rounds:
            values["mean_client_grad_norm_sq"] = self._mean(oracle.grads.square().sum(-1))
            with wide():
                values.update(self.problem.evaluate(x))
            for name in self.options.metrics:
                values[name] = registry.lookup("metric", name).target(self.problem, x)
        row: dict[str, Any] = {k: v.double().cpu().numpy() for k, v in values.items()}
        row["grad_evals"] = net.evals
        names = ("seconds", "seconds_gradient", "seconds_compress", "seconds_communicate")
        row.update(zip(names, self.clock[:, self.index], strict=True))
        self.recorder.add(t, self.index, self.live, row)
        self.recorder.add_counts(net.ledger.up, net.ledger.down, self.index)
        self._judge(row)

    def _mean(self, x: Tensor) -> Tensor:
        return self.net.transport.gather_rows(x, self.problem.n).mean(1)

    def _judge(self, row: dict[str, Any]) -> None:
        size = np.stack((row["grad_norm_sq"], np.abs(row["loss"])))
        if self._first is None:
            self._first = np.maximum(size, 1.0)
        sound = np.isfinite(size) & (size <= BLOW_UP * self._first[:, self.index])
        self._leave(self.live & ~sound.all(0), "diverged")
        stop = self.first.stop
        done = np.zeros(len(self.index), bool)
        for name, threshold in stop.items():
            if name in ("bits_up", "bits_down"):
                bits = self.bits(name.removeprefix("bits_"))
                done |= bits >= threshold
            elif name == "seconds":
                done |= self.net.transport.agree(row["seconds"] >= threshold)
            else:
                done |= row[name] <= threshold
        self._leave(self.live & done, "ok")

    def bits(self, side: str) -> np.ndarray:
        """Return the bits (cells here,) booked so far under the sweep's accounting."""
        accounting = self.options.accounting
        counts = getattr(self.net.ledger, side)
        if not accounting.count_init:
            counts = counts - self._initial[side][:, self.index]
        return accounting.bits(Counts(*counts), self.problem.dtype.itemsize * 8)

    def _leave(self, who: np.ndarray, status: str) -> None:
        self.status[self.index[who]] = status
        self.live &= ~who

    def _gather(self) -> None:
        keep = torch.as_tensor(np.flatnonzero(self.live), device=self.problem.device)
        self.index = self.index[self.live]
        self.live = np.ones(len(self.index), bool)
        self.net.select(keep)
        self.gamma = self.gamma[keep]
        if self.average is not None:
            self.average = self.average.select(keep)
        self.a, self.s, self.c = self.a.select(keep), self.s.select(keep), self.c.select(keep)

    # Results ---------------------------------------------------------------------------------

    def best(self) -> float:
        """Return the smallest ||grad f||^2 recorded so far, over all cells."""
        norms = self.recorder.column("grad_norm_sq")
        return float(np.nanmin(norms, initial=math.inf)) if norms.size else math.inf

    def tables(self, host: Mapping[str, Any]) -> tuple[pa.Table, pa.Table]:
        """Return the curves and the cells rows; ``host`` holds the columns of where it ran."""
        recorder, accounting = self.recorder, self.options.accounting
        width = self.problem.dtype.itemsize * 8
        facts = rows.curve_facts(self.batch)
        samples = float(np.mean(self.problem.samples))
        curves = recorder.table(facts, accounting, width, samples)
        at, cells = recorder.last_row(), np.arange(self.B)
        norms = np.where(recorder.live, recorder.column("grad_norm_sq"), np.nan)
        finite = np.where(np.isfinite(norms), norms, np.inf).min(1)
        final = {
            "status": self.status,
            "rounds": np.array(recorder.rounds)[at],
            "best_grad_norm_sq": np.where(np.isfinite(finite), finite, np.nan),
            **{name: recorder.last(name) for name in ("loss", "grad_norm_sq", "seconds")},
            "accuracy": rows.known(recorder.newest("accuracy")),
            **{f"bits_{w}": recorder.bits(w, accounting, width)[cells, at] for w in ("up", "down")},
            **{f"bytes_{w}": recorder.last(f"bytes_{w}") for w in ("up", "down")},
            "started": self.started,
            "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "device": str(self.problem.device),
        }
        return curves, rows.cell_table(self.batch, {**final, **host})
