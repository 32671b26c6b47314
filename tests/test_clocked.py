"""The simulated clock in results: by hand, in tables and figures, given to finished sweeps; runs that are refused."""

from __future__ import annotations

import io
import json
import math

import numpy as np
import pandas as pd
import pytest
from cli_kit import cli, ran, tidy

import raybench
from raybench.analysis import by_bandwidth, frames
from raybench.analysis.clocked import with_clock
from raybench.analysis.simulated import SECONDS, simulated, unmeasured
from raybench.clock.links import Link, LinkNetwork, all_gather, all_reduce, overlapped
from raybench.core.errors import InputError
from raybench.report import charts, plots
from raybench.spec.clocks import typed
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
    "step_size": 0.3,
    "seed": [0, 1],
    "rounds": 30,
    "record": {"every": 1},
}


def swept(folder, **more):
    """Run a sweep in this process, and return its curves and cells."""
    given = {key: value for key, value in {**SWEEP, **more}.items() if value is not None}
    raybench.sweep(given, out=str(folder), inline=True)
    return raybench.load(str(folder)), cells_of(str(folder))


RAND = {"name": "rand_k", "k": 3}
LATER = [  # full gradients first
    {"name": "dasha_mvr", "batch": 3, "compressor": RAND},
    {"name": "ec_lsvrg", "compressor": {"name": "top_k", "k": 3}},
]
UNTOLD = [{"name": "vr_marina", "batch": 2, "p": 0.3, "compressor": RAND}]
UNTOLD += [{"name": "local_sgd", "p": 0.5}]
TOLD = {"algorithm": [*SWEEP["algorithm"], *LATER], "rounds": 21}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The curves and cells of a sweep without a clock."""
    given = {**TOLD, "algorithm": [*TOLD["algorithm"], *UNTOLD]}
    return swept(tmp_path_factory.mktemp("plain") / "out", **given)


def thinned(curves, *names):
    """The curves of some methods as a sweep that records every seventh round has them."""
    return curves[curves["algorithm"].isin(names) & (curves["round"] % 7 == 0)].copy()


def test_a_clock_given_afterwards_is_the_clock_in_the_sweep(plain, tmp_path):
    curves, cells = plain
    timed, _ = swept(tmp_path / "timed", clock=CLOCK, **TOLD)
    assert curves["clock_seconds"].isna().all()
    keys = ["label", "seed", "round"]
    ran = timed.set_index(keys)["clock_seconds"].sort_index()
    assert (ran.diff().dropna() != 0).all()
    same = curves[curves["label"].isin(timed["label"])]
    few = thinned(same, "gd", "sgd", "local_sgd", "ef21")  # whose rounds are alike
    for rows in (same, few):
        given = with_clock(rows, cells, typed(CLOCK)).set_index(keys)["clock_seconds"]
        want = ran.loc[given.index]
        pd.testing.assert_series_equal(given, want, rtol=1e-12)


@pytest.mark.parametrize(
    ("algorithm", "more", "why"),
    [
        ({"name": "dgd"}, {"graph": "ring"}, "neighbours"),
        ({"name": "rennala_sgd", "collect": 3}, {"clock": CLOCK}, "clock of its own"),
    ],
)
def test_what_rows_do_not_tell_is_refused(tmp_path, algorithm, more, why) -> None:
    curves, cells = swept(tmp_path / "out", algorithm=[algorithm], seed=0, **more)
    with pytest.raises(InputError, match=why):
        with_clock(curves, cells, typed(CLOCK))


def test_rounds_of_different_work_are_refused(plain) -> None:
    curves, cells = plain
    sits_out = cells[cells["config"].str.contains('"p": ?0.5')]["cell"]
    for rows, why in (
        (curves[curves["algorithm"] == "vr_marina"], "gradients"),
        (curves[curves["cell"].isin(sits_out)], "sit out"),
        (thinned(curves, "marina"), "differ from round to round"),
    ):
        with pytest.raises(InputError, match=why):
            with_clock(rows, cells, typed(CLOCK))
    for name in ("bytes_down", "messages_up"):  # rows far apart tell only of rounds that are alike
        rows = thinned(curves, "gd")
        with_clock(rows, cells, typed(CLOCK))
        rows.loc[rows["round"] == 21, name] += 2.0
        with pytest.raises(InputError, match="differ from round to round"):
            with_clock(rows, cells, typed(CLOCK))


def test_tables_by_bits_and_by_time(tmp_path) -> None:
    folder = tmp_path / "out"
    asynchronous = [{"name": "sgd", "batch": 3}, {"name": "rennala_sgd", "batch": 3, "collect": 3}]
    swept(
        folder,
        algorithm=asynchronous,
        seed=0,
        clock=[{"compute": {"power": 1.0}}, {"compute": {"power": 3.0}}],
    )
    said = cli("table", folder, "--target", "0.5").out
    assert "Time to target" in said
    assert "power exponent=3" in said
    by_time = cli("table", folder, "--target", "0.5", "--cost", "clock").out
    assert "Seconds to target" in by_time
    assert "on the simulated clock" in by_time
    figures_of = tmp_path / "figures"
    drawn = ("--x", "clock", "--y", "loss", "--out", figures_of, "--format", "csv")
    assert cli("plot", folder, *drawn).code == 0
    rows = pd.read_csv(next(figures_of.glob("*.csv")))
    assert {"clock_seconds", "loss"} <= set(rows)


def test_a_finished_sweep_is_timed_from_the_command_line(tmp_path) -> None:
    swept(tmp_path / "out", algorithm=["gd"], seed=0)
    text = json.dumps({"compute": {"power": 1}})
    assert "Seconds to target" in cli("table", tmp_path / "out", "--clock", text).out
    file = tmp_path / "clock.yaml"
    file.write_text("clock: {compute: {power: 1}}\n")
    assert "Seconds to target" in cli("table", tmp_path / "out", "--clock", file).out
    wrong = cli("table", tmp_path / "out", "--clock", "{compute: {powr: 1}}")
    assert wrong.code == 2
    assert "did you mean power?" in wrong.err


def test_a_cell_stops_by_the_clock(tmp_path) -> None:
    more = {"clock": {"compute": 2.0}, "stop": {"clock": 20}}
    curves, _ = swept(tmp_path / "out", algorithm=["gd"], **more)
    assert (curves.groupby("cell")["clock_seconds"].max() == 20).all()
    assert curves["round"].max() == 10


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"stop": {"clock": 3}}, "stop.clock"),
        ({"algorithm": ["gd"], "record": {"clock": 10}}, "record.clock"),
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
    # before, rounds 1, 2, 4, .. make rows as well
    late = first[first["round"] > 128]["clock_seconds"]
    assert (late.iloc[:-1] % 10 == 0).all()
    assert set(np.arange(10, 61, 10)) <= set(first["clock_seconds"])
    assert len(first) < 25


def test_messages_that_differ_in_length_fail_on_a_link_and_say_why(tmp_path) -> None:
    method = {"name": "async_sgd", "compressor": {"name": "random_sparsification", "p": 0.5}}
    linked = {"compute": 1.0, "link": "1Mbit,1ms"}
    _, cells = swept(tmp_path / "out", algorithm=[method], clock=linked)
    assert set(cells["status"]) == {"failed"}
    assert "differ in length" in cells["error"].iloc[0]
    _, free = swept(tmp_path / "free", algorithm=[method], clock={"compute": 1.0})
    assert set(free["status"]) == {"ok"}


def test_a_timeline_says_what_every_client_does(tmp_path) -> None:
    folder = tmp_path / "out"
    methods = ["sgd", {"name": "fastest_sgd", "collect": 2}]
    swept(folder, algorithm=methods, clock={"compute": [1.0, 2.0, 3.0, 6.0], "link": {"up": 96}})
    ran("plot", folder, "--kind", "timeline", "--out", tmp_path / "f", "--format", "csv,png")
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
    problem["rows"] = 300
    curves, _ = swept(
        tmp_path / "out",
        problem={**problem, "batch": 16, "test_size": 0.2},
        algorithm=[{"name": "fedbuff", "collect": 2, "steps": 2}],
        clock={"compute": [1.0, 1.5, 2.5]},
        step_size=[0.1],
        seed=0,
        rounds=20,
    )
    later = curves[curves["round"] > 0]
    assert np.isfinite(later["extra.minibatch_loss"]).all()
    last = later.groupby("cell")["extra.minibatch_loss"].last()
    assert (last < np.log(10)).all()


def test_methods_on_events_need_a_clock(tmp_path) -> None:
    _, cells = swept(tmp_path / "out", algorithm=["gd", "async_sgd"], seed=0)
    skipped = cells[cells["status"] == "skipped"]
    assert skipped["algorithm"].unique().tolist() == ["async_sgd"]
    assert "no clock says so" in skipped["reason"].iloc[0]


# Simulated seconds of finished runs ---------------------------------------------------------------


A, B = 1e-3, 1e6
RING = LinkNetwork(Link(A, B), "ring")


def curve(cell="a", rounds=(0, 1, 2), **columns):
    """Return the curve of four clients that send 100 bytes of 50 coordinates each round."""
    t = np.array(rounds, float)
    plain = {"cell": cell, "round": np.array(rounds), "clients": 4, "workers": 1.0, "d": 50}
    plain |= {"exchange": "gather", "values_up": 12 * t, "grad_norm_sq": 10.0**-t}
    plain |= {"bytes_up": 100 * t, "bytes_down": 400 * t, "bytes_up_max": 100 * t}
    plain |= {"messages_up": t, "messages_down": t}
    plain |= {"seconds_gradient": 0.04 * t, "seconds_compress": 0.08 * t}
    return pd.DataFrame({**plain, **columns})


def seconds(*args, network=RING, **columns):
    return simulated(curve(*args, **columns), network)[SECONDS].tolist()


ROUND = 3 * (A + 100 / B)  # gathered on a ring of four
COMPUTE = (0.04 + 0.08) / 4  # four clients were computed here one after the other


T = np.arange(3.0)
SERVER, GATHER = LinkNetwork(RING.link, "server"), LinkNetwork(RING.link, "gather")
SERVED = 2 * A + 4 * 500 / B


def by(how):
    """Return columns of messages that are exchanged so, of 100 bytes where they are in parts."""
    parts = {"messages_up": 3 * T, "messages_down": 3 * T, "bytes_up_max": 75 * T}
    parts |= {"bytes_up": 75 * T, "bytes_down": 300 * T}
    return {"exchange": how, **(parts if how == "all_to_all" else {})}


@pytest.mark.parametrize(
    ("given", "columns", "travel", "compute"),
    [
        ({}, {}, ROUND, COMPUTE),
        ({}, {"workers": 2.0}, ROUND, 2 * COMPUTE),  # workers share the clients
        ({}, {"workers": 9.0}, ROUND, 4 * COMPUTE),
        # dense messages are summed on their way, except by our own gather
        ({}, {"values_up": 50 * T}, all_reduce(RING, 4, 100), COMPUTE),
        ({"network": GATHER}, {"values_up": 50 * T}, all_gather(GATHER, 4, 100), COMPUTE),
        ({}, by("reduce"), 6 * A + 1.5 * 100 / B, COMPUTE),
        ({}, by("all_to_all"), 6 * A + 0.75 * 500 / B, COMPUTE),
        ({}, by("gather"), ROUND, COMPUTE),
        *(({"network": SERVER}, by(how), SERVED, COMPUTE) for how in ("reduce", "all_to_all")),
        # on a graph each sends to its neighbours
        ({}, {**by("mix"), "messages_up": 2 * T}, 2 * A + 100 / B, COMPUTE),
        # to a server whenever a client has a message
        ({}, by("server"), SERVED, COMPUTE),
        # what is unknown is gathered
        ({}, {"exchange": None}, ROUND, COMPUTE),
        # silent clients do not shorten a round: messages are padded to the largest, 100 bytes
        ({}, {"messages_up": 0.25 * T, "bytes_up": 25 * T}, ROUND, COMPUTE),
        ({}, {"messages_up": 0 * T, "bytes_up": 0 * T, "bytes_up_max": 0 * T}, 0, COMPUTE),
    ],
)
def test_rounds_by_hand(given, columns, travel, compute):
    each = travel + compute
    assert seconds(**given, **columns) == pytest.approx([0, each, 2 * each])


def test_rows_that_are_not_recorded_count_and_first_messages_are_a_round():
    assert seconds(rounds=(0, 7)) == pytest.approx([0, 7 * (ROUND + COMPUTE)])
    columns = {"bytes_up": 100 * T + 1000, "bytes_up_max": 100 * T + 1000, "messages_up": T + 1}
    start = 3 * (A + 1000 / B)
    assert seconds(**columns)[:2] == pytest.approx([start, start + ROUND + COMPUTE])


def test_all_buckets_but_the_last_hide_behind_the_backward_pass():
    assert overlapped(10.0, 1.0, 5) == 10.0 + 1.0
    assert overlapped(2.0, 1.0, 5) == 5 * 1.0
    assert overlapped(2.0, 1.0, 1) == 2.0 + 1.0  # none can hide


def test_unknown_times_count_as_none_and_are_told():
    some = pd.concat([curve(seconds_compress=math.nan), curve("b")], ignore_index=True)
    result = simulated(some, RING)
    assert result[SECONDS].to_numpy()[[1, 4]] == pytest.approx([ROUND + 0.01, ROUND + COMPUTE])
    (said,) = unmeasured(result)
    assert said.startswith("the seconds of compressors were not measured in 1 of 2 cells")
    assert unmeasured(curve()) == []
    unknown = simulated(curve(bytes_up=math.nan), RING)
    assert unknown[SECONDS].isna().all()
    assert any("did not count bytes" in text for text in unmeasured(unknown))


# Best method by bandwidth ----------------------------------------------------------------------------


def method(name, step, cell, up, compute, rounds, status="ok", seed=0):
    own = curve(
        cell,
        rounds=tuple(range(rounds + 1)),
        facet="",
        bytes_up=up * np.arange(rounds + 1.0),
        bytes_up_max=up * np.arange(rounds + 1.0),
        seconds_gradient=4 * compute * np.arange(rounds + 1.0),
        seconds_compress=0.0,
        grad_norm_sq=np.geomspace(1, 1e-6, rounds + 1),
    )
    head = {"cell": cell, "facet": "", "method": name, "series": name, "step": step, "k": 1.0}
    return own, {**head, "group": name, "status": status, "seed": seed, "baseline": False}


def test_the_fastest_method_changes_with_the_bandwidth():
    made = [
        method("dense", "x1", "a", up=1e6, compute=0.001, rounds=10),
        method("sparse", "x1", "b", up=1e3, compute=0.05, rounds=20),
        method("sparse", "x2", "c", up=1e3, compute=0.05, rounds=10),
        method("sparse", "x4", "d", up=1e3, compute=0.05, rounds=5, status="diverged"),
    ]
    curves = pd.concat([own for own, _ in made], ignore_index=True)
    finals = dict.fromkeys(["loss", "accuracy", "bits_up", "seconds", "rounds"], np.nan)
    facts = {"seed": 0, "algorithm": "a", "compressor": None}
    facts |= {"step_size": 1.0, "step_multiple": 1.0}
    cells = pd.DataFrame([{**finals, **facts, **head} for _, head in made])
    at = np.array([1e8, 1e11])
    result = by_bandwidth(curves, cells, RING, {"": 1.1e-6}, at=at)
    won = result[result["fastest"]].set_index("bandwidth")["method"]
    assert won.to_dict() == {1e8: "sparse", 1e11: "dense"}
    assert set(result.loc[result["method"] == "sparse", "step"]) == {"x2"}
    row = result[(result["method"] == "dense") & (result["bandwidth"] == 1e8)].iloc[0]
    assert row["seconds"] == pytest.approx(10 * (3 * (A + 1e6 / 1.25e7) + 0.001))
    none = by_bandwidth(curves, cells, RING, {"": 1e-9}, at=at)
    assert np.isinf(none["seconds"]).all()
    assert not none["fastest"].any()


# Tables, figures, pages ------------------------------------------------------------------------------


def test_the_table_counts_simulated_seconds(swept):
    said = ran("table", swept, "--link", "100Mbit,5ms,server")
    tidy(said.out)
    text = " ".join(said.out.split())
    assert "Seconds to target" in text
    assert "simulated for 100Mbit: 88 Mbit/s, 5 ms, server, each client on a machine of" in text
    said = cli("table", swept, "--link", "1Gbit", "--format", "csv")
    raw = pd.read_csv(io.StringIO(said.out))
    assert {"seconds_to_target", "seconds_low", "ratio_to_gd"} <= set(raw)
    assert "bits_to_target" not in raw


def test_the_cost_in_the_table_is_that_of_the_curves(swept):
    result = frames(swept, link="1Gbit,ring")
    own = simulated(raybench.load(swept), result.link).set_index("cell")
    for row in result.tuned("series").query("reached").to_dict("records"):
        same = (result.cells["series"] == row["series"]) & (result.cells["step"] == row["step"])
        rows = own.loc[result.cells.loc[same, "cell"]]
        first = rows[rows["grad_norm_sq"] <= row["target"]].groupby("cell")[SECONDS].min()
        assert row["cost"] == pytest.approx(first.median())


def test_bands_that_have_no_end_go_to_the_edge_and_are_told(swept, monkeypatch):
    def endless(*args, **more):
        return by_bandwidth(*args, **more).assign(high=np.inf)

    monkeypatch.setattr(charts, "by_bandwidth", endless)
    result = frames(swept, link="1Gbit,ring")
    chart = charts.best_by_bandwidth(result, result.link)
    assert chart.band.endswith("bands that end at the top go on to infinity")
    assert chart.y_to > chart.data["y"].max()
    (axis,) = plots.draw(chart).axes
    assert axis.get_ylim()[1] == pytest.approx(chart.y_to)
    assert len(axis.collections) == chart.data["series"].nunique(), "each band is drawn"
