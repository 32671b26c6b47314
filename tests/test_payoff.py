"""When compression pays: closed forms of break-even and of a step's seconds, and the advice that follows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import raybench
from raybench.analysis.simulated import SECONDS, simulated
from raybench.clock.links import FORMS, Link, LinkNetwork
from raybench.core.counts import ALL_TO_ALL, GATHER, REDUCE
from raybench.measure.payoff import (
    BUCKETS,
    MOST_ERROR,
    Compute,
    Exchange,
    break_even,
    case_of,
    step_of,
)

D = 10_000_000
DENSE = 2 * D
COMPUTE = Compute(0.05, 0.1)
BASELINE = Exchange("bf16", (REDUCE,), DENSE, DENSE, overlaps=True)
TOP = Exchange("top", (GATHER,), 0.001 * D * 8, DENSE, encode=0.01, decode=0.0005)
FORMAT = Exchange("four bits", (GATHER, ALL_TO_ALL), D / 2, DENSE, encode=0.02, decode=0.01)
LOCAL = Exchange("local", (REDUCE,), 4 * D, DENSE, every=30)


def ring(bandwidth: float, latency: float = 0.0) -> LinkNetwork:
    return LinkNetwork(Link(latency, bandwidth))


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
    slow = step_of(replace(LOCAL, encode=0.6, decode=0.3), net, n, COMPUTE)
    assert slow.seconds == pytest.approx(0.15 + (0.9 + once) / 30, rel=1e-12)
    assert slow.exchange == pytest.approx(once / 30, rel=1e-12)
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
    net = LinkNetwork(Link(1e-4, 1e9), "hierarchical", inner, 8)
    assert step_of(FORMAT, net, 8, COMPUTE).exchange < 1e-3
    own = [step_of(replace(FORMAT, collectives=(ALL_TO_ALL,)), net, 16, COMPUTE)]
    n, a, B = 16, 1e-4, 1e9  # eight processes share a node's link
    assert own[0].exchange == pytest.approx(2 * ((n - 1) * a + (n - 1) / n * 8 * D / 2 / B))
    said = case_of("node", net, 8, COMPUTE, BASELINE, [TOP, replace(FORMAT, error=0.01)])
    assert said.best() is None
    assert said.best(paying=False) is not None


# Tables and advice ------------------------------------------------------------------------------------

METHODS = {
    GATHER: {"name": "dcgd", "compressor": {"name": "top_k", "k": 3}},
    REDUCE: {"name": "dcgd", "compressor": {"name": "bf16", "collective": REDUCE}},
    ALL_TO_ALL: {"name": "dcgd", "compressor": {"name": "int8", "collective": ALL_TO_ALL}},
    "two all-reduces": {"name": "power_sgd", "rank": 2},
}
SIXTEEN = 16


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
    """The rounds of a sweep, by exchange and method: computing took no time."""
    folder = tmp_path_factory.mktemp("rounds") / "out"
    problem = {"name": "quadratic", "shape": [[8, 6]], "clients": SIXTEEN}
    methods = list(METHODS.values())
    sweep = {"problem": problem, "algorithm": methods, "step_size": 0.01, "rounds": 2}
    raybench.sweep(sweep, folder, inline=True)
    return raybench.load(folder).assign(seconds_gradient=0.0, seconds_compress=0.0)


@pytest.mark.parametrize("form", FORMS)
def test_the_seconds_of_a_table_are_those_of_advise(rounds, form):
    inner = Link(1e-6, 1e10) if form == "hierarchical" else None
    net = LinkNetwork(Link(1e-3, 1e6, start=1e-4), form, inner, 4 if inner else 1)
    seen = []
    for (how, method), rows in simulated(rounds, net).groupby(["exchange", "algorithm"]):
        booked = rows.set_index("round")[["bytes_up", "bytes_down", "messages_up", SECONDS]]
        up, down, messages, seconds = booked.loc[2] - booked.loc[1]
        if how == ALL_TO_ALL:  # each keeps its own of so many parts
            up, messages = up * SIXTEEN / (SIXTEEN - 1), messages / (SIXTEEN - 1)
        x = Exchange(method, (how,), up, dense=down, parts=round(messages))
        step = step_of(x, net, SIXTEEN, Compute(0.0, 0.0))
        assert step.exchange == pytest.approx(seconds, rel=1e-9), (how, method)
        seen.append((how, method, x.parts))
    dcgd = [(how, "dcgd", 1) for how in (ALL_TO_ALL, GATHER, REDUCE)]
    assert sorted(seen) == sorted([*dcgd, (REDUCE, "power_sgd", 2)])


def judged(bandwidth: float, n: int = 8, of_top: float = 0.85):
    errors = [(TOP, of_top), (FORMAT, 0.01), (LOCAL, None), (BASELINE, 0.0)]
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
    coarse = judged(1e11, of_top=MOST_ERROR).best(paying=False)
    assert coarse is not None
    assert coarse.exchange.name == "four bits"
