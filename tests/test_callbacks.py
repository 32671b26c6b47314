"""Callbacks: told of every cell once, after its commit, in the driver; their errors end nothing; the three loggers."""

from __future__ import annotations

import struct
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pandas as pd
import pytest
from cli_kit import cli, tree
from tiers import first_of_each

import raybench
from raybench import spec
from raybench.plugins import Callback
from raybench.runtime import callbacks
from raybench.runtime.driver import drive
from raybench.runtime.loggers import finals_of, params_of, points_of
from raybench.store import Store

SMALL = """
name: small
problem: {name: quadratic, dim: 12, clients: 4}
algorithm: ef21
compressor: {name: top_k, k: [1, 3]}
step_size: {theory: [1, 2]}
rounds: 20
"""


class Heard(Callback):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def begin(self, *said: Any) -> None:
        self.said.append(("begin", *said))

    def cell(self, *said: Any) -> None:
        self.said.append(("cell", *said))

    def batch(self, *said: Any) -> None:
        self.said.append(("batch", *said))

    def end(self, *said: Any) -> None:
        self.said.append(("end", *said))

    def of(self, what: str) -> list[tuple[Any, ...]]:
        return [said[1:] for said in self.said if said[0] == what]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(SMALL)
    return tmp_path


def check_told(heard: Heard, folder: Path, ids: set[str]) -> None:
    """Every cell of ``ids`` once, with what the folder holds of it, inside of begin and end."""
    kinds = [said[0] for said in heard.said]
    assert (kinds[0], kinds[-1], kinds.count("begin"), kinds.count("end")) == ("begin", "end", 1, 1)
    cells = raybench.store.cells(str(folder)).set_index("cell")
    curves = raybench.load(str(folder))
    told = [row["cell"] for row, _ in heard.of("cell")]
    assert sorted(told) == sorted(ids)
    for row, curve in heard.of("cell"):
        assert row["status"] == cells.status[row["cell"]]
        assert row["bits_up"] == cells.bits_up[row["cell"]]
        own = curves[curves.cell == row["cell"]]
        assert curve["round"].tolist() == own["round"].tolist()
        assert curve["loss"].tolist() == own["loss"].tolist()
        assert curve["bits_up"].tolist() == own["bits_up"].tolist()
    batches = [cell for _, ids in heard.of("batch") for cell in ids]
    assert sorted(batches) == sorted(ids)


def test_every_cell_is_told_once_and_a_resumed_sweep_tells_what_it_adds(here: Path) -> None:
    heard = Heard()
    outcome = raybench.sweep("s.yaml", "r", inline=True, callbacks=[heard])
    first = {c.id for c in outcome.plan.cells}
    check_told(heard, here / "r", first)
    assert heard.of("begin")[0][1] == "r"
    assert heard.of("end") == [(outcome,)]
    again = Heard()
    raybench.sweep("s.yaml", "r", inline=True, callbacks=[again])
    assert again.said == []  # nothing ran
    wider = Heard()
    outcome = raybench.sweep("s.yaml", "r", sets=["seed=[0, 1]"], inline=True, callbacks=[wider])
    check_told(wider, here / "r", {c.id for c in outcome.plan.cells} - first)


def test_a_cell_is_told_while_the_sweep_runs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second batch does not begin before the first one's cells are told."""
    monkeypatch.setattr(callbacks, "EVERY", 0.01)
    told, commit = threading.Event(), Store.commit

    class Waits(Heard):
        def batch(self, shard: str, cells: Any) -> None:
            super().batch(shard, cells)
            told.set()

    commits: list[bool] = []

    def after_the_last(self: Store, *shard: Any) -> None:
        commits.append(not commits or told.wait(60))
        commit(self, *shard)

    monkeypatch.setattr(Store, "commit", after_the_last)
    heard = Waits()
    outcome = drive(spec.load(SMALL), here / "r", inline=True, callbacks=[heard])
    assert commits == [True, True]
    check_told(heard, here / "r", {c.id for c in outcome.plan.cells})


@pytest.mark.parametrize(
    ("where", "kind"),
    first_of_each(
        [("cell", RuntimeError), ("begin", RuntimeError), ("batch", KeyError), ("end", SystemExit)]
    ),
)
def test_an_error_is_told_once_and_ends_nothing(
    here: Path, where: str, kind: type[BaseException]
) -> None:
    (here / "mine.py").write_text(
        "from raybench.plugins import Callback\n"
        "class Mine(Callback):\n"
        f"    def {where}(self, *said):\n"
        f"        raise {kind.__name__}('no such server')\n"
    )
    heard = Heard()  # is told of all the same
    with pytest.warns(UserWarning, match="no such server") as warned:
        outcome = raybench.sweep("s.yaml", "r", inline=True, callbacks=["mine.py:Mine", heard])
    assert outcome.exit_code == 0
    check_told(heard, here / "r", {c.id for c in outcome.plan.cells})
    (said,) = [str(w.message) for w in warned if "no such server" in str(w.message)]
    assert said.startswith(f"callback mine.py:Mine, in {where}: {kind.__name__}: ")
    assert raybench.store.cells("r").status.eq("ok").all()


def test_a_sweep_that_breaks_off_ends_without_an_outcome(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Store, *shard: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Store, "commit", full)
    heard = Heard()
    with pytest.raises(OSError, match="No space"):
        drive(spec.load(SMALL), here / "r", inline=True, callbacks=[heard])
    assert [said[0] for said in heard.said] == ["begin", "end"]
    assert heard.of("end") == [(None,)]


def test_failed_cells_are_told_too_and_again_when_they_are_retried(here: Path) -> None:
    heard, again = Heard(), Heard()
    quick = spec.load(SMALL, sets=["timeout=1e-9"])
    drive(quick, here / "r", inline=True, callbacks=[heard])
    assert {(row["status"], len(curve)) for row, curve in heard.of("cell")} == {("failed", 0)}
    assert params_of(heard.of("cell")[0][0])["compressor.name"] == "top_k"
    drive(spec.load(SMALL), here / "r", inline=True, retry_failed=True, callbacks=[again])
    assert {(row["status"], len(curve)) for row, curve in again.of("cell")} == {("ok", 21)}


def test_a_sweep_in_one_process_ends_at_its_first_failure_where_asked(here: Path) -> None:
    failing = spec.load(SMALL, sets=["timeout=1e-9"])
    outcome = drive(failing, here / "r", inline=True, fail_fast=True)
    assert 0 < outcome.counts["failed"] == 4 - outcome.counts["missing"] < 4
    assert drive(failing, here / "r", inline=True).counts["failed"] == 4


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mlfow", "unknown 'mlfow'"),
        ("bad.py:Mien", "did you mean Mine?"),
        ("bad.py:Sulky", "Sulky cannot be made: RuntimeError: not today"),
        ("broken.py:X", "broken.py:X cannot be made: SyntaxError"),
        ("absent_package.x:X", "needs the package absent_package"),
    ],
)
def test_a_callback_that_there_is_not(here: Path, name: str, says: str) -> None:
    (here / "bad.py").write_text(
        "from raybench.plugins import Callback\nclass Mine(Callback): pass\n"
        "class Sulky(Callback):\n    def __init__(self): raise RuntimeError('not today')\n"
    )
    (here / "broken.py").write_text("class\n")
    before = tree(here)
    said = cli("sweep", "s.yaml", "--inline", "--callback", name)
    assert said.code == 2
    assert f"--callback: {says}" in said.err or says in said.err
    assert len(said.err.splitlines()) <= 2
    assert tree(here) == before


# The three loggers ------------------------------------------------------------------------------


def rows_of(folder: str) -> dict[str, tuple[dict[str, Any], pd.DataFrame]]:
    """Return what a callback should have logged, by cell: the row and the curve."""
    cells, curves = raybench.store.cells(folder), raybench.load(folder)
    rows = cells.astype(object).where(cells.notna(), None).to_dict("records")
    return {row["cell"]: (row, curves[curves.cell == row["cell"]]) for row in rows}


def curve_of(curve: pd.DataFrame, name: str) -> list[tuple[int, float]]:
    return [(at, value) for metric, at, value in points_of(curve) if metric == name]


def events_in(folder: Path) -> list[Any]:
    """Return the events of the files in a folder, read as the format has them: length, checks, content."""
    from tensorboardX.proto import event_pb2

    result = []
    for path in folder.glob("events.*"):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            event = event_pb2.Event()
            event.ParseFromString(data[at + 12 : at + 12 + size])
            result.append(event)
            at += 16 + size
    return result


def test_tensorboard(here: Path) -> None:
    raybench.sweep("s.yaml", "r", inline=True, callbacks=["tensorboard"])
    expected = rows_of("r")
    folders = {p.name: p for p in (here / "r" / "tensorboard").glob("*/*")}
    assert set(folders) == set(expected)
    for cell, (row, curve) in expected.items():
        values = [(v.tag, e.step, v) for e in events_in(folders[cell]) for v in e.summary.value]
        for name in ("loss", "grad_norm_sq"):
            bits, numbers = zip(*curve_of(curve, name), strict=True)
            logged = [(step, v.simple_value) for tag, step, v in values if tag == name]
            assert [step for step, _ in logged] == list(bits)
            assert [x for _, x in logged] == pytest.approx(numbers, rel=1e-6)
        finals = {tag.removeprefix("final/"): v.simple_value for tag, _, v in values if "/" in tag}
        assert {k: finals[k] for k in finals_of(row)} == pytest.approx(finals_of(row), rel=1e-6)
        assert any(tag == "_hparams_/session_start_info" for tag, _, _ in values)
    assert raybench.load("r") is not None  # other files in the folder disturb nobody
    assert cli("verify", "r").code == 0


def test_mlflow_is_told_of_a_sweep_and_its_cells(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the calls of its client, which stands in for the package: a run for the sweep, one below it for each cell."""
    mlflow, client = mock.MagicMock(), mock.MagicMock()
    mlflow.MlflowClient.return_value = client
    mlflow.entities.Metric = mlflow.entities.Param = lambda *said: said
    client.create_run.side_effect = lambda *_, run_name, tags=None: SimpleNamespace(
        info=SimpleNamespace(run_id=run_name.split()[-1])
    )
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    raybench.sweep("s.yaml", "r", inline=True, callbacks=["mlflow"])
    batches = [call for call in client.log_batch.mock_calls if call.kwargs.get("metrics")]
    logged = {call.args[0]: call.kwargs["metrics"] for call in batches}
    expected = rows_of("r")
    assert set(logged) == set(expected)
    for cell, (row, curve) in expected.items():
        finals = {key[6:]: value for key, value, _, _ in logged[cell] if key.startswith("final.")}
        assert finals == finals_of(row)
        steps = [(at, value) for key, value, _, at in logged[cell] if key == "grad_norm_sq"]
        assert steps == curve_of(curve, "grad_norm_sq")
    client.set_tag.assert_any_call("cells", "raybench.cells.ok", "4")  # "small: 4 cells"
    client.set_terminated.assert_called_with("cells", "FINISHED")


def test_wandb_gets_a_run_for_each_cell(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb, runs = mock.MagicMock(), {}

    def init(**said: Any) -> mock.MagicMock:
        return runs.setdefault(said["config"]["cell"], mock.MagicMock(said=said))

    wandb.init = init
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    raybench.sweep("s.yaml", "r", inline=True, callbacks=["wandb"])
    for cell, (_, curve) in rows_of("r").items():
        said = runs[cell].said
        assert (said["project"], said["group"], said["mode"]) == ("raybench", "small", "offline")
        rows = [call.args[0] for call in runs[cell].log.mock_calls]
        points = [(row["bits_up"], row["grad_norm_sq"]) for row in rows]
        assert points == sorted(dict(curve_of(curve, "grad_norm_sq")).items())
        runs[cell].finish.assert_called_once_with(exit_code=0)
    wandb.teardown.assert_called_once_with()
