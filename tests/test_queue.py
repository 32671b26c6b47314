"""The queue of batches, without Ray: who gets what, what a lost worker costs, and when workers are wanted."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raybench.execution.batch import Batch
from raybench.execution.execute import Progress
from raybench.runtime.queue import SILENT, VAIN_DEATHS, Queue


def batch(name: str, problem: str = "p", cells: int = 2) -> Batch:
    """Return a batch as the queue sees it: cells with ids, of a problem."""
    cell: Any = SimpleNamespace(problem=problem)
    return Batch(tuple(SimpleNamespace(id=f"{name}{j}", cell=cell) for j in range(cells)))  # type: ignore[misc]


def queue_of(work: dict[str, float], attempts: int = 3, **more: Any) -> Queue:
    """Return a queue of batches by name, where ``A.x`` is of problem A."""
    batches = [batch(name, name.split(".")[0]) for name in work]
    options: dict[str, Any] = {"fail_fast": False, "before": {}, **more}
    return Queue(batches, list(work.values()), attempts, **options)


def name_of(got: Batch | None) -> str | None:
    return None if got is None else got.cells[0].id[:-1]


def test_the_longest_is_handed_out_first() -> None:
    queue = queue_of({"p.a": 1, "p.b": 9, "p.c": 5})
    order = [name_of(queue.take(worker, None)) for worker in "xyz"]
    assert order == ["p.b", "p.c", "p.a"]
    assert queue.take("w", None) is None


def test_a_worker_stays_with_its_problem_unless_another_waits_that_is_much_longer() -> None:
    queue = queue_of({"A.1": 10, "B.1": 9, "A.2": 5, "A.3": 4, "B.2": 3, "A.4": 1})
    got = [name_of(queue.take("x", Progress() if j else None)) for j in range(6)]
    # after A.1 it stays, as 9 is not twice 5; then it goes over, as 9 is more than twice 4; and stays there
    assert got == ["A.1", "A.2", "B.1", "B.2", "A.3", "A.4"]


def test_a_lost_worker_costs_its_batch_a_try_and_no_other_any() -> None:
    queue = queue_of({"p.a": 3, "p.b": 2, "p.c": 1})
    first = queue.take("x", None)
    other = queue.take("y", None)
    assert (first.attempts, other.attempts) == (0, 0)
    queue.release("x", ["killed"])
    assert queue.post("x", 0, 1, Progress(ok=7)), "one that is given up must stop"
    assert queue.take("x", Progress(ok=7)) is None
    again = queue.take("y", Progress(ok=2))
    assert name_of(again) == "p.a"
    assert again.attempts == 1
    last = queue.take("y", Progress(ok=2))
    assert (name_of(last), last.attempts) == ("p.c", 0)
    assert queue.take("y", Progress(ok=2)) is None
    assert queue.news().progress.ok == 6
    assert queue.news().attempts == {}  # all ended well


def test_what_was_tried_before_counts_in_the_table_but_not_against_the_limit() -> None:
    queue = queue_of({"p.a": 1}, attempts=1, before={"p.a0": 4, "p.a1": 4})
    got = queue.take("x", None)
    assert got.attempts == 4
    queue.release("x", ["it died"])
    assert queue.take("y", None) is None
    assert queue.ending().given_up == {"p.a0": "it died", "p.a1": "it died"}
    assert queue.news().attempts == {"p.a0": 5, "p.a1": 5}
    assert queue.demand(0) == "over"


def test_tries_of_failed_cells_are_kept_for_the_next_time() -> None:
    queue = queue_of({"p.a": 2, "p.b": 1})
    queue.take("x", None)
    queue.take("x", Progress(ok=1, failed=1))
    queue.take("x", Progress(ok=2))
    assert queue.news().attempts == {"p.a0": 1, "p.a1": 1}


def test_progress_on_a_lost_batch_counts_once() -> None:
    queue = queue_of({"p.a": 2, "p.b": 1})
    queue.take("x", None)
    queue.post("x", 0, 1, Progress(rounds=50.0, best={"m": 2.0}))
    assert queue.news().progress.rounds == 50
    queue.release("x", [])
    assert queue.news().progress.rounds == 0
    queue.take("y", None)
    queue.post("y", 0, 1, Progress(rounds=60.0))
    assert queue.news().progress.rounds == 60
    queue.take("y", Progress(ok=2, rounds=100.0))
    queue.post("y", 0, 1, Progress(rounds=60.0))  # a word that was on its way when the batch ended
    assert queue.news().progress.rounds == 100
    queue.take("y", None)
    queue.post("y", 0, 1, Progress(rounds=60.0))  # and one that comes after the next was begun
    assert queue.news().progress.rounds == 100


def test_silence_is_told_of_any_rank_that_holds_a_batch() -> None:
    now = [0.0]
    queue = queue_of({"p.a": 2, "p.b": 1}, clock=lambda: now[0])
    for worker in "xy":
        queue.take(worker, None)
        queue.post(worker, 1, 0, None)
    now[0] = SILENT - 1
    queue.post("x", 0, 1, None)
    queue.post("x", 1, 0, None)
    queue.post("y", 0, 1, None)
    assert queue.news().silent == ()
    now[0] = SILENT + 2  # the second rank of y has said nothing all that time
    assert queue.news().silent == (SILENT + 2,)
    queue.release("y", [])
    assert queue.news().silent == ()


def test_demand_follows_what_waits() -> None:
    queue = queue_of({"p.a": 2, "p.b": 1})
    assert [queue.demand(live) for live in range(4)] == ["more", "more", "enough", "enough"]
    queue.take("x", None)
    assert (queue.demand(1), queue.demand(2)) == ("more", "enough")
    queue.take("y", None)
    assert queue.idle()
    assert queue.demand(2) == "enough"
    queue.release("y", [])
    assert not queue.idle()
    assert queue.demand(1) == "more"
    queue.take("x", Progress())
    assert queue.take("x", Progress()) is None
    assert queue.demand(0) == "over"


def test_workers_that_die_before_they_take_anything_are_not_replaced_for_ever() -> None:
    queue = queue_of({"p.a": 1})
    for life in range(2 * VAIN_DEATHS):  # two at once
        assert queue.demand(2) != "over"
        assert queue.demand(0) == "more"
        queue.release(f"w{life}", ["no module named x"])
    assert queue.demand(0) == "over"
    assert queue.take("late", None) is None
    assert queue.ending().vain == "no module named x"


def test_who_takes_a_batch_shows_that_workers_can_start() -> None:
    queue = queue_of({"p.a": 1, "p.b": 1})
    for life in range(VAIN_DEATHS - 1):
        queue.release(f"w{life}", [])
    assert queue.take("x", None) is not None
    for life in range(VAIN_DEATHS - 1):
        queue.release(f"v{life}", [])
    assert queue.demand(1) == "more"


@pytest.mark.parametrize("how", ["folder", "disk", "failure"])
def test_a_sweep_that_must_stop_hands_out_nothing_more(how: str) -> None:
    queue = queue_of({"p.a": 3, "p.b": 2, "p.c": 1}, fail_fast=True)
    queue.take("x", None)
    queue.take("y", None)
    if how == "folder":
        queue.lose("it was removed")
    elif how == "disk":
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        queue.release("x", ["Traceback ..", f"OSError: {full}"])
    else:
        queue.post("x", 0, 1, Progress(failed=1))
    assert queue.post("y", 0, 1, None)
    assert queue.take("y", Progress(ok=2)) is None
    assert queue.idle()
    assert queue.demand(0) == "over"
    assert queue.ending().folder_lost == ("it was removed" if how == "folder" else "")
    assert bool(queue.ending().disk) == (how == "disk")


@given(
    sizes=st.lists(st.sampled_from([1.0, 2.0, 3.0, 1e9]), max_size=12),
    attempts=st.integers(1, 4),
    events=st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=200),
)
def test_every_batch_ends_once_or_is_given_up(
    sizes: list[float], attempts: int, events: list[tuple[int, bool]]
) -> None:
    """Workers come, work and die in any order; afterwards one that never dies does the rest."""
    queue = queue_of({f"{'AB'[j % 2]}.{j}": work for j, work in enumerate(sizes)}, attempts)
    names = [f"slot{slot}-0" for slot in range(5)]
    at: dict[str, str] = {}
    done: list[str] = []
    begun: dict[str, int] = {}

    def take(worker: str) -> bool:
        ended = at.pop(worker, None)
        if ended is not None:
            done.append(ended)
        got = queue.take(worker, Progress(ok=2) if ended is not None else None)
        if got is None:
            return False
        name = name_of(got)
        assert name not in done
        assert name not in at.values()
        assert got.attempts == begun.get(name, 0) < attempts
        begun[name] = got.attempts + 1
        at[worker] = name
        return True

    for slot, dies in events:
        worker = names[slot]
        if dies and worker in at:
            del at[worker]
            queue.release(worker, ["dead"])
            names[slot] = f"{worker}+"
        elif not dies:
            take(worker)
    for worker in list(at):
        while take(worker):
            pass
    while take("last"):
        pass
    lost = {cell[:-1] for cell in queue.ending().given_up}
    assert sorted([*done, *lost]) == sorted({name_of(b) for b in queue.batches})  # type: ignore[type-var]
    assert all(begun[name] == attempts for name in lost)
    assert queue.demand(0) == "over"
    assert queue.news().progress.ok == 2 * len(done)
