"""What a method attached to a parallel model has in common: its exchanges, report and state."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from raybench.core.errors import InputError
from raybench.torch.exchange import Exchange, Plan
from raybench.torch.replicas import Replica, local
from raybench.torch.report import Report, report
from raybench.torch.saved import parts_of

IDLE = (
    "the optimizer steps along gradients that were never exchanged, so the ranks would drift apart: the backward "
    "pass before it ran under no_sync(), or there was none. Run the last one of a step outside no_sync()."
)


class Attached:
    """Base of what ``attach`` returns. exchanges: those of the parts of the model, in a fixed order. scaler: the loop's.

    An optimizer that steps along gradients of the model that were not exchanged raises RuntimeError. After a
    backward pass in which any rank's gradients were not finite those that all ranks get are infinite, so that a
    GradScaler sees it, and an optimizer that steps all the same finds none. As a context it is detached at the end.
    """

    def __init__(
        self,
        plan: Plan,
        model: torch.nn.Module,
        replica: Replica,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        self.plan, self.on, self.replica, self.scaler = plan, True, replica, scaler
        self.exchanges: list[Exchange] = []
        self.rounds = 0  # backward passes whose gradients were exchanged, or skipped
        self.skipped = 0  # of these
        self.skipped_at = 0  # the newest of them
        self.dense = 0  # bytes that all gradients so far are as they are
        self.done: list[Exchange] = []  # in this backward pass
        self._own = {id(p) for p in model.parameters()}
        self._seen: dict[int, int] = {}  # by optimizer: the rounds at its last step
        self._checked = 0  # the rounds at the last comparison of parameters
        mine = weakref.ref(self)  # torch keeps what it calls: the model must not live for that

        def watch(optimizer: Any, args: Any, kwargs: Any) -> Any:
            alive = mine()
            return None if alive is None else alive._watched(optimizer, args, kwargs)

        self._watch = register_optimizer_step_pre_hook(watch)
        weakref.finalize(self, self._watch.remove)

    def _watched(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Look at gradients before an optimizer steps: now, or after its closure has made them."""
        if not self.on or not any(id(p) in self._own for p in optimizer.param_groups[0]["params"]):
            return None
        own, *rest = args
        closure = rest[0] if rest else kwargs.get("closure")
        if closure is None:
            self._before_step(optimizer)
            return None
        if isinstance(optimizer, torch.optim.LBFGS):
            what = "LBFGS searches along a line, on each rank by its own loss"
            raise InputError.of(
                "optimizer", what, "CompressedOptimizer(LBFGS(..)), without DistributedDataParallel"
            )

        def evaluate() -> Any:
            loss = closure()
            self._before_step(optimizer)
            return loss

        return (own, evaluate, *rest[1:]), {k: v for k, v in kwargs.items() if k != "closure"}

    def _before_step(self, optimizer: Any) -> None:
        groups = optimizer.param_groups
        self.settle()
        before, self._seen[id(optimizer)] = self._seen.get(id(optimizer), 0), self.rounds
        if before == self.rounds:
            raise RuntimeError(IDLE)
        own = [p for group in groups for p in group["params"] if id(p) in self._own]
        if self.skipped_at == self.rounds or (self.skipped_at > before and self._spoilt(own)):
            for p in own:
                p.grad = None
        if self.replica.every and self.rounds - self._checked >= self.replica.every:
            self._checked = self.rounds
            self.replica.check(self.rounds)

    def _spoilt(self, params: Sequence[Tensor]) -> bool:
        """Return whether gradients still hold those of a pass that was skipped, to which others were added since."""
        grads = [local(p.grad) for p in params if p.grad is not None]
        return self.replica.anywhere(any(not bool(g.isfinite().all()) for g in grads))

    def begin(self) -> None:
        """Begin a backward pass."""
        self.rounds += 1
        self.done = []

    def settle(self) -> None:
        """End a backward pass, where more is to be done than the exchanges."""

    def exchange(self, exchange: Exchange, grad: Tensor, undoable: bool) -> Tensor | None:
        """Return the direction of one part of this backward pass's gradients, None where the pass is skipped.

        The memories of all parts are then as they were before the pass.
        """
        if self.skipped_at == self.rounds:
            exchange.log.skip()
            return None
        u = exchange(grad, undoable=undoable)
        if u is None:
            self.skip(exchange.met.bad)
        else:
            self.done.append(exchange)
        return u

    def skip(self, ranks: Sequence[int]) -> None:
        """Skip this backward pass, for gradients of these ranks; undo what was exchanged in it."""
        for exchange in self.done:
            exchange.undo()
        self.done, self.skipped_at = [], self.rounds
        self.skipped += 1
        if ranks and self.scaler is None:  # a scaler looks for infinities on purpose
            self.replica.say_skipped(self.rounds - 1, ranks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def detach(self) -> None:
        """Go back to averaging gradients as they are; memories are forgotten, and groups of its own given back."""
        self.on, self.exchanges = False, []
        self._watch.remove()

    def report(self) -> Report:
        """Return what the messages cost and did so far; ``print`` gives a line."""
        plan, logs = self.plan, [exchange.log for exchange in self.exchanges]
        names = plan.algorithm, "" if plan.compressor is None else str(plan.compressor)
        return report(logs, names, self.rounds, self.skipped, self.dense)

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank remembers, of the same shapes on every rank; each saves its own.

        ``raybench.torch.whole`` puts those of all ranks together, for another number of ranks.
        """
        own = {"exchanges": [exchange.state() for exchange in self.exchanges]}
        return {"raybench": {"format": 1, "algorithm": self.plan.algorithm, "parts": [own]}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a rank's own ``state_dict``, or from the whole of any number of ranks.

        Raises InputError where it does not fit.
        """
        parts = parts_of(state_dict, self.plan.algorithm)
        counts = {len(part["exchanges"]) for part in parts}
        if counts != {len(self.exchanges)}:
            what = f"it has {max(counts)} parts, this model {len(self.exchanges)}"
            fix = "the same model; with FSDP after its first backward pass"
            raise InputError.of("state_dict", what, fix)
        for i, exchange in enumerate(self.exchanges):
            exchange.load([part["exchanges"][i] for part in parts])
