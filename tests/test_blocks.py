"""Many clients take a round in blocks: the same numbers, in the memory of a block."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_kit import own_plugins
from hypothesis import given
from hypothesis import strategies as st

from raybench.algorithms.base import Dense, Estimator, algorithm
from raybench.execution import chunks as blocks
from raybench.execution.run import Run
from raybench.execution.saved import share, whole
from raybench.testing.algorithms import blocks_change_nothing
from raybench.testing.trial import Method, started
from raybench.wire.transport import Transport, on_virtual_ranks, share_of

LOGISTIC = {"name": "logistic", "dataset": "breast_cancer", "clients": 7, "regularizer": "l2"}
EF21 = Method("ef21", {}, {"name": "top_k", "k": 3}, problem=LOGISTIC, rounds=20)


def after(run: Run, rounds: int = 20) -> Run:
    run.advance(rounds)
    return run


def close(a: Any, b: Any, rtol: float = 1e-10) -> None:
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=1e-13)


# Where a round is cut -------------------------------------------------------------------------------


@given(n=st.integers(1, 60), ranks=st.integers(1, 5), size=st.integers(1, 70))
def test_blocks_hold_every_client_once_and_ranks_alike(n: int, ranks: int, size: int) -> None:
    ranks = min(n, ranks)
    found = []
    for rank in range(ranks):
        transport = Transport()
        transport.rank, transport.size = rank, ranks
        found.append(list(blocks._ranges(n, transport, size)))
    assert len({len(own) for own in found}) == 1, "ranks differ in how many blocks they have"
    for rank, own in enumerate(found):
        here = [i for clients, _ in own for i in clients]
        assert here == list(share_of(rank, ranks, n))
        for clients, ids in own:
            assert len(clients) == len(share_of(rank, ranks, len(ids))), "no share of the block"
            assert 1 <= len(clients) <= size + 1
    everyone = sorted(i for _, ids in found[0] for i in ids.tolist())
    assert everyone == list(range(n))


@pytest.mark.parametrize(("bound", "count"), [(10**9, None), (0, 4)])
def test_only_what_is_large_is_cut(
    monkeypatch: pytest.MonkeyPatch, bound: int, count: int | None
) -> None:
    monkeypatch.setattr(blocks, "MOST_BYTES_WHOLE", bound)
    monkeypatch.setattr(blocks, "BYTES_OF_BLOCK", 2 * 2 * 30 * 8)  # two clients of two cells
    run = started(EF21.batch((1.0, 0.5)))
    assert (None if run.blocks is None else len(run.blocks.nets)) == count


def test_small_cells_are_never_cut() -> None:
    assert started(EF21.batch()).blocks is None


@pytest.mark.parametrize(
    "more",
    [{"downlink": "aggregate"}, {"compressor": {"name": "bf16", "collective": "reduce"}}],
    ids=["aggregate", "reduce"],
)
def test_sums_made_on_the_way_are_not_cut(more: dict[str, Any]) -> None:
    given = {"name": "dcgd", "problem": LOGISTIC, "step": 0.1, "compressor": "bf16", **more}
    assert started(Method(**given).batch(), block=2).blocks is None


# The same numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        EF21,
        Method("fedavg", {"p": 0.5, "tau": 2}, problem={**LOGISTIC, "remainder": "last"}, step=0.1),
        Method("gd", problem=LOGISTIC, more={"local": {"steps": 2, "optimizer": "adamw", "step_size": 0.01}}, step=0.5),
        Method("marina", {"p": 0.5}, {"name": "perm_k"}, problem=LOGISTIC),
        Method("dcgd", {}, {"name": "rand_k", "k": 3, "mask": "common"}, problem=LOGISTIC, step=0.01),
    ],
    ids=lambda m: m.name,
)  # fmt: skip
def test_blocks_change_nothing(method: Method) -> None:
    blocks_change_nothing(method)


def test_cells_may_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = EF21.batch((1.0, 1e12, 1e12, 1e12, 0.5))
    one, other = (after(started(batch, block=size)) for size in (None, 3))
    assert list(other.status) == ["ok", *["diverged"] * 3, "ok"]
    for at in (0, 4):
        close(other.recorder.column("loss")[at], one.recorder.column("loss")[at])


def test_a_run_in_blocks_goes_on_as_it_was_in_blocks_or_not() -> None:
    batch = EF21.batch((1.0, 0.5))
    want = after(started(batch, block=3))
    part = after(started(batch, block=3), 8)
    state = part.state()
    again = started(batch, block=3)
    again.load(state)
    after(again)
    assert torch.equal(again.s.x, want.s.x)
    assert np.array_equal(again.recorder.column("loss"), want.recorder.column("loss"))

    def going_on(transport: Transport) -> Run:
        run = started(batch, transport=transport, block=2)
        run.load(share(whole([state]), run.problem.clients))
        return after(run)

    for run in (*on_virtual_ranks(2, going_on),):
        close(run.s.x, want.s.x)
        close(run.net.ledger.up, want.net.ledger.up)


# What a plug-in says and does not hold ----------------------------------------------------------------


@pytest.fixture
def dishonest() -> Iterator[None]:
    """Two methods that claim to work in blocks, and do not; forgotten afterwards."""
    with own_plugins():

        @algorithm("test_blocks_decodes", up=None, blocks=True)
        class Decodes(Estimator):
            """Looks at every client's message."""

            def estimate(a, wire, s, c, grad):
                return wire.up(Dense(grad)).decode().mean(1)

        @algorithm("test_blocks_listens", up=None, blocks=True)
        class Listens(Estimator):
            """Its clients keep what came back."""

            def setup(a, wire, s, c):
                c.g = wire.zeros()

            def estimate(a, wire, s, c, grad):
                mean = wire.up(Dense(grad + c.g)).mean()
                c.g = c.g + 0.1 * mean[:, None]
                return mean

        yield


@pytest.mark.usefixtures("dishonest")
def test_a_method_that_needs_more_than_sums_is_told() -> None:
    run = started(Method("test_blocks_decodes", step=0.1).batch(), block=2)
    with pytest.raises(TypeError, match="blocks"):
        run.advance(1)


@pytest.mark.usefixtures("dishonest")
def test_a_method_whose_clients_use_what_came_back_is_found_out() -> None:
    with pytest.raises(AssertionError, match="in blocks of 1"):
        blocks_change_nothing(Method("test_blocks_listens", step=0.1))


# Memory ---------------------------------------------------------------------------------------------

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "clients.py"
TENSOR = 8 * 8000 * 4000  # bytes of a tensor (n, d)


def grown(name: str, block: int | None) -> tuple[float, float]:
    """Return by how many bytes a process grows in three rounds, and what its plan says."""
    asked = json.dumps([name, 8000, 4000, 2, block])
    done = subprocess.run(
        [sys.executable, BENCHMARK, "--one", asked], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found["peak"], found["planned"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "tensors"), [("gd", 0), ("ef21", 1), ("diana", 1)])
def test_a_round_takes_its_state_and_little_more_and_the_plan_says_so(
    name: str, tensors: int
) -> None:
    # of every page of the state something is written to: what stays zero takes no memory
    peak, planned = grown(name, None)
    assert planned == pytest.approx(tensors * TENSOR + blocks.BYTES_OF_BLOCK, rel=0.01)
    # beside what is planned a block has a few more tensors than its gradients, and what blocks leave
    # behind is given back after MOST_BYTES_WHOLE of gradients: a block may leave twice their size
    more = 2 * blocks.MOST_BYTES_WHOLE + 8 * blocks.BYTES_OF_BLOCK
    assert 0.9 * planned < peak < 1.1 * planned + more


@pytest.mark.slow
def test_all_clients_at_once_take_several_tensors_of_all() -> None:
    assert grown("ef21", 8000)[0] > 2.5 * TENSOR
