"""Checkpoints of networks: a run that is interrupted goes on from the last one, on any number of ranks."""

import errno
import shutil
from pathlib import Path
from typing import Any

import network_cases
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tiers import first_of_each

import raybench
from raybench.core.errors import FolderLost
from raybench.execution.execute import execute
from raybench.execution.run import Options, Run
from raybench.runtime.checkpoints import FOLDER, Checkpoints, run_name
from raybench.spec.model import Record
from raybench.store import Store
from raybench.testing.trial import Method
from raybench.wire.transport import Transport, on_virtual_ranks

ROUNDS = 24


class Interrupted(Exception):
    """What ends a run in these tests, as a kill would."""


class Cut(Checkpoints):
    """Checkpoints that end the run after so many saves, after the last or (torn) in the midst of it."""

    saves, torn = 2, False

    def save(self, batch: Any, t: int, state: Any) -> None:
        self.saves -= 1
        if self.saves == 0 and self.torn and self.transport.rank == self.transport.size - 1:
            raise Interrupted  # this rank's part is missing
        super().save(batch, t, state)
        if self.saves == 0:
            raise Interrupted


class Torn(Cut):
    torn = True


def method(name: str, folder: Path) -> Method:
    params = dict(network_cases.CASES[name])
    compressor, step = params.pop("compressor", None), params.pop("step_size")["value"]
    problem = network_cases.problem_of(name, folder)
    return Method(name, params, compressor, problem, step=step, rounds=ROUNDS)


def keeper(folder: Path, transport: Transport, kind: type[Checkpoints], options: Options) -> Any:
    # ranks of one run share its name
    run = transport.agree(run_name("test"))
    return kind(Store(folder), options, 1e-9, run, transport)


def curve(
    one: Method,
    folder: Path,
    ranks: int,
    kind: type[Checkpoints] | None,
    options: Options | None = None,
) -> tuple[pd.DataFrame | None, list[int]]:
    """Run a batch on so many ranks; return its curve, None if it was cut, and the rounds rank 0 ran."""
    options = options or Options(record=Record(every=1))
    batch = one.batch()  # here, as threads that build a network at once get into each other's way
    ran: list[int] = []

    def work(transport: Transport) -> pa.Table | None:
        kept: list[pa.Table | None] = []

        def commit(shard: str, curves: pa.Table | None, *rest: Any) -> None:
            kept.append(curves)

        keeps = None if kind is None else keeper(folder, transport, kind, options)
        how = {"transport": transport, "keeper": keeps, "slice_seconds": 1e-3}
        try:
            list(execute([batch], options, commit, **how))
        except Interrupted:
            return None
        return kept[0] if kept else None

    def counted(run: Run, *args: Any) -> None:
        if run.net.transport.rank == 0:
            ran.append(run.t + 1)
        step(run, *args)

    step = Run._step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "_step", counted)
        table = on_virtual_ranks(ranks, work)[0]
    if table is None:
        return None, ran
    frame = table.to_pandas()
    return frame.drop(columns=[c for c in frame if c.startswith("seconds")]), ran


@pytest.fixture(autouse=True)
def as_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests raise is no error of a cell, whose ranks would go on without it."""
    monkeypatch.setattr(Transport, "all_failed", lambda self: False)


@pytest.mark.parametrize("name", network_cases.CASES)
@pytest.mark.parametrize(("before", "after"), first_of_each([(2, 3), (2, 2), (2, 1)]))
def test_what_is_interrupted_goes_on(tmp_path, name, before, after):
    one = method(name, tmp_path)
    want, whole = curve(one, tmp_path, before, None)
    assert whole == list(range(ROUNDS + 1))
    cut, began = curve(one, tmp_path, before, Cut)
    assert cut is None
    result, went_on = curve(one, tmp_path, after, Checkpoints)
    assert began + went_on == whole  # no round twice
    if before == after:
        pd.testing.assert_frame_equal(result, want, check_exact=True)
    else:
        pd.testing.assert_frame_equal(result, want, check_exact=False, rtol=1e-9, atol=1e-12)


def test_a_checkpoint_that_lacks_a_part_is_none(tmp_path):
    """The last save was torn: the one before it serves, and its rounds alone are done again."""
    one = method("ef21", tmp_path)
    want, _ = curve(one, tmp_path, 2, None)
    _, began = curve(one, tmp_path, 2, Torn)
    result, went_on = curve(one, tmp_path, 2, Checkpoints)
    assert 0 < went_on[0] < began[-1] + 1
    pd.testing.assert_frame_equal(result, want, check_exact=True)


def parts(folder: Path) -> list[Path]:
    return sorted((folder / FOLDER).glob("*/*/part-*.pt"))


@pytest.mark.parametrize("harm", first_of_each(["changed", "cut", "empty"]))
def test_a_damaged_checkpoint_is_none(tmp_path, harm):
    one = method("vr_marina", tmp_path)
    want, whole = curve(one, tmp_path, 1, None)
    curve(one, tmp_path, 1, Cut)
    (part,) = parts(tmp_path)
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes({"cut": data[:-9], "changed": data, "empty": b""}[harm])
    result, ran = curve(one, tmp_path, 1, Checkpoints)
    assert ran == whole
    pd.testing.assert_frame_equal(result, want, check_exact=True)


def test_what_records_otherwise_begins_anew(tmp_path):
    """Rows of rounds that the first run left out cannot be had from its state."""
    one = method("vr_marina", tmp_path)
    curve(one, tmp_path, 1, Cut, Options(record=Record(every=4)))
    result, ran = curve(one, tmp_path, 1, Checkpoints)
    assert ran == list(range(ROUNDS + 1))
    assert result is not None
    assert list(result["round"]) == ran


@pytest.mark.parametrize("place", ["disk", "memory"])
def test_old_checkpoints_go_as_new_ones_come(tmp_path, place):
    """Of a folder on a disk, or in an object store."""
    store = Store(tmp_path if place == "disk" else f"memory://{tmp_path.name}")
    files = store.files
    batch = method("vr_marina", tmp_path).batch()
    first = Checkpoints(store, Options(), 1.0, "first")
    for t in (3, 7):
        first.save(batch, t, {"t": t})
    assert [read()["t"] for read in first.find(batch)] == [7]
    second = Checkpoints(store, Options(), 1.0, "second")
    for t in (5, 6):  # of a run that found nothing; what counts is the newest round
        second.save(batch, t, {"t": t})
    assert [read()["t"] for read in second.find(batch)] == [6]
    assert files.folders(f"{FOLDER}/first") == []
    assert len(files.folders(f"{FOLDER}/second")) == 1
    files.clear(FOLDER)
    assert second.find(batch) == []


SWEEP = {
    "name": "kept",
    "problem": {**network_cases.DIGITS, "model": "mlp:hidden=[12]", "dtype": "float64"},
    "algorithm": "ef21",
    "compressor": network_cases.TOP,
    "step_size": {"value": [0.1, 0.2]},
    "rounds": 60,
    "record": {"every": 1},
    "checkpoint": {"every": 0.001},
}


def test_a_sweep_that_ctrl_c_ended_goes_on_and_leaves_no_checkpoint(tmp_path, monkeypatch):
    raybench.sweep({**SWEEP, "name": "whole"}, tmp_path / "whole", inline=True)
    saved = Checkpoints.save

    def interrupting(self: Checkpoints, batch: Any, t: int, state: Any) -> None:
        saved(self, batch, t, state)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", interrupting)
        ended = raybench.sweep(SWEEP, tmp_path / "kept", inline=True)
    assert ended.interrupted
    assert len(parts(tmp_path / "kept")) == 1
    begun: list[int] = []
    step = Run._step
    monkeypatch.setattr(Run, "_step", lambda run, *a: begun.append(run.t + 1) or step(run, *a))
    assert raybench.sweep(SWEEP, tmp_path / "kept", inline=True).counts["ok"] == 2
    assert 0 < begun[0] < len(begun) + begun[0] == 61
    assert not (tmp_path / "kept" / FOLDER).exists()
    want, result = (raybench.load(tmp_path / name) for name in ("whole", "kept"))
    for column in ("loss", "grad_norm_sq", "bits_up", "accuracy"):
        np.testing.assert_array_equal(result[column], want[column])


def test_a_full_disk_is_no_fault_of_the_cells(tmp_path, monkeypatch):
    def full(self: Checkpoints, *args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", full)
        with pytest.raises(OSError, match="No space left"):
            raybench.sweep(SWEEP, tmp_path / "kept", inline=True)
    assert not list((tmp_path / "kept").glob("cells/*"))
    assert raybench.sweep(SWEEP, tmp_path / "kept", inline=True).counts["ok"] == 2


def test_a_folder_that_is_gone_ends_the_sweep(tmp_path, monkeypatch):
    def gone(self: Checkpoints, *args: object) -> None:
        shutil.rmtree(tmp_path / "kept")
        save(self, *args)

    save = Checkpoints.save
    monkeypatch.setattr(Checkpoints, "save", gone)
    with pytest.raises(FolderLost, match="was removed"):
        raybench.sweep(SWEEP, tmp_path / "kept", inline=True)
    assert not (tmp_path / "kept").exists()


def test_a_state_that_no_file_can_hold_is_not_saved(tmp_path, monkeypatch):
    def unsavable(run: Run) -> dict[str, object]:
        raise TypeError("state of a set")

    monkeypatch.setattr(Run, "state", unsavable)
    assert raybench.sweep(SWEEP, tmp_path / "kept", inline=True).counts["ok"] == 2


def test_fresh_forgets_checkpoints(tmp_path):
    raybench.sweep({**SWEEP, "rounds": 2}, tmp_path / "kept", inline=True)
    store = Store(tmp_path / "kept")
    Checkpoints(store, Options(), 1.0, "old").save(method("diloco", tmp_path).batch(), 3, {})
    assert parts(tmp_path / "kept")
    raybench.sweep({**SWEEP, "rounds": 2}, tmp_path / "kept", inline=True, fresh=True)
    assert not (tmp_path / "kept" / FOLDER).exists()
