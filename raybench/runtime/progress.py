"""What a running sweep shows: one tidy live block on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from raybench.engine.execute import Progress

LINE_EVERY = 10.0  # seconds between lines where standard error is no terminal


def added(parts: Mapping[int, Progress]) -> Progress:
    """Return the sum of the packs' progress."""
    total = Progress()
    for part in parts.values():
        total.ok += part.ok
        total.failed += part.failed
        total.diverged += part.diverged
        total.rounds += part.rounds
        total.errors += part.errors
        for label, value in part.best.items():
            total.best[label] = min(value, total.best.get(label, value))
    return total


def clock(seconds: float) -> str:
    """Return a duration as people write it: 8 s, 3:07, 1:02:03."""
    s = round(seconds)
    if s < 60:
        return f"{s} s"
    return (
        f"{s // 60}:{s % 60:02d}" if s < 3600 else f"{s // 3600}:{s % 3600 // 60:02d}:{s % 60:02d}"
    )


class View:
    """The live view of one sweep, on standard error.

    cells: to run now; rounds: their cell-rounds; before: cells done in earlier runs.
    """

    def __init__(self, name: str, cells: int, rounds: float, before: int = 0) -> None:
        self.name, self.cells, self.rounds, self.before = name, cells, rounds, before
        self.console = Console(stderr=True, highlight=False)
        self.began = self._last_line = time.monotonic()
        self.now = Progress()
        self.stage = "starting"
        self._live: Live | None = None

    def __enter__(self) -> View:
        self.began = self._last_line = time.monotonic()
        if self.console.is_terminal:
            self._live = Live(
                self._block(), console=self.console, refresh_per_second=4, transient=True
            )
            self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def update(self, progress: Progress, stage: str = "running") -> None:
        """Show the progress made so far."""
        self.now, self.stage = progress, stage
        if self._live is not None:
            self._live.update(self._block())
        elif time.monotonic() - self._last_line > LINE_EVERY:
            self._last_line = time.monotonic()
            print(f"{self.name}: {self._words()}", file=sys.stderr, flush=True)

    def _words(self) -> str:
        now, elapsed = self.now, time.monotonic() - self.began
        parts = [f"{now.cells} of {self.cells} cells"]
        if now.failed:
            parts.append(f"{now.failed} failed")
        if now.diverged:
            parts.append(f"{now.diverged} diverged")
        if now.rounds:
            parts.append(f"{now.rounds / max(elapsed, 1e-9):,.0f} cell-rounds/s")
            left = elapsed * (self.rounds - now.rounds) / now.rounds
            parts.append(f"{clock(max(left, 0))} left")
        else:
            parts.append(self.stage)
        return ", ".join(parts)

    def _block(self) -> Group:
        share = min(1.0, self.now.rounds / self.rounds) if self.rounds else 1.0
        head = Table.grid(padding=(0, 2))
        elapsed = clock(time.monotonic() - self.began)
        bar = ProgressBar(total=1.0, completed=share, width=30)
        head.add_row(Text(self.name, style="bold"), bar, f"{share:4.0%}", elapsed)
        lines: list[Table | Text] = [head, Text("  " + self._words(), style="dim")]
        best = sorted(self.now.best.items(), key=lambda item: item[1])[:5]
        if best:
            table = Table.grid(padding=(0, 2))
            for label, value in best:
                table.add_row("  ", label, f"{value:.2e}")
            lines += [Text("  best ||grad f||^2 so far", style="dim"), table]
        if self.now.errors:
            lines.append(Text(f"  last failure: {self.now.errors[-1][:90]}", style="red"))
        return Group(*lines)
