"""Where the seconds of a round go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Clock:
    """Seconds spent so far on gradients, on operators and on exchanging messages."""

    gradient: float = 0.0
    compress: float = 0.0
    communicate: float = 0.0

    @property
    def parts(self) -> tuple[float, float, float]:
        """Return the three, in the order of the columns ``seconds_*``."""
        return self.gradient, self.compress, self.communicate
