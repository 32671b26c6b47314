"""The oracle: gradients, samples and predictions of a problem, counted as methods ask for them.

It remembers the last full gradient, so that recording f and grad f where a method has just been costs
nothing, and a method is not charged twice for one gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybench.clock.clients import Rounds
from raybench.core.cells import PerCell
from raybench.core.errors import InputError
from raybench.core.layout import Layout, clipped
from raybench.core.parallel import all_threads
from raybench.core.streams import Sample
from raybench.problems.abilities import Predicting, SplitByFeatures, Trained
from raybench.problems.base import EVALUATED, OF_LOSSES, Measured, Problem
from raybench.wire.wire import BookedWire, Cells


@dataclass
class Full:
    """A full gradient: at which point (B, d), its values, the losses, and who has paid for it.

    A point is known by its tensor, as long as nobody writes to it. grads: None after a run has been
    continued, where all that is left to know is whether the gradient was paid for.
    """

    x: Tensor
    grads: Tensor | None
    losses: Tensor | None
    written: tuple[int, int]  # how often torch has seen x and grads written to
    seconds: float  # what it took to compute; 0 once a method has been charged for it
    paid: bool = False  # all clients have been charged, and the same gradient is counted once

    def holds(self, x: Tensor) -> bool:
        """Return whether this is the gradient at x, still as it was computed."""
        return x is self.x and _writes(x, self.grads) == self.written


def _writes(x: Tensor, grads: Tensor | None) -> tuple[int, int]:
    return x._version, 0 if grads is None else grads._version


HEARD = "heard"  # in the state, beside the buffers: what belongs to clients


class CountedOracle:
    """The oracle of B cells, for the clients of ``problem`` that are hosted here.

    pooled: what it measures is of f, (B, 1, ..), not of every client.
    """

    pooled = False

    def __init__(self, problem: Problem, wire: BookedWire) -> None:
        self.problem, self.wire = problem, wire
        self.evals = np.zeros(wire.B)  # gradient evaluations, mean per client
        self.record_seconds = 0.0  # seconds of gradients that methods took over from the record
        self.loss_wanted = True  # whether the next full gradient shall bring the losses along
        self._last: Full | None = None
        self._trained = problem if isinstance(problem, Trained) else None
        # the losses of what gradients were taken of since the last record, and how many, (B, n_here, 2)
        self._heard = torch.zeros(
            wire.B, wire.n_here, 2, dtype=torch.float64, device=problem.device
        )
        self._counts = torch.tensor(problem.samples, dtype=torch.float64)
        self._full = float(self._counts.mean())  # samples of a full gradient, mean per client
        self.rounds: Rounds | None = None  # the simulated clock, where there is one

    # Gradients, paid for by methods -----------------------------------------------------------

    @all_threads()
    def grad(
        self,
        x: Tensor,
        sample: Sample | None = None,
        *,
        cells: Cells | None = None,
        clients: Tensor | None = None,
    ) -> Tensor:
        """Return grad f_i(x) of the clients here, (B, n_here, d); x is (B, d) or (B, n_here, d).

        sample: of ``sample``; then the gradient of those samples' mean. cells: evaluate and pay for
        these only. clients: bool (B, n_here) of those cells, who pays (participants). A full gradient asked for
        again at the same x is remembered and costs nothing more.
        """
        began = perf_counter()
        if sample is None and x.ndim == 2 and cells is None:
            latest = self._last
            last = self.full(x)
            assert last.grads is not None
            grads, paid = last.grads, last.paid
            # the record evaluated it before the method asked: the method is charged with the time
            owed = last.seconds if last is latest else 0.0
            last.seconds, last.paid = 0.0, paid or clients is None
            at = x
            if self._trained is not None and last.losses is not None:
                self.note_losses(last.losses, clients=clients)
        else:
            some = slice(None) if cells is None else cells
            at = x if cells is None else x[cells]
            picked = None if sample is None else sample[some]
            grads, paid, owed = self._at(at, picked, some, clients), False, 0.0
        self.record_seconds += owed
        self.wire.clock.gradient += perf_counter() - began + owed
        if not paid:
            self._pay(self._cost(sample, clients), cells)
            self._tick(None if sample is None else sample.size, cells, clients)
        self.commit_buffers(cells, clients)
        return self.clipped(grads, at)

    def commit_buffers(self, cells: Cells | None, clients: Tensor | None) -> None:
        """Take over what the gradients that a method has just got leave behind: here nothing."""

    def clipped(self, grads: Tensor, x: Tensor) -> Tensor:
        """Return what methods get of gradients (B, n_here, d) at x: scaled down to ``clip``, others as they are.

        Weight decay is added afterwards, as torch's optimizers add it to gradients that ``clip_grad_norm_`` has scaled.
        """
        most = self.problem.clip
        if most is None:
            return grads
        decay = self.problem.weight_decay * (x if x.ndim == grads.ndim else x[:, None])
        return clipped(Layout.vector(grads.shape[-1]), grads - decay, most) + decay

    def _at(self, x: Tensor, sample: Sample | None, cells: Cells, clients: Tensor | None) -> Tensor:
        """Return the gradients of some cells, of a sample or at points of the clients' own."""
        if sample is None or self._trained is None:
            return self.problem.grad(x, sample)
        grads, losses, _ = self._trained.gradients(x, sample, {})
        self.note_losses(losses, cells, clients)
        return grads

    def note_losses(
        self,
        losses: Tensor,
        cells: Cells = slice(None),
        clients: Tensor | None = None,
        at: slice = slice(None),
    ) -> None:
        """Take note of the losses (b, m) that gradients have brought along, of the clients ``at`` those ``clients``."""
        there = torch.ones_like(losses) if clients is None else clients.to(losses)
        heard = torch.stack((losses * there, there), -1).to(self._heard)
        self._heard[cells, at] = self._heard[cells, at] + heard

    @all_threads()
    def grad_and_loss(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return grad f_i(x_i) (B, n_here, d) and f_i(x_i) (B, n_here); counts as a full gradient."""
        began = perf_counter()
        grads, losses = self.problem.oracle(X)
        assert losses is not None
        self.wire.clock.gradient += perf_counter() - began
        self._pay(self._cost(None, None))
        self._tick()
        return self.clipped(grads, X), losses

    def _cost(self, sample: Sample | None, clients: Tensor | None) -> float | np.ndarray:
        """Return the samples evaluated, mean per client: a number, or one per cell."""
        if clients is None:
            return self._full if sample is None else float(sample.size)
        each = clients.double()
        if sample is None:
            return self._mean_over_clients(each * self.wire.here(self._counts[None]).to(each))
        return self._mean_over_clients(each) * sample.size

    def _pay(self, cost: float | np.ndarray, cells: Cells | None = None) -> None:
        at = cells.cpu().numpy() if isinstance(cells, Tensor) else slice(None)
        self.evals[at] += cost

    def _tick(
        self, size: float | None = None, cells: Cells | None = None, clients: Tensor | None = None
    ) -> None:
        """Let clients compute a call on so many samples each, by default all, on the simulated clock."""
        if self.rounds is None:
            return
        at = cells.cpu().numpy() if isinstance(cells, Tensor) else slice(None)
        gather, n = self.wire.transport.gather_rows, self.wire.n
        who = None if clients is None else gather(clients.double(), n).cpu().numpy()
        each = self._counts.numpy() if size is None else size / self.rounds.repeat
        self.rounds.compute(at, who, each)

    def _mean_over_clients(self, x: Tensor) -> np.ndarray:
        return self.wire.transport.gather_rows(x, self.wire.n).mean(1).cpu().numpy()

    # What clients and server know beside gradients ----------------------------------------------

    def sample(self, purpose: str, size: int) -> Sample:
        """Return a minibatch of so many samples per client, drawn with replacement."""
        return Sample.drawn(self.wire.stream(purpose), size, self.samples)

    @property
    def samples(self) -> Tensor:
        """Return how many samples the clients here have, int64 (n_here,)."""
        return self.wire.here(self._counts[None])[0].long().to(self.problem.device)

    @property
    def shares(self) -> Tensor:
        """Return each client's share N_i/N of all samples, (n,)."""
        return (self._counts / self._counts.sum()).to(self.problem.device, self.problem.dtype)

    def smoothness(self) -> Tensor:
        """Return the constants L_i of all clients, (n,), which everyone knows as the step size is known.

        Raises InputError where the problem does not know them.
        """
        L = self.problem.constants.L_i
        if not L:
            raise InputError.of("problem", "has no constants L_i; the method needs them")
        return torch.tensor(L, dtype=self.problem.dtype, device=self.problem.device)

    def prox(self, v: Tensor, gamma: PerCell) -> Tensor:
        """Return prox_{gamma penalty}(v) of the problem's nonsmooth part."""
        return self.problem.prox(v, gamma.like(v))

    # For the record, and for methods that know x*: never counted --------------------------------

    @all_threads()
    def full(self, x: Tensor, loss: bool = False) -> Full:
        """Return the full gradients at x (B, d), with ``loss`` the losses too, remembered if known."""
        last = self._last
        if last is not None and last.holds(x):
            if last.grads is not None and (last.losses is not None or not loss):
                return last
            paid = last.paid
        else:
            paid = False
        began = perf_counter()
        grads, losses = self._everywhere(x, loss or self.loss_wanted)
        spent = 0.0 if paid else perf_counter() - began
        self._last = Full(x, grads, losses, _writes(x, grads), spent, paid)
        return self._last

    def _everywhere(self, x: Tensor, loss: bool) -> tuple[Tensor, Tensor | None]:
        """Return full gradients (B, n_here, d) and losses (B, n_here) at x (B, d)."""
        return self.problem.oracle(x, loss=loss)

    @all_threads()
    def measure(self, x: Tensor, what: frozenset[str]) -> Measured:
        """Return what the problem measures at x (B, d) for the record."""

        def full() -> tuple[Tensor, Tensor]:
            evaluation = self.full(x, loss=True)
            assert evaluation.grads is not None
            assert evaluation.losses is not None
            return evaluation.grads, evaluation.losses

        return self._measured(x, what, full)

    def _measured(
        self, x: Tensor, what: frozenset[str], full: Callable[[], tuple[Tensor, Tensor]]
    ) -> Measured:
        return self.problem.measure(x, what, full)

    def pop_minibatch_losses(self, bad: int = 0) -> dict[str, np.ndarray]:
        """Return what gradients have brought along since it was last asked, (B,) by column, ``bad`` last clients left out.

        minibatch_loss: the mean loss of their samples, where they were taken, NaN for none, infinite for NaN. tokens:
        of all gradients so far.
        """
        if self._trained is None:
            return {}
        heard = self.wire.transport.gather_rows(self._heard, self.wire.n)
        losses, count = heard[:, : self.wire.n - bad].sum(1).cpu().numpy().T
        self._heard = torch.zeros_like(self._heard)
        losses = np.nan_to_num(losses, nan=np.inf, posinf=np.inf)
        mean = np.divide(losses, count, out=np.full(len(count), np.nan), where=count > 0)
        tokens = {"tokens": self.evals * self._trained.tokens} if self._trained.tokens else {}
        return {"minibatch_loss": mean, **tokens}

    @all_threads()
    def at_minimizer(self) -> Tensor:
        """Return grad f_i(x*) of the clients here, (B, n_here, d), where x* is known."""
        star = self.problem.minimizer()
        assert star is not None, "the method is declared with minimizer=True"
        return self.problem.oracle(star.expand(self.wire.B, -1).contiguous(), loss=False)[0]

    def means(self) -> dict[str, Tensor]:
        """Return the mean over all clients, (B, ..), of what gradients carry along: here nothing."""
        return {}

    # What a run keeps ---------------------------------------------------------------------------

    def select(self, cells: Tensor) -> None:
        """Keep some cells only."""
        self.evals = self.evals[cells.cpu().numpy()]
        self._last, self._heard = None, self._heard[cells]
        if self.rounds is not None:
            self.rounds.select(cells.cpu().numpy())

    def state(self, points: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return what a run that goes on elsewhere must know; points: the named points of the method."""
        last = self._last
        held = last is not None and last.paid
        at = [name for name, x in points.items() if held and last is not None and last.holds(x)]
        return {
            "evals": torch.from_numpy(self.evals.copy()),
            "spared": self.record_seconds,  # as checkpoints of earlier versions call it
            "buffers": {} if self._trained is None else {HEARD: self._heard.clone()},
            "paid_at": at[0] if at else None,
        }

    def load(self, saved: Mapping[str, Any], points: Mapping[str, Tensor]) -> None:
        """Go on from what ``state`` returned."""
        self.evals, self.record_seconds = saved["evals"].numpy().copy(), saved["spared"]
        self._last, self._heard = None, saved["buffers"].pop(HEARD, self._heard)
        if saved["paid_at"] is not None:
            x = points[saved["paid_at"]]
            self._last = Full(x, None, None, _writes(x, None), 0.0, True)


class PredictionOracle(CountedOracle):
    """The oracle of a problem that predicts."""

    problem: Problem

    @property
    def _predicting(self) -> Predicting:
        assert isinstance(self.problem, Predicting)
        return self.problem

    def common_rows(self, purpose: str, size: int) -> Tensor:
        """Return rows (B, size) of all clients' data, counted through, the same for everyone."""
        return self.wire.shared_stream(purpose).integers(size, int(self._counts.sum()))

    @all_threads()
    def predict(self, X: Tensor, rows: Tensor) -> Tensor:
        """Return predictions (B, m, b, outputs) of X (B, m, d) at rows (B, b): no gradients."""
        return self._predicting.predict(X, rows)

    @all_threads()
    def distill(self, X: Tensor, rows: Tensor, teacher: Tensor) -> Tensor:
        """Return grad mean_b D(teacher_b, prediction_b) of the clients here, (B, n_here, d); counts b gradients."""
        self._pay(float(rows.shape[-1]))
        self._tick(rows.shape[-1])
        return self._predicting.distill(X, rows, teacher)


class VerticalOracle(CountedOracle):
    """The oracle of a problem whose clients hold features."""

    @property
    def _blocks(self) -> SplitByFeatures:
        assert isinstance(self.problem, SplitByFeatures)
        return self.problem

    def split(self, x: Tensor) -> Tensor:
        """Return the blocks (B, n_here, w) of x (B, d) that the clients here hold."""
        return self._blocks.split(x)

    def rows(self, purpose: str, size: object) -> Tensor | None:
        """Return a minibatch of so many different samples, (B, b), the same for everyone; None for all."""
        if not isinstance(size, int):
            return None
        return self.wire.shared_stream(purpose).subset(self._blocks.sample_count, size)

    def places(self, rows: Tensor) -> Tensor:
        """Return where the entries of rows (B, b) stand in a message of all samples."""
        return self._blocks.places(rows)

    @all_threads()
    def products(self, blocks: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return u_j(x_j), (B, n_here, b), of the clients' own blocks."""
        return self._timed(lambda: self._blocks.products(blocks, rows))

    @all_threads()
    def change(self, new: Tensor, old: Tensor) -> Tensor:
        """Return u_j(new_j) - u_j(old_j), (B, n_here, N)."""
        return self._timed(lambda: self._blocks.change(new, old))

    def residual(self, v: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the gradient in v, (B, b), which the server knows."""
        return self._blocks.residual(v, rows)

    @all_threads()
    def block_grad(self, blocks: Tensor, r: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return each client's block of the gradient, (B, n_here, w), at a residual r (B, b)."""
        grads = self._timed(lambda: self._blocks.block_grad(blocks, r, rows))
        share = 1.0 if rows is None else rows.shape[-1] / self._blocks.sample_count
        self._pay(self._full * share)
        self._tick(self._full * share)
        return grads

    def _timed(self, work: Callable[[], Tensor]) -> Tensor:
        began = perf_counter()
        done = work()
        self.wire.clock.gradient += perf_counter() - began
        return done

    def assemble(self, blocks: Tensor) -> Tensor:
        """Return the whole x (B, d) of the clients' blocks (B, n_here, w); for the record, unbooked."""
        return self._blocks.assemble(self.wire.transport.gather_rows(blocks, self.wire.n))


Buffers = dict[str, Tensor]


class BufferedOracle(CountedOracle):
    """The oracle of a problem whose gradients carry memory along, such as BatchNorm's statistics.

    buffers: (B, n_here, ..) by name. They change as methods take gradients, never by the record; clients
    that sit out keep theirs. f and metrics are evaluated with their mean over all clients.
    """

    def __init__(self, problem: Problem, wire: BookedWire) -> None:
        super().__init__(problem, wire)
        self.buffers = self._buffered.buffers(wire.B)
        self._after: Buffers = {}  # of the last full gradient, until a method has taken it

    @property
    def _buffered(self) -> Trained:
        assert self._trained is not None
        return self._trained

    def _at(self, x: Tensor, sample: Sample | None, cells: Cells, clients: Tensor | None) -> Tensor:
        before = {name: buffer[cells] for name, buffer in self.buffers.items()}
        grads, losses, self._after = self._buffered.gradients(x, sample, before)
        if sample is not None:
            self.note_losses(losses, cells, clients)
        return grads

    def _everywhere(self, x: Tensor, loss: bool) -> tuple[Tensor, Tensor | None]:
        grads, losses, self._after = self._buffered.gradients(x, None, self.buffers)
        return grads, losses

    def commit_buffers(self, some: Cells | None, clients: Tensor | None) -> None:
        if not self._after:
            return
        after, self._after = self._after, {}
        cells = slice(None) if some is None else some
        for name, new in after.items():
            if clients is not None:
                there = clients.view(*new.shape[:2], *[1] * (new.ndim - 2))
                new = torch.where(there, new, self.buffers[name][cells])
            copy = self.buffers[name].clone()
            copy[cells] = new
            self.buffers[name] = copy
        if self._buffered.shares_buffers:
            for name, buffer in self.buffers.items():
                mean = self.wire.mean(buffer, some)[:, None].expand_as(buffer)
                self.buffers[name][cells] = mean[cells]

    def _measured(
        self, x: Tensor, what: frozenset[str], full: Callable[[], tuple[Tensor, Tensor]]
    ) -> Measured:
        means = self.means()
        measured = self.problem.measure(x, what - EVALUATED - OF_LOSSES, full)
        losses = self._buffered.losses(x, means) if what & OF_LOSSES else None
        values = self._buffered.evaluate(x, means) if what & EVALUATED else {}
        return Measured(measured.grads, losses, {**measured.values, **values})

    def means(self) -> Buffers:
        """Return the mean of the buffers over all clients, (B, ..) by name."""
        gather, n = self.wire.transport.gather_rows, self.wire.n
        return {name: gather(buffer, n).mean(1) for name, buffer in self.buffers.items()}

    # What a run keeps ---------------------------------------------------------------------------

    def select(self, cells: Tensor) -> None:
        """Keep some cells only."""
        super().select(cells)
        self.buffers = {name: buffer[cells] for name, buffer in self.buffers.items()}
        self._after = {}

    def state(self, points: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return what a run that goes on elsewhere must know, the buffers among it."""
        state = super().state(points)
        copies = {name: buffer.clone() for name, buffer in self.buffers.items()}
        return {**state, "buffers": {**copies, **state["buffers"]}}

    def load(self, saved: Mapping[str, Any], points: Mapping[str, Tensor]) -> None:
        """Go on from what ``state`` returned."""
        super().load(saved, points)
        self.buffers, self._after = dict(saved["buffers"]), {}


def oracle_for(problem: Problem, wire: BookedWire) -> CountedOracle:
    """Return the oracle with what the problem is able to do."""
    if isinstance(problem, SplitByFeatures):
        return VerticalOracle(problem, wire)
    if isinstance(problem, Trained) and problem.buffers(1):
        return BufferedOracle(problem, wire)
    if isinstance(problem, Predicting):
        return PredictionOracle(problem, wire)
    return CountedOracle(problem, wire)
