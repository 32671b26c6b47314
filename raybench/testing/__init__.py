"""The conformance kit: what is asked of every plug-in, ours and users' alike (``raybench check``).

Each check is a function that raises AssertionError with a readable message; ``findings`` runs a set
of them and reports one line each.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class NotClaimed(Exception):
    """Raised by a check of something that its subject does not claim: there is nothing to check."""


@dataclass(frozen=True)
class Finding:
    """What one check found; ``detail`` says what is wrong (empty if nothing is).

    claimed: whether the subject claims what the check is about; of what it does not claim nothing was checked.
    """

    check: str
    about: str
    detail: str = ""
    claimed: bool = True

    @property
    def ok(self) -> bool:
        """Whether the check passed."""
        return not self.detail

    def __str__(self) -> str:
        if not self.claimed:
            return f"-     {self.about}: {self.check}: not claimed"
        if self.ok:
            return f"ok    {self.about}: {self.check}"
        text = " ".join(self.detail.split())
        return f"FAIL  {self.about}: {self.check}: {text[:300]}"


class Checks(dict[str, Callable[[Any], None]]):
    """Checks by name, in the order they were defined; used as a decorator that adds one."""

    def __call__(self, check: Callable[[Any], None]) -> Callable[[Any], None]:
        self[check.__name__.replace("_", " ")] = check
        return check


def findings(checks: Checks, subject: Any, about: str) -> list[Finding]:
    """Return what every check finds about the subject; a check that raises, but NotClaimed, has found a fault."""
    results = []
    for name, check in checks.items():
        detail, claimed = "", True
        try:
            check(subject)
        except NotClaimed:
            claimed = False
        except AssertionError as error:
            detail = str(error) or _line(error)
        except Exception as error:
            detail = f"{type(error).__name__}: {error} ({_line(error)})"
        results.append(Finding(name, about, detail, claimed))
    return results


def made(make: Callable[[], object], about: str) -> list[Finding]:
    """Return the one finding about what cannot even be made, instead of the same one from every check; else none."""
    try:
        make()
    except Exception as error:
        detail = f"{type(error).__name__}: {error} ({_line(error)})"
        return [Finding("can be made", about, detail)]
    return []


def _line(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}: {frame.line}"
