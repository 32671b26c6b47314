"""How a sweep ended, as ``drive`` returns it."""

from __future__ import annotations

from dataclasses import dataclass

from raybench.core.endings import INTERRUPTED, TERMINATED
from raybench.execution.plan import Plan


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended.

    counts: planned cells by status (``missing`` for those that did not get their turn). seconds: of
    this run. plan: what was planned. terminated: whether SIGTERM interrupted it, rather than Ctrl-C.
    repairs: what was found in the folder that was not as it was written, and what became of it.
    """

    folder: str
    counts: dict[str, int]
    seconds: float
    interrupted: bool
    plan: Plan
    terminated: bool = False
    repairs: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """Return 0 if every cell ended, 1 if some failed or are missing or all were skipped, 130 if
        interrupted by Ctrl-C, 143 by SIGTERM.
        """
        if self.interrupted:
            return TERMINATED if self.terminated else INTERRUPTED
        idle = not self.plan.cells  # every cell was skipped
        return 1 if idle or self.counts.get("failed") or self.counts.get("missing") else 0
