"""The driver: plan, resume, run the missing batches through Ray Tune (or here), account for every cell."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from raybench.core.endings import (
    INTERRUPTED,
    TERMINATED,
    Terminated,
    disk_trouble_told,
    stopping_on_sigterm,
)
from raybench.core.errors import FolderLost, InputError
from raybench.engine import rows
from raybench.engine.execute import execute
from raybench.engine.run import Options
from raybench.planning.admission import admit
from raybench.planning.batch import Batch
from raybench.planning.booking import as_booked
from raybench.planning.plan import Plan, make_plan
from raybench.planning.resolve import problem_of
from raybench.runtime.checkpoints import FOLDER, Checkpoints, run_name
from raybench.runtime.gpus import check_gpus, count_here, workers_on
from raybench.runtime.packs import PACKS_PER_SLOT, packs_of
from raybench.runtime.progress import View, added
from raybench.runtime.scratch import scratch
from raybench.runtime.session import ray_session
from raybench.spec import Sweep
from raybench.spec.model import Resources
from raybench.store import Store
from raybench.store.reach import check_reachable
from raybench.store.tries import Tries
from raybench.store.tries import read as read_tries
from raybench.store.tries import save as save_tries
from raybench.store.writer import SET_ASIDE

if TYPE_CHECKING:
    from types import ModuleType

    from ray.actor import ActorHandle

    from raybench.runtime.work import Shared


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
) -> Outcome:
    """Run what is missing of a sweep into its folder and return how every cell ended.

    inline: in this process, without Ray. address: of a running Ray cluster. fresh: forget what the
    folder holds. retry_failed: run failed cells again. fail_fast: stop at the first failure.
    Raises InputError, with nothing written, for bad input.
    """
    began = time.monotonic()
    check_reachable(out, processes=not inline)
    store = Store(out)
    plan = _planned(sweep, store, fresh, retry_failed)  # complains before anything is written
    mode = mode_of(plan)
    if inline or address in (None, "local"):  # a cluster may have GPUs that this machine has not
        check_gpus(plan.sweep.resources, _group(plan.sweep.resources, mode, inline), count_here())
    with store.held():
        store.own(fresh)
        if fresh:
            store.drop()
            store.files.clear(FOLDER)
        repairs = store.repair()
        plan = _planned(sweep, store, fresh, retry_failed, plan)
        mode = mode_of(plan)
        store.claim(plan.sweep.text)
        store.apart = frozenset(c for c, status in store.done().items() if status == "failed")
        store.skip(rows.skipped_table((s.cell, s.label, s.why.text) for s in plan.skipped))
        store.write("plan/batches.json", plan.text())
        tries = Tries(read_tries(store.files))
        interrupted, terminated, stopped, why = False, False, False, ""
        if plan.batches:
            rounds = float(sum(c.cell.rounds for b in plan.batches for c in b.cells))
            with View(sweep.name, plan.missing, rounds, len(plan.done)) as view:
                try:
                    with stopping_on_sigterm():
                        if inline:
                            stopped = _inline(plan, store, view, fail_fast, tries)
                        else:
                            stopped, why = _through_ray(
                                plan, store, view, mode, address, fail_fast, tries
                            )
                except KeyboardInterrupt as stop:
                    interrupted, terminated = True, isinstance(stop, Terminated)
            if not (interrupted or stopped):
                _account(plan, store, why, tries)
        store.check_owner()
        ended = store.done()
        _keep(tries, store, ended)
        if all(ended.get(c.id, "failed") != "failed" for c in plan.cells):
            store.files.clear(FOLDER)
    counts = Counter(ended.get(c.id, "missing") for c in plan.cells)
    counts["skipped"] += len(plan.skipped)
    seconds = time.monotonic() - began
    aside = f"was moved to {SET_ASIDE}, and its cells ran again"
    said = tuple(f"{f.rel} {aside}: {f.what}" for f in repairs)
    return Outcome(store.folder, dict(counts), seconds, interrupted, plan, terminated, said)


def _planned(
    sweep: Sweep, store: Store, fresh: bool, retry_failed: bool, before: Plan | None = None
) -> Plan:
    """Return the plan for what the folder holds now; ``before`` if it was made for just that.

    Another driver may have finished, and left another accounting, since a plan was made without the lock.
    """
    store.claim(sweep.text, write=False)
    sweep = sweep if fresh else as_booked(sweep, store.folder)
    done = {} if fresh else store.done()
    if before is not None and (before.sweep, before.found) == (sweep, done):
        return before
    plan = make_plan(sweep, done, retry_failed)
    admit(plan, store.folder)
    return plan


def _keep(tries: Tries, store: Store, ended: Mapping[str, str]) -> None:
    """Save how often cells were tried that may be tried again."""
    left = {c: n for c, n in tries.counts.items() if ended.get(c, "failed") == "failed"}
    if left != read_tries(store.files):
        save_tries(store.files, left)


def mode_of(plan: Plan) -> str:
    """Return ``simulate`` or ``train``, after checking that the workers can host the clients.

    Raises InputError where there are more workers than clients.
    """
    resources = plan.sweep.resources
    mode = resources.mode
    if mode == "auto":
        mode = "train" if resources.workers > 1 else "simulate"
    if mode == "train":
        fewest = min((problem_of(b.cells[0].cell.problem).n for b in plan.batches), default=1 << 30)
        if resources.workers > fewest:
            what = f"{resources.workers} workers for {fewest} clients"
            raise InputError.of("resources.workers", what, f"at most {fewest}: each hosts a client")
    elif resources.workers > 1:
        what = f"mode simulate runs all clients in one process, not on {resources.workers} workers"
        raise InputError.of("resources.workers", what, "set resources.mode: train")
    return mode


def _group(resources: Resources, mode: str, inline: bool = False) -> int:
    """Return how many processes a trial has that take CPUs and GPUs."""
    return resources.workers if mode == "train" and not inline else 1


def options_of(sweep: Sweep) -> Options:
    """Return how a sweep records and accounts."""
    return Options(sweep.record, sweep.accounting, sweep.evaluate)


def _inline(plan: Plan, store: Store, view: View, fail_fast: bool, tries: Tries) -> bool:
    def begin(batch: Batch) -> int:
        before = tries.begin([c.id for c in batch.cells])
        save_tries(store.files, tries.counts)
        return before

    options = options_of(plan.sweep)
    every = plan.sweep.checkpoint.every
    keeper = Checkpoints(store, options, every, run_name("inline"))
    steps = execute(
        plan.batches,
        options,
        store.commit,
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


def _through_ray(
    plan: Plan,
    store: Store,
    view: View,
    mode: str,
    address: str | None,
    fail_fast: bool,
    tries: Tries,
) -> tuple[bool, str]:
    """Run the plan's packs as Tune trials; return whether it was stopped early, and the last error."""
    resources = plan.sweep.resources
    train = mode == "train"
    group = _group(resources, mode)
    taken = resources.cpus_per_worker * group
    with ray_session(address, taken) as ray:
        from raybench.runtime import work

        here = ray.cluster_resources()
        if address in (None, "local"):
            here["CPU"] -= 1  # a Ray of our own has one CPU too many: see ``ray_session``
            check_gpus(resources, group, here.get("GPU", 0.0))
        slots = slots_of(resources, here, group)
        # a cluster may grow, so Tune decides how many trials run at once
        growing = address not in (None, "local") and not train and resources.timing == "shared"
        packs = packs_of(
            plan.batches,
            plan.work,
            max(slots, 16) if growing else slots,
            1 if train else PACKS_PER_SLOT,
        )
        assert store.owner is not None
        board = ray.remote(num_cpus=0)(work.Board).remote(fail_fast, tries.counts)
        sections = {b.cells[0].cell.problem for b in plan.batches}
        shared = work.Shared(
            packs=packs,
            options=options_of(plan.sweep),
            folder=_absolute(store.folder),
            owner=store.owner,
            apart=store.apart,
            plugins=tuple(plan.sweep.plugins),
            problems={s: ray.put(problem_of(s)) for s in sections},
            board=board,
            writer=_writer(ray, store, work, address not in (None, "local")),
            workers=group,
            cpus=resources.cpus_per_worker,
            gpus=resources.gpus_per_worker,
            mode=mode,
            timeout=plan.sweep.timeout,
            checkpoint_every=plan.sweep.checkpoint.every,
        )
        with _following(ray, board, view, store, tries):
            why = _fit(shared, len(packs), None if growing else slots, plan.sweep, board)
        tries.counts = ray.get(board.tries.remote())
        parts = ray.get(board.read.remote())
        view.update(added(parts))
        return fail_fast and any(p.failed for p in parts.values()), why


def slots_of(resources: Resources, here: Mapping[str, float], workers: int) -> int:
    """Return how many trials of so many workers run at once with the CPUs and GPUs that are here.

    One at least, and no more where wall-clock time is studied.
    """
    if resources.timing == "exclusive":
        return 1
    fits = here.get("CPU", 0.0) / (workers * resources.cpus_per_worker) + 1e-9
    if resources.gpus_per_worker:
        fits = min(fits, workers_on(here.get("GPU", 0.0), resources.gpus_per_worker) / workers)
    return max(1, int(fits))  # 1 / 0.1 workers are 10, not 9.999


def _fit(shared: Shared, packs: int, at_once: int | None, sweep: Sweep, board: ActorHandle) -> str:
    import ray
    from ray import tune
    from ray.tune import CheckpointConfig, FailureConfig, RunConfig, TuneConfig, Tuner

    from raybench.runtime import work

    trainable = work.train_trial if shared.mode == "train" else work.pack_trial()
    with scratch("tune") as folder:
        results = Tuner(
            tune.with_resources(tune.with_parameters(trainable, shared=shared), shared.per_trial()),
            param_space={"pack": tune.grid_search(list(range(packs)))},
            tune_config=TuneConfig(
                reuse_actors=shared.mode != "train", max_concurrent_trials=at_once
            ),
            run_config=RunConfig(
                name=sweep.name,
                storage_path=folder,
                verbose=0,
                failure_config=FailureConfig(max_failures=sweep.attempts - 1),
                checkpoint_config=CheckpointConfig(checkpoint_at_end=False),
            ),
        ).fit()
    lost = ray.get(board.why_lost.remote())
    if lost:
        raise FolderLost(lost)
    # The last line that is not empty tells what a worker raised, or how it died.
    lines = [line.strip() for e in results.errors for line in str(e).splitlines() if line.strip()]
    trouble = disk_trouble_told(lines)
    # not the cells' fault: they stay missing, and the same command runs them
    if trouble is not None:
        raise OSError(trouble, os.strerror(trouble), shared.folder)
    return lines[-1] if lines else ""


def _writer(ray: ModuleType, store: Store, work: ModuleType, cluster: bool) -> ActorHandle | None:
    """Return a writer actor on this node where results are local and a cluster may have others."""
    if "://" in store.folder or not cluster:
        return None
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(num_cpus=0, scheduling_strategy=here)(work.Writer)
    return actor.remote(_absolute(store.folder), store.owner, store.apart)


def _absolute(folder: str) -> str:
    return folder if "://" in folder else str(Path(folder).resolve())


@contextmanager
def _following(
    ray: ModuleType, board: ActorHandle, view: View, store: Store, tries: Tries
) -> Iterator[None]:
    """Show the board's progress, and save its counts of tries, while the trials run; from a thread."""
    over = threading.Event()

    def follow() -> None:
        while not over.wait(0.5):
            try:
                parts = ray.get(board.read.remote(), timeout=5)
                now = ray.get(board.tries.remote(), timeout=5)
            except Exception:  # the session is ending, and results are in the store already
                continue
            if now != tries.counts:
                tries.counts = now
                with suppress(OSError):  # a full disk: what commits results tells of it
                    save_tries(store.files, now)
            view.update(added(parts), "running" if parts else "starting Ray")

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    # Tune prints a box on standard output even with verbose=0.
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        try:
            yield
        finally:
            over.set()
            thread.join(timeout=6)


def _account(plan: Plan, store: Store, why: str, tries: Tries) -> None:
    """Write a failed row for each cell whose worker died more often than ``attempts`` allows."""
    done = store.done()
    host = {**rows.host_facts(), "mode": mode_of(plan)}
    error = f"its worker ended {plan.sweep.attempts} times: {why or 'killed, or out of memory'}"
    for batch in plan.batches:
        for cell in batch.cells:
            if cell.id not in done:
                own = replace(batch, attempts=max(0, tries.counts.get(cell.id, 1) - 1))
                table = rows.failed_table(cell, own, error, host)
                store.commit(cell.id, None, table)
