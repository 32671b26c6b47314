"""Collectives: how the clients' messages become the one mean of all; transports give what one process gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gloo_kit import everyone, on_ranks
from hypothesis import given
from hypothesis import strategies as st

import raybench
from raybench import spec
from raybench.compressors import Dense
from raybench.compressors.per_tensor import PerPart, PerTensor
from raybench.core import registry
from raybench.core.counts import Counts
from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.core.streams import stream
from raybench.execution.checks import Skip
from raybench.execution.resolve import Resolver
from raybench.store import cells
from raybench.testing.algorithms import CHECKS, conformance
from raybench.testing.trial import DATA, TrialMethod, finished
from raybench.testing.vectors import gaussian
from raybench.wire import CasesMessage, Message
from raybench.wire.transport import Distributed, Transport, on_virtual_ranks, share_of
from raybench.wire.wire import BookedWire, Vectors

QUADRATIC = {"name": "quadratic", "shape": [[4, 5]], "clients": 5, "heterogeneity": 0.3}
SWEEP = {"problem": QUADRATIC, "algorithm": "ef21", "step_size": {"value": 0.1}, "rounds": 3}
COMMON = {"name": "rand_k", "k": 4, "mask": "common"}


def asked(compressor, **more):
    return spec.load({**SWEEP, "compressor": compressor, **more}).cells


# In a sweep file -----------------------------------------------------------------------------------


def test_it_stands_beside_the_parameters_of_an_operator():
    result = asked({"name": "bf16", "collective": ["gather", "reduce"], "granularity": "tensor"})
    assert [cell.compressor.params.get("collective") for cell in result] == [None, "reduce"]
    assert {cell.compressor.name for cell in result} == {"per_tensor"}
    assert result[0].id == asked({"name": "bf16", "granularity": "tensor"})[0].id
    assert result[0].group != result[1].group
    assert "collective=reduce" in Resolver().resolve(result[1]).label


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"compressor": {"name": "natural", "collective": "rduce"}}, r"collective.*\n.*reduce"),
        ({"compressor": {"name": "natural", "colective": "reduce"}}, "did you mean collective"),
        ({"downlink": {"name": "natural", "collective": "reduce"}}, "downlink.collective"),
        (
            {"compressor": {"name": "per_tensor", "of": {"name": "natural", "collective": "reduce"}}},
            "of.collective",
        ),
    ],
)  # fmt: skip
def test_a_wrong_one_is_told(keys, says):
    with pytest.raises(InputError, match=says):
        spec.load({**SWEEP, **keys})


@pytest.mark.parametrize(
    ("compressor", "says"),
    [
        ({"name": "top_k", "k": 2, "collective": "reduce"}, "top_k's messages do not add up to one"),
        ({"name": "rand_k", "k": 2, "collective": "reduce"}, "mask: common"),
        ({"name": "bf16", "scale": "max", "collective": "reduce"}, "do not add up"),
        ({"name": "top_k", "k": 2, "granularity": "tensor", "collective": "reduce"}, "do not add up"),
        ({"name": "top_k", "k": 5, "collective": "all_to_all"}, "5 of 4 coordinates"),
    ],
)  # fmt: skip
def test_operators_that_cannot_are_refused_when_it_is_planned(compressor, says):
    (cell,) = asked(compressor)
    with pytest.raises(InputError, match=says):
        Resolver(allow_unproven=True).resolve(cell)


@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": "ef21_plus"},
        {"algorithm": "ef21_w"},
        {"algorithm": "double_squeeze", "downlink": {"name": "top_k", "k": 2}},
        {"downlink": {"name": "top_k", "k": 2}},
        {"algorithm": "choco_sgd"},
    ],
)
def test_methods_that_need_a_server_are_skipped(keys):
    (cell,) = asked({"name": "natural", "collective": "all_to_all"}, **keys)
    with pytest.raises(Skip, match="cannot be averaged on the way"):
        Resolver(allow_unproven=True).resolve(cell)


def test_no_theorem_covers_two_compressions():
    for how in ("gather", "reduce"):
        (cell,) = asked({**COMMON, "scaled": False, "collective": how})
        assert Resolver().resolve(cell).theory_step
    operator = {"name": "top_k", "k": 2, "collective": "all_to_all"}
    assert Resolver().resolve(asked(operator)[0]).theory_step is None
    with pytest.raises(Skip, match="no theoretical step"):
        Resolver().resolve(asked(operator, step_size={"theory": 1})[0])


# What arrives --------------------------------------------------------------------------------------


def wire_of(collective, transport=None, n=5, d=12, cells=2):
    transport = transport or Transport()
    here = share_of(transport.rank, transport.size, n)
    vectors = Vectors(n, here, Layout.vector(d), d, torch.float64, torch.device("cpu"))
    return BookedWire(vectors, stream(range(cells)), transport, collective=collective)


def operator(name, collective, n=5, d=12, **params):
    op = registry.lookup("compressor", name).target(**params)
    return (PerPart(op) if collective == "all_to_all" else op).bind(d, n)


MESSAGES = {
    "dense": ("reduce", lambda w, x: Dense(x)),
    "some dense": ("reduce", lambda w, x: Dense(x).masked(w.stream("who").bits(1)[..., 0] > 0)),
    "common": ("reduce", lambda w, x: operator("rand_k", "reduce", k=3, mask="common")(x, w.stream("up"))),
    "cases": ("reduce", lambda w, x: CasesMessage(12, x.dtype, [torch.tensor([1]), torch.tensor([0])], [
        Dense(x[[1]]), operator("rand_k", "reduce", k=3, mask="common")(x[[0]], w.stream("up")[[0]])])),
    **{
        name: ("all_to_all", lambda w, x, name=name, params=params:
               operator(name, "all_to_all", **params)(x, w.stream("up")).scaled(0.7))
        for name, params in {
            "identity": {}, "natural": {}, "scaled_sign": {}, "top_k": {"k": 1}, "zero": {},
            "rand_k": {"k": 2}, "random_sparsification": {"p": 0.5}, "dithering": {"s": 3},
        }.items()
    },
    "tensors": ("all_to_all", lambda w, x: PerPart(PerTensor("natural", groups=(("b", "identity"),))).bind(
        12, 5, Layout((("a", (3, 2)), ("b", (5,)), ("c", (1,)))))(x, w.stream("up"))),
    "some parts": ("all_to_all", lambda w, x: operator("top_k", "all_to_all", k=2)(
        x, w.stream("up")).masked(w.stream("who").bits(1)[..., 0] > 0)),
    "cases of parts": ("all_to_all", lambda w, x: CasesMessage(12, x.dtype, [torch.tensor([1]), torch.tensor([0])], [
        Dense(x[[1]]), operator("natural", "all_to_all")(x[[0]], w.stream("up")[[0]])])),
}  # fmt: skip


def sent(name, transport=None):
    collective, made = MESSAGES[name]
    wire = wire_of(collective, transport)
    wire.begin(1)
    x = gaussian(2, 5, 12, dtype=torch.float64)[:, wire.clients.start : wire.clients.stop]
    message: Message = made(wire, x)
    mean = wire.up(message).mean()
    return mean, wire.ledger, message


@pytest.mark.parametrize("name", MESSAGES)
def test_ranks_find_and_book_what_one_process_does(name):
    mean, ledger, message = sent(name)
    if MESSAGES[name][0] == "reduce":  # adding up is all that happens
        torch.testing.assert_close(mean, message.decode().mean(1), rtol=1e-13, atol=1e-15)
    for size in (2, 3, 5):
        for got, booked, _ in on_virtual_ranks(size, lambda t: sent(name, t)):
            torch.testing.assert_close(got, mean, rtol=1e-13, atol=1e-15)
            np.testing.assert_allclose(booked.up, ledger.up, rtol=1e-14)
            np.testing.assert_allclose(booked.down, ledger.down, rtol=1e-14)
            assert np.array_equal(booked.bytes_up_max, ledger.bytes_up_max)


def test_two_compressions_by_hand():
    """Each client keeps the largest entry of every part, each owner the largest of its part's mean."""
    n, d, w = 3, 7, 3
    wire = wire_of("all_to_all", n=n, d=d, cells=1)
    x = gaussian(1, n, d, dtype=torch.float64)
    message = operator("top_k", "all_to_all", n=n, d=d, k=1)(x, wire.stream("up"))

    def largest(v):
        out = np.zeros_like(v)
        out[np.abs(v).argmax()] = v[np.abs(v).argmax()]
        return out

    padded = np.pad(x[0].numpy(), ((0, 0), (0, n * w - d))).reshape(n, n, w)
    first = np.array([[largest(part) for part in own] for own in padded])
    want = np.concatenate([largest(first[:, j].mean(0)) for j in range(n)])[:d]
    # what a method keeps of its own message is what of it arrived
    np.testing.assert_array_equal(message.decode()[0], first.reshape(n, -1)[:, :d])
    np.testing.assert_allclose(wire.up(message).mean()[0], want, rtol=1e-14)


def test_parts_clients_and_stages_draw_apart():
    """Rand-1 of equal parts: as often the same coordinate (1 of 3) for any two of them as by chance."""
    n, d, draws = 4, 12, 3000
    wire = wire_of("all_to_all", n=n, d=d, cells=draws)
    op = operator("rand_k", "all_to_all", n=n, d=d, k=1)
    message = op(torch.ones(draws, n, d, dtype=torch.float64), wire.stream("up"))
    second = []

    def again(means, source):
        assert not torch.isin(source.keys, wire.stream("up").keys).any()
        second.append(message.again(torch.ones_like(means), source))
        return second[0]

    wire.up(replace(message, again=again)).mean()
    first = message.inner.decode().argmax(-1).flatten(1)  # part by part, of every client
    drawn = torch.cat([first, second[0].decode().argmax(-1)], 1)
    same = (drawn[:, :, None] == drawn[:, None]).double().mean(0)
    others = ~torch.eye(len(same), dtype=torch.bool)
    assert ((same[others] - 1 / 3).abs() < 6 * (2 / 9 / draws) ** 0.5).all()


@pytest.mark.parametrize(
    ("name", "dtype", "unit"),
    [("bf16", torch.bfloat16, 2.0**-8), ("fp16", torch.float16, 2.0**-11)],
)
def test_sums_of_sixteen_bits_are_rounded_on_the_way(name, dtype, unit):
    """In one process once; over ranks each rank's sum and every addition: at most one rounding a rank more."""

    def mean(transport=None):
        wire = wire_of("reduce", transport)
        x = gaussian(2, 5, 12, dtype=torch.float64)[:, wire.clients.start : wire.clients.stop]
        return wire.up(operator(name, "reduce")(x, wire.stream("up"))).mean()

    x = gaussian(2, 5, 12, dtype=torch.float64)
    arrived = operator(name, "gather")(x, stream([0, 1]).each(range(5))).decode()
    exact, size = arrived.mean(1), x.abs().mean(1)
    assert torch.equal(mean(), (arrived.float().sum(1) / 5).to(dtype).double())
    for ranks in (2, 3):
        for got in on_virtual_ranks(ranks, mean):
            assert ((got - exact).abs() <= (2 * ranks) * unit * size).all()


def test_means_of_fp16_do_not_overflow():
    wire = wire_of("reduce")
    x = torch.full((2, 5, 12), 60000.0, dtype=torch.float64)
    assert (wire.up(operator("fp16", "reduce")(x, wire.stream("up"))).mean() == 60000).all()


def test_only_the_mean_is_known():
    wire = wire_of("reduce")
    got = wire.up(Dense(gaussian(2, 5, 12, dtype=torch.float64)))
    torch.testing.assert_close(got.sum(), 5 * got.mean())
    for ask in (got.decode, got.mean_sent, got.mean_of_senders, lambda: got.flags):
        with pytest.raises(TypeError, match="averaged=False"):
            ask()


# What it costs -------------------------------------------------------------------------------------


def counts(side):
    return {name: side[i, 0] for i, name in enumerate(Counts._fields) if side[i, 0]}


def test_what_is_booked_of_the_identity():
    """d = 12, n = 5: parts of 3 coordinates; a client sends four, and is sent four means."""
    _, ledger, _ = sent("identity")
    each = {"values": 12, "bytes": 96, "messages": 4}
    assert counts(ledger.up) == counts(ledger.down) == each
    assert ledger.bytes_up_max[0] == 96
    _, ledger, _ = sent("common")
    assert counts(ledger.up) == counts(ledger.down) == {"values": 3, "bytes": 24, "messages": 1}


def test_the_wire_tells_what_became_of_messages(tmp_path):
    """Whatever was asked for: all PowerSGD sends is averaged on the way, and a method that does two things gathers."""
    parts = {"name": "natural", "collective": "all_to_all"}
    methods = {
        "power_sgd": ("reduce", {"rank": 1}),
        "dion": ("reduce", {"rank": 1}),
        "ef21": ("gather", {"compressor": {"name": "top_k", "k": 3}}),
        "one_bit_adam": ("gather", {"warmup_rounds": 2}),
        "marina": ("all_to_all", {"compressor": parts, "p": 0.3}),
        "choco_sgd": ("mix", {"compressor": {"name": "top_k", "k": 3}}),
        "async_sgd": ("server", {}),
    }
    algorithms = [{"name": name, **more} for name, (_, more) in methods.items()]
    sweep = {**SWEEP, "algorithm": algorithms, "step_size": 0.01, "clock": {"compute": 1.0}}
    raybench.sweep({**sweep, "allow_unproven": True}, tmp_path, inline=True)
    rows = cells(tmp_path).set_index("algorithm")
    assert rows["exchange"].to_dict() == {name: how for name, (how, _) in methods.items()}
    assert rows["on_clock"].all()
    assert not rows["baseline"].any()
    assert set(rows["value_bits"]) == {64}


def test_the_model_is_not_broadcast_where_everyone_has_the_mean():
    method = TrialMethod(
        "dcgd", {}, {**COMMON, "collective": "reduce"}, QUADRATIC, step=0.01, rounds=7
    )
    ledger = finished(method.batch()).net.ledger
    assert counts(ledger.up) == counts(ledger.down) == {"values": 28, "bytes": 224, "messages": 7}


def test_factors_of_all_matrices_travel_together():
    """The values of r (a + b) for every matrix and of the vectors, in two messages a round each way."""
    problem = {"name": "network", "model": "mlp:hidden=[5]", "dataset": "digits", "clients": 2}
    problem |= {"rows": 60, "batch": 4}
    for name in ("power_sgd", "dion"):
        run = finished(TrialMethod(name, {"rank": 2}, None, problem, step=0.01, rounds=3).batch())
        values = 2 * (64 + 5) + 2 * (5 + 10) + 5 + 10
        ledger = run.net.ledger
        want = {"values": 3 * values, "bytes": 3 * 4 * values, "messages": 6}
        assert counts(ledger.up) == counts(ledger.down) == want


METHODS = [
    TrialMethod("ef21", {}, {"name": "top_k", "k": 2, "collective": "all_to_all"}),
    TrialMethod("marina", {"p": 0.3}, {"name": "natural", "collective": "all_to_all"}),
    TrialMethod("ef21_pp", {"p": 0.5}, {"name": "random_sparsification", "p": 0.5, "collective": "all_to_all"}),
    TrialMethod("marina", {"p": 0.3}, {"name": "rand_k", "k": 3, "mask": "common", "collective": "reduce"}),
    TrialMethod("ef21_pp", {"p": 0.5}, {"name": "identity", "collective": "reduce"}),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.name} {m.compressor['name']}")
def test_methods_conform(method):
    result = conformance(method)
    assert not [str(f) for f in result if not f.ok]
    assert [f.check for f in result] == list(CHECKS)


# Time and memory -----------------------------------------------------------------------------------


def test_times_of_a_network_are_split(tmp_path):
    """Seconds of all three kinds are there, and no more than there are in all."""
    operators = [
        {"name": "top_k", "k": "5%"},
        {"name": "natural", "collective": "all_to_all"},
        {"name": "identity", "collective": "reduce"},
    ]
    entries = [{"name": "dcgd", "compressor": operator} for operator in operators]
    sweep = {
        "name": "timed",
        "problem": {"name": "network", "model": "mlp:hidden=[8]", "dataset": "digits"}
        | {"clients": 4, "rows": 80, "batch": 8},
        "algorithm": [*entries, {"name": "power_sgd", "rank": 2}],
        "step_size": {"value": 0.05},
        "rounds": 6,
        "allow_unproven": True,
    }
    raybench.sweep(sweep, tmp_path / "out", inline=True)
    curves, ended = raybench.load(tmp_path / "out"), cells(tmp_path / "out")
    parts = ["seconds_gradient", "seconds_compress", "seconds_communicate"]
    last = curves[curves["round"] == curves["round"].max()]
    assert len(last) == len(ended) == 4
    assert (last[parts] > 0).all(axis=None)
    assert (last[parts].sum(axis=1) <= last["seconds"]).all()
    assert curves[[*parts, "seconds"]].notna().all(axis=None)
    assert (ended["peak_memory"] > 1e6).all()


# Virtual ranks and real processes over gloo give what one process gives ---------------------------


@given(st.integers(1, 40), st.integers(1, 200))
def test_clients_are_dealt_evenly(size, n):
    shares = [share_of(rank, size, n) for rank in range(size)]
    assert [i for share in shares for i in share] == list(range(n))
    lengths = [len(share) for share in shares]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)  # rank 0 has most: the padding relies on it


def test_an_error_on_one_rank_is_raised_and_nobody_waits():
    def work(transport):
        if transport.rank == 1:
            raise ArithmeticError("rank 1 fails")
        return transport.agree(0)

    with pytest.raises(ArithmeticError, match="rank 1"):
        on_virtual_ranks(3, work)


# Real processes ------------------------------------------------------------------------------

MATRIX = {"name": "quadratic", "shape": [[4, 5]], "clients": 5, "heterogeneity": 0.4}
FAR = {"x0": {"normal": 1.0}}
FEW = {"name": "rand_k", "k": 9}
VERTICAL = {"name": "vertical_least_squares", **DATA}
CARRIED = {  # one for each way in which something travels; the kit has all methods on virtual ranks
    "messages": ("ef21", {"init": "full"}, {"name": "top_k", "k": 3}, MATRIX),
    "sums": ("power_sgd", {"rank": 2}, None, MATRIX),
    "gossip": ("prox_lead", {}, "natural", MATRIX),
    "columns": ("vertical_marina", {"p": 0.4}, FEW, VERTICAL),
}
COLUMNS = ("loss", "grad_norm_sq", "bytes_up", "bytes_down", "values_up", "grad_evals")


def result(method: TrialMethod, transport: Transport | None = None) -> dict[str, Any]:
    """Return what a batch of mixed seeds, steps and one diverging cell ends with."""
    batch = method.batch((1.0, 0.5, 1e9, 1e9, 1e9), (0, 1, 2, 3, 4))
    run = finished(batch, transport=transport)
    out = {name: run.recorder.column(name) for name in COLUMNS}
    out["x"] = run.a.point(run.net, run.s, run.c).numpy()
    out["status"] = run.status
    return out


@pytest.mark.parametrize("what", CARRIED)
@on_ranks(2)
def test_two_processes_over_gloo_are_one_process(what):
    method = TrialMethod(*CARRIED[what], rounds=20, more=FAR)
    alone, there = result(method), result(method, Distributed())
    assert list(there["status"]) == list(alone["status"])
    assert list(there["status"][:2]) == ["ok", "ok"]
    assert there["x"].shape == alone["x"].shape
    assert np.abs(there["x"] - alone["x"]).max() <= 1e-10 * max(1.0, np.abs(alone["x"]).max())
    for column in COLUMNS:
        for b in (0, 1):  # those that did not blow up
            np.testing.assert_allclose(there[column][b], alone[column][b], rtol=1e-10)
    assert np.array_equal(*everyone(there["x"]))  # replicas are bit-equal
