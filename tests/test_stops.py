"""What ends a cell, and what its last row says: stop rules between two evaluations, time limits, interrupts."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

import raybench
from raybench import store
from raybench.algorithms.base import algorithm
from raybench.algorithms.gd import GD
from raybench.analysis.frames import closing_table
from raybench.core import compiled
from raybench.execution.execute import Progress
from raybench.runtime import progress

CONFIG = {
    "problem": {
        "name": "logistic",
        "dataset": "breast_cancer",
        "clients": 4,
        "scale": "columns",
        "test_size": 0.25,
    },
    "algorithm": ["gd", "ef21"],
    "compressor": {"name": "top_k", "k": 3},
    "step_size": {"theory": [1, 8]},
    "rounds": 60,
    "evaluate": {"every": 20},
}
NETWORK = {
    **CONFIG,
    "problem": {"name": "network", "model": "mlp:hidden=[8]", "dataset": "digits", "clients": 2},
    "algorithm": "sgd",
    "step_size": {"value": [0.1]},
    "compressor": None,
    "record": {"every": 1},
}
NETWORK["problem"] |= {"batch": 16, "test_size": 0.2}


def results(config, folder):
    """Return the curves and cells of a sweep."""
    raybench.sweep(config, folder, inline=True)
    return raybench.load(folder), store.cells(folder)


@pytest.mark.parametrize("config", [CONFIG, NETWORK], ids=["convex", "network"])
def test_the_last_row_is_measured_in_full_whatever_ends_a_cell(config, tmp_path):
    """A stop rule ends cells in the middle between two evaluations: they end as a run of as many rounds ends."""
    curves, _ = results({**config, "name": "a"}, tmp_path / "a")
    row = curves[curves["round"] == 33].groupby("algorithm")["bits_up"].min()
    stop = {"bits_up": float(row["sgd" if config is NETWORK else "gd"])}
    curves, cells = results({**config, "name": "b", "stop": stop}, tmp_path / "b")
    last = curves.sort_values("round").groupby("cell").tail(1)
    assert 33 in set(cells["rounds"])
    for name in ("accuracy", "test_loss", *(["loss"] if config is CONFIG else [])):
        assert last[name].notna().all(), name
    shorter = {**config, "name": "c", "rounds": 33}
    _, same = results(shorter, tmp_path / "c")
    key = ["algorithm", "step_size"]
    both = cells[cells["rounds"] == 33].merge(same, on=key, suffixes=("", "_same"))
    assert len(both)
    np.testing.assert_array_equal(both["accuracy"], both["accuracy_same"])
    np.testing.assert_array_equal(both["loss"], both["loss_same"])


def test_a_time_limit_is_that_of_a_cell(tmp_path):
    """Seven cells outlast the limit together, and are one batch all the same; one that sleeps outlasts it alone."""

    @algorithm("gd_that_sleeps", up=None)
    class Sleeps(GD):
        """GD that takes its time where the step is long."""

        def round(a, net, s, c):
            super().round(net, s, c)
            time.sleep(0.002 * net.B + (0.1 if (a.gamma.values > 1).any() else 0.0))

    steps = {"value": [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 2.0]}
    config = {**CONFIG, "algorithm": "gd_that_sleeps", "compressor": None, "step_size": steps}
    config |= {"name": "slow", "timeout": 1.0, "rounds": 100}
    _, cells = results(config, tmp_path / "out")
    failed = cells[cells["status"] == "failed"]
    assert failed["step_size"].tolist() == [2.0]
    assert "timeout" in failed["error"].iloc[0]
    assert (cells["status"] == "ok").sum() == 7
    config |= {"name": "quick", "step_size": {"value": steps["value"][:7]}}
    _, cells = results(config, tmp_path / "quick")
    assert set(cells["batch_cells"]) == {7}


def test_an_interrupt_waits_while_a_kernel_compiles(monkeypatch):
    """The signal comes within the compiler: it is raised after it, and the kernel is whole."""
    handler = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)

    @compiled.compiled
    def double(x):
        return 2 * x

    def load(*_):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)  # where Python runs handlers

    monkeypatch.setattr(compiled._Files, "load_overload", load)
    try:
        with pytest.raises(KeyboardInterrupt):
            double(2.0)
        assert double(2.0) == 4.0
    finally:
        signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize("step", [1e-7, 1e9], ids=["no progress", "diverged"])
def test_a_clock_on_which_nothing_got_anywhere_has_a_table(tmp_path, step):
    """Without progress there is no target, and without a target no time to it."""
    clock = {"compute": {"lognormal": {"median": 1.0, "sigma": 0.5}}, "link": "1Gbit"}
    config = {**CONFIG, "name": "nothing", "clock": clock, "rounds": 5, "stop": {"seconds": 0.05}}
    results({**config, "step_size": {"value": [step]}}, tmp_path / "out")
    table = closing_table(str(tmp_path / "out"))
    assert not np.isfinite(table[["bits_to_target", "clock_to_target"]]).any(axis=None)


def test_what_is_left_is_told_by_the_rounds_since_the_first(monkeypatch, capfd):
    """Starting up takes six seconds, and then ten rounds a second: two seconds later 80 rounds are 8 s."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    with progress.View("swift", cells=10, rounds=100.0) as view:
        for seconds, rounds in ((0.0, 0), (6.0, 1), (1.0, 10), (1.0, 21)):
            now[0] += seconds
            view.update(Progress(rounds=rounds))
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 3, "none at the start"
    assert [" left" in line for line in lines] == [False, False, True]
    assert lines[-1].endswith("10 cell-rounds/s, 8 s left")
