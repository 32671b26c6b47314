"""What a launch is to do and which states it reached, kept in the user's own state folder, for any process of this user.

The results folder holds nothing but the launch's id, for it may come from anybody, and what is kept of a launch names
commands, hosts and keys.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs

from raybench.core.errors import InputError, Notice
from raybench.store.files import LocalFolder


class NodeEnding(NamedTuple):
    """By what a node ends if everything else is dead, what it costs at most then, and whether that is bounded."""

    by: str
    limit: str = "`--max-hours` of all nodes"
    bounded: bool = True


ENDINGS = {  # of providers; docs/cluster.md says the same
    "aws": NodeEnding("its lease: what shuts itself down is deleted"),
    "gcp": NodeEnding("its lease, which stops it, and Google, which deletes it at the deadline"),
    "local": NodeEnding("its lease, which ends all that the launch runs there", "nothing"),
}


def ending(provider: str) -> NodeEnding:
    """Return how a node of a provider ends; of one that is not known what is shut down may cost on."""
    by = "`raybench down` alone: what shuts itself down costs on"
    return ENDINGS.get(provider, NodeEnding(by, "no limit", False))


STATES = ("up", "submitted", "running", "fetched", "down")
NAME, ORDER = "launch", "order.json"  # NAME: of the file in the results folder
ID = re.compile(r"[0-9a-f]{8}")


def launches() -> Path:
    """Return the folder that holds this user's launches, each under its id."""
    return Path(platformdirs.user_state_dir("raybench")) / "launches"


class Launch:
    """The launch of the sweep whose results folder is ``results``.

    What is kept is one document: what was ordered, and under ``reached`` when each state was, with what later steps need.
    """

    def __init__(self, results: str | os.PathLike[str]) -> None:
        self.results = Path(results)

    @classmethod
    def of(cls, name: str | os.PathLike[str]) -> Launch:
        """Return the launch that a folder holds, or that of an id or of a sweep's name, the last begun.

        Raises InputError where there is none.
        """
        launch = cls(name)
        if launch.order():
            return launch
        for key, order in reversed(begun()):
            if str(name) in (key, order.get("name")):
                launch = cls(order["results"])
                if launch._id() is None:  # the folder is gone; the cluster may be up all the same
                    launch._mark(key)
                if launch._id() == key:
                    return launch
        what = f"{name} holds no launch, and no launch has that name"
        raise InputError.of("DIR", what, "`raybench launch ls` lists yours")

    @property
    def folder(self) -> Path:
        """The folder of what is kept of this launch. Raises InputError where this user did not begin it here."""
        name = self._id()
        folder = launches() / (name or "")
        if not name or not folder.is_dir():
            what = f"{self.results} was launched from another machine or by another user"
            fix = f"follow it there; to launch it from here as well, remove {self.results / NAME} first"
            raise InputError.of("DIR", what, fix)
        return folder

    def _id(self) -> str | None:
        """Return the id in the results folder; None where there is none, empty where what is there is no id."""
        try:
            data = LocalFolder(self.results).read(NAME)
        except (InputError, OSError):  # a link, a pipe, a folder
            return ""
        text = None if data is None else data.decode(errors="replace").strip()
        return text if text is None or ID.fullmatch(text) else ""

    def _mark(self, name: str) -> None:
        """Write a launch's id into the results folder."""
        self.results.mkdir(parents=True, exist_ok=True)
        LocalFolder(self.results).write(NAME, name.encode())

    def begin(self) -> dict[str, Any]:
        """Forget an earlier launch that is down, and return the first facts of a new one, to be noted by ``amend``."""
        if self._id() is not None:
            shutil.rmtree(self.folder)
        name = uuid.uuid4().hex[:8]
        launches().mkdir(mode=0o700, parents=True, exist_ok=True)
        (launches() / name).mkdir(mode=0o700)  # it will hold the cluster's token
        self._mark(name)
        results = str(self.results.absolute())
        return {"id": name, "results": results, "began": time.time(), "reached": {}}

    def order(self) -> dict[str, Any]:
        """Return what this launch is to do and has reached, nothing where there is none."""
        return {} if self._id() is None else noted(self.folder)

    def amend(self, **facts: Any) -> None:
        """Note more of what this launch is to do."""
        document = json.dumps({**self.order(), **facts}, indent=1)
        LocalFolder(self.folder).write(ORDER, document.encode())

    def reach(self, state: str, **facts: Any) -> None:
        """Note that a state is reached, with what later steps need."""
        assert state in STATES
        self.amend(reached={**self.order()["reached"], state: {"at": time.time(), **facts}})

    def reached(self, state: str) -> Any:
        """Return the facts of a state, None where it is not reached."""
        return self.order().get("reached", {}).get(state)

    @property
    def state(self) -> str:
        """The last state that is reached; ``ordered`` before the first, ``down`` where nothing was launched."""
        return last_state(self.order())


def last_state(facts: Mapping[str, Any]) -> str:
    """Return the last state of a launch's document; ``ordered`` before the first, ``down`` of an empty one."""
    reached = facts.get("reached", {}) if facts else STATES
    return next((state for state in reversed(STATES) if state in reached), "ordered")


def noted(folder: Path) -> dict[str, Any]:
    """Return the document of a launch's folder, nothing where there is none. Raises InputError for one that is damaged."""
    try:
        return dict(json.loads(LocalFolder(folder).read(ORDER) or "{}"))
    except ValueError as error:  # whoever damaged it: it is replaced as a whole, and synced
        what = f"cannot read {folder / ORDER}: {error}"
        raise InputError.of("DIR", what, "is the file whole?") from error


def begun() -> list[tuple[str, dict[str, Any]]]:
    """Return all launches of this user, the oldest first, as (id, what was ordered and what was reached)."""
    rows = []
    for folder in launches().glob("*"):
        try:
            rows.append((folder.name, noted(folder)))
        except InputError as error:  # one that is damaged hides no other
            warnings.warn(Notice(str(error)), stacklevel=2)
    # without facts it was killed before anything was ordered
    return sorted((row for row in rows if row[1]), key=lambda row: row[1]["began"])


def money(amount: float, currency: str) -> str:
    """Return an amount as people write it: ``12.50 USD``, never less than a cent that is not nothing."""
    return f"{max(amount, 0.01) if amount > 0 else 0:.2f} {currency}"


def spent(facts: Mapping[str, Any]) -> str:
    """Return what a launch has cost so far, if all its nodes ran all the time at list prices."""
    if math.isinf(facts["per_hour"]):
        return "unknown"
    ended = facts["reached"].get("down", {}).get("at", math.inf)
    bounded = ending(facts.get("provider", "")).bounded
    over = min(time.time(), facts["deadline"] if bounded else math.inf, ended)
    cost = facts["per_hour"] * max(0.0, over - facts["began"]) / 3600
    return f"at most {money(cost, facts['currency'])}" if facts["per_hour"] else "nothing"


def clock(when: float) -> str:
    """Return the minute of a time in seconds since 1970."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(when))
