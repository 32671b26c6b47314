"""That the comparison of benchmarks/chaos.py sees what it is there to see; ``make chaos`` does the kills."""

from __future__ import annotations

import shutil
from pathlib import Path

import chaos
import pyarrow.parquet
import pytest

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
