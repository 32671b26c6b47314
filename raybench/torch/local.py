"""Local steps of a user's optimizer, what they sum up to, and the outer optimizer of the shared point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from raybench.algorithms.build import part
from raybench.algorithms.parts import outer_step
from raybench.core import registry
from raybench.core.cells import PerCell, State
from raybench.core.errors import InputError
from raybench.core.facts import AlgorithmFacts
from raybench.torch import saved
from raybench.torch.exchange import Exchange
from raybench.torch.flat import Flat

YOURS = {
    "inner_step",
    "weight_decay",
}  # parameters of presets that say how the inner optimizer steps


class LocalSteps:
    """H steps of the user's optimizer between exchanges of v = x - y, x the shared point, y this rank's.

    x <- x - step_size u, u being the outer optimizer's of the estimate of mean v; then y = x. Presets such
    as ``diloco`` say H and the outer optimizer where the user does not.
    """

    def __init__(
        self,
        entry: registry.Entry[AlgorithmFacts],
        numbers: Mapping[str, Any],
        local: Mapping[str, Any] | None,
        outer: Mapping[str, Any] | None,
        exchange: Exchange,
        flat: Flat,
    ) -> None:
        for name in YOURS & numbers.keys():
            if numbers[name] != entry.params[name].default:
                what = f"{entry.name} leaves {name} to your optimizer, which does the local steps"
                raise InputError.of(f"algorithm.{name}", what, "set it there")
        own, own_outer = exchange.presets
        if local is not None:
            own = part("local", local)
        assert own is not None
        if local is not None and set(local) - {"steps"}:
            extra = sorted(set(local) - {"steps"})
            what = f"{', '.join(extra)}: your optimizer does the local steps"
            raise InputError.of("local", what, "local={'steps': H}")
        self.each = own.steps
        settings = dict(outer or {})
        step = settings.pop("step_size", 1.0)
        if not isinstance(step, int | float) or isinstance(step, bool) or not step > 0:
            raise InputError.of("outer.step_size", f"{step!r}", "a number above 0")
        self.step_size = float(step)
        self.outer = part("outer", settings) if settings else own_outer
        if self.outer is not None and isinstance(self.outer.momentum, PerCell):
            self.outer = replace(self.outer, momentum=float(self.outer.momentum.values))
        self.exchange, self.flat = exchange, flat
        self.x, self.count, self.s = flat.point(), 0, State()

    def after_step(self) -> bool:
        """Count a local step; after H of them exchange, and move to the new shared point.

        False where that was skipped: all ranks are back at the shared point of before.
        """
        self.count += 1
        if self.count < self.each:
            return True
        self.count = 0
        direction = self.exchange(self.x - self.flat.point(), 1.0)
        if direction is not None:
            u = direction[None]
            if self.outer is not None:
                u = outer_step(self.outer, self.s, u, self.step_size)
                if self.outer.weight_decay:
                    u = u + self.outer.weight_decay * self.x
            in_steps = self.outer is not None and self.outer.in_steps
            self.x = self.x - (u[0] if in_steps else self.step_size * u[0])
        self.flat.move(self.x)
        return direction is not None

    def state(self) -> dict[str, Any]:
        """Return the shared point, the outer optimizer's memory, and how many steps were done since."""
        return {"x": self.x.clone(), "count": self.count, "s": self.s.state()}

    def load(self, state: Mapping[str, Any], resized: bool) -> None:
        """Go on from what ``state`` returned; with another number of ranks from the shared point."""
        device = self.x.device
        self.x = saved.on(state["x"], device)
        self.s = State.of({name: saved.on(value, device) for name, value in state["s"].items()})
        self.count = state["count"]
        if resized:
            self.count = 0
            self.flat.move(self.x)
