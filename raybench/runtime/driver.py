"""The driver: plan, resume, run the missing batches through Ray Tune (or here), account for every cell."""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import torch

from raybench.core.errors import Notice
from raybench.core.limits import duration
from raybench.core.patience import heard
from raybench.core.process import INTERRUPTED, TERMINATED, Terminated, stopping_on_sigterm
from raybench.execution import rows
from raybench.execution.batch import Batch
from raybench.execution.costs import check_memory_and_disk
from raybench.execution.execute import execute
from raybench.execution.plan import Plan, as_booked, make_plan
from raybench.execution.search import Best
from raybench.runtime.callbacks import Callback, Follower, named_callbacks
from raybench.runtime.checkpoints import FOLDER, Checkpoints, run_name
from raybench.runtime.progress import View
from raybench.runtime.queue import Attempts
from raybench.runtime.ray_backend import options_of, through_ray
from raybench.runtime.resources import check_gpus, crowded, group_of, mode_of
from raybench.runtime.session import ray_session
from raybench.spec import Sweep
from raybench.spec.grid import problems_meant
from raybench.store import Store
from raybench.store.files import check_reachable
from raybench.store.log import BATCHES
from raybench.store.reader import GRID, planned
from raybench.store.writer import SET_ASIDE


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended.

    counts: planned cells by status (``missing`` for those that did not get their turn). seconds: of
    this run. plan: what was planned. terminated: whether SIGTERM interrupted it, rather than Ctrl-C.
    repairs: what was found in the folder that was not as it was written, and what became of it.
    """

    folder: str
    counts: dict[str, int]
    seconds: float
    interrupted: bool
    plan: Plan
    terminated: bool = False
    repairs: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return what a notebook should show of it: the plan alone has thousands of lines."""
        counts = ", ".join(f"{n:,} {status}" for status, n in self.counts.items() if n)
        rows = [
            f"{self.plan.sweep.name}: {counts or 'no cells'}",
            f"results  {self.folder}",
            f"took     {duration(self.seconds)}" + (", interrupted" if self.interrupted else ""),
            f"read     raybench.load({self.folder!r})",
            f"draw     raybench.plot({self.folder!r})",
        ]
        return "\n".join(rows)

    @property
    def exit_code(self) -> int:
        """Return 0 if every cell ended, 1 if some failed or are missing or all were skipped, 130 if
        interrupted by Ctrl-C, 143 by SIGTERM.
        """
        if self.interrupted:
            return TERMINATED if self.terminated else INTERRUPTED
        idle = not self.plan.cells  # every cell was skipped
        return 1 if idle or self.counts.get("failed") or self.counts.get("missing") else 0


def drive(
    sweep: Sweep,
    out: str | os.PathLike[str],
    *,
    inline: bool = False,
    address: str | None = None,
    fresh: bool = False,
    retry_failed: bool = False,
    fail_fast: bool = False,
    best: Best | None = None,
    callbacks: Sequence[str | Callback] = (),
    beside: bool = False,
) -> Outcome:
    """Run what is missing of a sweep into its folder and return how every cell ended.

    inline: in this process, without Ray. address: of a running Ray cluster. fresh: forget what the
    folder holds. retry_failed: run failed cells again. fail_fast: stop at the first failure. best: judges
    the steps of a sweep that searches, from this folder (``analysis.BestSteps``). callbacks: what follows
    the sweep, by name or as objects (``raybench.runtime.callbacks``). beside: what the folder has shown so far
    it goes on to show, as the other cells are no earlier version of this sweep.
    Raises InputError, with nothing written, for bad input.
    """
    began = time.monotonic()
    callbacks_by_name = named_callbacks(callbacks)
    check_reachable(out, processes=not inline)
    store = Store(out)
    # complains before anything is written
    store.claim(sweep.text, write=False, meaning=problems_meant)
    done = {} if fresh else store.done()
    plan = _planned(sweep, store, done, fresh, retry_failed, best)
    mode = mode_of(plan)
    if inline or address in (None, "local"):  # a cluster may have GPUs that this machine has not
        group = 1 if inline else group_of(plan.sweep.resources, mode)
        check_gpus(plan.sweep.resources, group, torch.cuda.device_count())
        for text in crowded(plan.sweep.resources) if not inline else ():
            warnings.warn(text, Notice, stacklevel=2)
    with store.held():
        store.own(fresh)
        if fresh:
            store.drop()
            store.files.clear(FOLDER)
        commits = store.look(deep=True)
        repairs = store.repair(commits)
        done = store.done() if repairs else commits.statuses()
        store.claim(sweep.text, write=False, meaning=problems_meant)
        plan = _planned(sweep, store, done, fresh, retry_failed, best, plan)
        mode = mode_of(plan)
        store.claim(plan.sweep.text, meaning=problems_meant)
        store.retried = frozenset(c for c, status in plan.statuses.items() if status == "failed")
        store.skip(rows.skipped_table((s.cell, s.label, s.why.text) for s in plan.skipped))
        shown_before = planned(store.folder) if beside else frozenset()
        if shown_before is not None:
            skips = {s.cell.id for s in plan.skipped}
            store.plan(shown_before | skips | {c.id for c in plan.grid})
        if plan.stage is not None:
            store.write(GRID, plan.grid_text())
        attempts = Attempts(store.attempts())
        interrupted, terminated = False, False
        whys: Mapping[str, str] = {}
        before, ran = plan.done, plan.batches
        ended: dict[str, str] | None = done
        follower = Follower(callbacks_by_name, plan, store.files)
        one_ray: AbstractContextManager[object] = nullcontext()
        if plan.stage is not None and plan.batches and not inline:
            # for all stages of a search; other sweeps start theirs when they need it
            slots = plan.sweep.resources.cpus_per_worker * group_of(plan.sweep.resources, mode)
            one_ray = ray_session(address, slots)
        try:
            with stopping_on_sigterm(), follower, one_ray:
                while plan.batches:
                    store.write(BATCHES, plan.text())
                    store.forget(plan.unpruned)
                    ended = None
                    view = View(plan.title, plan.missing, plan.rounds, len(plan.done))
                    with view, heard(view.trouble):
                        if inline:
                            stopped = _inline(plan, store, view, fail_fast, attempts)
                        else:
                            stopped, whys = through_ray(
                                plan, store, view, mode, address, fail_fast, attempts
                            )
                    if stopped:
                        break
                    ended = _account(plan, store, whys, attempts)
                    if plan.stage is None:
                        break
                    plan = plan.after(ended, best)
                    ran += plan.batches
        except KeyboardInterrupt as stop:
            interrupted, terminated = True, isinstance(stop, Terminated)
        plan = replace(plan, batches=ran, done=before)
        store.check_owner()
        ended = store.done() if ended is None else ended
        left = {c: n for c, n in attempts.items() if ended.get(c, "failed") == "failed"}
        if left != store.attempts():  # of those that may be tried again
            store.save_attempts(left)
        if all(ended.get(c.id, "failed") != "failed" for c in plan.cells):
            store.files.clear(FOLDER)
    counts = Counter(ended.get(c.id, "missing") for c in plan.cells)
    counts["skipped"] += len(plan.skipped)
    seconds = time.monotonic() - began
    moved = f"was moved to {SET_ASIDE}, and its cells ran again"
    mended = tuple(f"{f.rel} {moved}: {f.what}" for f in repairs)
    outcome = Outcome(store.folder, dict(counts), seconds, interrupted, plan, terminated, mended)
    follower.end(outcome)
    return outcome


def _planned(
    sweep: Sweep,
    store: Store,
    done: Mapping[str, str],
    fresh: bool,
    retry_failed: bool,
    best: Best | None,
    before: Plan | None = None,
) -> Plan:
    """Return the plan for what the folder holds now; ``before`` if it was made for just that.

    Another driver may have finished, and left another accounting, since a plan was made without the lock.
    """
    if not fresh:
        sweep = as_booked(sweep, store.folder)
    if before is not None and (before.sweep, before.statuses) == (sweep, done):
        return before
    plan = make_plan(sweep, done, retry_failed, best)
    check_memory_and_disk(plan, store.folder)
    return plan


def _inline(plan: Plan, store: Store, view: View, fail_fast: bool, attempts: Attempts) -> bool:
    def begin(batch: Batch) -> int:
        before = attempts.begin([c.id for c in batch.cells])
        store.save_attempts(attempts)
        return before

    def commit(
        shard: str, curves: pa.Table | None, cells: pa.Table, files: Mapping[str, bytes]
    ) -> None:
        store.commit(shard, curves, cells, files)
        attempts.end(cells.filter(pc.not_equal(cells["status"], "failed"))["cell"].to_pylist())

    options = options_of(plan.sweep)
    keeper = Checkpoints(store, options, plan.sweep.checkpoint.every, run_name("inline"))
    steps = execute(
        plan.batches,
        options,
        commit,
        device="cuda" if plan.sweep.resources.gpus_per_worker else "cpu",
        timeout=plan.sweep.timeout,
        begin=begin,
        keeper=keeper,
    )
    for progress in steps:
        view.update(progress)
        if fail_fast and progress.failed:
            return True
    return False


def _account(
    plan: Plan, store: Store, whys: Mapping[str, str], attempts: Attempts
) -> dict[str, str]:
    """Write a failed row for each cell that no worker lived to end; return how all cells have ended.

    whys: how the last worker ended, by cell.
    """
    done = store.done()
    host = {**rows.host_facts(), "mode": mode_of(plan)}
    unfinished = [
        (cell, batch) for batch in plan.batches for cell in batch.cells if cell.id not in done
    ]
    for cell, batch in unfinished:
        count = attempts.get(cell.id, 0)
        times = f"{count} time{'' if count == 1 else 's'}"
        how = f"its worker ended {times}" if count else "no worker lived to begin it"
        error = f"{how}: {whys.get(cell.id) or 'killed, or out of memory'}"
        attempt = replace(batch, attempts=count - 1)
        store.commit(cell.id, None, rows.failed_table(cell, attempt, error, host))
    return done | {cell.id: "failed" for cell, _ in unfinished}
