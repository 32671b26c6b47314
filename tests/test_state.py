"""What a run remembers: saved after any round, continued as if nothing had happened, also on other numbers of ranks."""

from __future__ import annotations

import errno
import io
import shutil
from pathlib import Path
from typing import Any

import network_cases
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from tiers import first_of_each
from toys import RAND, TOP, on_p1, registered

import raybench
from raybench.core.cells import State
from raybench.core.errors import FolderLost
from raybench.execution.batch import Batch
from raybench.execution.execute import execute
from raybench.execution.run import Options, Run
from raybench.problems.base import Measured
from raybench.problems.quadratic import Quadratic
from raybench.runtime.checkpoints import FOLDER, Checkpoints, run_name
from raybench.spec.model import Record
from raybench.store import Store
from raybench.store.accounting import Accounting
from raybench.testing.trial import TrialMethod, finished, recorded, started
from raybench.wire.transport import Transport, on_virtual_ranks


def written(state: dict) -> dict:
    """Return a state as it comes back from a file that is read without running code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def same(run: Run, other: Run) -> None:
    """Assert that two runs ended with the same curves, bit for bit, but for the times."""
    ours, theirs = recorded(run), recorded(other)
    assert ours.keys() == theirs.keys()
    for name, want in ours.items():
        assert torch.equal(theirs[name].nan_to_num(), want.nan_to_num()), name
    assert list(run.status) == list(other.status)
    assert run.t == other.t
    assert np.array_equal(run.index, other.index)


def continued(batch: Batch, before: int) -> Run:
    """Return a run that took over after so many rounds, once it has ended as an undisturbed one."""
    once, first, second = finished(batch), started(batch), started(batch)
    first.advance(before)
    second.load(written(first.state()))
    second.advance(first.rounds)
    same(once, second)
    return second


@pytest.mark.parametrize("before", [0, 1, 7, 39, 40])
def test_after_any_round(before):
    continued(TrialMethod("pp_marina", {"p": 0.3}, RAND).batch((1.0, 0.5), (0, 1)), before)


def test_a_state_is_a_copy():
    """The run that was saved goes on and changes nothing of what was saved."""
    run = started(TrialMethod("ef21", {}, TOP).batch())
    run.advance(3)
    saved = run.state()
    before = written(saved)
    run.advance(10)
    for part, name in (("s", "x"), ("c", "g"), ("ledger", "up"), ("recorder", "data")):
        assert torch.equal(saved[part][name].nan_to_num(), before[part][name].nan_to_num())


@pytest.mark.parametrize(
    "more",
    [
        {"iterate": "average"},
        {"iterate": "weighted"},
        {"step_size": {"value": 0.02, "schedule": "cosine", "warmup": 7}},
        {"stop": {"bits_up": 3000}},
        {"x0": {"normal": 2.0}},
    ],
    ids=lambda more: next(iter(more)),
)
def test_schedules_averages_and_stops_go_on(more):
    continued(TrialMethod("diana", {}, RAND, step=0.02, more=more).batch((1.0, 0.5), (0, 1)), 5)


def test_cells_that_left_stay_away():
    """Cells diverge and leave, the rest are gathered, and then the run is interrupted."""
    batch = on_p1("ef21", TOP, 300).batch((1.0, 1e6, 0.5, 1e6, 1e6), range(5))
    run = continued(batch, 100)
    assert len(run.index) == 2
    assert list(run.status) == ["ok", "diverged", "ok", "diverged", "diverged"]


def test_first_messages_are_still_known():
    """A stop on bits that leaves the first messages out needs their counts after the interruption."""
    method = TrialMethod("ef21", {"init": "full"}, TOP, step=0.02, more={"stop": {"bits_up": 2000}})
    options = Options(Record(every=1), Accounting(count_init=False))
    batch = method.batch()
    once, first, second = (Run(batch, started(batch).problem, options) for _ in range(3))
    once.advance(40)
    first.advance(3)
    second.load(written(first.state()))
    second.advance(40)
    same(once, second)
    assert 0 < second.t < 40


def test_only_what_can_be_read_back_safely_is_state():
    state = State.of({"g": torch.ones(2), "parts": [torch.zeros(2), None], "t": 3})
    assert written(state.state())["t"] == 3
    state.odd = {1, 2}
    with pytest.raises(TypeError, match="state odd is a set"):
        state.state()


# Memory that gradients carry along, and a problem that says what a record is worth -----------------


class Frugal(Quadratic):
    """Quadratics that measure their gradient only where rows are recorded in full."""

    declared = {}

    def __init__(self) -> None:
        A = torch.eye(4, dtype=torch.float64).expand(3, 4, 4).clone()
        super().__init__(A, torch.arange(12, dtype=torch.float64).view(3, 4))

    def measure(self, x, what, full):
        grads, losses = full() if "mean_client_grad_norm_sq" in what else (None, None)
        return Measured(grads, losses, {"test_loss": x.square().sum(-1)})


def on(problem: str, **rest) -> TrialMethod:
    return TrialMethod("sgd", {"batch": 1}, None, {"name": problem}, step=0.05, **rest)


def test_a_problem_decides_what_a_row_costs():
    """Rows in which the gradient was not measured have null there, and the run neither stops nor diverges."""
    with registered("problem", frugal=Frugal):
        method = on("frugal", rounds=120, more={"stop": {"grad_norm_sq": 1e-30}})
        run = finished(method.batch())
        curves = run.tables({})[0].to_pandas()
    known = curves["grad_norm_sq"].notna()
    assert 0 < known.sum() < 0.6 * len(curves)
    assert curves["loss"].notna().equals(known)
    assert curves["test_loss"].notna().all()
    assert run.status[0] == "ok"


# Checkpoints of networks --------------------------------------------------------------------------


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


def method(name: str, folder: Path) -> TrialMethod:
    params = dict(network_cases.CASES[name])
    compressor, step = params.pop("compressor", None), params.pop("step_size")["value"]
    problem = network_cases.problem_of(name, folder)
    return TrialMethod(name, params, compressor, problem, step=step, rounds=ROUNDS)


def keeper(folder: Path, transport: Transport, kind: type[Checkpoints], options: Options) -> Any:
    # ranks of one run share its name
    run = transport.agree(run_name("test"))
    return kind(Store(folder), options, 1e-9, run, transport)


def curve(
    one: TrialMethod,
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
        # what interrupts is no error of a cell, whose ranks would go on without it
        patch.setattr(Transport, "all_failed", lambda self: False)
        table = on_virtual_ranks(ranks, work)[0]
    if table is None:
        return None, ran
    frame = table.to_pandas()
    return frame.drop(columns=[c for c in frame if c.startswith("seconds")]), ran


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
    "rounds": 25,
    "record": {"every": 1},
    "checkpoint": {"every": 1e-6},
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
    assert 0 < begun[0] < len(begun) + begun[0] == 26
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


def test_a_folder_removed_before_a_checkpoint_is_not_made_again(tmp_path, monkeypatch):
    saved = Checkpoints.save

    def gone(self: Checkpoints, *args: Any) -> None:
        shutil.rmtree(tmp_path / "kept")
        saved(self, *args)

    monkeypatch.setattr(Checkpoints, "save", gone)
    with pytest.raises(FolderLost, match="was removed or renamed while the sweep was running"):
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
