"""What is shown of a launch: the progress of a sweep that runs elsewhere, and what it has cost."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from raybench.cluster.price import money
from raybench.cluster.steps import Steps
from raybench.execution.execute import Progress
from raybench.runtime.progress import View


@contextmanager
def progress(steps: Steps) -> Iterator[None]:
    """Show the progress of the sweep there in the same block as one that runs here."""
    views: list[View] = []

    def show(said: dict[str, Any], remark: str) -> None:
        if said and not views:
            views.append(View(said["name"], said["cells"], said["rounds"], said["before"]))
            views[0].__enter__()
        for view in views if said else ():
            view.began = time.monotonic() - said["seconds"]  # when the driver did, not this process
            now = Progress(**said["now"])
            view.update(now, remark or said["stage"], said.get("silent", ()))

    steps.show = show
    try:
        yield
    finally:
        for view in views:
            view.__exit__(None, None, None)


def spent(facts: Mapping[str, Any]) -> str:
    """Return what a launch has cost so far, if all its nodes ran all the time at list prices."""
    try:
        over = min(time.time(), facts["deadline"], facts.get("down", {}).get("at", 1e18))
        cost = facts["per_hour"] * max(0.0, over - facts["began"]) / 3600
        return f"at most {money(cost, facts['currency'])}" if facts["per_hour"] else "nothing"
    except (KeyError, TypeError, AttributeError):  # no prices, or a damaged file
        return "unknown"
