"""What the head tells while a sweep runs there, and its results, as they come: one rsync brings both."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raybench.cluster.hosts import Host
from raybench.cluster.stage import ENDED, LEASE, PID, PROGRESS

OURS = (  # what a launch has sent to has the mark beside it
    "{{ [ ! -e {out}/sweep.yaml ] || [ -e {out}/../launch ] || "
    "{{ echo '{out} holds the sweep.yaml of another launch' >&2; exit 7; }}; }}"
)
# What the head runs before it sends: it pushes the lease, and notes the end of a job that was killed.
LOOK = """\
{lease} push >/dev/null 2>&1
if [ ! -e {job}/{ended} ] && [ -e {job}/{pid} ] && ! kill -0 "$(cat {job}/{pid})" 2>/dev/null; then
  sleep 1; [ -e {job}/{ended} ] || echo 137 >{job}/{ended}
fi
{ours} && rsync"""
SHARD = re.compile(
    r"(cells|weights|curves)/[\w-][\w.-]*|plan/(owner|cells|batches|attempts|target)\.json"
)
ORDER = ("plan", "weights", "curves", "cells")  # of commits: cells are what makes a shard count


@dataclass(frozen=True)
class Told:
    """What the head told. code: the exit code of its sweep, None while that runs. shards: of cells, here."""

    progress: dict[str, Any] = field(default_factory=dict)
    code: int | None = None
    shards: int = 0


def send(host: Host, results: Path, out: str) -> None:
    """Copy what the folder here holds already to the head, whose driver then goes on from it.

    Raises RuntimeError where the head's folder holds a sweep of somebody else.
    """
    host.run(f"{OURS.format(out=out)} && mkdir -p {out} && touch {out}/../launch")
    # the sweep's text has paths of each machine, and the locks are each machine's own
    apart = ("/sweep.yaml", "/plan/lock*", "/launch", "/tmp")
    host.push(results, out, *(f"--exclude={name}" for name in apart))


def fetch(host: Host, results: Path, job: str, out: str) -> Told:
    """Copy what is new on the head into the folder here, and return what a job's folder there tells of it.

    out: the folder there, empty where results go elsewhere. Files travel into a folder that nobody reads, and appear by
    a rename, cells last. rsync looks for the end of the job first, so that all is there when it is told, and for cells
    before curves: those of each cell were written before it. Raises Unreachable, RuntimeError and OSError.
    """
    spare = results / "tmp"
    shutil.rmtree(spare, ignore_errors=True)
    spare.mkdir(parents=True)
    ours = OURS.format(out=out) if out else "true"
    look = LOOK.format(lease=LEASE, job=job, ended=ENDED, pid=PID, ours=ours)
    there = [f"{job}/{ENDED}", f"{job}/{PROGRESS}"]
    there += [f"{out}/{part}" for part in reversed(ORDER) if out]
    host.pull(
        there, spare, "--no-inc-recursive", "--modify-window=-1", f"--compare-dest={results.absolute()}",
        "--exclude=.*", "--exclude=lock*", f"--rsync-path={look}",
    )  # fmt: skip
    progress: dict[str, Any] = {}
    with suppress(OSError, ValueError, TypeError):
        progress = dict(json.loads((spare / PROGRESS).read_text()))
    end = (spare / ENDED).read_text().strip() if (spare / ENDED).is_file() else ""
    for part in ORDER if out else ():
        if part != "weights":
            (results / part).mkdir(exist_ok=True)
        for file in sorted(spare.glob(f"{part}/*")):
            if SHARD.fullmatch(f"{part}/{file.name}") and file.is_file() and not file.is_symlink():
                (results / part).mkdir(exist_ok=True)
                file.replace(results / part / file.name)
    shutil.rmtree(spare, ignore_errors=True)
    shards = sum(1 for _ in (results / "cells").iterdir()) if out else 0
    return Told(progress, int(end) if end.isdecimal() else None, shards)
