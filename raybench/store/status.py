"""How a sweep stands, read from its results folder alone, while a driver works on it or after the end."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raybench.core.errors import InputError
from raybench.store import identity, lock, log, reader
from raybench.store.files import Files
from raybench.store.lock import Holder

LATELY = 300.0  # seconds over which the rate is taken
COLUMNS = ("cell", "status", "error")


@dataclass(frozen=True)
class Status:
    """How a sweep stands. counts: cells by status, and ``missing`` for those planned that are yet to end.

    begun: of the missing ones, how many were begun. holder: the driver at work, None without one.
    last: when a shard was last written, in seconds since 1970. rate: cells per minute over the last
    minutes, None where its shards do not tell. errors: how often cells failed of what. damaged: files
    that do not count, since they are not what was written; the cells of a damaged one count as missing. earlier: cells
    of earlier versions of the sweep, of which the rest does not tell.
    """

    folder: str
    sweep: Mapping[str, Any]
    counts: Mapping[str, int]
    begun: int
    holder: Holder | None
    last: float | None
    rate: float | None
    errors: Mapping[str, int] = field(default_factory=dict)
    damaged: int = 0
    earlier: int = 0

    @property
    def missing(self) -> int:
        """How many planned cells are yet to end."""
        return self.counts.get("missing", 0)

    @property
    def left(self) -> float | None:
        """Minutes until the missing cells have ended, if it goes on as lately."""
        return self.missing / self.rate if self.rate and self.holder else None

    @property
    def exit_code(self) -> int:
        """Return 1 if cells failed, or are missing while no driver is at work, else 0."""
        stopped = self.missing and self.holder is None
        return 1 if stopped or self.counts.get("failed") else 0


def cause(text: str) -> str:
    """Return the message at the end of a traceback as one line; of a user's mistake without the class.

    The message begins at the last line that is not indented: advice stands in indented lines below it.
    """
    lines = [line for line in text.splitlines() if line.strip()] or ["?"]
    first = max((i for i, line in enumerate(lines) if not line[0].isspace()), default=0)
    message = "; ".join(line.strip() for line in lines[first:])
    return message.removeprefix("raybench.core.errors.InputError: ")


def status_of(folder: str | os.PathLike[str]) -> Status:
    """Return how the sweep of a results folder stands. Reads only.

    Raises InputError if there is no sweep in the folder, or it cannot be reached.
    """
    files = reader.existing(folder)
    text = files.read("sweep.yaml")
    if text is None and not files.names("cells"):
        what = f"{files.name} holds no sweep"
        raise InputError.of("folder", what, "give the folder that holds sweep.yaml and cells/")
    files.check()
    holder = lock.holder(files)  # before the cells: who has ended meanwhile has committed all
    commits = log.look(files, columns=COLUMNS)
    table = commits.cells().to_pandas()
    missing = reader.missing(files, table["cell"])
    shown = reader.planned(files)
    of_sweep = table["cell"].isin(table["cell"] if shown is None else shown)
    earlier, table = int((~of_sweep).sum()), table[of_sweep]
    counts = Counter({"missing": len(missing), **Counter(table["status"].tolist())})
    attempts = log.attempts_of(files) if missing else {}
    last, rate = _rate(files, {s.name: len(s.cells) for s in commits.shards})
    failed = table.loc[table["status"] == "failed", "error"].fillna("").astype(str)
    errors = Counter(map(cause, failed))
    return Status(
        folder=files.name,
        sweep={}
        if text is None
        else identity.parse_saved_sweep(identity.decoded(text, files.name)),
        counts={s: counts[s] for s in (*log.STATUS_RANK, "missing") if counts[s]},
        begun=sum(cell in attempts for cell in missing),
        holder=holder,
        last=last,
        rate=rate,
        errors=dict(errors.most_common()),
        damaged=len(commits.of(log.DAMAGED, *log.UNREADABLE)),
        earlier=earlier,
    )


def _rate(files: Files, cells: Mapping[str, int]) -> tuple[float | None, float | None]:
    """Return when the last shard was written, and how many cells ended per minute of the last few.

    The rate counts from the first of those shards, which tells when, but not how long it took.
    """
    entries = [e for e in files.files_in("cells") if e.name != "skipped.parquet" and e.when]
    last, now = max((e.when for e in entries), default=None), time.time()
    recent = [e for e in entries if e.when > now - LATELY]
    late = sorted((e.when, cells.get(e.name.removesuffix(".parquet"), 0)) for e in recent)
    if len(late) < 2 or now - late[0][0] < 1.0:
        return last, None
    return last, 60.0 * sum(n for _, n in late[1:]) / (now - late[0][0])
