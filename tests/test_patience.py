"""How long a store that fails is asked again, and what is not asked again at all."""

from __future__ import annotations

import itertools

import pytest

from raybench.core.errors import InputError, StoreError
from raybench.store import remote


def test_patience_is_bounded_and_asks_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked, told = [0.0], [], []
    monkeypatch.setattr(remote.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(remote.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))

    def fail() -> None:
        asked.append(now[0])
        raise OSError(5, "down")

    with remote.heard(told.append), pytest.raises(StoreError, match="last: down"):
        remote.patiently(fail, "s3://b/x", 60.0)
    assert asked[-1] <= 60.0
    assert len(told) == len(asked) - 1 < 20
    assert told[0] == "s3://b/x: down; trying again"
    waits = [b - a for a, b in itertools.pairwise(asked)]
    assert waits[0] <= remote.FIRST
    assert remote.LONGEST / 2 <= max(waits) <= remote.LONGEST
    for error in (FileNotFoundError("x"), PermissionError("x"), ValueError("x")):
        asked.clear()

        def refuse(error: Exception = error) -> None:
            asked.append(0)
            raise error

        with pytest.raises(type(error)):
            remote.patiently(refuse, "x", 60.0)
        assert len(asked) == 1
    monkeypatch.setenv(remote.VARIABLE, "long")
    with pytest.raises(InputError, match="is no number of seconds"):
        remote.patience()
