"""Threads: the kernels' work shared among the cores, torch kept to one where waking others costs more."""

from __future__ import annotations

import threading

import pytest
import torch

from raybench.core import parallel
from raybench.testing.trial import TrialMethod, started


@pytest.fixture(autouse=True)
def _threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_an_error_in_a_thread_is_raised(monkeypatch):
    monkeypatch.setattr(parallel, "WORTH_THREADS", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    helper_failed = threading.Event()

    def work(lo, hi):
        if threading.current_thread() is threading.main_thread():
            helper_failed.wait(60)  # so that the helper gets its share
        else:
            helper_failed.set()
            raise MemoryError

    with pytest.raises(MemoryError):
        parallel.run_shared(work, 8, 1.0)


def test_every_item_is_worked_on_once(monkeypatch):
    monkeypatch.setattr(parallel, "WORTH_THREADS", 0)
    for threads in (1, 2, 5):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        for items in (1, 2, 7, 100):
            seen: list[int] = []
            parallel.run_shared(lambda lo, hi, seen=seen: seen.extend(range(lo, hi)), items, 1.0)
            assert sorted(seen) == list(range(items))


def test_torch_gets_one_thread_for_small_tensors_and_the_kernels_keep_all():
    torch.set_num_threads(3)
    for entries, inside in ((1000, 1), (parallel.LEAST_ENTRIES_FOR_THREADS, 3)):
        with parallel.one_thread(entries):
            assert (torch.get_num_threads(), parallel.threads()) == (inside, 3)
            with parallel.all_threads(), parallel.all_threads():
                assert (torch.get_num_threads(), parallel.threads()) == (3, 3)
            with pytest.raises(ValueError), parallel.one_thread(1), parallel.all_threads():
                raise ValueError
            assert (torch.get_num_threads(), parallel.threads()) == (inside, 3)
        assert (torch.get_num_threads(), parallel.threads()) == (3, 3)


def test_threads_that_leave_in_another_order_than_they_came_keep_their_own_numbers():
    first_left, second_in = threading.Event(), threading.Event()
    left = []

    def second():
        with parallel.one_thread(1):
            second_in.set()
            first_left.wait(60)
        left.append(parallel.threads())

    torch.set_num_threads(3)
    other = threading.Thread(target=second)
    with parallel.one_thread(1):
        other.start()
        second_in.wait(60)
    first_left.set()
    other.join()
    assert parallel.threads() == torch.get_num_threads() == 3
    assert left[0] > 0
    torch.set_num_threads(2)
    assert parallel.threads() == 2  # nothing is remembered of what is over


def test_methods_see_one_thread_of_torch_and_problems_all(monkeypatch):
    run = started(TrialMethod("gd", problem={"name": "quadratic", "dim": 12, "clients": 5}).batch())
    seen = {"step": set(), "gradient": set()}
    move, oracle = run.a.round, run.problem.oracle

    def watched(net, s, c):
        seen["step"].add(torch.get_num_threads())
        return move(net, s, c)

    def watched_oracle(*args, **rest):
        seen["gradient"].add(torch.get_num_threads())
        return oracle(*args, **rest)

    monkeypatch.setattr(run.a, "round", watched)
    monkeypatch.setattr(run.problem, "oracle", watched_oracle)
    torch.set_num_threads(2)
    run.advance(3)
    assert seen == {"step": {1}, "gradient": {2}}
    assert torch.get_num_threads() == 2
