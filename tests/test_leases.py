"""The lease on an object store: one driver at a time, renewed while it works, free after a while if it died."""

import json
import time

import pytest

from raybench.core.errors import InputError
from raybench.store import Store, lock
from raybench.store import files as store_files
from raybench.store.files import open_folder


def test_a_lease_excludes_and_expires(monkeypatch, tmp_path):
    folder = f"memory://lease/{tmp_path.name}"
    taken = pytest.raises(InputError, match="another sweep is running")
    with Store(folder).held(), taken, Store(folder).held():
        pass
    with Store(folder).held():
        pass
    assert open_folder(folder).names("plan") == []
    dead = Store(folder)
    monkeypatch.setattr(lock, "LEASE", -1.0)  # it has run out as soon as it is made
    context = dead.held()
    context.__enter__()
    monkeypatch.undo()
    with Store(folder).held(), pytest.raises(InputError), Store(folder).held():
        pass


def test_of_two_who_take_over_one_wins(monkeypatch, tmp_path):
    """Both find the old lease run out; the conditional PUT of the next number succeeds once."""
    folder = f"memory://race/{tmp_path.name}"
    files, create = open_folder(folder), store_files.Remote.create
    files.write("plan/lock.3", json.dumps({"own": "x", "until": 0}).encode())
    entered = []

    def first_another(self, rel, data):
        if not entered:
            entered.append(True)
            other = Store(folder).held()
            other.__enter__()
            entered.append(other)
        return create(self, rel, data)

    monkeypatch.setattr(store_files.Remote, "create", first_another)
    with pytest.raises(InputError, match="another sweep is running"), Store(folder).held():
        pass
    assert files.names("plan") == ["lock.4"]


def test_a_lease_of_a_late_holder_does_not_let_two_in(monkeypatch, tmp_path):
    """One counts on from a lease that had run out; its holder ends, and another begins at 0."""
    folder = f"memory://late/{tmp_path.name}"
    files, create = open_folder(folder), store_files.Remote.create
    files.write("plan/lock.3", json.dumps({"own": "x", "until": 0}).encode())
    entered = []

    def first_another(self, rel, data):
        if not entered:
            entered.append(True)
            files.remove("plan/lock.3")
            other = Store(folder).held()
            other.__enter__()
            entered.append(other)
        return create(self, rel, data)

    monkeypatch.setattr(store_files.Remote, "create", first_another)
    with pytest.raises(InputError, match="another sweep is running"), Store(folder).held():
        pass
    assert files.names("plan") == ["lock.0"]


def test_a_lease_is_renewed_while_it_is_held(monkeypatch, tmp_path):
    """It would have run out many times over, and nobody else gets in."""
    monkeypatch.setattr(lock, "LEASE", 2.0)
    monkeypatch.setattr(lock, "RENEWED", 0.05)
    folder = f"memory://renewed/{tmp_path.name}"
    files = open_folder(folder)
    with Store(folder).held():
        first = json.loads(files.read("plan/lock.0"))["until"]
        until = time.monotonic() + 60
        while json.loads(files.read("plan/lock.0"))["until"] < first + 0.5:
            assert time.monotonic() < until, "it is not renewed"
            time.sleep(0.02)
        with pytest.raises(InputError, match="another sweep is running"), Store(folder).held():
            pass
    assert files.names("plan") == []
