"""EF-BV, EControl, MARINA-P and EF21-P + DIANA: special cases, what their states keep, what is booked."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from toys import descend, each_round, full_gradients, path

from raybench import spec
from raybench.execution.resolve import Resolver, Skip
from raybench.testing.algorithms import conformance
from raybench.testing.trial import DATA, Method, started
from raybench.wire import CasesMessage
from raybench.wire.dense import DenseMessage
from raybench.wire.ledger import COLUMNS

P1 = {"name": "quadratic", "dim": 12, "clients": 7, "mu": 0.05, "heterogeneity": 0.5, "seed": 3}
SAMPLES = {"name": "least_squares", **DATA}
TOP, RAND = {"name": "top_k", "k": 3}, {"name": "rand_k", "k": 3}
COMMON, SPARSE = {**RAND, "mask": "common"}, {"name": "random_sparsification", "p": 0.3}
FAR = {"x0": {"normal": 2.0}}
BOTH = {"multiples": (1.0, 0.5), "seeds": (0, 1)}


def on_p1(name, compressor=None, downlink=None, rounds=60, problem=P1, **rest) -> Method:
    params = rest.pop("params", {})
    return Method(name, params, compressor, problem, downlink, rounds=rounds, more=FAR, **rest)


def largest(a, b) -> float:
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())


# Special cases ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "params", "compressor", "downlink"),
    [
        ("ef_bv", {}, "identity", None),
        ("econtrol", {}, "identity", None),
        ("econtrol", {"eta": 0.7}, "identity", None),
        ("ef21_p_diana", {}, "identity", "identity"),
        ("ef21_p_diana", {"alpha": 0.3}, "identity", "identity"),
        ("marina_p", {"p": 0.2}, None, "identity"),
        ("marina_p", {"p": 1.0}, None, RAND),
        ("marina_p", {"p": 1.0}, None, "perm_k"),
    ],
)
def test_without_compression_it_is_gradient_descent(name, params, compressor, downlink):
    method = on_p1(name, compressor, downlink, 200, params=params, step=0.1)
    run = started(method.batch((1.0, 0.5), (0, 1)))
    plain = descend(started(on_p1("gd", rounds=200).batch()), 0.1)
    got = path(run)
    assert largest(got[:, :1], plain) < 1e-9
    assert largest(got[:, :1], got[:, 1:]) > 1e-3


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


@pytest.mark.parametrize("compressor", [RAND, COMMON, "natural", "perm_k"])
def test_ef_bv_is_diana(compressor):
    """lam = 1/(1 + omega), nu = 1, with the same random numbers: the same iterates and shifts."""
    ours = on_p1("ef_bv", compressor, params={"nu": 1.0}, step=0.02)
    theirs = on_p1("diana", compressor, step=0.02)
    assert ours.cell().params["lam"] == theirs.cell().params["alpha"]
    one, other = started(ours.batch(**BOTH)), started(theirs.batch(**BOTH))
    assert np.array_equal(path(one), path(other))
    assert torch.equal(one.c.h, other.c.h)
    assert np.array_equal(one.net.ledger.up, other.net.ledger.up)


def a_round_earlier(run):
    """Let the run draw what others draw in the round before."""
    begin = run.net.begin
    run.net.begin = lambda t: begin(t - 1)
    return run


@pytest.mark.parametrize("compressor", [TOP, RAND])
@pytest.mark.parametrize("batch", [2, "full"])
def test_econtrol_that_feeds_nothing_back_is_ef21_sgd(compressor, batch):
    """The same sequence, whose step comes after its update: with the draws of EF21-SGD the same iterates."""
    given = {"problem": SAMPLES, "step": 0.01}
    name, own = ("ef21", {}) if batch == "full" else ("ef21_sgd", {"batch": batch})
    ours = on_p1("econtrol", compressor, params={"eta": 0.0, "batch": batch}, **given)
    one = path(a_round_earlier(started(ours.batch(**BOTH))))
    theirs = path(started(on_p1(name, compressor, params=own, **given).batch(**BOTH)))
    assert np.array_equal(one, theirs)
    fed = on_p1("econtrol", compressor, params={"eta": 0.01, "batch": batch}, **given)
    assert largest(path(a_round_earlier(started(fed.batch(**BOTH)))), theirs) > 1e-3


@pytest.mark.parametrize("compressor", [TOP, RAND, "scaled_sign"])
def test_econtrol_without_shifts_is_ef14(compressor):
    """eta = 1 and h held at 0: a memory of gradients."""
    run = started(on_p1("econtrol", compressor, params={"eta": 1.0}, step=0.01).batch(**BOTH))
    estimate = run.a.estimate

    def held(wire, s, c, grad):
        g = estimate(wire, s, c, grad)
        c.h, s.h = torch.zeros_like(c.h), torch.zeros_like(s.h)
        return g

    run.a.estimate = held
    memory = {"memory": "gradient"}
    other = started(on_p1("ef14", compressor, params=memory, step=0.01).batch(**BOTH))
    assert largest(path(run), path(other)) < 1e-12
    assert largest(run.c.e, other.c.e) < 1e-11
    assert float(run.c.e.abs().max()) > 0.1


def test_ef21_p_diana_is_both_of_its_parents():
    """DIANA where the model is broadcast as it is, EF21-P where gradients are sent as they are."""
    diana = started(on_p1("diana", RAND, step=0.02).batch(**BOTH))
    one = started(on_p1("ef21_p_diana", RAND, "identity", step=0.02).batch(**BOTH))
    assert largest(path(one), path(diana)) < 1e-12
    ef21_p = started(on_p1("ef21_p", None, TOP, step=0.02).batch(**BOTH))
    other = started(on_p1("ef21_p_diana", "identity", TOP, step=0.02).batch(**BOTH))
    assert largest(path(other), path(ef21_p)) < 1e-10


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


def test_marina_p_with_perm_k_on_alike_clients_is_gradient_descent():
    """Each client knows other coordinates of the step, and their mean is the step: w_i differ, x does not."""
    alike = {"name": "tridiagonal", "dim": 12, "clients": 4, "noise": 0.0, "lambda": 0.01}
    method = on_p1("marina_p", None, "perm_k", 80, alike, params={"p": 0.2})
    assert method.cell().step_size == pytest.approx(1 / started(method.batch()).problem.constants.L)
    run = started(method.batch(**BOTH))
    apart = each_round(run, lambda r: float((r.c.w - r.s.x[:, None]).abs().max()))
    assert max(apart) > 0.1
    gamma = method.cell().step_size
    plain = descend(started(on_p1("gd", rounds=80, problem=alike).batch((1.0,), (0,))), gamma)
    assert largest(path(started(method.batch((1.0,), (0,)))), plain) < 1e-9


# What the states keep --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "params", "compressor", "downlink"),
    [
        ("ef_bv", {}, TOP, None),
        ("ef_bv", {"lam": 0.1, "nu": 0.4}, RAND, None),
        ("ef_bv", {}, "perm_k", None),
        ("econtrol", {}, TOP, None),
        ("econtrol", {}, RAND, None),
        ("ef21_p_diana", {}, RAND, TOP),
        ("ef21_p_diana", {}, "natural", RAND),
    ],
)
def test_the_servers_shift_is_the_mean(name, params, compressor, downlink):
    method = on_p1(name, compressor, downlink, 300, params=params)
    run = started(method.batch((1.0, 2.0), (0, 1)))
    gaps = each_round(run, lambda r: largest(r.s.h, r.c.h.mean(1)))
    assert max(gaps) < 1e-12
    assert float(run.s.h.abs().max()) > 0


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


@pytest.mark.parametrize("downlink", ["perm_k", SPARSE, {"name": "lazy", "p": 0.4}, COMMON])
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


def test_bad_strength_of_feedback_has_no_step():
    method = on_p1("econtrol", TOP, params={"eta": 0.4})
    with pytest.raises(Skip, match="feeds back more than the operator can shrink"):
        method._resolved({"theory": 1.0}, 0)
    with pytest.raises(Skip, match="every round takes all samples"):
        on_p1("econtrol", TOP, params={"batch": 2}, problem=SAMPLES)._resolved({"theory": 1.0}, 0)
