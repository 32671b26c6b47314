"""The simulated clock in results: tables by time, a clock given to a finished sweep, runs that are refused."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from cli_kit import cli

import raybench
from raybench.analysis.clocked import with_clock
from raybench.clock.model import typed
from raybench.core.errors import InputError
from raybench.store import cells as cells_of

CLOCK = {
    "compute": {"lognormal": {"median": 1.0, "sigma": 0.5}},
    "jitter": {"exponential": 0.3},
    "dropout": {"p": 0.05, "back_after": 3},
    "link": {"up": [1e3, 2e3, 3e3, 4e3], "down": 5e3, "latency": 0.01},
}
SWEEP = {
    "problem": {"name": "tridiagonal", "dim": 12, "clients": 4, "gradient_noise": 0.01},
    "algorithm": [
        "gd",
        {"name": "sgd", "batch": 3},
        {"name": "local_sgd", "tau": 4, "batch": 2},
        {"name": "ef21", "compressor": {"name": "top_k", "k": 3}},
        {"name": "marina", "p": 0.3, "compressor": {"name": "rand_k", "k": 3}},
    ],
    "step_size": [0.3, 0.1],
    "seed": [0, 1],
    "rounds": 30,
    "record": {"every": 1},
}


def swept(folder, **more):
    """Run a sweep in this process, and return its curves and cells."""
    given = {key: value for key, value in {**SWEEP, **more}.items() if value is not None}
    raybench.sweep(given, out=str(folder), inline=True)
    return raybench.load(str(folder)), cells_of(str(folder))


def test_a_clock_given_afterwards_is_the_clock_in_the_sweep(tmp_path) -> None:
    curves, cells = swept(tmp_path / "plain")
    timed, _ = swept(tmp_path / "timed", clock=CLOCK)
    assert curves["clock_seconds"].isna().all()
    keys = ["algorithm", "step_size", "seed", "round"]
    given = with_clock(curves, cells, typed(CLOCK)).set_index(keys)["clock_seconds"]
    ran = timed.set_index(keys)["clock_seconds"]
    assert (ran.diff().dropna() != 0).all()
    pd.testing.assert_series_equal(given.sort_index(), ran.sort_index(), rtol=1e-12)


def test_rows_far_apart_are_enough_where_rounds_are_alike(tmp_path) -> None:
    few = {"algorithm": SWEEP["algorithm"][:4], "record": {"every": 7}}
    curves, cells = swept(tmp_path / "plain", **few)
    timed, _ = swept(tmp_path / "timed", clock=CLOCK, **few)
    keys = ["algorithm", "step_size", "seed", "round"]
    given = with_clock(curves, cells, typed(CLOCK)).set_index(keys)["clock_seconds"]
    ran = timed.set_index(keys)["clock_seconds"]
    pd.testing.assert_series_equal(given.sort_index(), ran.sort_index(), rtol=1e-12)


@pytest.mark.parametrize(
    ("algorithm", "more", "why"),
    [
        (
            {"name": "vr_marina", "batch": 2, "p": 0.3, "compressor": {"name": "rand_k", "k": 3}},
            {},
            "gradients",
        ),
        ({"name": "local_sgd", "p": 0.5}, {}, "sit out"),
        ({"name": "dgd"}, {"graph": "ring"}, "neighbours"),
        ({"name": "rennala_sgd", "collect": 3}, {"clock": CLOCK}, "clock of its own"),
        (SWEEP["algorithm"][4], {"record": {"every": 5}}, "differ from round to round"),
    ],
)
def test_what_rows_do_not_tell_is_refused(tmp_path, algorithm, more, why) -> None:
    curves, cells = swept(tmp_path / "out", algorithm=[algorithm], **more)
    with pytest.raises(InputError, match=why):
        with_clock(curves, cells, typed(CLOCK))


def test_tables_by_bits_and_by_time(tmp_path) -> None:
    folder = tmp_path / "out"
    asynchronous = [{"name": "sgd", "batch": 3}, {"name": "rennala_sgd", "batch": 3, "collect": 3}]
    swept(
        folder,
        algorithm=asynchronous,
        clock=[{"compute": {"power": 1.0}}, {"compute": {"power": 3.0}}],
    )
    said = cli("table", folder, "--target", "0.5").out
    assert "Time to target" in said
    assert "power exponent=3" in said
    by_time = cli("table", folder, "--target", "0.5", "--x", "clock").out
    assert "Seconds to target" in by_time
    assert "on the simulated clock" in by_time
    drawn = cli(
        "plot",
        folder,
        "--x",
        "clock",
        "--y",
        "loss",
        "--out",
        tmp_path / "figures",
        "--format",
        "csv",
    )
    assert drawn.code == 0
    rows = pd.read_csv(next((tmp_path / "figures").glob("*.csv")))
    assert {"clock_seconds", "loss"} <= set(rows)


def test_a_finished_sweep_is_timed_from_the_command_line(tmp_path) -> None:
    swept(tmp_path / "out", algorithm=["gd"])
    text = json.dumps({"compute": {"power": 1}})
    assert "Seconds to target" in cli("table", tmp_path / "out", "--clock", text).out
    file = tmp_path / "clock.yaml"
    file.write_text("clock: {compute: {power: 1}}\n")
    assert "Seconds to target" in cli("table", tmp_path / "out", "--clock", file).out
    wrong = cli("table", tmp_path / "out", "--clock", "{compute: {powr: 1}}")
    assert wrong.code == 2
    assert "did you mean power?" in wrong.err


def test_a_cell_stops_by_the_clock(tmp_path) -> None:
    curves, _ = swept(
        tmp_path / "out", algorithm=["gd"], clock={"compute": 2.0}, stop={"clock": 20}
    )
    assert (curves.groupby("cell")["clock_seconds"].max() == 20).all()
    assert curves["round"].max() == 10


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"stop": {"clock": 3}}, "stop.clock"),
        ({"clock": {"compute": [1, 2]}}, "clock.compute.fixed"),
        ({"clock": {"compute": {"trace": "nowhere.parquet"}}}, "clock.compute.trace"),
        (
            {
                "algorithm": ["async_sgd"],
                "clock": {"compute": 1.0},
                "resources": {"mode": "train", "workers": 2},
            },
            "resources.mode",
        ),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_written(tmp_path, more, key) -> None:
    with pytest.raises(InputError, match=key.replace(".", r"\.")):
        swept(tmp_path / "out", **more)
    assert not list(tmp_path.rglob("*.parquet"))


def test_rows_by_simulated_seconds(tmp_path) -> None:
    curves, _ = swept(
        tmp_path / "out",
        algorithm=[{"name": "async_sgd", "rounds": 200}],
        clock={"compute": [1.0, 1.0, 1.5, 4.0]},
        record={"clock": 10},
    )
    first = curves[curves["cell"] == curves["cell"].iloc[0]]
    late = first[first["round"] > 128][
        "clock_seconds"
    ]  # before, rounds 1, 2, 4, .. make rows as well
    assert (late.iloc[:-1] % 10 == 0).all()
    assert set(np.arange(10, 61, 10)) <= set(first["clock_seconds"])
    assert len(first) < 25


def test_messages_that_differ_in_length_fail_on_a_link_and_say_why(tmp_path) -> None:
    code = {"name": "entropy_coded", "of": "dithering"}
    method = {"name": "async_sgd", "compressor": code}
    _, cells = swept(
        tmp_path / "out", algorithm=[method], clock={"compute": 1.0, "link": "1Mbit,1ms"}
    )
    assert set(cells["status"]) == {"failed"}
    assert "differ in length" in cells["error"].iloc[0]
    _, free = swept(tmp_path / "free", algorithm=[method], clock={"compute": 1.0})
    assert set(free["status"]) == {"ok"}


def test_rows_by_seconds_need_a_clock(tmp_path) -> None:
    with pytest.raises(InputError, match=r"record\.clock"):
        swept(tmp_path / "out", algorithm=["gd"], record={"clock": 10})
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_timeline_says_what_every_client_does(tmp_path) -> None:
    folder = tmp_path / "out"
    methods = ["sgd", {"name": "fastest_sgd", "collect": 2}]
    swept(folder, algorithm=methods, clock={"compute": [1.0, 2.0, 3.0, 6.0], "link": {"up": 96}})
    said = cli("plot", folder, "--kind", "timeline", "--out", tmp_path / "f", "--format", "csv,png")
    assert said.code == 0
    assert (tmp_path / "f" / "timeline.png").stat().st_size > 1000
    spans = pd.read_csv(tmp_path / "f" / "timeline.csv")
    assert spans["panel"].nunique() == 2
    waits = spans[spans["panel"] == "SGD"]
    first = waits[waits["start"] < 7].set_index(["client", "kind"])
    assert first.loc[(0, 0), "end"] == 1.0  # computes, then sends for a second
    assert first.loc[(0, 1), "end"] == 2.0
    stopped = spans[(spans["panel"] == "m-fastest SGD") & (spans["kind"] == 2)]
    assert set(stopped["client"]) >= {3}
    no = cli("plot", swept_plainly(tmp_path), "--kind", "timeline")
    assert (no.code, "no clock" in no.err) == (2, True)


def swept_plainly(tmp_path):
    swept(tmp_path / "plain", algorithm=["gd"])
    return tmp_path / "plain"


def test_networks_on_events_record_the_loss_of_their_minibatches(tmp_path) -> None:
    problem = {"name": "network", "model": "mlp:hidden=[8]", "dataset": "digits", "clients": 3}
    curves, _ = swept(
        tmp_path / "out",
        problem={**problem, "batch": 16, "test_size": 0.2},
        algorithm=["async_sgd", {"name": "fedbuff", "collect": 2, "steps": 2}],
        clock={"compute": [1.0, 1.5, 2.5]},
        step_size=[0.1],
        seed=0,
        rounds=40,
    )
    later = curves[curves["round"] > 0]
    assert np.isfinite(later["extra.minibatch_loss"]).all()
    last = later.groupby("cell")["extra.minibatch_loss"].last()
    assert (last < np.log(10)).all()


def test_methods_on_events_need_a_clock(tmp_path) -> None:
    _, cells = swept(tmp_path / "out", algorithm=["gd", "async_sgd"])
    skipped = cells[cells["status"] == "skipped"]
    assert skipped["algorithm"].unique().tolist() == ["async_sgd"]
    assert "no clock says so" in skipped["reason"].iloc[0]


def test_seconds_wasted_are_recorded(tmp_path) -> None:
    curves, _ = swept(
        tmp_path / "out",
        algorithm=[{"name": "fastest_sgd", "collect": 2}],
        clock={"compute": [1.0, 1.0, 2.0, 4.0]},
    )
    last = curves[curves["round"] == 30]
    assert np.allclose(last["clock_seconds"], 30)
    assert np.allclose(last["extra.worker_seconds"], 30 * 4)
    assert np.allclose(last["extra.worker_seconds_wasted"], 30 * 2)
