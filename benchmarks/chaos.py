"""Kills at random: workers, raylet and driver of sweeps at work, which are then resumed and compared.

    python benchmarks/chaos.py --kills 100 --seed 0

Each sweep is run once undisturbed. Then the same command is run over and over, and of its processes one
after the other is killed by SIGKILL at a moment drawn from the seed, until so many kills are done; the last
command is let be. What is in the folder afterwards is compared with the undisturbed run, on the Parquet files
as any reader sees them: every cell once, every round of its curve once, every value the same bit for bit, but
for seconds. Prints a table of what was killed and what happened. Exit code 1 if anything was lost or differs.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import psutil
import pyarrow.dataset

from raybench.runtime import leftovers

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
SHARE_AT_START = 0.2  # of the kills fall while Ray is starting
LONGEST_WAIT = 8.0  # seconds of work before a kill, at most
PATIENCE = 1800.0  # seconds for a sweep after its last kill: several minutes where other work takes the cores
SOON = 5.0  # seconds after which nothing of a driver may be left


@dataclass
class Tally:
    """What was killed and what happened: lines of (mode, victim, when, what happened) with their number."""

    happened: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest_end: float = 0.0  # seconds until the last process of a command was gone

    @property
    def kills(self) -> int:
        """Return the number of kills."""
        return self.happened.total()

    def text(self) -> str:
        """Return the table for people."""
        rows = [(*key, times) for key, times in sorted(self.happened.items())]
        heads = ["mode", "killed", "when", "what happened", "times"]
        return pd.DataFrame(rows, columns=heads).to_string(index=False)


def written(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the cells and the curves of a folder as they lie there, in order, without seconds and places."""
    cells, curves = (
        pyarrow.dataset.dataset(folder / part, format="parquet").to_table().to_pandas()
        for part in ("cells", "curves")
    )
    kept = ["cell", "status", "rounds", "loss", "grad_norm_sq", "bits_up", "bits_down"]
    times = [name for name in curves if name.startswith("seconds")]
    cells = cells[kept].sort_values(kept, ignore_index=True)
    order = ["cell", "round", "loss"]
    return cells, curves.drop(columns=times).sort_values(order, ignore_index=True)


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
        left = [p for p in others if not gone(p)]
        for process in left:
            process.kill()
        return took, [self.family[p][:80] for p in left]


def gone(process: psutil.Process) -> bool:
    """Return whether a process has ended."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def disturb(
    mode: str,
    kills: int,
    chance: random.Random,
    folder: Path,
    tally: Tally,
    most_per_sweep: int = 12,
) -> None:
    """Run a mode's sweep with so many kills in all, anew after ``most_per_sweep`` of them; compare."""
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
        left -= _until_done(mode, min(left, most_per_sweep), chance, file, out, tally)
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
            print(f"{tally.kills:4}  {'  '.join(happened)}", file=sys.stderr, flush=True)
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


def chaos(kills: int, seed: int, modes: tuple[str, ...], folder: Path) -> Tally:
    """Do so many kills, shared out evenly over the modes; return what happened."""
    tally, chance = Tally(), random.Random(seed)
    for j, mode in enumerate(modes):
        share = kills // len(modes) + (j < kills % len(modes))
        disturb(mode, share, chance, folder / mode, tally)
    return tally


def main() -> int:
    """Run from the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mode", choices=("both", *ROUNDS), default="both")
    asked = parser.parse_args()
    modes = tuple(ROUNDS) if asked.mode == "both" else (asked.mode,)
    folder = Path(tempfile.mkdtemp(prefix="raybench-chaos-"))
    began = time.monotonic()
    tally = chaos(asked.kills, asked.seed, modes, folder)
    print(tally.text())
    print(
        f"{tally.kills} kills in {time.monotonic() - began:.0f} s, seed {asked.seed}: "
        f"{len(tally.wrong)} wrong; the last process of a command was gone after {tally.slowest_end:.1f} s at most"
    )
    for line in tally.wrong:
        print(f"wrong: {line}")
    if not tally.wrong:
        shutil.rmtree(folder)
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
