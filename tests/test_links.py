"""The link model: closed forms, limits, and what texts of networks mean."""

import contextlib
import json
import os
import sys

import hypothesis.strategies as st
import links as benchmark
import numpy as np
import pytest
from cli_kit import cli, ran, tidy
from hypothesis import given

from raybench.clock import links
from raybench.clock.links import Link, LinkNetwork, parse_network, written
from raybench.core import counts
from raybench.core.errors import InputError
from raybench.measure.link import EXCHANGES, SIZES, ExchangeTiming, expected, fit

A, B = 1e-3, 1e6  # a millisecond, a megabyte a second
LINK = Link(A, B)
INNER = Link(1e-5, 1e8)
PLAIN = ("ring", "tree", "server", "gather", "two_shot")
NETWORKS = [LinkNetwork(LINK, form) for form in PLAIN] + [
    LinkNetwork(LINK, "hierarchical", INNER, 4)
]
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
    assert links.all_reduce(LinkNetwork(LINK, form), 4, 8e4) == pytest.approx(summed)
    assert links.all_gather(LinkNetwork(LINK, form), 4, 1e4) == pytest.approx(gathered)


@pytest.mark.parametrize(("n", "nodes"), [(8, 2), (9, 3)])
def test_hierarchical_by_hand(n, nodes):
    """Four to a node, the last of which need not be full: 10 kB each; a node's link carries four messages once."""
    net, others = LinkNetwork(LINK, "hierarchical", INNER, 4), nodes - 1
    a, b = INNER.latency, INNER.bandwidth
    gathered = 3 * (a + 1e4 / b) + others * (A + 4e4 / B) + 3 * a + 0.75 * others * 4e4 / b
    assert links.all_gather(net, n, 1e4) == pytest.approx(gathered)
    summed = 2 * (3 * a + 0.75 * 1e4 / b) + 2 * others * (A + 1e4 / nodes / B)
    assert links.all_reduce(net, n, 1e4) == pytest.approx(summed)
    within = LinkNetwork(INNER, "ring")  # one node alone is a ring of inner links
    assert links.all_reduce(net, 4, 1e4) == pytest.approx(links.all_reduce(within, 4, 1e4))
    assert links.all_gather(net, 4, 1e4) == pytest.approx(links.all_gather(within, 4, 1e4))


@FORM
def test_one_machine_needs_no_network(network):
    assert links.all_reduce(network, 1, 1e9) == 0
    assert links.all_gather(network, 1, 1e9) == 0
    assert links.server(network, 1, 1e9, 1e9) == 0
    for how in counts.EXCHANGES:
        assert links.travel(network, 1, how, up=1e9, down=1e9) == 0


def test_gloo_without_latency_is_a_ring_and_with_much_pays_for_each_pair_of_segments():
    ring, own = LinkNetwork(Link(0.0, B), "ring"), LinkNetwork(Link(0.0, B), "gather")
    for n in (2, 3, 4, 7):
        for size in (1e3, 1e6, 5e7):
            assert links.all_reduce(own, n, size) == pytest.approx(links.all_reduce(ring, n, size))
    far = LinkNetwork(Link(10.0, 1e15), "gather")  # 48 MiB on 4: 12 segments each, 18 pairs a phase
    assert links.all_reduce(far, 4, 48 * 2**20) == pytest.approx(2 * 18 * 20.0, rel=1e-6)
    assert links.all_reduce(far, 4, 1e3) == pytest.approx(2 * 3 * 20.0, rel=1e-6)


def test_copies_along_a_binomial_tree():
    assert links.broadcast_copies(np.arange(1, 9)).tolist() == [0, 1, 2, 3, 4, 5, 5, 6]


def test_a_round_adds_up_what_it_is_told():
    ring = LinkNetwork(LINK, "ring")
    spent = links.travel(ring, 4, up=1e4, down=1e9, up_max=2e4, messages_up=2)
    assert spent == pytest.approx(3 * (2 * A + 2e4 / B))  # padded; nothing comes down
    for how, dense in (("reduce", False), ("gather", True), ("all_to_all", True)):
        summed = links.travel(ring, 4, how, up=1e4, down=0.0, dense=dense)
        assert summed == pytest.approx(6 * A + 1.5e4 / B)
    own = LinkNetwork(LINK, "gather")
    gathered = links.travel(own, 4, up=1e4, down=0.0, dense=True)
    assert gathered == links.all_gather(own, 4, 1e4), "raybench's own gathers dense ones too"
    star, direct = LinkNetwork(LINK, "server"), LinkNetwork(LINK, "two_shot")
    for net, how in ((star, "gather"), (ring, "server")):  # whatever the form
        served = links.travel(net, 4, how, up=1e4, down=3e4, messages_up=1, messages_down=2)
        assert served == pytest.approx(3 * A + 4 * 4e4 / B)
    slowest = links.travel(star, 4, up=1e4, down=0.0, up_max=8e4)
    assert slowest == pytest.approx(2 * A + 8e4 / B)  # the largest client alone takes longer
    shot = links.travel(direct, 4, up=4e4, down=8e4)
    assert shot == pytest.approx(6 * A + 3e4 / B + 6e4 / B)
    parts = {"up": 3e4, "down": 6e4, "messages_up": 3, "messages_down": 3}  # of four, one stays
    assert links.travel(ring, 4, "all_to_all", **parts) == pytest.approx(shot)
    assert links.travel(star, 4, "all_to_all", **parts) == pytest.approx(2 * A + 4 * 12e4 / B)
    near = links.travel(direct, 4, "mix", up=1e4, down=0.0, up_max=2e4, messages_up=2)
    assert near == pytest.approx(2 * A + 2e4 / B)
    assert links.travel(ring, 4, up=0.0, down=0.0, messages_up=0) == 0


@FORM
def test_arrays_are_as_good_as_numbers(network):
    ups, ns = np.array([1e3, 1e5, 1e7]), np.array([1, 3, 8])
    for how in counts.EXCHANGES:
        got = links.travel(network, ns, how, up=ups, down=10.0)
        each = zip(ns.tolist(), ups, strict=True)
        one = [links.travel(network, n, how, up=up, down=10.0) for n, up in each]
        np.testing.assert_allclose(got, one)
    assert isinstance(links.all_reduce(network, 3, 1e3), float)


def test_the_start_of_a_collective_is_paid_once():
    near = links.nccl("nvlink", 360e9)
    assert (near.latency, near.start) == (3.4e-6, 8.4e-6)
    spent = links.all_reduce(LinkNetwork(near), 8, 0.0)
    assert spent == pytest.approx(8.4e-6 + 14 * 3.4e-6)


# Texts ---------------------------------------------------------------------------------------------


def test_texts_of_networks():
    assert parse_network("1Gbit") == LinkNetwork(links.PRESETS["1Gbit"], "ring")
    assert parse_network(" 1gbit/s , Ring ") == LinkNetwork(links.PRESETS["1Gbit"], "ring")
    far = parse_network("10Gbit,20ms,server")
    assert (far.link.latency, far.link.bandwidth, far.form) == (0.02, 1.1e9, "server")
    assert parse_network("10Gbit,server,20ms") == far
    nodes = parse_network("100Gbit,hierarchical,8xnvlink4")
    assert (nodes.inner, nodes.per_node) == (links.PRESETS["nvlink4"], 8)
    assert parse_network("100Gbit,8xnvlink4") == nodes
    own = parse_network("250Mbit,2ms,two-shot")
    assert (own.link.bandwidth, own.link.latency, own.form) == (31.25e6, 2e-3, "two_shot")
    assert parse_network("31MB/s,80us").link.bandwidth == 31e6


@given(st.floats(1e-7, 10), st.floats(1e3, 1e12), st.sampled_from(PLAIN))
def test_what_is_written_can_be_read(latency, bandwidth, form):
    result = parse_network(written(latency, bandwidth, form))
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
        parse_network(text)


@given(st.text(max_size=30))
def test_any_text_is_a_network_or_an_input_error(text):
    with contextlib.suppress(InputError):
        assert parse_network(text).link.bandwidth > 0


# -- fitting a link to measured times, and bench link itself ---------------------------------------


TRUE = Link(2e-4, 50e6)


def made(what, n, noise=0.0, spoilt=(), sizes=SIZES, seed=0):
    """Return times that the model gives on a link, with noise, some of them ten times as long."""
    generator = np.random.default_rng(seed)
    result = []
    for j, size in enumerate(sizes):
        times = float(expected(what, TRUE, n, size)) * np.exp(noise * generator.standard_normal(7))
        result.append(ExchangeTiming(what, n, size, tuple(times * (10 if j in spoilt else 1))))
    return result


@pytest.mark.thorough
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("what", EXCHANGES)
def test_exact_times_give_the_link_back(what, n):
    result = fit(made(what, n))
    assert result.link.latency == pytest.approx(TRUE.latency, rel=1e-3)
    assert result.link.bandwidth == pytest.approx(TRUE.bandwidth, rel=1e-3)
    assert result.misfit < 1e-3


@pytest.mark.thorough
def test_bench_link_measures_fits_and_writes_a_link(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    said = ran("bench", "link", "--processes", "2", "--repeats", "2", "--json")
    result = json.loads(said.out)
    assert [(t["what"], t["size"]) for t in result["timings"]] == [
        (what, size) for what in EXCHANGES for size in SIZES
    ]
    assert all(len(t["seconds"]) == 2 and min(t["seconds"]) > 0 for t in result["timings"])
    for kind, got in result["fits"].items():
        network = parse_network(got["text"])
        assert network.form == ("ring" if kind == "pair" else "gather")
        assert network.link.bandwidth == pytest.approx(got["link"]["bandwidth"], rel=1e-3)
        # memory of one machine: more than a slow network, less than any memory
        assert 1e6 < network.link.bandwidth < 1e12


@pytest.mark.thorough
def test_bench_link_prints_tables(monkeypatch):
    times = [t for what in EXCHANGES for t in made(what, 4, noise=0.01)]
    monkeypatch.setattr("raybench.measure.link.measure_here", lambda *a, **k: times)
    said = ran("bench", "link", "--processes", "4")
    tidy(said.out)
    assert "4 processes of this machine" in said.out
    assert ",gather" in said.out
    assert "MB/s" in said.out


@pytest.mark.thorough
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
    if why := benchmark.unavailable():
        pytest.skip(why)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    sizes = {"pair": (2**20,), "gather": (2**18,), "all_reduce": (2**20,), "server": (2**18,)}
    result = benchmark.compare([text], [2, 4], sizes=sizes, methods=())
    assert len(result) == 8
    wrong = [benchmark.row(one) for one in result if abs(one["error"]) > benchmark.BOUND]
    assert not wrong, "\n".join(wrong)
