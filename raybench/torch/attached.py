"""What a method attached to a parallel model has in common: its exchanges, report and state."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from raybench.core.errors import InputError
from raybench.torch.exchange import Exchange, Plan
from raybench.torch.report import Log, Report, report
from raybench.torch.saved import parts_of

IDLE = (
    "the optimizer steps along gradients that were never exchanged, so the ranks would drift apart: the backward "
    "pass before it ran under no_sync(), or there was none. Run the last one of a step outside no_sync()."
)


class Attached:
    """Base of what ``attach`` returns. exchanges: those of the parts of the model, in a fixed order.

    An optimizer that steps along gradients of the model that were not exchanged raises RuntimeError. As a context
    it is detached at the end.
    """

    def __init__(self, plan: Plan, model: torch.nn.Module) -> None:
        self.plan, self.on = plan, True
        self.exchanges: list[Exchange] = []
        self.rounds = 0  # backward passes whose gradients were exchanged
        self._own = {id(p) for p in model.parameters()}
        self._seen: dict[int, int] = {}  # by optimizer: the rounds at its last step
        mine = weakref.ref(self)  # torch keeps what it calls: the model must not live for that

        def watch(optimizer: Any, args: Any, kwargs: Any) -> None:
            alive = mine()
            if alive is not None:
                alive._before_step(optimizer)

        self._watch = register_optimizer_step_pre_hook(watch)
        weakref.finalize(self, self._watch.remove)

    def _before_step(self, optimizer: Any) -> None:
        groups = optimizer.param_groups
        if not self.on or not any(id(p) in self._own for p in groups[0]["params"]):
            return
        if self._seen.get(id(optimizer), 0) == self.rounds:
            raise RuntimeError(IDLE)
        self._seen[id(optimizer)] = self.rounds

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
        plan, found = self.plan, self.exchanges
        names = plan.algorithm, "" if plan.compressor is None else str(plan.compressor)
        wide = found[0].dtype.itemsize if found else 4
        logs: list[Log] = [exchange.log for exchange in found]
        return report(logs, names, sum(exchange.layout.dim for exchange in found), wide)

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
