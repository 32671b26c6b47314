"""The ledger: what messages cost, as means over clients and for the largest; gradients counted beside the books."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import first_of_each

import raybench
from raybench.algorithms.base import Dense
from raybench.core import registry
from raybench.core.counts import Counts
from raybench.testing.algorithms import methods
from raybench.testing.trial import DATA, TrialMethod, problem_for, started
from raybench.wire import CasesMessage, ConcatMessage, Message, RaggedMessage, SparseMessage
from raybench.wire.compound import choose
from raybench.wire.ledger import Ledger

CELLS, CLIENTS, D = 3, 4, 12
BYTES, RAW, VALUES, MESSAGES = map(Counts._fields.index, ("bytes", "raw", "values", "messages"))


def dense(cells: int = CELLS, d: int = D) -> Message:
    return Dense(torch.ones(cells, CLIENTS, d, dtype=torch.float64))


def sparse(k: int, cells: int = CELLS) -> Message:
    where = torch.arange(k).expand(cells, CLIENTS, k)
    return SparseMessage(D, torch.float64, where, torch.ones(cells, CLIENTS, k).double())


def ragged(counts: Sequence[Sequence[int]]) -> Message:
    counts = torch.tensor(counts)
    k = int(counts.max())
    live = torch.arange(k) < counts[..., None]
    where = torch.arange(k).expand(*counts.shape, k) * live
    return RaggedMessage(D, torch.float64, counts, where, live.double())


OF_CELLS = [torch.tensor([2, 0]), torch.tensor([1])]
MIXED = CasesMessage(D, torch.float64, OF_CELLS, [dense(2), sparse(3, 1)])
MASK = torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])
MESSAGES_OF_ALL_SORTS = {
    "dense": dense(),
    "sparse": sparse(5),
    "ragged": ragged([[1, 2, 3, 4], [4, 4, 0, 0], [0, 9, 1, 2]]),
    "masked": sparse(5).masked(MASK),
    "concat": ConcatMessage(2 * D, torch.float64, [dense(), sparse(2)]),
    "masked concat": ConcatMessage(2 * D, torch.float64, [dense(), sparse(2)]).masked(MASK),
    "flagged": choose(MASK, sparse(2), sparse(2)),
    "cases": MIXED,
    "masked cases": MIXED.masked(MASK),
}


def row_costs(message: Message) -> np.ndarray:
    """Return the costs of each row by itself, (counts, cells, clients)."""
    costs = [message.row(b, i).cost for b in range(CELLS) for i in range(CLIENTS)]
    return np.array(costs, float).reshape(CELLS, CLIENTS, -1).transpose(2, 0, 1)


@pytest.mark.parametrize("name", MESSAGES_OF_ALL_SORTS)
@pytest.mark.parametrize("weight", [None, torch.tensor([1, 2, 2, 3])], ids=["once", "degrees"])
def test_what_is_booked_is_what_each_row_costs(name, weight):
    message = MESSAGES_OF_ALL_SORTS[name]
    ledger, rows = Ledger(CELLS), row_costs(message)
    times = np.ones(CLIENTS) if weight is None else weight.numpy()
    ledger.book_up(message, "mix", weight)
    np.testing.assert_allclose(ledger.up, (rows * times).mean(-1), rtol=1e-15)
    assert np.array_equal(ledger.bytes_up_max, (rows[BYTES] * times).max(-1))
    assert not ledger.down.any()
    sent = rows[MESSAGES]
    assert set(np.unique(sent)) <= {0.0, 1.0}  # several parts travel as one message
    assert np.array_equal(sent > 0, rows[BYTES] > 0)  # and what is absent is none


def test_a_broadcast_is_counted_once():
    ledger = Ledger(CELLS)
    ledger.book_down(dense().select(torch.arange(CELLS)).map(lambda x: x[:, 0]))
    ledger.book_down(ragged([[1, 0, 0, 0], [0] * 4, [9, 0, 0, 0]]).map(lambda x: x[:, 0]))
    assert ledger.down[VALUES].tolist() == [D + 1, D, D + 9]
    assert ledger.down[MESSAGES].tolist() == [2, 2, 2]
    assert not ledger.up.any()
    assert not ledger.bytes_up_max.any()


def test_the_union_of_what_clients_send_is_broadcast_once():
    ledger = Ledger(CELLS)
    own = torch.arange(CLIENTS)[:, None].expand(CELLS, CLIENTS, 1)
    ledger.book_union(SparseMessage(D, torch.float64, own, torch.ones_like(own).double()))
    ledger.book_union(sparse(5))
    ledger.book_union(dense())
    assert ledger.down[VALUES].tolist() == [4 + 5 + D] * CELLS
    assert ledger.down[MESSAGES].tolist() == [3] * CELLS
    ledger.book_union(MESSAGES_OF_ALL_SORTS["cases"])  # cells 2 and 0 are dense, cell 1 holds three
    assert ledger.down[VALUES].tolist() == [4 + 5 + 2 * D, 4 + 5 + D + 3, 4 + 5 + 2 * D]
    assert ledger.down[MESSAGES].tolist() == [4] * CELLS


def test_a_broadcast_of_which_cells_send_different_kinds():
    """The server's messages (B,): cells 2 and 0 send d values, cell 1 three with their indices."""
    x = torch.ones(CELLS, D).double()
    few = SparseMessage(D, x.dtype, torch.arange(3)[None], x[:1, :3])
    ledger = Ledger(CELLS)
    ledger.book_down(CasesMessage(D, x.dtype, OF_CELLS, [Dense(x[:2]), few]))
    assert ledger.down[VALUES].tolist() == [D, 3, D]
    assert ledger.down[BYTES].tolist() == [8 * D, float(few.nbytes), 8 * D]
    assert ledger.down[MESSAGES].tolist() == [1, 1, 1]
    assert not ledger.up.any()


@given(st.integers(1, 200), st.booleans())
def test_scalars_take_whole_bytes(bits, down):
    """A flag of one bit is a byte on the wire, never none; its raw bits stay what they are."""
    ledger = Ledger(CELLS)
    for _ in range(3):
        ledger.charge(bits, down=down)
    side, other = (ledger.down, ledger.up) if down else (ledger.up, ledger.down)
    want = np.zeros((len(Counts._fields), CELLS))
    want[RAW], want[BYTES], want[MESSAGES] = 3 * bits, 3 * ((bits + 7) // 8), 3
    assert np.array_equal(side, want)
    assert not other.any()
    assert (8 * side[BYTES] >= side[RAW]).all()
    assert np.array_equal(ledger.bytes_up_max, np.zeros(CELLS) if down else want[BYTES])


def test_the_largest_client_of_a_round_is_the_largest_sum_of_its_messages():
    """First all messages of a client in the round, then the largest client, then the rounds."""
    ledger = Ledger(1)
    size = 8  # bytes of a float64; what the indices take besides is read off the messages

    def send(*counts: int) -> np.ndarray:
        message = ragged([counts])
        ledger.book_up(message, "gather")
        return np.asarray(message.nbytes)[0]

    first = send(1, 9, 0, 2)  # round 0
    ledger.begin()
    second, third = send(7, 0, 0, 0), send(0, 6, 5, 6)  # round 1: client 1 or 3 sends 6
    ledger.charge(1)  # and all a flag
    now = (second + third).max() + 1
    assert ledger.bytes_up_max.tolist() == [first.max() + now]
    assert now < second.max() + third.max()  # not the sum of the largest messages
    ledger.book_up(dense(1), "gather")
    assert ledger.bytes_up_max.tolist() == [first.max() + now + size * D]
    ledger.begin()
    ledger.begin()  # an empty round adds nothing
    before = ledger.bytes_up_max.copy()
    fourth = send(0, 0, 0, 3)
    assert ledger.bytes_up_max.tolist() == before + fourth.max()
    each = (first + second + third + fourth).mean()
    assert ledger.up[BYTES].tolist() == [each + 1 + size * D]


@settings(deadline=None)
@given(st.data())
def test_picking_cells_at_any_moment_changes_nothing_for_them(data):
    """Two ledgers book the same; one of them has lost its other cells in between."""
    kept = np.array(data.draw(st.lists(st.integers(0, CELLS - 1), min_size=1, unique=True)))
    names = st.sampled_from([*MESSAGES_OF_ALL_SORTS, "begin", "charge"])
    before, after = (data.draw(st.lists(names, max_size=5)) for _ in range(2))

    def book(ledger: Ledger, name: str, cells: np.ndarray) -> None:
        if name == "begin":
            ledger.begin()
        elif name == "charge":
            ledger.charge(3)
        else:
            ledger.book_up(MESSAGES_OF_ALL_SORTS[name].select(torch.from_numpy(cells)), "gather")

    whole = Ledger(CELLS)
    for name in before:
        book(whole, name, np.arange(CELLS))
    part = whole.select(kept)
    for name in after:
        book(whole, name, np.arange(CELLS))
        book(part, name, kept)
    assert np.array_equal(part.up, whole.up[:, kept])
    assert np.array_equal(part.bytes_up_max, whole.bytes_up_max[kept])


def test_a_ledger_that_was_saved_after_a_round_goes_on():
    whole = Ledger(CELLS)
    for name in MESSAGES_OF_ALL_SORTS:
        whole.begin()
        whole.book_up(MESSAGES_OF_ALL_SORTS[name], "gather")
        saved = whole.state()
        again = Ledger(0)
        again.load(saved)
        for ledger in (whole, again):
            ledger.begin()
            ledger.book_up(MESSAGES_OF_ALL_SORTS["ragged"], "gather")
            ledger.charge(1, down=True)
        assert np.array_equal(again.up, whole.up)
        assert np.array_equal(again.down, whole.down)
        assert np.array_equal(again.bytes_up_max, whole.bytes_up_max)
    assert not np.array_equal(saved["up"].numpy(), whole.up)  # a copy: it has not gone on


def test_a_run_stores_them():
    """Participants are few: the largest client sends its message in each round with anyone."""
    top = {"name": "top_k", "k": 3}
    method = TrialMethod("ef21_pp", {"p": 0.2, "init": "zero"}, top, rounds=30, step=0.01)
    run = started(method.batch((1.0, 0.5), (0, 1)))
    took, participants = {}, run.net.participants
    run.net.participants = lambda p: took.setdefault(run.net.t, participants(p))
    run.advance(run.rounds)
    table = run.tables({})[0].to_pandas().sort_values(["seed", "round"])
    shares = torch.stack(list(took.values())).double().mean(-1).numpy()
    size = raybench.compressor("top_k", k=3).compress(torch.ones(run.problem.dim).double()).nbytes
    for seed, own in table.groupby("seed"):
        share = np.concatenate(([0], shares[:, seed].cumsum()))
        anyone = np.concatenate(([0], (shares[:, seed] > 0).cumsum()))
        np.testing.assert_allclose(own["messages_up"], share, rtol=1e-12)
        np.testing.assert_allclose(own["bytes_up"], size * share, rtol=1e-12)
        np.testing.assert_allclose(own["bytes_up_max"], size * anyone, rtol=1e-12)
        assert own["messages_down"].tolist() == list(range(31))
    assert (shares == 0).any()  # rounds without anyone are among them


@pytest.mark.parametrize("bits", [-1, -0.5, float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("down", [False, True])
def test_nothing_is_taken_back(bits, down):
    ledger = Ledger(CELLS)
    with pytest.raises(ValueError, match=f"a finite number of bits, 0 or more, and not {bits}"):
        ledger.charge(bits, down)
    assert not ledger.up.any()
    assert not ledger.down.any()


# Gradients are counted as they are evaluated ------------------------------------------------------


class Counting:
    """Counts the sample gradients that a problem evaluates for a run's method, beside the books.

    total: over cells, means per client. Recording is switched off. Participants pay for themselves:
    what others would have evaluated is not counted, and participants remember no gradient of the
    round before. Known minimisers (oracles of tests) are left out.
    """

    def __init__(self, run) -> None:
        self.run, self.total, self.mask, self.depth = run, 0.0, None, 0
        run._record = lambda t: None
        net, problem = run.net, copy.copy(run.problem)
        net.oracle.problem = problem
        self.m = torch.tensor(problem.samples, dtype=torch.float64)
        for name in ("oracle", "grad", "block_grad", "distill"):
            if hasattr(problem, name):
                setattr(problem, name, self.counted(name, getattr(problem, name)))
        problem.host = self.hosted(problem.host)
        grad, star = net.grad, net.oracle.at_minimizer

        def asked(x, sample=None, *, cells=None, clients=None):
            if clients is not None:
                net.oracle._last, self.mask = None, clients.double()
            out = grad(x, sample, cells=cells, clients=clients)
            self.mask = None
            return out

        def unseen():
            before = self.total
            out = star()
            self.total = before
            return out

        net.grad, net.oracle.at_minimizer = asked, unseen

    def hosted(self, host):
        """The single clients of asynchronous methods."""

        def counting(clients):
            part = host(clients)
            for name in ("oracle", "grad"):  # a copy of what is counted
                vars(part).pop(name, None)
            grad, share = part.grad, 1 / len(self.m)

            def asked(x, sample=None):
                size = self.m[clients.start] if sample is None else sample.size
                self.total += len(x) * float(size) * share
                return grad(x, sample)

            part.grad = asked
            return part

        return counting

    def counted(self, name, call):
        def counting(x, *rest, **named):
            if not self.depth:
                self.total += self.cost(name, x, *rest)
            self.depth += 1
            try:
                return call(x, *rest, **named)
            finally:
                self.depth -= 1

        return counting

    def cost(self, name, x, *rest) -> float:
        sample = rest[0] if rest and name in ("grad", "distill") else None
        each = (
            self.m
            if sample is None
            else torch.full_like(self.m, (sample.size if name == "grad" else sample.shape[-1]))
        )
        if name == "block_grad" and rest[1] is not None:  # of some rows (B, b) of all N
            each = each * rest[1].shape[-1] / self.run.problem.sample_count
        mask = torch.ones(len(x), len(each)) if self.mask is None else self.mask
        return float((mask * each).mean(1).sum())


SETS = {name: methods(registry.lookup("algorithm", name)) for name in registry.names("algorithm")}
COUNTED = [  # with one compressor each: what is evaluated does not hang on it
    m for own in SETS.values() for m in own if m is own[0] or m.params != own[0].params
]


def label(m: TrialMethod) -> str:
    operator = m.compressor["name"] if isinstance(m.compressor, dict) else m.compressor
    return f"{m.name}-{operator}-{'-'.join(str(v) for v in m.params.values())}"


@pytest.mark.parametrize("method", first_of_each(COUNTED, lambda m: m.name), ids=label)
def test_gradients_are_counted_as_they_are_evaluated(method):
    if method.problem is None and "dataset" in (problem := problem_for(method.entry)):
        uneven = {**problem, "rows": 63, "remainder": "last"}  # 12 rows each, the last client 15
        method = replace(method, problem=uneven if "vertical" not in problem["name"] else problem)
    run = started(replace(method, rounds=25).batch((1.0, 0.5, 0.7), (0, 1, 2)))
    spy = Counting(run)
    run.advance(25)
    assert spy.total > 0
    assert float(run.net.oracle.evals.sum()) == pytest.approx(spy.total, rel=1e-12)


def test_participants_pay_for_their_own_samples():
    """And what some have paid for costs the others still, until all have paid."""
    uneven = {"name": "least_squares", **DATA, "rows": 63, "remainder": "last"}
    run = started(TrialMethod("gd", {}, None, uneven).batch((1.0, 0.5)))
    m, who = np.array(run.problem.samples), torch.zeros(2, run.problem.n, dtype=torch.bool)
    who[0, -1], who[1, :2] = True, True
    share = who.double().mean(1).numpy()
    own, x = (who.numpy() * m).mean(1), run.s.x.clone()
    assert not np.allclose(own, share * m.mean())

    def spent(*args, **named):
        before = run.net.oracle.evals.copy()
        run.net.grad(x, *args, **named)
        return run.net.oracle.evals - before

    run.net.oracle.loss_wanted = False
    np.testing.assert_allclose(spent(clients=who), own)
    np.testing.assert_allclose(spent(run.net.sample("batch", 4), clients=who), 4 * share)
    np.testing.assert_allclose(spent(), m.mean())
    run.net.oracle.full(x, loss=True)  # evaluated once more for the record
    np.testing.assert_allclose([spent(), spent(clients=who)], 0.0)
