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


@pytest.mark.parametrize("ended", [False, True], ids=["taken over", "its holder ended late"])
def test_of_two_who_take_over_one_wins(monkeypatch, tmp_path, ended):
    """Both find the old lease run out; the conditional PUT of the next number succeeds once.

    Where the late holder ends meanwhile, the other begins at 0, and who counts on must see it.
    """
    folder = f"memory://race/{tmp_path.name}{ended}"
    files, create = open_folder(folder), store_files.Remote.create
    files.write("plan/lock.3", json.dumps({"own": "x", "until": 0}).encode())
    entered = []

    def first_another(self, rel, data):
        if not entered:
            entered.append(True)
            if ended:
                files.remove("plan/lock.3")
            other = Store(folder).held()
            other.__enter__()
            entered.append(other)
        return create(self, rel, data)

    monkeypatch.setattr(store_files.Remote, "create", first_another)
    with pytest.raises(InputError, match="another sweep is running"), Store(folder).held():
        pass
    assert files.names("plan") == ["lock.0" if ended else "lock.4"]


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
