"""EF-BV, EControl, MARINA-P and EF21-P + DIANA: what their states keep, what is booked."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from toys import FAR, RAND, TOP, each_round, full_gradients, largest

from raybench import spec
from raybench.execution.resolve import Resolver, Skip
from raybench.testing.algorithms import conformance
from raybench.testing.trial import Method, started
from raybench.wire import CasesMessage
from raybench.wire.dense import DenseMessage
from raybench.wire.ledger import COLUMNS

pytestmark = pytest.mark.thorough

P1 = {"name": "quadratic", "dim": 12, "clients": 7, "mu": 0.05, "heterogeneity": 0.5, "seed": 3}
COMMON, SPARSE = {**RAND, "mask": "common"}, {"name": "random_sparsification", "p": 0.3}
BOTH = {"multiples": (1.0, 0.5), "seeds": (0, 1)}


def on_p1(name, compressor=None, downlink=None, rounds=60, problem=P1, **rest) -> Method:
    params = rest.pop("params", {})
    return Method(name, params, compressor, problem, downlink, rounds=rounds, more=FAR, **rest)


# Special cases ---------------------------------------------------------------------------------


def test_ef_bv_with_full_rates_is_ef21_half_a_round_later():
    """The same iterates, bit for bit; EF21 has sent one message more, its first, before round 1."""
    ours = started(on_p1("ef_bv", TOP, params={"lam": 1.0, "nu": 1.0}, step=0.02).batch(**BOTH))
    theirs = started(on_p1("ef21", TOP, step=0.02).batch(**BOTH))
    look = [
        each_round(run, lambda r: (r.s.x.numpy().copy(), r.net.ledger.up.copy()))
        for run in (ours, theirs)
    ]
    messages = COLUMNS.index("messages")
    for t, ((x, sent), (y, also)) in enumerate(list(zip(*look, strict=True))[:61]):
        assert np.array_equal(x, y)
        assert (sent[messages] == t).all()
        assert (also[messages] == t + 1).all()


def test_ef21_p_diana_is_diana_recorded_at_the_server():
    ours = started(on_p1("ef21_p_diana", RAND, TOP, step=0.02).batch(**BOTH))
    theirs = started(on_p1("diana", RAND, TOP, step=0.02).batch(**BOTH))
    for run in (ours, theirs):
        run.advance(60)
    assert torch.equal(ours.s.x, theirs.s.x)
    assert torch.equal(ours.c.h, theirs.c.h)
    assert torch.equal(ours.a.point(ours.net, ours.s, ours.c), theirs.s.y)
    assert largest(ours.s.y, ours.s.x) > 1e-3
    assert np.array_equal(ours.net.ledger.down, theirs.net.ledger.down)  # a broadcast, booked once


def test_econtrols_error_is_all_that_the_estimate_missed():
    """mean e_i = sum_t (mean g_i^t - h^{t+1}): what was sent and what is left are all gradients there were."""
    run = started(on_p1("econtrol", TOP, rounds=100).batch(**BOTH))
    seen = each_round(
        run, lambda r: (full_gradients(r).mean(1), r.s.h.clone(), r.c.e.mean(1).clone())
    )
    missed = torch.zeros_like(seen[0][1])
    for (grad, _, _), (_, h, e) in pairwise(seen[:101]):
        missed = missed + grad - h
        assert largest(e, missed) < 1e-10
    assert float(missed.abs().max()) > 1e-3


@pytest.mark.parametrize("downlink", [RAND, "perm_k", "natural"])
def test_marina_ps_clients_meet_at_the_coin(downlink):
    """A coin sets all w_i = x; between coins w_i moves by its own message; with PermK mean w_i = x always."""
    run = started(on_p1("marina_p", None, downlink, 60, params={"p": 0.2}).batch(**BOTH))

    def look(r):
        return r.net.coin("sync", r.a.p), r.c.w.clone(), r.s.x.clone()

    seen = each_round(run, look)[:61]
    coins = torch.stack([coin for coin, _, _ in seen[1:]])
    assert 3 < int(coins.sum()) < 100
    for coin, w, x in seen[1:]:
        off = (w - x[:, None]).abs().amax((1, 2))
        assert (off[coin] == 0).all()
        if downlink == "perm_k":
            assert largest(w.mean(1), x) < 1e-12
    assert max(float((w - x[:, None]).abs().max()) for _, w, x in seen) > 1e-2
    assert largest(run.s.g, run.problem.oracle(run.c.w, loss=False)[0].mean(1)) < 1e-12


# What is booked --------------------------------------------------------------------------------


def each_sent(run) -> list:
    """Keep the messages that the server sends to each client apart."""
    kept, send = [], run.net.down_each

    def keeping(message):
        kept.append(message)
        return send(message)

    run.net.down_each = keeping
    return kept


def values_of(message, cell: int) -> list[float]:
    """Return how many values each client is sent in a cell."""
    if isinstance(message, CasesMessage):
        for cells, part in zip(message.cells, message.parts, strict=True):
            if cell in cells.tolist():
                return values_of(part, cells.tolist().index(cell))
    return torch.as_tensor(message.cost.values).expand(message.lead)[cell].tolist()


@pytest.mark.parametrize(
    ("downlink", "mean"),
    [(RAND, 3.0), ("perm_k", 12 / 7), (COMMON, 3.0), (SPARSE, None)],
    ids=["rand_k", "perm_k", "common", "random"],
)
def test_marina_p_books_the_mean_of_its_messages_down(downlink, mean):
    """d values where the coin fires, else the mean over clients of what each is sent, exactly."""
    T, d = 50, 12
    run = started(on_p1("marina_p", None, downlink, T, params={"p": 0.2}, step=0.01).batch(**BOTH))
    kept = each_sent(run)
    coins = torch.stack(each_round(run, lambda r: r.net.coin("sync", r.a.p))[1 : T + 1])
    assert len(kept) == T
    sent = run.net.ledger.down[COLUMNS.index("values")]
    for cell in range(2):
        fired = int(coins[:, cell].sum())
        assert 0 < fired < T
        own = [values_of(message, cell) for message in kept]
        assert all(len(one) == 7 for one in own)
        assert sent[cell] == pytest.approx(sum(map(np.mean, own)), rel=1e-12)
        if mean is not None:
            assert sent[cell] == pytest.approx(fired * d + (T - fired) * mean, rel=1e-12)
            assert run.bits("down")[cell] == pytest.approx(64 * sent[cell], rel=1e-12)
        else:
            assert len({size for one in own for size in one}) > 3  # of many lengths
        dense = [one for one, coin in zip(own, coins[:, cell].tolist(), strict=True) if coin]
        assert dense == [[d] * 7] * fired
    assert (run.net.ledger.down[COLUMNS.index("messages")] == T).all()
    assert (run.net.ledger.up[COLUMNS.index("values")] == (T + 1) * d).all()


def test_messages_of_ones_own_are_booked_cell_by_cell():
    """A ledger adds what the server sends each client, as a mean, to the cells it is sent in."""
    run = started(on_p1("marina_p", None, RAND, 1).batch((1.0, 1.0, 1.0), (0, 1, 2)))
    rows = torch.ones(2, 7, 12, dtype=torch.float64)
    who = torch.zeros(2, 7, dtype=torch.bool)
    who[0, :3] = True
    some = DenseMessage(12, rows.dtype, rows).masked(who)
    whole = DenseMessage(12, rows.dtype, rows[:1])
    cells = [torch.tensor([2, 0]), torch.tensor([1])]
    got = run.net.down_each(CasesMessage(12, rows.dtype, cells, [some, whole]))
    ledger = run.net.ledger.down
    assert ledger[COLUMNS.index("values")].tolist() == pytest.approx([0.0, 12.0, 12 * 3 / 7])
    assert ledger[COLUMNS.index("messages")].tolist() == pytest.approx([0.0, 1.0, 3 / 7])
    assert got.sum((1, 2)).tolist() == [0.0, 84.0, 36.0]
    assert (run.net.ledger.up == 0).all()


@pytest.mark.parametrize("downlink", ["perm_k", {"name": "lazy", "p": 0.4}])
def test_marina_p_conforms_with_any_downlink(downlink):
    found = conformance(on_p1("marina_p", None, downlink, 40, params={"p": 0.3}))
    assert not [str(f) for f in found if not f.ok]


# What does not go together ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("downlink", "says"), [(TOP, "unbiased"), ("aggregate", "would relay, is not its step")]
)
def test_marina_p_needs_an_unbiased_downlink(downlink, says):
    method = on_p1("marina_p", None, downlink, step=0.1)
    (cell,) = spec.load({**method.config({"value": 0.1}, 0), "allow_unproven": False}).cells
    with pytest.raises(Skip, match=says):
        Resolver().resolve(cell)
