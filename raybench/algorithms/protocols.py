"""What methods see of the world: draws, wire and oracle, three narrow protocols, and ``net``, all of them.

Shapes: B cells, n clients of which n_here are hosted here, d coordinates. An estimator is given the wire
alone, so that it runs in a sweep and in anyone's training loop; a method with a round of its own is
given ``net``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
from torch import Tensor

from raybench.clock.clients import Rounds
from raybench.clock.events import Events
from raybench.core.cells import PerCell
from raybench.core.layout import Layout
from raybench.core.streams import Sample, Stream
from raybench.wire import Message
from raybench.wire.wire import Cells, Received


class Draws(Protocol):
    """What is random in round t, the same however cells and clients are hosted."""

    t: int  # the round
    n: int  # clients in all

    @property
    def n_here(self) -> int:
        """Return how many clients are hosted here."""

    def stream(self, purpose: str) -> Stream:
        """Return this round's streams of the clients here, (B, n_here), independent of each other."""

    def shared_stream(self, purpose: str) -> Stream:
        """Return this round's stream that everyone shares, (B,)."""

    def server_stream(self, purpose: str) -> Stream:
        """Return this round's stream of the server, (B,)."""

    def coin(self, purpose: str, p: PerCell) -> Tensor:
        """Return one coin per cell, bool (B,), the same for all clients: true with probability p."""

    def coins(self, purpose: str, p: PerCell) -> Tensor:
        """Return each client's own coin, bool (B, n_here): true with probability p."""

    def participants(self, p: PerCell) -> Tensor:
        """Return who takes part, bool (B, n_here): each client independently with probability p."""

    def here(self, per_client: Tensor) -> Tensor:
        """Return the part of a tensor (B, n, ..) that belongs to the clients here, (B, n_here, ..)."""


class Wire(Draws, Protocol):
    """What clients and server send each other; every call that sends books what it sends."""

    layout: Layout

    def zeros(self) -> Tensor:
        """Return zeros of the shape of what the clients here send, (B, n_here, d)."""

    def zero(self) -> Tensor:
        """Return zeros of the shape of what the server sends, (B, d)."""

    def server_zeros(self) -> Tensor:
        """Return zeros of the shape of what the server adds up of messages, (B, d); (B, n, d) of a robust server."""

    def up(self, message: Message) -> Received:
        """Send a message per client to the server; everyone learns what the server received."""

    def all_gather(self, message: Message) -> Received:
        """Send a message per client to all others: everyone may use what all of them say."""

    def down(self, message: Message) -> Tensor:
        """Broadcast the server's message (B,) and return what the clients decode, (B, d)."""

    def down_each(self, message: Message) -> Tensor:
        """Send each client here a message of its own, (B, n_here), and return what they decode, (B, n_here, d)."""

    def model(self, x: Tensor) -> Tensor:
        """Broadcast the model x (B, d) as it is and return what the clients hold."""

    def choices(self, x: Tensor, symbols: int) -> Tensor:
        """Broadcast integers x (B, m) in [0, symbols) and return what the clients hold."""

    def mean(self, x: Tensor) -> Tensor:
        """All-reduce: dense values (B, n_here, ...) up, their mean (B, ...) down."""

    def means(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the means of several tensors as ``mean`` does, in one exchange of one message."""

    def mix(self, message: Message) -> Tensor:
        """Send to the neighbours; return sum_j W_ij decode(m_j) of the clients here, (B, n_here, d)."""

    def cases(
        self, coin: Tensor, yes: Callable[[Cells], Message], no: Callable[[Cells], Message]
    ) -> Message:
        """Return the message in which cells with the coin send ``yes(cells)``, the others ``no``."""

    def compressing(self) -> AbstractContextManager[None]:
        """Return a block whose time is that of a compressor, for methods that have none and compress themselves."""

    def charge(self, bits: float, *, down: bool = False) -> None:
        """Book raw bits that every client sends (or the server broadcasts) beside its messages, a finite number >= 0."""


class Oracle(Protocol):
    """What is known of the problem: gradients are counted, what is for the record only is not."""

    @property
    def samples(self) -> Tensor:
        """Return how many samples the clients here have, int64 (n_here,)."""

    @property
    def shares(self) -> Tensor:
        """Return each client's share N_i/N of all samples, (n,)."""

    def smoothness(self) -> Tensor:
        """Return the constants L_i of all clients, (n,)."""

    def grad_and_loss(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return grad f_i(x_i) (B, n_here, d) and f_i(x_i) (B, n_here); counts as a full gradient."""

    def at_minimizer(self) -> Tensor:
        """Return grad f_i(x*) of the clients here, (B, n_here, d); needs ``minimizer=True``."""


class Predictions(Oracle, Protocol):
    """The oracle of a problem that predicts, for methods declared with ``predicts=True``."""

    def common_rows(self, purpose: str, size: int) -> Tensor:
        """Return rows (B, size) of all clients' data, counted through, the same for everyone."""

    def predict(self, X: Tensor, rows: Tensor) -> Tensor:
        """Return predictions (B, m, b, outputs) of X (B, m, d) at rows (B, b): no gradients."""

    def distill(self, X: Tensor, rows: Tensor, teacher: Tensor) -> Tensor:
        """Return grad mean_b D(teacher_b, prediction_b), (B, n_here, d); counts b gradients."""


class Vertical(Oracle, Protocol):
    """The oracle where clients hold features, for methods declared with ``vertical=True``."""

    def split(self, x: Tensor) -> Tensor:
        """Return the blocks (B, n_here, w) of x (B, d) that the clients here hold."""

    def rows(self, purpose: str, size: object) -> Tensor | None:
        """Return a minibatch of so many different samples, (B, b), the same for everyone; None for all."""

    def places(self, rows: Tensor) -> Tensor:
        """Return where the entries of rows (B, b) stand in a message of all samples."""

    def products(self, blocks: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return what the clients contribute, u_j(x_j) (B, n_here, b): A_j x_j for columns A_j."""

    def change(self, new: Tensor, old: Tensor) -> Tensor:
        """Return u_j(new_j) - u_j(old_j), (B, n_here, N)."""

    def residual(self, v: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the gradient of f in v = sum_j u_j, (B, b), which the server knows."""

    def block_grad(self, blocks: Tensor, r: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return each client's block of the gradient, (B, n_here, w), at a residual r (B, b)."""

    def assemble(self, blocks: Tensor) -> Tensor:
        """Return the whole x (B, d) of the clients' blocks (B, n_here, w); for the record."""


class Net(Wire, Protocol):
    """The wire and the oracle in one, for methods with a round of their own."""

    @property
    def oracle(self) -> Oracle:
        """Return what is seldom asked for."""

    def grad(
        self,
        x: Tensor,
        sample: Sample | None = None,
        *,
        cells: Cells | None = None,
        clients: Tensor | None = None,
    ) -> Tensor:
        """Return grad f_i(x) of the clients here, (B, n_here, d); x is (B, d) or (B, n_here, d).

        sample: the gradient of those samples' mean. cells: evaluate and pay for these only. clients:
        bool (B, n_here), who pays. Not to be written to: callers and methods may share it.
        """

    def sample(self, purpose: str, size: int) -> Sample:
        """Return a minibatch of so many samples per client, the same wherever it is used."""

    def prox(self, v: Tensor, gamma: PerCell) -> Tensor:
        """Return prox_{gamma penalty}(v) of the problem's nonsmooth part."""

    def oracle_mean(self, X: Tensor) -> Tensor:
        """Return the mean over all clients of X (B, n_here, d): for the record only, never booked."""

    def oracle_spread(self, X: Tensor) -> Tensor:
        """Return mean_i ||x_i - mean x||^2, (B,), of X (B, n_here, d): for the record, never booked."""


class EventNet(Net, Protocol):
    """The net of asynchronous methods, which speak with one client at a time."""

    events: Events

    def prepare(self, calls: int, batch: object, message: Message) -> None:
        """Make the event queue: gradients per message, their samples, and a message (1, 1) of the method."""

    def call_stream(self, purpose: str, i: int, back: int = 0) -> Stream:
        """Return the stream (B, 1) of client i's latest computation, or of a call ``back`` before its last one."""

    def grad_of(self, i: int, x: Tensor, batch: object = None, back: int = 0) -> Tensor:
        """Return the gradient (B, d) of client i at x (B, d), of ``batch`` samples or all of them."""

    def deliver(self, i: int, message: Message) -> Tensor:
        """Book the message (B, 1) of client i, and return what the server decodes, (B, d)."""

    def begin_computing(self, who: np.ndarray, step: int) -> None:
        """Let clients ``who`` begin a computation each at the model of that step; book it for those that lack it."""


class Timed(Net, Protocol):
    """The net of methods whose rounds depend on the speed of clients."""

    @property
    def timing(self) -> Rounds:
        """Return the clock of rounds, which has the simulated clients: ``clients.tau`` (B, n) and the like."""
