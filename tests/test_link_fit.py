"""Fitting a link to measured times, and `raybench bench link` itself."""

import json
import os
import sys

import emulated
import numpy as np
import pytest
from cli_kit import cli, tidy

from raybench.analysis.links import Link, parse
from raybench.measure.link import SIZES, Timing, expected, fit

pytestmark = pytest.mark.thorough

TRUE = Link(2e-4, 50e6)


def made(what, n, noise=0.0, spoilt=(), sizes=SIZES, seed=0):
    """Return times that the model gives on a link, with noise, some of them ten times as long."""
    generator = np.random.default_rng(seed)
    found = []
    for j, size in enumerate(sizes):
        times = float(expected(what, TRUE, n, size)) * np.exp(noise * generator.standard_normal(7))
        found.append(Timing(what, n, size, tuple(times * (10 if j in spoilt else 1))))
    return found


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("what", ["pair", "gather", "all_reduce", "server"])
def test_exact_times_give_the_link_back(what, n):
    found = fit(made(what, n))
    assert found.link.latency == pytest.approx(TRUE.latency, rel=1e-3)
    assert found.link.bandwidth == pytest.approx(TRUE.bandwidth, rel=1e-3)
    assert found.misfit < 1e-3


def test_noisy_times_give_intervals_that_hold_the_link():
    held = 0
    for seed in range(8):
        found = fit(made("gather", 4, noise=0.1, seed=seed))
        (a_low, a_high), (b_low, b_high) = found.latency, found.bandwidth
        assert a_low <= found.link.latency <= a_high
        assert b_low <= found.link.bandwidth <= b_high
        held += (a_low <= TRUE.latency <= a_high) + (b_low <= TRUE.bandwidth <= b_high)
    assert held >= 12  # of 16; 15 are expected


def test_bench_link_measures_fits_and_writes_a_link(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    said = cli("bench", "link", "--processes", "2", "--repeats", "2", "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert [(t["what"], t["size"]) for t in found["timings"]] == [
        (what, size) for what in ("pair", "gather", "all_reduce") for size in SIZES
    ]
    assert all(len(t["seconds"]) == 2 and min(t["seconds"]) > 0 for t in found["timings"])
    for kind, got in found["fits"].items():
        network = parse(got["text"])
        assert network.form == ("ring" if kind == "pair" else "gather")
        assert network.link.bandwidth == pytest.approx(got["link"]["bandwidth"], rel=1e-3)
        # memory of one machine: more than a slow network, less than any memory
        assert 1e6 < network.link.bandwidth < 1e12


def test_bench_link_prints_tables(monkeypatch):
    times = [t for what in ("pair", "gather", "all_reduce") for t in made(what, 4, noise=0.01)]
    monkeypatch.setattr("raybench.measure.link.measure_here", lambda *a, **k: times)
    said = cli("bench", "link", "--processes", "4")
    assert said.code == 0, said.err
    tidy(said.out)
    assert "4 processes of this machine" in said.out
    assert "16,777,216" in said.out
    assert ",gather" in said.out
    assert "MB/s" in said.out


def test_processes_that_fail_are_an_input_error(monkeypatch):
    def fail(*a, **k):
        raise RuntimeError("no such interface")

    monkeypatch.setattr("raybench.measure.link.measure_here", fail)
    said = cli("bench", "link")
    assert (said.code, said.complaints) == (2, 1)
    assert "no such interface" in said.err


# Emulated links --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("text", ["100Mbit,10ms", "1Gbit,1ms"])
def test_predictions_hold_on_emulated_links(text, monkeypatch):
    """Each prediction of exchanges that a link dominates within a quarter: docs/links.md has all of them."""
    if why := emulated.unavailable():
        pytest.skip(why)
    import links as benchmark  # benchmarks/links.py

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    sizes = {"pair": (2**20,), "gather": (2**18,), "all_reduce": (2**20,), "server": (2**18,)}
    found = benchmark.compare([text], [2, 4], sizes=sizes, methods=())
    assert len(found) == 8
    wrong = [benchmark.row(one) for one in found if abs(one["error"]) > benchmark.BOUND]
    assert not wrong, "\n".join(wrong)
