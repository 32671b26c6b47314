"""Is anything lost when processes are killed, or disks fail? Sweeps are disturbed, run again, and compared.

    python benchmarks/chaos.py --kills 100 --seed 0
    python benchmarks/chaos.py --disk 1000

The floor is the same sweep undisturbed. What is in a folder afterwards is compared with it on the Parquet files as any
reader sees them: every cell once, every round of its curve once, every value the same bit for bit, but for what depends
on the clock. Exit code 1 if anything was lost or differs.

``--kills``: the same command is run over and over, and of its processes (workers, raylet, driver) one after the other is
killed by SIGKILL at a moment drawn from the seed, until so many kills are done; the last command is let be. Prints a table
of what was killed and what happened.

``--disk``: the story is a sweep whose cells fail, and its extension that runs them again. A run without faults counts
what it does to the disk: each folder made, file written, renamed, removed or synced. Then the story is told so many
times with one fault each:

    full     from then on every write and every new folder fails with ENOSPC, half of the data written
    broken   that one operation fails with EIO
    crash    the process dies there, and the power fails: of what was not synced any part may be lost

What was committed before the fault must be there after it. Then the same commands run on a sound disk, after which
``raybench verify`` must find nothing either.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pandas as pd
import psutil

import raybench
from raybench.core.errors import FolderLost
from raybench.runtime import leftovers
from raybench.store import Store, log
from raybench.store.files import Disk, open_folder
from raybench.store.log import verified

SWEEP = """
name: chaos
problem: {name: logistic, dataset: breast_cancer, clients: 4, regularizer: nonconvex, lambda: 0.1, scale: columns}
algorithm: [ef21, {name: marina, p: 0.2, compressor: {name: rand_k, k: 3}}]
compressor: {name: top_k, k: [1, 2, 3, 4, 5, 6, 7]}
step_size: {theory: [1, 4]}
seed: 0..1
rounds: ROUNDS
attempts: 1000
resources: {mode: MODE, workers: WORKERS}
"""
ROUNDS = {"simulate": 4000, "train": 400}
WORKERS = {"simulate": 1, "train": 2}
VICTIMS = {  # what a process's command line contains, and how often such a one is chosen
    "worker": (("Trainable.train", "ImplicitFunc.train", "RayTrainWorker", "TrainController"), 5),
    "raylet": (("/raylet/raylet",), 2),
    "control store": (("/gcs/gcs_server",), 1),
    "driver": ((), 3),
}
MOST_PER_SWEEP = 12  # kills
SHARE_AT_START = 0.2  # of the kills fall while Ray is starting
LONGEST_WAIT = 8.0  # seconds of work before a kill, at most
PATIENCE = 1800.0  # seconds for a sweep after its last kill: several minutes where other work takes the cores
SOON = 5.0  # seconds after which nothing of a driver may be left
CLOCK = (
    "seconds",
    "started",
    "attempts",
    "batch",
    "peak",
)  # columns that begin so depend on the clock
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


@dataclass
class Tally:
    """What was killed and what happened: lines of (mode, victim, when, what happened) with their number."""

    happened: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest_end: float = 0.0  # seconds until the last process of a command was gone


def written(folder: Path) -> list[pd.DataFrame]:
    """Return the cells and the curves of a folder as they lie there, in order, without what depends on the clock."""
    result = []
    for part, keys in (("cells", ["cell"]), ("curves", ["cell", "round"])):
        table = pd.read_parquet(folder / part)
        table = table.drop(columns=[name for name in table if name.startswith(CLOCK)])
        if "extra" in table:
            table["extra"] = table["extra"].map(lambda m: sorted(dict(m or []).items()))
        result.append(table.sort_values(keys, ignore_index=True))
    return result


def differences(folder: Path, undisturbed: Path) -> list[str]:
    """Return what is wrong with a folder, given the same sweep's that nobody disturbed."""
    (cells, curves), (want_cells, want_curves) = written(folder), written(undisturbed)
    wrong = []
    if not cells.cell.is_unique:
        wrong.append(f"{int(cells.cell.duplicated().sum())} cells stand twice")
    if curves.duplicated(["cell", "round"]).any():
        wrong.append(f"{int(curves.duplicated(['cell', 'round']).sum())} rounds stand twice")
    lost = set(want_cells.cell) - set(cells.cell)
    if lost:
        wrong.append(f"{len(lost)} cells are lost")
    for name, have, want in (("cells", cells, want_cells), ("curves", curves, want_curves)):
        try:
            pd.testing.assert_frame_equal(have, want, check_exact=True)
        except AssertionError as error:
            wrong.append(f"{name} differ: {' '.join(str(error).split())[:200]}")
    return wrong


class Command:
    """One run of the sweep command, and all processes that it has started."""

    def __init__(self, file: Path, out: Path, log: Path) -> None:
        with open(log, "ab") as said:
            self.driver = psutil.Popen(
                [sys.executable, "-m", "raybench", "sweep", str(file), "--out", str(out)],
                stdout=said,
                stderr=said,
            )
        self.family: dict[psutil.Process, str] = {}

    def look(self) -> None:
        """Take note of the processes that are there now."""
        try:
            children = self.driver.children(recursive=True)
        except psutil.Error:
            return
        for child in children:
            try:
                self.family[child] = " ".join(child.cmdline())
            except psutil.Error:
                continue

    def of_kind(self, kind: str) -> list[psutil.Process]:
        """Return the living processes of a kind of victim."""
        words = VICTIMS[kind][0]
        return [
            p for p, said in self.family.items() if any(w in said for w in words) and not gone(p)
        ]

    def ended(self) -> bool:
        """Return whether the driver has ended."""
        return self.driver.poll() is not None

    def wait(self, seconds: float) -> bool:
        """Return whether the driver ends within so many seconds."""
        until = time.monotonic() + seconds
        while not self.ended() and time.monotonic() < until:
            self.look()
            time.sleep(0.1)
        return self.ended()

    def bury(self) -> tuple[float, list[str]]:
        """Wait for the end of all processes; return the seconds it took and what had to be killed."""
        began = time.monotonic()
        watchdog = leftovers.__file__  # what ends the others lives longer than they
        others = [p for p, said in self.family.items() if watchdog not in said]
        while any(not gone(p) for p in others) and time.monotonic() < began + SOON:
            time.sleep(0.05)
        took = time.monotonic() - began
        survivors = [p for p in others if not gone(p)]
        for process in survivors:
            process.kill()
        return took, [self.family[p][:80] for p in survivors]


def gone(process: psutil.Process) -> bool:
    """Return whether a process has ended."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def disturb(mode: str, kills: int, chance: random.Random, folder: Path, tally: Tally) -> None:
    """Run a mode's sweep with so many kills in all, anew after ``MOST_PER_SWEEP`` of them; compare."""
    folder.mkdir(parents=True)
    file = folder / "sweep.yaml"
    text = SWEEP.replace("MODE", mode).replace("WORKERS", str(WORKERS[mode]))
    file.write_text(text.replace("ROUNDS", str(ROUNDS[mode])))
    undisturbed = folder / "undisturbed"
    first = Command(file, undisturbed, folder / "log.txt")
    if not first.wait(PATIENCE) or first.driver.returncode != 0:
        tally.wrong.append(f"{mode}: the undisturbed run did not end well: {folder / 'log.txt'}")
        return
    first.bury()
    left, number = kills, 0
    while left > 0 and not tally.wrong:
        out = folder / f"disturbed-{number}"
        number += 1
        left -= _until_done(mode, min(left, MOST_PER_SWEEP), chance, file, out, tally)
        if not tally.wrong:
            tally.wrong += [f"{mode}, {out}: {what}" for what in differences(out, undisturbed)]
        if not tally.wrong:
            shutil.rmtree(out)


def _until_done(
    mode: str, kills: int, chance: random.Random, file: Path, out: Path, tally: Tally
) -> int:
    """Repeat the command until it ends well, with at most so many kills; return how many there were."""
    done = 0
    for _ in range(4 * kills + 4):  # commands; each but the last is killed or loses its Ray
        command = Command(file, out, file.parent / "log.txt")
        while done < kills and not command.ended():
            happened = _kill_one(mode, chance, command)
            if happened is None:
                break
            tally.happened[happened] += 1
            done += 1
            number = f"{tally.happened.total():4}"
            print(f"{number}  {'  '.join(happened)}", file=sys.stderr, flush=True)
        if not command.wait(PATIENCE):
            tally.wrong.append(f"{mode}: a command hangs, {file.parent / 'log.txt'}")
            command.driver.kill()
        took, late = command.bury()
        tally.slowest_end = max(tally.slowest_end, took)
        tally.wrong += [f"{mode}: left running after {SOON:g} s: {words}" for words in late]
        if tally.wrong or command.driver.returncode == 0:
            return done
    tally.wrong.append(f"{mode}: the sweep does not end")
    return done


def _kill_one(
    mode: str, chance: random.Random, command: Command
) -> tuple[str, str, str, str] | None:
    """Kill one process and return what it was and what happened; None where the command ended before."""
    kind = chance.choices(list(VICTIMS), [often for _, often in VICTIMS.values()])[0]
    starting = chance.random() < SHARE_AT_START and kind == "driver"
    wait = chance.uniform(0, LONGEST_WAIT)
    when = "at the start" if starting else "at work"
    while not starting and not command.of_kind("worker"):
        if command.wait(0.1):
            return None
    if command.wait(wait):
        return None
    victims = [command.driver] if kind == "driver" else command.of_kind(kind)
    if not victims:  # it is being replaced at this very moment
        return _kill_one(mode, chance, command)
    try:
        os.kill(chance.choice(victims).pid, signal.SIGKILL)
    except ProcessLookupError:
        return None
    if kind == "worker":
        return mode, kind, when, "the command went on"
    if not command.wait(PATIENCE):
        return mode, kind, when, "the command hung"
    code = command.driver.returncode
    said = "resumed" if kind == "driver" else f"the command ended with {code}, resumed"
    return mode, kind, when, said


# Disks that fail -------------------------------------------------------------------------------------


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


def try_fault(folder: Path, disk: FaultyDisk, whole: Path) -> str:
    """Return how the story ended on a disk. Raises AssertionError if anything was lost."""
    committed: list[str] = []
    try:
        tell(folder, disk, committed)
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
    left = [*differences(folder, whole), *verified(open_folder(folder)).findings]
    assert not left, left
    assert not log.doubles(log.look(open_folder(folder)))
    return ended


@contextlib.contextmanager
def undisturbed() -> Iterator[tuple[Path, int]]:
    """Yield a folder with the results of the story, and how much it does to a disk."""
    with tempfile.TemporaryDirectory(prefix="raybench-faults-") as name:
        disk = FaultyDisk()
        tell(Path(name) / "whole", disk)
        yield Path(name) / "whole", disk.done


def faults(count: int, steps: int, seed: int) -> list[tuple[int, str]]:
    """Return so many (operation, kind), every one once before any comes again, in random order."""
    every = [(at, kind) for at in range(1, steps + 1) for kind in KINDS]
    rng, drawn = random.Random(seed), []
    while len(drawn) < count:
        drawn += rng.sample(every, len(every))
    return drawn[:count]


def on_disks(count: int, seed: int) -> None:
    """Try so many faults, and print what became of them."""
    ended: Counter[tuple[str, str]] = Counter()
    with undisturbed() as (whole, steps):
        print(f"the story does {steps} things to the disk")
        for j, (at, kind) in enumerate(faults(count, steps, seed)):
            story = whole.with_name("story")
            ended[kind, try_fault(story, FaultyDisk(at, kind, seed + j), whole)] += 1
            shutil.rmtree(story)
    for (kind, how), times in sorted(ended.items()):
        print(f"{kind:8s} {how:24s} {times:6d}")
    print(f"{sum(ended.values())} faults, nothing lost")


def main() -> int:
    """Run from the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mode", choices=("both", *ROUNDS), default="both")
    parser.add_argument("--disk", type=int, metavar="FAULTS", help="faults of disks, no kills")
    arguments = parser.parse_args()
    if arguments.disk:
        on_disks(arguments.disk, arguments.seed)
        return 0
    modes = tuple(ROUNDS) if arguments.mode == "both" else (arguments.mode,)
    folder = Path(tempfile.mkdtemp(prefix="raybench-chaos-"))
    began, tally, chance = time.monotonic(), Tally(), random.Random(arguments.seed)
    for j, mode in enumerate(modes):  # which share the kills evenly
        share = arguments.kills // len(modes) + (j < arguments.kills % len(modes))
        disturb(mode, share, chance, folder / mode, tally)
    rows = [(*key, times) for key, times in sorted(tally.happened.items())]
    heads = ["mode", "killed", "when", "what happened", "times"]
    print(pd.DataFrame(rows, columns=heads).to_string(index=False))
    print(
        f"{tally.happened.total()} kills in {time.monotonic() - began:.0f} s, seed {arguments.seed}: "
        f"{len(tally.wrong)} wrong; the last process of a command was gone after {tally.slowest_end:.1f} s at most"
    )
    for line in tally.wrong:
        print(f"wrong: {line}")
    if not tally.wrong:
        shutil.rmtree(folder)
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
