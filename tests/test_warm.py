"""Kernels and caches warm up before the clock starts, and leave no other trace."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from toys import registered

from raybench.algorithms.base import Algorithm, Dense
from raybench.execution import execute as warm
from raybench.execution import run as engine_run
from raybench.execution.execute import execute
from raybench.execution.run import Options
from raybench.spec.model import Evaluate, Record
from raybench.testing.trial import TrialMethod
from raybench.wire.transport import Transport, on_virtual_ranks

P = {"name": "quadratic", "dim": 12, "clients": 4, "mu": 0.2}


class Late(Algorithm):
    """Gradient descent whose first rounds in a process take 100 s each, by the test's own clock."""

    now, left = 0.0, 2

    def start(a, net, s, c):
        s.t = torch.zeros(len(s.x))

    def round(a, net, s, c):
        Late.now += 100.0 if Late.left > 0 else 1.0
        Late.left -= 1
        s.x = net.down(Dense(s.x - a.gamma * net.up(Dense(net.grad(s.x))).mean()))


@pytest.fixture
def cold(monkeypatch):
    """Let nothing be warm, and the rounds take what ``Late`` says."""
    monkeypatch.setattr(warm, "_warm", set())
    monkeypatch.setattr(engine_run, "perf_counter", lambda: Late.now)
    monkeypatch.setattr(Late, "left", 2)


def curves_of(transport=None, rounds=10, **evaluate):
    result = []
    more = {"x0": {"normal": 1.0}}
    batch = TrialMethod("late", {}, None, P, step=0.125, rounds=rounds, more=more).batch()
    options = Options(record=Record(every=1), evaluate=Evaluate(**evaluate))
    commit = lambda name, curves, cells, files: result.append((curves, cells))  # noqa: E731
    for _ in execute([batch], options, commit, transport=transport):
        pass
    return result


def test_the_first_rounds_of_a_process_are_not_on_the_clock(cold):
    with registered("algorithm", late=Late):
        ((curves, cells),) = curves_of()
    assert curves["seconds"].to_pylist() == pytest.approx(list(range(11)), abs=0.5)
    assert curves["round"].to_pylist() == list(range(11))
    assert cells["rounds"].to_pylist() == [10]


def test_a_run_is_the_same_as_without(cold, monkeypatch):
    with registered("algorithm", late=Late):
        ((warmed, _),) = curves_of()
        monkeypatch.setattr("raybench.execution.execute.warm_up", lambda *_: None)
        ((plain, _),) = curves_of()
    drop = ["seconds", "seconds_gradient", "seconds_compress", "seconds_communicate"]
    pd.testing.assert_frame_equal(warmed.drop(drop).to_pandas(), plain.drop(drop).to_pandas())


def test_no_metric_is_taken_of_rounds_that_count_for_nothing(cold):
    taken = []

    def metric(problem, x):
        """Count how often it is asked."""
        taken.append(1)
        return x.norm(dim=-1)

    with registered("algorithm", late=Late), registered("metric", counted=metric):
        curves_of(metrics=("counted",))
    assert len(taken) == 11


def test_ranks_warm_up_together(cold):
    """Each rank's exchanges of the warm-up meet those of the others, and the curve is that of one rank."""

    def both(transport: Transport):
        with_own = curves_of(transport)
        return with_own[0][0] if with_own else None

    with registered("algorithm", late=Late):
        ((alone, _),) = curves_of()
        warm._warm.clear()
        result = [c for c in on_virtual_ranks(2, both) if c is not None]
    assert len(warm._warm) == 2
    (curves,) = result
    for name in ("loss", "bits_up"):
        assert curves[name].to_pylist() == pytest.approx(alone[name].to_pylist(), rel=1e-9)
