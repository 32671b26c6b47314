"""A small sample of benchmarks/disk_faults.py, and that it sees what it is there to see."""

from __future__ import annotations

import disk_faults
import pytest
from disk_faults import FaultyDisk

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def undisturbed():
    with disk_faults.undisturbed() as found:
        yield found


@pytest.mark.parametrize("kind", disk_faults.KINDS)
def test_nothing_is_lost(undisturbed, tmp_path, kind):
    _, steps, want = undisturbed
    drawn = [at for at, own in disk_faults.faults(3 * steps, steps, seed=1) if own == kind]
    for j, at in enumerate(drawn[:10]):
        ended = disk_faults.try_fault(tmp_path / str(j), at, kind, want, seed=j)
        assert ended != "went on"  # every operation counts, so its failure is noticed


class Forgetful(FaultyDisk):
    """A disk whose folders are never synced."""

    def sync(self, folder):
        self._next(False)


def test_a_missing_sync_is_seen(undisturbed, tmp_path):
    _, steps, want = undisturbed

    def six_times():
        for j in range(6):
            disk = Forgetful(steps - 1, "crash", seed=j)
            disk_faults.try_fault(tmp_path / str(j), 0, "", want, disk=disk)

    with pytest.raises(AssertionError, match="committed and lost"):
        six_times()
