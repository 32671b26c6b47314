"""The workers of a sweep in Ray: Ray started or joined, the queue and its data set up, Tune run, progress shown."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from raybench.core.errors import FolderLost, SweepStopped
from raybench.core.process import disk_trouble_told
from raybench.execution.plan import Plan
from raybench.execution.resolve import problem_of
from raybench.execution.run import Options
from raybench.runtime.leftovers import scratch
from raybench.runtime.progress import View
from raybench.runtime.queue import Attempts, News, Queue
from raybench.runtime.resources import check_gpus, group_of, slots_of
from raybench.runtime.session import ray_session
from raybench.runtime.shipping import pack
from raybench.spec import Sweep
from raybench.spec.model import Resources
from raybench.store import Store

if TYPE_CHECKING:
    from types import ModuleType

    from ray.actor import ActorHandle

    from raybench.runtime.worker import Shared

MOST_WORKERS = 1000  # pending or at work, on a cluster that may grow: what one Tune run handles
SILENCE = 60.0  # seconds after which it is told that Ray does not answer
COUNTED_EVERY = 5.0  # seconds between looks at what a cluster has


def options_of(sweep: Sweep) -> Options:
    """Return how a sweep records and accounts."""
    return Options(sweep.record, sweep.accounting, sweep.evaluate, sweep.prune)


def through_ray(
    plan: Plan,
    store: Store,
    view: View,
    mode: str,
    address: str | None,
    fail_fast: bool,
    attempts: Attempts,
) -> tuple[bool, Mapping[str, str]]:
    """Run the plan's batches on workers that are Tune trials.

    Return whether it was stopped early, and how the last worker ended of cells that were given up.
    """
    resources, is_local = plan.sweep.resources, address in (None, "local")
    group = group_of(resources, mode)
    with ray_session(address, resources.cpus_per_worker * group) as ray:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from raybench.runtime import worker

        def here() -> dict[str, float]:
            counts: dict[str, float] = ray.cluster_resources()
            if is_local:
                counts["CPU"] -= 1  # a Ray of our own has one CPU too many: see ``ray_session``
            return counts

        if is_local:
            check_gpus(resources, group, here().get("GPU", 0.0))
        assert store.owner is not None
        # actors stay here, whatever happens to others
        node = ray.get_runtime_context().get_node_id()
        here_alone = NodeAffinitySchedulingStrategy(node, soft=False)
        actor = ray.remote(num_cpus=0, scheduling_strategy=here_alone)
        work = [plan.work(b) for b in plan.batches]
        queue = actor(Queue).remote(plan.batches, work, plan.sweep.attempts, fail_fast, attempts)
        is_url = "://" in store.folder
        folder = store.folder if is_url else str(Path(store.folder).resolve())
        writer = None
        if not is_local and not is_url:  # there may be other nodes
            writer = actor(Store).remote(folder, store.owner, store.retried)
        sections = {b.cells[0].cell.problem for b in plan.batches}
        shared = worker.Shared(
            options=options_of(plan.sweep),
            folder=folder,
            owner=store.owner,
            retried=store.retried,
            plugins={path: Path(path).expanduser().read_bytes() for path in plan.sweep.plugins},
            problems={s: ray.put(pack(problem_of(s))) for s in sections},
            queue=queue,
            writer=writer,
            workers=group,
            cpus=resources.cpus_per_worker,
            gpus=resources.gpus_per_worker,
            mode=mode,
            timeout=plan.sweep.timeout,
            checkpoint_every=plan.sweep.checkpoint.every,
            place=place_of(node),
        )
        with _as_stopped():
            stage = "starting Ray" if is_local else "waiting for a place on the cluster"
            shown = _progress_shown(ray, queue, view, store, attempts, stage)
            with shown, nullcontext() if is_url and not is_local else _without_keys():
                _fit(shared, plan.sweep, _most(resources, mode, here, is_local))
            news: News = ray.get(queue.news.remote())
            ending = ray.get(queue.ending.remote())
        attempts.take(news.attempts)
        view.update(news.progress)
    if ending.folder_lost:
        raise FolderLost(ending.folder_lost)
    # not the cells' fault: they stay missing, and the same command runs them
    trouble = disk_trouble_told(ending.disk.splitlines())
    if trouble is not None:
        raise OSError(trouble, os.strerror(trouble), shared.folder)
    whys = ending.given_up
    if ending.vain:
        whys = {c.id: ending.vain for b in plan.batches for c in b.cells} | dict(whys)
    return fail_fast and bool(news.progress.failed), whys


def place_of(node: str) -> str:
    """Return the resource that Ray gives a node by its address, ``node:10.0.0.1``, empty where there is none."""
    import ray

    names: dict[str, float] = next((n["Resources"] for n in ray.nodes() if n["NodeID"] == node), {})
    return next((n for n in names if n.startswith("node:") and "__" not in n), "")


def _most(
    resources: Resources, mode: str, here: Callable[[], Mapping[str, float]], is_local: bool
) -> Callable[[], int]:
    """Return what tells how many trials there may be at once, those that wait for a place included.

    On a cluster, which may grow, there are more than fit: they are what its autoscaler goes by. A group of
    workers more than fits is enough, since a trial that owns a group is a process that starts at once.
    """
    group = group_of(resources, mode)
    if is_local or resources.timing == "exclusive":
        slots = slots_of(resources, here(), group)
        return lambda: slots
    if mode != "train":
        return lambda: MOST_WORKERS
    slots, when = 0, -COUNTED_EVERY

    def groups() -> int:
        nonlocal slots, when
        if time.monotonic() - when > COUNTED_EVERY:
            slots, when = slots_of(resources, here(), group) + 1, time.monotonic()
        return slots

    return groups


def _fit(shared: Shared, sweep: Sweep, most: Callable[[], int]) -> None:
    from ray import tune
    from ray.tune import CheckpointConfig, FailureConfig, RunConfig, TuneConfig, Tuner

    from raybench.runtime import worker
    from raybench.runtime.tune_search import Supply, Withdrawal

    trainable = worker.train_trial if shared.mode == "train" else worker.worker_trial()
    with scratch("tune") as folder:
        Tuner(
            tune.with_resources(tune.with_parameters(trainable, shared=shared), shared.per_trial()),
            tune_config=TuneConfig(
                search_alg=Supply(shared.queue, most),
                scheduler=Withdrawal(shared.queue),
                num_samples=-1,  # as many as the queue asks for
            ),
            run_config=RunConfig(
                name=sweep.name,
                storage_path=folder,
                verbose=0,
                failure_config=FailureConfig(max_failures=0),  # the queue counts tries
                checkpoint_config=CheckpointConfig(checkpoint_at_end=False),
            ),
        ).fit()


@contextmanager
def _without_keys() -> Iterator[None]:
    """Keep Tune from handing AWS's keys on to workers that need none: Ray writes what it hands on into a log for all to read.

    Workers on this machine inherit them; those of a cluster need them for results in a bucket.
    """
    from ray.tune.execution import class_cache

    before = class_cache.ENV_VARS_TO_PROPAGATE
    class_cache.ENV_VARS_TO_PROPAGATE = {n for n in before if not n.startswith("AWS_")}
    try:
        yield
    finally:
        class_cache.ENV_VARS_TO_PROPAGATE = before


@contextmanager
def _as_stopped() -> Iterator[None]:
    """Raise SweepStopped where Ray, Tune or the queue's process is gone; what is committed stays."""
    from ray.exceptions import RayError
    from ray.tune import TuneError

    try:
        yield
    except (RayError, TuneError) as error:
        lines = [
            line.strip() for line in str(error.__cause__ or error).splitlines() if line.strip()
        ]
        what = lines[-1] if lines else type(error).__name__
        raise SweepStopped(f"Ray has stopped: {what}: the same command goes on") from error


@contextmanager
def _progress_shown(
    ray: ModuleType, queue: ActorHandle, view: View, store: Store, attempts: Attempts, stage: str
) -> Iterator[None]:
    """Show the sweep's progress, and save its counts of attempts, while the trials run; from a thread.

    stage: what is going on until a first batch is taken.
    """
    over = threading.Event()

    def follow() -> None:
        last, answered = time.monotonic(), False
        while not over.wait(0.5):
            silence = time.monotonic() - last
            # its first worker may take minutes to start, on a machine that reads torch for the first time
            if silence > SILENCE and answered and not over.is_set():
                end = "Ctrl-C ends the sweep, and again Ctrl-C without waiting for Ray"
                view.trouble(f"Ray has not answered for {silence:.0f} s: {end}")
            try:
                news: News = ray.get(queue.news.remote(), timeout=5)
            except Exception:  # the session is ending, and results are in the store already
                continue
            last, answered = time.monotonic(), True
            if news.attempts != attempts:
                attempts.take(news.attempts)
                with suppress(OSError):  # a full disk: what commits results tells of it
                    store.save_attempts(attempts)
            for text in news.troubles:
                view.trouble(text)
            view.update(news.progress, "running" if news.begun else stage, news.silent)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    # Tune prints a box on standard output even with verbose=0.
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        try:
            yield
        finally:
            over.set()
            thread.join(timeout=6)
