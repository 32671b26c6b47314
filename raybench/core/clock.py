"""Seconds: where those of a round go, and how people write them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter


@dataclass
class Clock:
    """Seconds spent so far, each counted once.

    gradient: on gradients. compress: on compressors. communicate: on exchanging messages, booking them,
    and adding up what came.
    """

    gradient: float = 0.0
    compress: float = 0.0
    communicate: float = 0.0

    @property
    def parts(self) -> tuple[float, float, float]:
        """Return the three, in the order of the columns ``seconds_*``."""
        return self.gradient, self.compress, self.communicate

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Count the time of a block for one part, but for what within it is counted for another."""
        began, before = perf_counter(), sum(self.parts)
        try:
            yield
        finally:
            counted = sum(self.parts) - before
            setattr(self, part, getattr(self, part) + perf_counter() - began - counted)


def duration(seconds: float) -> str:
    """Return a duration as people write it: 8 s, 3:07, 1:02:03."""
    s = round(seconds)
    if s < 60:
        return f"{s} s"
    return (
        f"{s // 60}:{s % 60:02d}" if s < 3600 else f"{s // 3600}:{s % 3600 // 60:02d}:{s % 60:02d}"
    )
