"""``net``: everything that crosses a wire or touches data, as the algorithms see it.

It books what is sent, counts gradient evaluations, times its parts, and remembers the last full
gradient so that recording f and grad f where a method has just been costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from raybench.algorithms.base import PerCell
from raybench.compressors import Dense, Message
from raybench.core.errors import InputError
from raybench.core.parallel import wide
from raybench.core.streams import Stream
from raybench.planning.graph import Mixing
from raybench.problems.base import Problem
from raybench.wire import CasesMessage, FlaggedMessage
from raybench.wire.ledger import Ledger
from raybench.wire.neighbours import Neighbours
from raybench.wire.transport import Transport


@dataclass(frozen=True)
class Received:
    """The messages of all n clients, in client order."""

    message: Message
    n: int

    def sum(self) -> Tensor:
        """Return the sum over clients, (B, d)."""
        return self.message.sum_clients()

    def mean(self) -> Tensor:
        """Return the mean over all n clients, absent ones as zero, (B, d)."""
        return self.message.sum_clients().div_(self.n)

    def mean_sent(self, weights: Tensor | None = None) -> Tensor:
        """Return the mean over the clients that sent something, (B, d); zero where none did.

        weights: (n,), positive; equal by default.
        """
        who = self.message.present
        if weights is not None:
            w = weights.expand(self.message.lead) if who is None else weights * who
            return self.weighted(w / w.sum(1, keepdim=True).clamp(min=weights.min()))
        total = self.message.sum_clients()
        if who is None:
            return total.div_(self.n)
        return total.div_(who.sum(1, keepdim=True).clamp(min=1))

    def weighted(self, w: Tensor) -> Tensor:
        """Return sum_i w_i m_i, (B, d), for weights (B, n)."""
        return (w[..., None] * self.message.decode()).sum(1)

    def decode(self) -> Tensor:
        """Return every client's decoded message, (B, n, d)."""
        return self.message.decode()

    @property
    def flags(self) -> Tensor:
        """Return the flags of ``choose``, bool (B, n)."""
        return cast(FlaggedMessage, self.message).flags


@dataclass
class _Oracle:
    """The last full gradient: where, its value, the losses, and whether they still hold."""

    x: Tensor
    grads: Tensor
    losses: Tensor | None
    versions: tuple[int, int]
    seconds: float  # what it took, until a method has paid for it
    paid: bool = False  # whether all clients have: the same gradient is counted once

    def holds(self, x: Tensor) -> bool:
        return x is self.x and (x._version, self.grads._version) == self.versions


class Net:
    """The net of B cells for the clients of ``problem`` hosted here.

    roots: one stream per cell (B,), from the cell's seed. graph: for decentralised methods.
    aggregate: the server broadcasts the sum of what it receives, charged by its union.
    """

    def __init__(
        self,
        problem: Problem,
        roots: Stream,
        transport: Transport | None = None,
        graph: Mixing | None = None,
        aggregate: bool = False,
    ) -> None:
        self.problem, self.roots, self.graph, self.aggregate = problem, roots, graph, aggregate
        self.transport = transport or Transport()
        self.B, self.n, self.n_here = len(roots.root), problem.n, len(problem.clients)
        self.layout = problem.layout
        self.ledger = Ledger(self.B)
        self.evals = np.zeros(self.B)  # gradient evaluations, mean per client
        self.want_loss = True  # whether the next full gradient should bring the losses along
        self.seconds = {"gradient": 0.0, "compress": 0.0, "communicate": 0.0}
        self.spared = 0.0  # seconds of gradients that methods took over from the record
        self.consensus: Tensor | None = None
        self._ids = torch.arange(problem.clients.start, problem.clients.stop, device=problem.device)
        self._neighbours = None if graph is None else Neighbours(graph.W[self._here])
        self._samples = torch.tensor(problem.samples, dtype=torch.float64)
        self.t = 0  # the round
        self._round = roots
        self._last: _Oracle | None = None
        self.begin(0)

    def begin(self, t: int) -> None:
        """Start round t: streams are derived from it, and the ledger begins a round."""
        self.t = t
        self.ledger.begin()
        self._round = self.roots.fold("round").fold(t)

    # Gradients -------------------------------------------------------------------------------

    @wide()
    def grad(
        self,
        x: Tensor,
        sample: Tensor | None = None,
        *,
        cells: Any = None,
        clients: Tensor | None = None,
    ) -> Tensor:
        """Return grad f_i(x) of the clients here, (B, n_here, d); x is (B, d) or (B, n_here, d).

        sample: a handle of ``sample``; then the gradient of those samples' mean. cells: evaluate and
        pay for these only. clients: bool (B, n_here), who pays (participants). A full gradient asked
        for again at the same x is remembered and costs nothing more.
        """
        began = perf_counter()
        where = slice(None) if cells is None else cells
        owed, paid = 0.0, False
        if sample is None and x.ndim == 2 and cells is None:
            known = self._last
            last = self.oracle(x)
            grads = last.grads
            if last is known:  # evaluated for the record: the method pays now, not the record
                owed = last.seconds
            paid = last.paid
            last.seconds, last.paid = 0.0, paid or clients is None
        else:
            at = x if cells is None else x[cells]
            grads = self.problem.grad(at, None if sample is None else sample[where])
        self.spared += owed
        self.seconds["gradient"] += perf_counter() - began + owed
        if paid:
            cost: Any = 0.0
        elif sample is not None:
            cost = float(sample.shape[-1])
            if clients is not None:
                cost = self._mean_over_clients(clients.double()) * cost
        elif clients is not None:
            own = self._samples[self._here].to(clients.device)
            cost = self._mean_over_clients(clients.double() * own)
        else:
            cost = float(self._samples.mean())
        self.evals[where if isinstance(where, slice) else where.cpu().numpy()] += cost
        return grads

    @wide()
    def oracle(self, x: Tensor, loss: bool = False) -> _Oracle:
        """Return the full gradients and losses at x (B, d), from memory if they are known."""
        last = self._last
        if last is not None and last.holds(x) and (last.losses is not None or not loss):
            return last
        paid = last is not None and last.holds(x) and last.paid
        began = perf_counter()
        grads, losses = self.problem.oracle(x, loss=loss or self.want_loss)
        spent = 0.0 if paid else perf_counter() - began
        self._last = _Oracle(x, grads, losses, (x._version, grads._version), spent, paid)
        return self._last

    def sample(self, purpose: str, size: int) -> Tensor:
        """Return a minibatch handle: sample indices int64 (B, n_here, size), with replacement."""
        counts = self._samples[self._here].to(self.problem.device)
        return self.stream(purpose).integers(size, counts)

    @property
    def shares(self) -> Tensor:
        """Return each client's share N_i/N of all samples, (n,)."""
        return (self._samples / self._samples.sum()).to(self.problem.device, self.problem.dtype)

    @property
    def samples(self) -> Tensor:
        """Return how many samples the clients here have, int64 (n_here,)."""
        return self._samples[self._here].long().to(self.problem.device)

    @wide()
    def grad_and_loss(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return grad f_i(x_i) (B, n_here, d) and f_i(x_i) (B, n_here); counts as a full gradient."""
        began = perf_counter()
        grads, losses = self.problem.oracle(X)
        assert losses is not None
        self.seconds["gradient"] += perf_counter() - began
        self.evals += float(self._samples.mean())
        return grads, losses

    def common_sample(self, purpose: str, size: int) -> Tensor:
        """Return rows (B, size) of all clients' data, counted through, the same for everyone."""
        return self.shared_stream(purpose).integers(size, int(self._samples.sum()))

    @wide()
    def predict(self, X: Tensor, rows: Tensor) -> Tensor:
        """Return predictions (B, m, b, outputs) of X (B, m, d) at rows (B, b): no gradients.

        Raises InputError where the problem predicts nothing.
        """
        if not self.problem.outputs:
            raise InputError.of("problem", "has no predictions; the method needs them")
        return self.problem.predict(X, rows)

    @wide()
    def distill(self, X: Tensor, rows: Tensor, teacher: Tensor) -> Tensor:
        """Return grad mean_b D(teacher_b, prediction_b) of the clients here, (B, n_here, d); counts b gradients."""
        self.evals += float(rows.shape[-1])
        return self.problem.distill(X, rows, teacher)

    def zeros(self) -> Tensor:
        """Return zeros of the shape of what the clients here send, (B, n_here, d)."""
        shape = (self.B, self.n_here, self.problem.message_dim)
        return torch.zeros(shape, dtype=self.problem.dtype, device=self.problem.device)

    def smoothness(self) -> Tensor:
        """Return the constants L_i of all clients, (n,), which everyone knows as the step size is known.

        Raises InputError where the problem does not know them.
        """
        L = self.problem.constants.L_i
        if not L:
            raise InputError.of("problem", "has no constants L_i; the method needs them")
        return torch.tensor(L, dtype=self.problem.dtype, device=self.problem.device)

    def here(self, per_client: Tensor) -> Tensor:
        """Return the part of a tensor (B, n, ..) that belongs to the clients here, (B, n_here, ..)."""
        return per_client[:, self._here]

    def prox(self, v: Tensor, gamma: PerCell) -> Tensor:
        """Return prox_{gamma penalty}(v) of the problem's nonsmooth part."""
        return self.problem.prox(v, gamma.like(v))

    # Randomness ------------------------------------------------------------------------------

    def stream(self, purpose: str) -> Stream:
        """Return this round's streams of the clients here, (B, n_here), independent of each other."""
        return self._round.fold(purpose).each(self._ids)

    def shared_stream(self, purpose: str) -> Stream:
        """Return this round's stream that everyone shares, (B,)."""
        return self._round.fold(purpose)

    def server_stream(self, purpose: str) -> Stream:
        """Return this round's stream of the server (client -1), (B,)."""
        return self._round.fold(purpose).fold(-1)

    def coin(self, purpose: str, p: PerCell) -> Tensor:
        """Return one coin per cell, bool (B,), the same for all clients: true with probability p."""
        return self.shared_stream(purpose).uniform(1)[:, 0] < p.values

    def participants(self, p: PerCell) -> Tensor:
        """Return who takes part, bool (B, n_here): each client independently with probability p."""
        return self.coins("participants", p)

    def coins(self, purpose: str, p: PerCell) -> Tensor:
        """Return each client's own coin, bool (B, n_here): true with probability p."""
        draws = self.stream(purpose).uniform(1)[..., 0]
        return draws < p.like(draws)

    # Messages --------------------------------------------------------------------------------

    def up(self, message: Message) -> Received:
        """Send a message per client to the server; everyone learns what the server received."""
        began = perf_counter()
        got = self.transport.gather(message, self.n)
        self.ledger.book_up(got)
        if self.aggregate:
            self.ledger.book_union(got)
        self.seconds["communicate"] += perf_counter() - began
        return Received(got, self.n)

    def down(self, message: Message) -> Tensor:
        """Broadcast the server's message (B,) and return what the clients decode, (B, d)."""
        began = perf_counter()
        self.ledger.book_down(message)
        value = message.decode()
        self.seconds["communicate"] += perf_counter() - began
        return value

    def model(self, x: Tensor) -> Tensor:
        """Broadcast the model x (B, d) as it is and return what the clients hold.

        Costs nothing where the server passes on what it receives (``aggregate``): clients step
        themselves.
        """
        return x if self.aggregate else self.down(Dense(x))

    def mean(self, x: Tensor) -> Tensor:
        """All-reduce: dense values (B, n_here, ...) up, their mean (B, ...) down."""
        flat = x.flatten(2)
        mean = self.down(Dense(self.up(Dense(flat)).mean()))
        return mean.unflatten(-1, x.shape[2:])

    def mix(self, message: Message) -> Tensor:
        """Send to the neighbours; return sum_j W_ij decode(m_j) of the clients here, (B, n_here, d)."""
        assert self.graph, "the method needs a graph"
        assert self._neighbours
        began = perf_counter()
        got = self.transport.gather(message, self.n)
        self.ledger.book_up(got, self.graph.degrees)
        mixed = self._neighbours.mixed(got.decode())
        self.seconds["communicate"] += perf_counter() - began
        return mixed

    def cases(
        self,
        coin: Tensor,
        yes: Callable[[Any], Message],
        no: Callable[[Any], Message],
    ) -> Message:
        """Return the message in which cells with the coin send ``yes(cells)``, the others ``no``."""
        if bool(coin.all()):
            return yes(slice(None))
        if not bool(coin.any()):
            return no(slice(None))
        cells = [torch.nonzero(coin).flatten(), torch.nonzero(~coin).flatten()]
        parts = [yes(cells[0]), no(cells[1])]
        return CasesMessage(parts[0].d, parts[0].dtype, cells, parts)

    def charge(self, bits: float, *, down: bool = False) -> None:
        """Book raw bits that every client sends (or the server broadcasts) beside its messages."""
        self.ledger.charge(bits, down)

    # Features split over clients -------------------------------------------------------------

    def split(self, x: Tensor) -> Tensor:
        """Return the blocks (B, n_here, w) of x (B, d) that the clients here hold."""
        return cast(Any, self.problem).split(x)

    @wide()
    def products(self, blocks: Tensor) -> Tensor:
        """Return A_j x_j, (B, n_here, N), from the clients' own blocks."""
        return cast(Any, self.problem).products(blocks)

    @wide()
    def block_grad(self, v: Tensor) -> Tensor:
        """Return each client's block of the gradient, (B, n_here, w), if Ax were v (B, N)."""
        began = perf_counter()
        grads = cast(Any, self.problem).block_grad(v)
        self.seconds["gradient"] += perf_counter() - began
        self.evals += float(self._samples.mean())
        return grads

    # Oracles: for recording only, never booked -------------------------------------------------

    @wide()
    def oracle_at_minimizer(self) -> Tensor:
        """Return grad f_i(x*) of the clients here, (B, n_here, d), where x* has a closed form."""
        star = self.problem.minimizer()
        assert star is not None, "the method is declared with minimizer=True"
        return self.problem.oracle(star.expand(self.B, -1).contiguous(), loss=False)[0]

    def oracle_mean(self, X: Tensor) -> Tensor:
        """Return the mean over all clients of X (B, n_here, d), and note their disagreement."""
        everyone = self.transport.gather_rows(X, self.n)
        mean = everyone.mean(1)
        self.consensus = (everyone - mean[:, None]).square().sum(-1).mean(-1)
        return mean

    def oracle_assemble(self, blocks: Tensor) -> Tensor:
        """Return the whole x (B, d) of the clients' blocks (B, n_here, w)."""
        return cast(Any, self.problem).assemble(self.transport.gather_rows(blocks, self.n))

    # Bookkeeping of the engine -----------------------------------------------------------------

    @property
    def _here(self) -> slice:
        return slice(self.problem.clients.start, self.problem.clients.stop)

    def _mean_over_clients(self, x: Tensor) -> np.ndarray:
        return self.transport.gather_rows(x, self.n).mean(1).cpu().numpy()

    def select(self, cells: Tensor) -> None:
        """Keep some cells only."""
        index = cells.cpu().numpy()
        self.roots, self._round = self.roots[cells], self._round[cells]
        self.B, self.ledger, self.evals = len(cells), self.ledger.select(index), self.evals[index]
        self._last = None
