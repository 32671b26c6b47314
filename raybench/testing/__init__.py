"""The conformance kit: what is asked of every plug-in, ours and users' alike (``raybench check``).

Each check is a function that raises AssertionError with a readable message; ``findings`` runs a set
of them and reports one line each.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from raybench.core.errors import InputError

if TYPE_CHECKING:
    from raybench.core.registry import Entry


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


def tried(entry: Entry[Any], **options: Any) -> Iterator[Finding]:
    """Yield what the kit of its kind finds of a plug-in; an error of the user's own code, before a check began, is a finding.

    options: of the kit's ``check_entry``.
    """
    try:
        yield from import_module(f"{__name__}.{entry.kind}s").check_entry(entry, **options)
    except InputError:
        raise
    except Exception as error:
        yield Finding("can be made", entry.name, f"{type(error).__name__}: {error}")


def summary(about: str, findings: Sequence[Finding], told: set[str]) -> Iterator[str]:
    """Yield what is said of one set of parameters; told: checks whose failure has been printed, each once."""
    failures = [finding for finding in findings if not finding.ok]
    again: list[str] = []
    for finding in failures:
        if finding.check in told:
            again.append(finding.check)
        else:
            told.add(finding.check)
            yield str(finding)
    if again:
        yield f"FAIL  {about}, too: {', '.join(dict.fromkeys(again))}"
    if not failures:
        unclaimed = ", ".join(finding.check for finding in findings if not finding.claimed)
        claimed = sum(finding.claimed for finding in findings)
        checks = f"{claimed} check{'' if claimed == 1 else 's'}"
        yield f"ok    {about}: {checks}{f'; not claimed: {unclaimed}' if unclaimed else ''}"


def _line(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}: {frame.line}"
