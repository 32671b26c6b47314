"""Whether a method calls nothing but what methods may call: what is for the record only is never booked."""

from __future__ import annotations

from typing import Any

from raybench.algorithms import protocols
from raybench.execution.run import Run

RECORD = ("oracle_mean", "oracle_spread", "assemble")  # for ``point`` and ``disagreement`` alone
PAGE = "docs/plugins.md lists what may be called"


def named(*kinds: type) -> frozenset[str]:
    """Return the public names of protocols."""
    every = {n for kind in kinds for part in kind.__mro__ for n in [*vars(part), *_fields(part)]}
    return frozenset(n for n in every if not n.startswith("_")) - {*RECORD}


def _fields(part: type) -> list[str]:
    return list(vars(part).get("__annotations__", {}))


OF_NET = named(protocols.Net)
OF_ORACLE = named(protocols.Oracle, protocols.Predictions, protocols.Vertical)


class Only:
    """An object of which only some names may be used. Raises AssertionError for others."""

    def __init__(self, whole: Any, names: frozenset[str], about: str) -> None:
        self.__dict__.update(_whole=whole, _names=names, _about=about)

    def __getattr__(self, name: str) -> Any:
        about = f"{self._about}.{name}"
        assert name not in RECORD, f"{about} is for the record only: it books nothing; {PAGE}"
        assert name in self._names, f"{about} is not a method's to use: {PAGE}"
        value = getattr(self._whole, name)
        return Only(value, OF_ORACLE, f"{self._about}.oracle") if name == "oracle" else value

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError(f"{self._about}.{name} is not a method's to set")


def fence(run: Run) -> None:
    """Let the method of a run that has not begun see nothing but what ``protocols`` lists, in start and rounds."""
    net = Only(run.net, OF_NET, "net")
    for name in ("start", "round"):
        setattr(run.a, name, _given(getattr(run.a, name), net))


def _given(work: Any, net: Only) -> Any:
    return lambda _, s, c: work(net, s, c)
