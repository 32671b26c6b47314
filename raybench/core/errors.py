"""Errors that are the user's to mend: a few lines that name the key, what is allowed and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

MOST_SHOWN = 20  # complaints that are printed
MOST_LETTERS = 500  # of each part of a complaint, which may quote what a file holds


@dataclass(frozen=True)
class Complaint:
    """One thing that is wrong with the input: where it stands, what is wrong, how to mend it."""

    where: str
    what: str
    fix: str = ""

    def __str__(self) -> str:
        where, what, fix = (cut(part, MOST_LETTERS) for part in (self.where, self.what, self.fix))
        head = f"{where}: {what}" if where else what
        return f"{head}\n    {fix}" if fix else head


def cut(text: str, most: int) -> str:
    """Return a text, of one that is longer than ``most`` letters its beginning and three dots."""
    return text if len(text) <= most else text[: most - 3] + "..."


@dataclass(eq=False)
class InputError(ValueError):
    """The input is wrong (exit code 2). Holds every complaint found, not only the first."""

    complaints: list[Complaint] = field(default_factory=list)

    @classmethod
    def of(cls, where: str, what: str, fix: str = "") -> InputError:
        """Return an error with a single complaint."""
        return cls([Complaint(where, what, fix)])

    def __reduce__(self):
        return (InputError, (self.complaints,))  # dataclass + Exception: keep it picklable for Ray

    def shown(self) -> list[str]:
        """Return the complaints as texts; of very many the first, and how many more there are."""
        texts = [str(c) for c in self.complaints[:MOST_SHOWN]]
        more = len(self.complaints) - len(texts)
        return texts + ([f"and {more:,} complaints more"] if more else [])

    def __str__(self) -> str:
        return "\n".join(self.shown())


class Notice(UserWarning):
    """Something about results that whoever reads them should know; the command line prints it as a note."""


class SweepStopped(RuntimeError):
    """A sweep that had to stop through no fault of its cells: what is missing runs another time."""


class FolderLost(SweepStopped):
    """The results folder was removed, or another driver has taken it over, while a sweep ran."""


class StoreError(OSError):
    """An object store failed for longer than patience lasts, or refuses; what it says, and where."""


def count(amount: int, word: str, several: str = "") -> str:
    """Return ``1 cell``, ``1,248 cells``; several: the plural where it is no plain s."""
    return f"{amount:,} {word if amount == 1 else several or word + 's'}"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return ``did you mean X?`` with the nearest of ``names``; if none is near, those allowed, of many the 20 nearest."""
    names = sorted(str(n) for n in names)
    # of two that differ in capitals alone, the one with fewer, which is sorted behind
    by_letters = {n.casefold(): n for n in names}
    near = difflib.get_close_matches(str(name).casefold(), by_letters, n=1, cutoff=0.55)
    if near:
        return f"did you mean {by_letters[near[0]]}?"
    shown = names
    if len(names) > 20:
        near = difflib.get_close_matches(str(name).casefold(), by_letters, n=20, cutoff=0.0)
        shown = [*(sorted(by_letters[n] for n in near) if name else names[:20]), "..."]
    return f"allowed: {', '.join(shown)}" if names else ""
