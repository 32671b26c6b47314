"""The link model: closed forms, limits, texts of networks; and when compression pays."""

import contextlib
import json
import math
import os
import sys
from dataclasses import replace

import emulated
import hypothesis.strategies as st
import numpy as np
import pytest
from cli_kit import refused, succeeds, tidy
from hypothesis import given

from raybench.analysis import links
from raybench.analysis.links import Link, Network, all_gather, all_reduce, parse, written
from raybench.core.errors import InputError
from raybench.measure.link import SIZES, Timing, expected, fit
from raybench.measure.payoff import (
    ALL_TO_ALL,
    BUCKETS,
    GATHER,
    REDUCE,
    Compute,
    Exchange,
    break_even,
    case_of,
    sparse_share,
    step_of,
    verdict,
)

A, B = 1e-3, 1e6  # a millisecond, a megabyte a second
LINK = Link(A, B)
INNER = Link(1e-5, 1e8)
PLAIN = ("ring", "tree", "server", "gather", "two_shot")
NETWORKS = [Network(LINK, form) for form in PLAIN] + [Network(LINK, "hierarchical", INNER, 4)]
FORM = pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.form)


@pytest.mark.parametrize(
    ("form", "summed", "gathered"),
    [
        ("ring", 6 * A + 1.5 * 8e4 / B, 3 * (A + 1e4 / B)),
        ("tree", 4 * A + 2 * 8e4 / B, 2 * A + 3e4 / B),
        ("server", 2 * A + 8 * 8e4 / B, 2 * A + 4 * 5e4 / B),
        ("two_shot", 6 * A + 1.5 * 8e4 / B, 3 * (A + 1e4 / B)),
        # summed: segments of 10 ms, I = 6; gathered: two turns, of a word and two hops, three copies
        ("gather", 2 * (2 * (1e4 / B + 1e4 / B) + 2e4 / B + 2 * A), 2 * (3 * A + 3e4 / B)),
    ],
)
def test_collectives_of_four(form, summed, gathered):
    assert links.all_reduce(Network(LINK, form), 4, 8e4) == pytest.approx(summed)
    assert links.all_gather(Network(LINK, form), 4, 1e4) == pytest.approx(gathered)


def test_hierarchical_by_hand():
    """Two nodes of four: 10 kB each; a node's link carries its four messages once."""
    net = Network(LINK, "hierarchical", INNER, 4)
    a, b = INNER.latency, INNER.bandwidth
    gathered = 3 * (a + 1e4 / b) + (A + 4e4 / B) + 3 * a + 0.75 * 4e4 / b
    assert links.all_gather(net, 8, 1e4) == pytest.approx(gathered)
    summed = 2 * (3 * a + 0.75 * 1e4 / b) + 2 * A + 1e4 / B
    assert links.all_reduce(net, 8, 1e4) == pytest.approx(summed)
    within = Network(INNER, "ring")  # one node alone is a ring of inner links
    assert links.all_reduce(net, 4, 1e4) == pytest.approx(links.all_reduce(within, 4, 1e4))
    assert links.all_gather(net, 4, 1e4) == pytest.approx(links.all_gather(within, 4, 1e4))


def test_a_node_that_is_not_full_counts():
    """Nine processes, four to a node, take three nodes."""
    net = Network(LINK, "hierarchical", INNER, 4)
    a, b = INNER.latency, INNER.bandwidth
    summed = 2 * (3 * a + 0.75 * 1e4 / b) + 4 * A + 4 / 3 * 1e4 / B
    assert links.all_reduce(net, 9, 1e4) == pytest.approx(summed)
    gathered = 3 * (a + 1e4 / b) + 2 * (A + 4e4 / B) + 3 * a + 0.75 * 8e4 / b
    assert links.all_gather(net, 9, 1e4) == pytest.approx(gathered)


@FORM
def test_one_machine_needs_no_network(network):
    assert links.all_reduce(network, 1, 1e9) == 0
    assert links.all_gather(network, 1, 1e9) == 0
    assert links.server(network, 1, 1e9, 1e9) == 0
    assert links.two_shot(network, 1, 1e9) == 0
    assert links.seconds_of_round(network, 1, up=1e9, down=1e9) == 0


@FORM
@given(n=st.integers(2, 64), small=st.floats(1, 1e8), more=st.floats(1.01, 100))
def test_longer_messages_and_latencies_take_longer(network, n, small, more):
    slow = Network(Link(A * more, B), network.form, network.inner, network.per_node)
    for time in (links.all_reduce, links.all_gather):
        assert time(network, n, small * more) > time(network, n, small)
        assert time(slow, n, small) >= time(network, n, small)
        if network.form != "hierarchical":  # without inner links all of an empty message is latency
            assert time(slow, n, 0.0) == pytest.approx(time(network, n, 0.0) * more)
    assert links.all_gather(network, n, small, small * more) >= links.all_gather(network, n, small)


def test_gloo_without_latency_is_a_ring_and_with_much_pays_for_each_pair_of_segments():
    ring, own = Network(Link(0.0, B), "ring"), Network(Link(0.0, B), "gather")
    for n in (2, 3, 4, 7):
        for size in (1e3, 1e6, 5e7):
            assert links.all_reduce(own, n, size) == pytest.approx(links.all_reduce(ring, n, size))
    far = Network(Link(10.0, 1e15), "gather")  # 48 MiB on 4: 12 segments each, 18 pairs a phase
    assert links.all_reduce(far, 4, 48 * 2**20) == pytest.approx(2 * 18 * 20.0, rel=1e-6)
    assert links.all_reduce(far, 4, 1e3) == pytest.approx(2 * 3 * 20.0, rel=1e-6)


def test_copies_along_a_binomial_tree():
    assert links.broadcast_copies(np.arange(1, 9)).tolist() == [0, 1, 2, 3, 4, 5, 5, 6]


def test_a_round_adds_up_what_it_is_told():
    ring = Network(LINK, "ring")
    spent = links.seconds_of_round(ring, 4, up=1e4, down=1e9, up_max=2e4, messages_up=2)
    assert spent == pytest.approx(3 * (2 * A + 2e4 / B))  # padded; nothing comes down
    summed = links.seconds_of_round(ring, 4, up=1e4, down=0.0, reduced=True)
    assert summed == pytest.approx(6 * A + 1.5e4 / B)
    star, direct = Network(LINK, "server"), Network(LINK, "two_shot")
    served = links.seconds_of_round(star, 4, up=1e4, down=3e4, messages_up=1, messages_down=2)
    assert served == pytest.approx(3 * A + 4 * 4e4 / B)
    slowest = links.seconds_of_round(star, 4, up=1e4, down=0.0, up_max=8e4)
    assert slowest == pytest.approx(2 * A + 8e4 / B)  # the largest client alone takes longer
    shot = links.seconds_of_round(direct, 4, up=4e4, down=8e4)
    assert shot == pytest.approx(6 * A + 3e4 / B + 6e4 / B)
    assert links.seconds_of_round(ring, 4, up=0.0, down=0.0, messages_up=0) == 0


@FORM
def test_arrays_are_as_good_as_numbers(network):
    ups, ns = np.array([1e3, 1e5, 1e7]), np.array([1, 3, 8])
    got = links.seconds_of_round(network, ns, up=ups, down=10.0)
    one = [
        links.seconds_of_round(network, int(n), up=u, down=10.0)
        for n, u in zip(ns, ups, strict=True)
    ]
    np.testing.assert_allclose(got, one)
    assert isinstance(links.all_reduce(network, 3, 1e3), float)


def test_the_start_of_a_collective_is_paid_once():
    near = links.nccl("nvlink", 360e9)
    assert (near.latency, near.start) == (3.4e-6, 8.4e-6)
    spent = links.all_reduce(Network(near), 8, 0.0)
    assert spent == pytest.approx(8.4e-6 + 14 * 3.4e-6)


# Texts ---------------------------------------------------------------------------------------------


def test_texts_of_networks():
    assert parse("1Gbit") == Network(links.PRESETS["1Gbit"], "ring")
    assert parse(" 1gbit/s , Ring ") == Network(links.PRESETS["1Gbit"], "ring")
    far = parse("10Gbit,20ms,server")
    assert (far.link.latency, far.link.bandwidth, far.form) == (0.02, 1.1e9, "server")
    assert parse("10Gbit,server,20ms") == far
    nodes = parse("100Gbit,hierarchical,8xnvlink4")
    assert (nodes.inner, nodes.per_node) == (links.PRESETS["nvlink4"], 8)
    assert parse("100Gbit,8xnvlink4") == nodes
    own = parse("250Mbit,2ms,two-shot")
    assert (own.link.bandwidth, own.link.latency, own.form) == (31.25e6, 2e-3, "two_shot")
    assert parse("31MB/s,80us").link.bandwidth == 31e6


@given(st.floats(1e-7, 10), st.floats(1e3, 1e12), st.sampled_from(PLAIN))
def test_what_is_written_can_be_read(latency, bandwidth, form):
    result = parse(written(latency, bandwidth, form))
    assert result.form == form
    assert result.link.latency == pytest.approx(latency, rel=1e-3)
    assert result.link.bandwidth == pytest.approx(bandwidth, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1Gbt", "did you mean 1Gbit"),
        ("NVLINK", "did you mean nvlink4"),
        ("", "no link is named"),
        ("1Gbit,rng", "did you mean ring"),
        ("1Gbit,ring,tree", "second form"),
        ("1Gbit,1ms,2ms", "second latency"),
        ("1Gbit,-1ms", "no form and no latency"),
        ("1Gbit,1e999s", "no latency"),
        ("1e999Gbit,1ms", "unknown link"),
        ("0Mbit,1ms", "unknown link"),
        ("250Mbit", "add a latency"),
        ("1Gbit,hierarchical", "no inner link"),
        ("1Gbit,ring,8xnvlink4", "ring has no nodes"),
        ("1Gbit,0xnvlink4", "one process at least"),
        ("1Gbit,8xnvlnk4", "did you mean nvlink4"),
        ("1Gbit,8x3GB/s", "inner link '3GB/s' has no latency"),
    ],
)
def test_wrong_texts_name_the_fix(text, said):
    with pytest.raises(InputError, match=said):
        parse(text)


@given(st.text(max_size=30))
def test_any_text_is_a_network_or_an_input_error(text):
    with contextlib.suppress(InputError):
        assert parse(text).link.bandwidth > 0


# -- fitting a link to measured times, and bench link itself ---------------------------------------


TRUE = Link(2e-4, 50e6)


def made(what, n, noise=0.0, spoilt=(), sizes=SIZES, seed=0):
    """Return times that the model gives on a link, with noise, some of them ten times as long."""
    generator = np.random.default_rng(seed)
    result = []
    for j, size in enumerate(sizes):
        times = float(expected(what, TRUE, n, size)) * np.exp(noise * generator.standard_normal(7))
        result.append(Timing(what, n, size, tuple(times * (10 if j in spoilt else 1))))
    return result


@pytest.mark.thorough
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("what", ["pair", "gather", "all_reduce", "server"])
def test_exact_times_give_the_link_back(what, n):
    result = fit(made(what, n))
    assert result.link.latency == pytest.approx(TRUE.latency, rel=1e-3)
    assert result.link.bandwidth == pytest.approx(TRUE.bandwidth, rel=1e-3)
    assert result.misfit < 1e-3


@pytest.mark.thorough
def test_noisy_times_give_intervals_that_hold_the_link():
    held = 0
    for seed in range(8):
        result = fit(made("gather", 4, noise=0.1, seed=seed))
        (a_low, a_high), (b_low, b_high) = result.latency, result.bandwidth
        assert a_low <= result.link.latency <= a_high
        assert b_low <= result.link.bandwidth <= b_high
        held += (a_low <= TRUE.latency <= a_high) + (b_low <= TRUE.bandwidth <= b_high)
    assert held >= 12  # of 16; 15 are expected


@pytest.mark.thorough
def test_bench_link_measures_fits_and_writes_a_link(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    said = succeeds("bench", "link", "--processes", "2", "--repeats", "2", "--json")
    result = json.loads(said.out)
    assert [(t["what"], t["size"]) for t in result["timings"]] == [
        (what, size) for what in ("pair", "gather", "all_reduce") for size in SIZES
    ]
    assert all(len(t["seconds"]) == 2 and min(t["seconds"]) > 0 for t in result["timings"])
    for kind, got in result["fits"].items():
        network = parse(got["text"])
        assert network.form == ("ring" if kind == "pair" else "gather")
        assert network.link.bandwidth == pytest.approx(got["link"]["bandwidth"], rel=1e-3)
        # memory of one machine: more than a slow network, less than any memory
        assert 1e6 < network.link.bandwidth < 1e12


@pytest.mark.thorough
def test_bench_link_prints_tables(monkeypatch):
    times = [t for what in ("pair", "gather", "all_reduce") for t in made(what, 4, noise=0.01)]
    monkeypatch.setattr("raybench.measure.link.measure_here", lambda *a, **k: times)
    said = succeeds("bench", "link", "--processes", "4")
    tidy(said.out)
    assert "4 processes of this machine" in said.out
    assert ",gather" in said.out
    assert "MB/s" in said.out


@pytest.mark.thorough
def test_processes_that_fail_are_an_input_error(monkeypatch):
    def fail(*a, **k):
        raise RuntimeError("no such interface")

    monkeypatch.setattr("raybench.measure.link.measure_here", fail)
    refused("bench", "link", says="no such interface")


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
    result = benchmark.compare([text], [2, 4], sizes=sizes, methods=())
    assert len(result) == 8
    wrong = [benchmark.row(one) for one in result if abs(one["error"]) > benchmark.BOUND]
    assert not wrong, "\n".join(wrong)


# When compression pays ----------------------------------------------------------------------------

D = 10_000_000
DENSE = 2 * D
COMPUTE = Compute(0.05, 0.1)
BASELINE = Exchange("bf16", (REDUCE,), DENSE, DENSE, overlaps=True)
TOP = Exchange("top", (GATHER,), 0.001 * D * 8, DENSE, encode=0.01, decode=0.0005)
FORMAT = Exchange("four bits", (GATHER, ALL_TO_ALL), D / 2, DENSE, encode=0.02, decode=0.01)
LOCAL = Exchange("local", (REDUCE,), 4 * D, DENSE, every=30)


def ring(bandwidth: float, latency: float = 0.0) -> Network:
    return Network(Link(latency, bandwidth))


@pytest.mark.parametrize("n", [2, 8, 64])
@pytest.mark.parametrize("c", [5.1, 8.0])
def test_at_the_share_of_the_rule_gathering_takes_as_long_as_the_ring(n, c):
    share = sparse_share(n, c)
    assert share == min(1.0, 4 / (c * n))
    if share < 1:
        net = ring(1e9)
        gathered = all_gather(net, n, c * share * D)
        assert gathered == pytest.approx(all_reduce(net, n, DENSE), rel=1e-12)
        assert all_gather(net, n, 0.99 * c * share * D) < all_reduce(net, n, DENSE)


def test_break_even_of_two_lines_is_where_they_cross():
    # a1 + s1/B = a2 + s2/B where B = (s2 - s1)/(a1 - a2)
    def line(a, s):
        return lambda bandwidth: a + s / bandwidth

    assert break_even(line(0.3, 1e6), line(0.1, 4e7)) == pytest.approx(39e6 / 0.2, rel=1e-8)
    assert break_even(line(0.3, 4e7), line(0.1, 1e6)) == 0.0
    assert break_even(line(0.1, 1e6), line(0.1, 4e7)) > 1e12  # until rounding hides it
    assert break_even(line(0.1, 0), line(0.2, 0)) == math.inf
    # where a tenth is to be saved: a1 + s1/B = 0.9 (a2 + s2/B)
    result = break_even(line(0.3, 1e6), line(0.1, 4e7), 0.1)
    assert result == pytest.approx((0.9 * 4e7 - 1e6) / (0.3 - 0.09), rel=1e-8)


@pytest.mark.parametrize("bandwidth", [1e7, 1e8, 1e9, 1e11])
def test_the_baseline_has_the_best_number_of_buckets(bandwidth):
    net, n = ring(bandwidth, 1e-4), 8
    spent = []
    for b in BUCKETS:
        each = 2 * (n - 1) * 1e-4 + 2 * (n - 1) / n * DENSE / b / bandwidth
        spent.append(0.05 + max(0.1, (b - 1) * each) + each)
    assert step_of(BASELINE, net, n, COMPUTE).seconds == pytest.approx(min(spent), rel=1e-12)
    assert len(spent) > 3
    assert np.ptp(spent) > 0


def test_the_seconds_of_a_compressed_step_add_up():
    net, n, B, a = ring(1e9, 1e-3), 8, 1e9, 1e-3
    gathered = 0.15 + 0.01 + n * 0.0005 + (n - 1) * (a + TOP.size / B)
    assert step_of(TOP, net, n, COMPUTE).seconds == pytest.approx(gathered, rel=1e-12)
    parts = 2 * ((n - 1) * a + (n - 1) / n * FORMAT.size / B)
    shared = 0.15 + (1 + 1 / n) * 0.02 + 2 * 0.01 + parts
    result = step_of(FORMAT, net, n, COMPUTE)
    assert (result.seconds, result.collective) == (pytest.approx(shared, rel=1e-12), ALL_TO_ALL)
    once = 2 * (n - 1) * a + 2 * (n - 1) / n * LOCAL.size / B
    assert step_of(LOCAL, net, n, COMPUTE).seconds == pytest.approx(0.15 + once / 30, rel=1e-12)
    two = replace(LOCAL, every=1, parts=2)  # the latency is paid twice
    longer = step_of(two, net, n, COMPUTE).exchange - once
    assert longer == pytest.approx(2 * (n - 1) * a, rel=1e-9)


def test_a_server_sends_no_more_than_a_dense_vector():
    net = replace(ring(1e8), form="server")
    few = step_of(TOP, net, 2, COMPUTE)
    assert few.exchange == pytest.approx(2 * (TOP.size + 2 * TOP.size) / 1e8, rel=1e-12)
    many = step_of(TOP, net, 1000, COMPUTE)
    assert many.exchange == pytest.approx(1000 * (TOP.size + DENSE) / 1e8, rel=1e-12)


def test_within_a_node_the_inner_link_counts():
    inner = Link(1e-6, 300e9)
    net = Network(Link(1e-4, 1e9), "hierarchical", inner, 8)
    assert step_of(FORMAT, net, 8, COMPUTE).exchange < 1e-3
    own = [step_of(replace(FORMAT, collectives=(ALL_TO_ALL,)), net, 16, COMPUTE)]
    n, a, B = 16, 1e-4, 1e9  # eight processes share a node's link
    assert own[0].exchange == pytest.approx(2 * ((n - 1) * a + (n - 1) / n * 8 * D / 2 / B))
    said = case_of("node", net, 8, COMPUTE, BASELINE, [TOP, FORMAT])
    assert said.best() is None
    assert said.best(paying=False) is not None


def judged(bandwidth: float, n: int = 8):
    errors = [(TOP, 0.9), (FORMAT, 0.01), (LOCAL, None), (BASELINE, 0.0)]
    exchanges = [replace(x, error=error) for x, error in errors]
    return case_of("ring", ring(bandwidth, 1e-4), n, COMPUTE, BASELINE, exchanges)


def test_the_advice_turns_with_the_bandwidth():
    slow = judged(1e7)
    top, gentle, local = slow.best(), slow.gentlest, slow.best(local=True)
    assert top is not None
    assert gentle is not None
    assert local is not None
    assert [v.exchange.name for v in (top, gentle, local)] == ["top", "four bits", "local"]
    assert top.speedup > 10
    fast = judged(1e11)
    assert (fast.best(), fast.gentlest, fast.best(local=True)) == (None, None, None)
    assert not any(v.pays for v in fast.verdicts)
    nearest = fast.best(paying=False)
    assert nearest is not None
    assert nearest.exchange.name == "top"  # the baseline's own format is no compression


@pytest.mark.parametrize("n", [2, 8, 64])
def test_a_method_pays_up_to_where_it_is_said_to(n):
    for one in judged(1e9, n).verdicts[:2]:
        assert 0 < one.pays_below < math.inf
        for factor, pays in ((0.99, True), (1.01, False)):
            net = ring(factor * one.pays_below, 1e-4)
            assert verdict(one.exchange, BASELINE, net, n, COMPUTE).pays is pays
        assert one.pays_below <= one.pays_below_free
        assert one.speedup <= one.speedup_free
