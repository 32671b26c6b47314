"""Results come home: shards of the head's folder into the folder here, whole, in the order of the writer."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from raybench.cluster.hosts import Host
from raybench.cluster.states import Launch

# What is the sweep's own here and there: its text, whose paths are those of the machine, and the locks.
KEPT_HOME = (
    "--exclude=/sweep.yaml",
    "--exclude=/plan/lock*",
    "--exclude=/launch",
    "--exclude=/tmp",
)
WHOLE = ("weights", "curves", "cells")  # commit order: cells are what makes a shard count
PLAN = ("owner.json", "cells.json", "batches.json", "attempts.json", "target.json")


def send(launch: Launch, host: Host, there: str) -> None:
    """Copy what the folder here holds already to the head, whose driver then goes on from it."""
    name = launch.ordered()["id"]
    foreign = host.run(
        f"mkdir -p {there} && cd {there} && "
        f"{{ [ ! -e sweep.yaml ] || [ \"$(cat launch 2>/dev/null)\" = {name} ] || echo foreign; }} && "
        f"[ -e sweep.yaml ] || echo {name} >launch"
    )
    if "foreign" in foreign:
        raise RuntimeError(f"{host.address}: {there} holds the sweep.yaml of another launch")
    host.push(launch.results, there, *KEPT_HOME)


def fetch(launch: Launch, host: Host, there: str) -> int:
    """Copy what is new on the head into the folder here; return how many shards are here then.

    Cells are listed first and put in place last: their curves were written before them, so whatever cells are copied, the
    curves copied after them are whole. Files travel into a folder that nobody reads, and appear by a rename.
    """
    way = launch.place("incoming")
    for part in ("cells", "weights", "curves", "plan"):
        host.pull(f"{there}/{part}", way / part, "--exclude=lock*")
    _place(way / "plan", launch.results / "plan", [n for n in PLAN if (way / "plan" / n).exists()])
    for part in WHOLE:
        names = sorted(os.listdir(way / part)) if (way / part).is_dir() else []
        if names or part != "weights":
            _place(way / part, launch.results / part, names)
    return len(os.listdir(launch.results / "cells"))


def _place(source: Path, target: Path, names: list[str]) -> None:
    """Let the files appear in ``target``: each a second name of the copy, which rsync compares with the next time.

    Where the two lie on different disks each is a copy, of the same size and time.
    """
    target.mkdir(parents=True, exist_ok=True)
    spare = target.parent / "tmp"
    spare.mkdir(exist_ok=True)
    for name in names:
        new, old = source / name, target / name
        if name.startswith(".") or (old.exists() and _stamp(old) == _stamp(new)):
            continue
        link = spare / f"{target.name}-{name}"
        link.unlink(missing_ok=True)
        try:
            os.link(new, link)
        except OSError:
            shutil.copy2(new, link)
        link.replace(old)


def _stamp(path: Path) -> tuple[int, int]:
    """Return size and time of change of a file, by which rsync knows it too."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns
