"""The simulated clock: what it draws, how rounds and events end, and what asynchronous methods do on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad

from raybench.clock.clients import Clients, mean, quantile, waiting
from raybench.clock.events import BLOCK, Events
from raybench.core.errors import InputError
from raybench.spec.clocks import typed
from raybench.testing.trial import TrialMethod, batch_of, finished, on_ranks

CHAIN = {"name": "tridiagonal", "dim": 12, "clients": 4, "noise": 0.0, "lambda": 0.01}
SPEEDS = [1.0, 1.3, 2.9, 4.4]


def method(
    name: str, clock: Mapping[str, Any], problem: Mapping[str, Any] = CHAIN, **more: Any
) -> TrialMethod:
    """Return a method at a step of 0.3 on a clock."""
    given = {"step": 0.3, "rounds": 60, **{k: more.pop(k) for k in ("step", "rounds") if k in more}}
    return TrialMethod(name, more, None, problem, more={"clock": clock}, **given)


def ended(m: TrialMethod, multiples: tuple[float, ...] = (1.0,)) -> tuple[np.ndarray, np.ndarray]:
    """Return the losses and the clock of every round, (B, T + 1)."""
    recorder = finished(m.batch(multiples)).recorder
    return recorder.column("loss"), recorder.column("clock_seconds")


# What is drawn ------------------------------------------------------------------------------------------


def test_clients_are_those_of_the_seed_whatever_runs() -> None:
    compute = {"lognormal": {"median": 2, "sigma": 0.5}}
    clock = typed({"compute": compute, "jitter": {"exponential": 0.1}})
    both = Clients(clock, 400, [3, 4], [1] * 400)
    alone = Clients(clock, 400, [4], [1] * 400)
    assert np.array_equal(both.tau[1], alone.tau[0])
    counts = np.arange(70)
    one = [alone.once(np.array([[k]]), 1.0, slice(7, 8))[0, 0] for k in counts]
    assert np.array_equal(alone.once(counts[:, None], 1.0, slice(7, 8))[:, 0], one)
    assert abs(np.median(both.tau) - 2) < 0.2
    assert abs(np.log(both.tau).std() - 0.5) < 0.05
    jitter = alone.once(np.zeros((1, 400)), 1.0) - alone.tau
    assert abs(jitter.mean() - 0.1) < 0.02


@pytest.mark.parametrize(
    ("name", "params", "expected"),
    [
        ("uniform", [1.0, 3.0], 2.0),
        ("exponential", 0.5, 0.5),
        ("pareto", {"scale": 2.0, "shape": 3.0}, 3.0),
        ("lognormal", {"median": 2.0, "sigma": 0.7}, 2 * math.exp(0.7**2 / 2)),
    ],
)
def test_distributions_have_their_means(name, params, expected) -> None:
    compute = typed({"compute": {name: params}})["compute"]
    assert mean(compute) == pytest.approx(expected)
    assert quad(lambda u: quantile(compute, u), 0, 1)[0] == pytest.approx(expected, rel=1e-6)


def test_every_call_has_seconds_of_its_own_however_often_a_client_computes() -> None:
    clients = Clients(typed({"compute": 1.0, "jitter": {"exponential": 1}}), 1, [0], [1])
    events, now = Events(clients, 1, np.ones(1), 8, 8), 0.0
    for k in range(2 * BLOCK + 2):
        events.begin(np.array([0]), 0)
        assert events.next() == (0, True)
        now += clients.once(np.array([[k]]), 1.0)[0, 0]
        assert events.now == pytest.approx(now, rel=1e-12)


def test_power_is_the_speed_of_each_client() -> None:
    power = Clients(typed({"compute": {"power": 0.5}}), 9, [0], [1] * 9).tau
    assert np.allclose(power[0], np.sqrt(np.arange(1, 10)))


def test_a_trace_is_read_and_taken_again(tmp_path) -> None:
    import pandas as pd

    file = tmp_path / "trace.parquet"
    pd.DataFrame({"client": [0, 0, 1], "seconds": [1.0, 2.0, 5.0]}).to_parquet(file)
    clients = Clients(typed({"compute": {"trace": str(file)}}), 3, [0], [1] * 3)
    calls = np.array([[0, 0, 0]]), np.array([[1, 1, 1]]), np.array([[2, 2, 2]])
    assert [clients.once(k, 1.0)[0].tolist() for k in calls] == [[1, 5, 1], [2, 5, 2], [1, 5, 1]]
    assert clients.once(np.arange(3)[:, None], 1.0, slice(0, 1))[:, 0].tolist() == [1, 2, 1]


@pytest.mark.parametrize(
    ("clock", "where"),
    [
        ({}, "clock.compute"),
        ({"compute": 0}, "clock.compute"),
        ({"compute": {"lognormall": 1}}, "clock.compute.lognormall"),
        ({"compute": {"lognormal": {"median": 1}}}, "clock.compute.lognormal.sigma"),
        ({"compute": 1, "jiter": 1}, "clock.jiter"),
        ({"compute": 1, "jitter": {"fixed": 1}}, "clock.jitter.fixed"),
        ({"compute": 1, "dropout": {"p": 0.999, "back_after": 1}}, "clock.dropout.p"),
        ({"compute": 1, "link": "1Gbitt"}, "clock.link"),
        ({"compute": 1, "link": "1Gbit,tree"}, "clock.link"),
        ({"compute": 1, "link": {"down": 1}}, "clock.link.up"),
        ({"compute": 1, "per": "batch"}, "clock.per"),
        ({"compute": {"uniform": [2, 1]}}, "clock.compute.uniform"),
        ({"compute": {"trace": 3}}, "clock.compute.trace"),
        ({"compute": True}, "clock.compute"),
        ({"compute": [1.0, math.inf]}, "clock.compute[1]"),
        ("fast", "clock"),
    ],
)
def test_a_wrong_clock_is_an_error_that_names_its_key(clock, where) -> None:
    with pytest.raises(InputError) as caught:
        typed(clock)
    assert caught.value.complaints[0].where == where


# Rounds -------------------------------------------------------------------------------------------------


def test_who_vanishes_comes_back_and_begins_anew() -> None:
    clock = typed({"compute": 2.0, "dropout": {"p": 0.5, "back_after": 100}})
    clients = Clients(clock, 2000, [0], [1] * 2000)
    spent = clients.call(np.zeros((1, 2000)), 1.0)[0]
    again = np.round((spent - 2) / 100)
    share = [(again == k).mean() for k in range(3)]
    assert np.allclose(share, [0.5, 0.25, 0.125], atol=0.04)
    once = spent[again == 1] - 102
    assert (once > 0).all()
    assert (once < 2).all()
    assert abs(once.mean() - 1) < 0.1


def test_trials_of_a_trace_arrive_by_its_quantile(tmp_path) -> None:
    import pandas as pd

    file = tmp_path / "trace.parquet"
    pd.DataFrame({"client": 0, "seconds": np.arange(1.0, 11.0)}).to_parquet(file)
    clients = Clients(typed({"compute": {"trace": str(file)}}), 2, [0], [1, 1])
    most, p = clients.within(0.75, 1.0)
    assert np.allclose(most, 8.0)
    assert p.tolist() == [0.8, 0.8]


def test_a_clock_on_several_ranks_is_that_of_one_process() -> None:
    clock = {"compute": SPEEDS, "jitter": {"exponential": 0.2}, "link": {"up": [50, 60, 70, 80]}}
    m = TrialMethod(
        "local_sgd", {"p": 0.5}, None, CHAIN, step=0.1, rounds=15, more={"clock": clock}
    )
    (alone,) = on_ranks(1, m.batch((1.0, 0.5), (0, 1)))
    seconds = alone.recorder.column("clock_seconds")
    assert (np.diff(seconds) >= 0).all()
    for run in on_ranks(3, m.batch((1.0, 0.5), (0, 1))):
        assert np.array_equal(run.recorder.column("clock_seconds"), seconds)


def test_cells_of_other_seeds_are_no_batch() -> None:
    m = method("async_sgd", {"compute": SPEEDS, "jitter": {"exponential": 0.5}})
    with pytest.raises(InputError):
        batch_of([m.cell(1.0, 0), m.cell(1.0, 1)])


def test_malenia_counts_a_harmonic_mean_that_is_reached_but_for_rounding() -> None:
    """Five gradients of each of three clients: 1/mean(1/5) is 4.999.., and S/n is 5."""
    three = {**CHAIN, "clients": 3}
    _, seconds = ended(method("malenia_sgd", {"compute": 1.0}, three, collect=15, rounds=4))
    assert seconds[0].tolist() == [0, 5, 10, 15, 20]


# What waiting costs --------------------------------------------------------------------------------------


def test_waiting_costs_nothing_among_equals_and_much_beside_a_slow_one() -> None:
    equal = waiting(typed({"compute": 2.0}), 4)
    assert [row.rate for row in equal] == [
        2.0,
        2.0,
        1.0,
        2.0,
    ]  # half of them: half of the gradients
    assert [row.wasted for row in equal] == [0.0, 0.0, 0.5, 0.0]
    one = {row.who: row for row in waiting(typed({"compute": [1.0, 1.0, 1.0, 10.0]}), 4)}
    assert one["all"].rate == pytest.approx(0.4)
    assert one["all"].wasted == pytest.approx(1 - 13 / 40)
    assert one["the fastest half"].rate == pytest.approx(2.0)
    assert one["nobody"].rate == pytest.approx(3.1)
