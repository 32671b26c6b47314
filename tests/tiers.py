"""Which tests make test runs, and which only make test-all: those that bear the marker ``thorough``.

A file whose failures change seldom, or take long to look for, bears it as a whole (``pytestmark``); single cases bear it
by ``first_of_each``. So does all that starts Ray, but for ``ON_RAY``, and all that is ``slow``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

ON_RAY = {
    "test_tune_trials_give_what_one_process_gives_though_one_is_killed",
    "test_two_train_workers_give_what_one_process_gives",
    "test_ctrl_c_leaves_a_valid_store",
}
"""What make test runs on Ray: a sweep, a group of train, an interruption with its resumption, a killed worker."""


def is_thorough(item: pytest.Item) -> bool:
    """Return whether a test runs in make test-all alone because it starts Ray, or is slow."""
    ray = item.get_closest_marker("ray") is not None and item.name.partition("[")[0] not in ON_RAY
    return ray or item.get_closest_marker("slow") is not None


def first_of_each(cases: Iterable[Any], key: Callable[[Any], Any] = lambda case: 0) -> list[Any]:
    """Return parameters of which all are thorough but the first of each ``key``: without one, the first of all."""
    params, seen = [], set()
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marks = [pytest.mark.thorough] if key(case) in seen else []
        params.append(pytest.param(*values, marks=marks))
        seen.add(key(case))
    return params
