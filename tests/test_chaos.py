"""That benchmarks/chaos.py sees what it is there to see; ``make chaos`` does the kills."""

from __future__ import annotations

import shutil
from pathlib import Path

import chaos
import pyarrow.parquet
import pytest
from chaos import FaultyDisk

from raybench import spec
from raybench.runtime.driver import drive

pytestmark = pytest.mark.thorough

SMALL = chaos.SWEEP.replace("MODE", "simulate").replace("WORKERS", "1").replace("ROUNDS", "20")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("chaos") / "out"
    assert drive(spec.load(SMALL), out, inline=True).exit_code == 0
    return out


def shards(folder: Path, part: str) -> list[Path]:
    return sorted((folder / part).glob("*.parquet"))


def lose_cells(folder: Path) -> None:
    shards(folder, "cells")[0].unlink()


def write_twice(folder: Path) -> None:
    for part in ("cells", "curves"):
        first = shards(folder, part)[0]
        shutil.copy(first, first.with_name("again.parquet"))


def change_a_value(folder: Path) -> None:
    file = shards(folder, "curves")[0]
    table = pyarrow.parquet.read_table(file)
    losses = table["loss"].to_pylist()
    losses[3] *= 1 + 1e-15
    at = table.column_names.index("loss")
    pyarrow.parquet.write_table(table.set_column(at, table.field("loss"), [losses]), file)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lose_cells, "cells are lost"),
        (write_twice, "cells stand twice"),
        (change_a_value, "curves differ"),
    ],
)
def test_harm_is_seen(undisturbed: Path, tmp_path: Path, harm, says: str) -> None:
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    assert chaos.differences(out, undisturbed) == []
    harm(out)
    assert any(says in line for line in chaos.differences(out, undisturbed))


# Disks that fail -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def faultless():
    with chaos.undisturbed() as story:
        yield story


@pytest.mark.parametrize("kind", chaos.KINDS)
def test_nothing_is_lost(faultless, tmp_path, kind):
    whole, steps = faultless
    drawn = [at for at, own in chaos.faults(3 * steps, steps, seed=1) if own == kind]
    for j, at in enumerate(drawn[:10]):
        ended = chaos.try_fault(tmp_path / str(j), FaultyDisk(at, kind, j), whole)
        assert ended != "went on"  # every operation counts, so its failure is noticed


class Forgetful(FaultyDisk):
    """A disk whose folders are never synced."""

    def sync(self, folder):
        self._next(False)


def test_a_missing_sync_is_seen(faultless, tmp_path):
    whole, steps = faultless

    def six_times():
        for j in range(6):
            chaos.try_fault(tmp_path / str(j), Forgetful(steps - 1, "crash", seed=j), whole)

    with pytest.raises(AssertionError, match="committed and lost"):
        six_times()
