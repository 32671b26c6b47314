"""What a running sweep shows: one tidy live block on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from raybench.core import terminal
from raybench.core.limits import duration
from raybench.core.safe_files import replacement
from raybench.execution.execute import Progress

PROGRESS_VARIABLE = "RAYBENCH_PROGRESS"
TOLD_EVERY = 1.0  # seconds between two writes of that file
TROUBLE_SHOWN = 15.0  # seconds for which a request that an object store failed stays in the block
RATE_AFTER = 2.0  # seconds of rounds before a rate is told, which those of starting up would make far too low
LINE_EVERY = 10.0  # seconds between lines where standard error is no terminal, at least


class View:
    """The live view of one sweep, on standard error.

    cells: to run now; rounds: their cell-rounds; before: cells done in earlier runs.
    """

    def __init__(self, name: str, cells: int, rounds: float, before: int = 0) -> None:
        self.name, self.cells, self.rounds, self.before = name, cells, rounds, before
        self.console = terminal.console(stderr=True, highlight=False)
        self.began = self._last_line = time.monotonic()
        self.now = Progress()
        self._first: tuple[float, float] | None = (
            None  # when rounds were first told of, and how many
        )
        self.stage = "starting"
        self.silent: Sequence[float] = ()
        self._told: tuple[object, ...] = ()  # what the last line was about
        self._live: Live | None = None
        self._trouble, self._troubled = "", -TROUBLE_SHOWN  # what a store failed at, and when
        self._last_told = -TOLD_EVERY

    def __enter__(self) -> View:
        self.began = self._last_line = time.monotonic()
        if self.console.is_terminal:
            self._live = Live(
                self._block(), console=self.console, refresh_per_second=4, transient=True
            )
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live is not None:
            self._live.__exit__(*error)

    def update(
        self, progress: Progress, stage: str = "running", silent: Sequence[float] = ()
    ) -> None:
        """Show the progress made so far.

        silent: seconds since the last word of workers from which none has come for long. Where standard
        error is no terminal, a line is printed when something has changed: cells that ended, a whole
        percent of the rounds, the stage, or how many workers are silent.
        """
        self.now, self.stage, self.silent = progress, stage, silent
        if self._first is None and progress.rounds:
            self._first = time.monotonic(), progress.rounds
        self._tell()
        if self._live is not None:
            self._live.update(self._block())
            return
        percent = int(100 * self._share())
        about = (progress.cells, progress.failed, progress.diverged, percent, stage, len(silent))
        if about != self._told and time.monotonic() - self._last_line > LINE_EVERY:
            self._last_line, self._told = time.monotonic(), about
            print(f"{self.name}: {self._words()}", file=sys.stderr, flush=True)

    def trouble(self, text: str) -> None:
        """Show that an object store failed at something that is tried again; callable from any thread."""
        now = time.monotonic()
        before, self._troubled, self._trouble = self._troubled, now, text
        if self._live is not None:
            self._live.update(self._block())
        elif now - before > TROUBLE_SHOWN:  # the first of a row of them
            print(f"{self.name}: {text}", file=sys.stderr, flush=True)

    def _tell(self) -> None:
        """Write the progress to the file that RAYBENCH_PROGRESS names, for whoever follows from afar."""
        place = os.environ.get(PROGRESS_VARIABLE)
        if not place or time.monotonic() - self._last_told < TOLD_EVERY:
            return
        self._last_told = time.monotonic()
        names = ("name", "cells", "rounds", "before", "stage", "silent")
        facts = {name: getattr(self, name) for name in names}
        facts |= {"seconds": time.monotonic() - self.began, "now": vars(self.now)}
        # a full disk: what commits results tells of it
        with suppress(OSError), replacement(place) as fresh:
            fresh.write_text(json.dumps(facts, default=float))

    def _share(self) -> float:
        return min(1.0, self.now.rounds / self.rounds) if self.rounds else 1.0

    def _words(self) -> str:
        now = self.now
        parts = [f"{now.cells} of {self.cells} cells"]
        ends = {"failed": now.failed, "diverged": now.diverged, "pruned": now.pruned}
        parts += [f"{count} {status}" for status, count in ends.items() if count]
        if self._first is None:
            parts.append(self.stage)
        else:
            seconds, rounds = time.monotonic() - self._first[0], now.rounds - self._first[1]
            if seconds >= RATE_AFTER and rounds > 0:
                parts.append(f"{rounds / seconds:,.0f} cell-rounds/s")
                left = seconds * (self.rounds - now.rounds) / rounds
                parts.append(f"{duration(max(left, 0))} left")
        if self.silent:
            who = "1 worker" if len(self.silent) == 1 else f"{len(self.silent)} workers"
            parts.append(f"{who} silent for {duration(self.silent[0])}")
        return ", ".join(parts)

    def _block(self) -> Group:
        share = self._share()
        head = Table.grid(padding=(0, 2))
        elapsed = duration(time.monotonic() - self.began)
        bar = ProgressBar(total=1.0, completed=share, width=30)
        head.add_row(Text(self.name, style="bold"), bar, f"{share:4.0%}", elapsed)
        lines: list[Table | Text] = [head, Text("  " + self._words(), style="dim")]
        best = sorted(self.now.best.items(), key=lambda item: item[1])[:5]
        if best:
            table = Table.grid(padding=(0, 2))
            for label, value in best:
                table.add_row("  ", label, f"{value:.2e}")
            lines += [Text("  best ||grad f||^2 so far", style="dim"), table]
        if time.monotonic() - self._troubled < TROUBLE_SHOWN:
            lines.append(Text(f"  {self._trouble}", style="yellow"))
        if self.now.errors:
            lines.append(Text(f"  last failure: {self.now.errors[-1][:90]}", style="red"))
        return Group(*lines)
