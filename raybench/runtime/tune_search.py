"""How Tune comes by its trials: each is a worker, and there are as many as batches of the queue call for.

Tune asks a searcher for trials and a scheduler which of them to start. Here the searcher suggests one more
worker whenever more batches wait than workers are on their way to them, so that Ray's autoscaler, which
looks at trials that wait for a place, starts nodes for them. The scheduler withdraws workers that have not
started when nothing waits any more, and tells the queue of those that are lost. A lost worker is not tried
again by Tune: the queue asks for another one. So there is one place where tries are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

if TYPE_CHECKING:
    from ray.actor import ActorHandle


class Supply(Searcher):
    """Suggests a worker when one is wanted. most: returns how many may be there at once, pending or at work."""

    def __init__(self, queue: ActorHandle, most: Callable[[], int]) -> None:
        super().__init__()
        self.queue, self.most = queue, most
        self.live: set[str] = set()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the configuration of a new worker, None if there are enough, FINISHED if none is needed ever."""
        demand = ray.get(self.queue.demand.remote(len(self.live)))
        if demand == "over":
            return str(self.FINISHED)
        if demand == "enough" or len(self.live) >= self.most():
            return None
        self.live.add(trial_id)
        return {}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Note that a worker is no more."""
        self.live.discard(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the store is what a sweep goes on from."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing."""


class Withdrawal(FIFOScheduler):
    """Starts workers in the order they came, unless nothing waits; tells the queue which ones are lost."""

    def __init__(self, queue: ActorHandle) -> None:
        super().__init__()
        self.queue = queue

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Return the first worker that is to start; withdraw all such where nothing waits for them."""
        pending = [t for t in tune_controller.get_live_trials() if t.status == Trial.PENDING]
        if pending and ray.get(self.queue.idle.remote()):
            for trial in pending:
                tune_controller.stop_trial(trial)
            return None
        chosen: Trial | None = super().choose_trial_to_run(tune_controller)
        return chosen

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Tell the queue that a worker is lost, and how it ended."""
        lines = []
        with suppress(OSError, TypeError):  # there is no file; its last line tells what was raised
            lines = [line.strip() for line in Path(trial.error_file).read_text().splitlines()]
        ray.get(self.queue.release.remote(trial.trial_id, [line for line in lines if line]))
