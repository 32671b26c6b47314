"""Disks that fail, or lose power, at every single thing a sweep does to them: is anything lost?

    python benchmarks/disk_faults.py [--faults 1000] [--seed 0]

The story is a sweep whose cells fail, and its extension that runs them again. A run without faults counts
what it does to the disk: each folder made, file written, renamed, removed or synced. Then the story is told
again and again, with one fault each time:

    full     from then on every write and every new folder fails with ENOSPC, half of the data written
    broken   that one operation fails with EIO
    crash    the process dies there, and the power fails: of what was not synced any part may be lost

What was committed before the fault must be there after it. Then the same commands run on a sound disk. Their tables must be those of the run without faults, each
cell one row in the plain Parquet files, and ``raybench verify`` must find nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pandas as pd

import raybench
from raybench.core.errors import FolderLost
from raybench.store import Store, log
from raybench.store.files import Disk, open_folder
from raybench.store.log import verified

KINDS = ("full", "broken", "crash")
FIRST = {
    "name": "faults",
    "problem": {"name": "quadratic", "dim": 5, "clients": 2},
    "algorithm": ["gd", "ef21"],
    "compressor": [{"name": "top_k", "k": 1}],
    "step_size": {"theory": [1, 2]},
    "rounds": 20,
    "timeout": 1e-9,
}
SECOND = {**{k: v for k, v in FIRST.items() if k != "timeout"}, "seed": [0, 1]}
CLOCK = ("seconds", "started", "attempts", "batch", "peak")


class Crash(BaseException):
    """The process is dead: nothing may catch this."""


class FaultyDisk(Disk):
    """A disk that does as told until its operation number ``at``, and then fails as ``kind`` says."""

    def __init__(self, at: int = -1, kind: str = "", seed: int = 0) -> None:
        self.at, self.kind, self.done = at, kind, 0
        self.rng = random.Random(seed)
        self.unsynced: list[tuple[Path, Callable[[], None]]] = []  # a folder, and how to undo

    def _next(self, needs_room: bool) -> None:
        self.done += 1
        if self.done < self.at or self.at < 0:
            return
        if self.kind == "crash":
            if self.done == self.at:
                self.lose_power()
            raise Crash
        if self.kind == "full" and needs_room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.kind == "broken" and self.done == self.at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def lose_power(self) -> None:
        """Undo at random what was not synced, the latest first."""
        for _, undo in reversed(self.unsynced):
            if self.rng.random() < 0.5:
                undo()
        self.unsynced.clear()

    def mkdir(self, folder: Path) -> None:
        self._next(True)
        there = folder.exists()
        super().mkdir(folder)
        if not there:
            undo = lambda: shutil.rmtree(folder, ignore_errors=True)  # noqa: E731
            self.unsynced.append((folder.parent, undo))

    def write(self, path: Path, data: bytes) -> None:
        try:
            self._next(True)
        except (OSError, Crash):
            with contextlib.suppress(OSError):
                path.write_bytes(data[: len(data) // 2])
            raise
        super().write(path, data)

    def create(self, path: Path, data: bytes) -> bool:
        self._next(True)
        return super().create(path, data)

    def rename(self, path: Path, goal: Path) -> None:
        self._next(False)
        before = goal.read_bytes() if goal.exists() else None
        super().rename(path, goal)
        self.unsynced.append((goal.parent, lambda: _restore(goal, before)))

    def unlink(self, path: Path) -> None:
        self._next(False)
        before = path.read_bytes() if path.exists() else None
        super().unlink(path)
        self.unsynced.append((path.parent, lambda: _restore(path, before)))

    def sync(self, folder: Path) -> None:
        self._next(False)
        super().sync(folder)
        self.unsynced = [(place, undo) for place, undo in self.unsynced if place != folder]


def _restore(path: Path, before: bytes | None) -> None:
    with contextlib.suppress(FileNotFoundError):  # its folder may be lost as well
        path.unlink() if before is None else path.write_bytes(before)


def tell(folder: Path, disk: Disk, committed: list[str] | None = None) -> None:
    """Run the story to its end on a disk; note the shards that it was told are committed."""
    put = Store.put

    def noting(self: Store, shard: str, curves: bytes | None, cells: bytes) -> None:
        put(self, shard, curves, cells)
        if committed is not None:
            committed.append(shard)

    disks = mock.patch("raybench.store.files.DISK", disk)
    with disks, mock.patch.object(Store, "put", noting):
        raybench.sweep(FIRST, folder, inline=True)
        raybench.sweep(SECOND, folder, inline=True, retry_failed=True)


def tables(folder: Path) -> list[pd.DataFrame]:
    """Return the cells and curves as other readers see them, without what depends on the clock."""
    result = []
    for kind, keys in (("cells", ["cell"]), ("curves", ["cell", "round"])):
        table = pd.read_parquet(folder / kind)
        assert not table.duplicated(keys).any(), f"a row of {kind} stands there twice"
        table = table.drop(columns=[c for c in table if c.startswith(CLOCK)])
        if "extra" in table:
            table["extra"] = table["extra"].map(lambda m: sorted(dict(m or []).items()))
        result.append(table.sort_values(keys, ignore_index=True))
    return result


def try_fault(
    folder: Path,
    at: int,
    kind: str,
    want: list[pd.DataFrame],
    seed: int = 0,
    disk: FaultyDisk | None = None,
) -> str:
    """Return how the story ended with this fault. Raises AssertionError if anything was lost."""
    committed: list[str] = []
    try:
        tell(folder, disk or FaultyDisk(at, kind, seed), committed)
        ended = "went on"
    except Crash:
        ended = "died"
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO):
            raise
        ended = "stopped by an error"
    except FolderLost:
        ended = "stopped by a lost folder"
    if (folder / "cells").is_dir():
        cells = pd.read_parquet(folder / "cells") if any((folder / "cells").iterdir()) else None
        assert cells is None or cells["cell"].is_unique, "a cell stands there twice after the fault"
    kept = {shard.name for shard in log.look(open_folder(folder), deep=True).shards}
    assert set(committed) <= kept, f"committed and lost: {set(committed) - kept}"
    raybench.sweep(SECOND, folder, inline=True, retry_failed=True)
    for result, table in zip(tables(folder), want, strict=True):
        pd.testing.assert_frame_equal(result, table)
    left = verified(open_folder(folder)).findings
    assert not left, left
    assert not log.doubles(log.look(open_folder(folder)))
    return ended


@contextlib.contextmanager
def undisturbed() -> Iterator[tuple[Path, int, list[pd.DataFrame]]]:
    """Yield a folder for the stories, how much the story does to a disk, and its tables."""
    with tempfile.TemporaryDirectory(prefix="raybench-faults-") as name:
        disk = FaultyDisk()
        tell(Path(name) / "whole", disk)
        yield Path(name), disk.done, tables(Path(name) / "whole")


def faults(count: int, steps: int, seed: int) -> list[tuple[int, str]]:
    """Return so many (operation, kind), every one once before any comes again, in random order."""
    every = [(at, kind) for at in range(1, steps + 1) for kind in KINDS]
    rng, drawn = random.Random(seed), []
    while len(drawn) < count:
        drawn += rng.sample(every, len(every))
    return drawn[:count]


def main() -> None:
    """Print what became of all faults."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    ended: Counter[tuple[str, str]] = Counter()
    with undisturbed() as (folder, steps, want):
        print(f"the story does {steps} things to the disk")
        for j, (at, kind) in enumerate(faults(given.faults, steps, given.seed)):
            story = folder / "story"
            ended[kind, try_fault(story, at, kind, want, seed=given.seed + j)] += 1
            shutil.rmtree(story)
    for (kind, how), times in sorted(ended.items()):
        print(f"{kind:8s} {how:24s} {times:6d}")
    print(f"{sum(ended.values())} faults, nothing lost")


if __name__ == "__main__":
    main()
