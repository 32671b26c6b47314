"""Clients with points of their own and a server: leaders, springs, predictions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_decentralised import P1, TOY, largest, method, points, scatter
from toys import ConvexL1, each_round, registered

from raybench import problems
from raybench.execution.resolve import Skip
from raybench.problems.quadratic import Quadratic
from raybench.testing.trial import DATA, finished, started
from raybench.wire.ledger import COLUMNS


class Shared(Quadratic):
    """Six clients with the same strongly convex quadratic, d = 8."""

    def __init__(self) -> None:
        random = np.random.default_rng(2)
        Q = np.linalg.qr(random.standard_normal((8, 8))).Q
        A = torch.from_numpy((Q * random.uniform(0.2, 1.0, 8)) @ Q.T)
        b = torch.from_numpy(random.standard_normal(8))
        super().__init__(A.expand(6, 8, 8).contiguous(), b.expand(6, 8).contiguous())


@pytest.fixture(scope="module", autouse=True)
def toys():
    with registered("problem", convex_l1=ConvexL1, shared_quadratic=Shared):
        yield


def alone(run, gamma: float) -> torch.Tensor:
    """Every client's own gradient descent, (T + 1, B, n, d)."""
    X = run.s.x[:, None].expand(-1, run.net.n, -1).clone()
    out = [X]
    for _ in range(run.rounds):
        X = X - gamma * run.problem.oracle(X, loss=False)[0]
        out.append(X)
    return torch.stack(out)


# Leaders -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("lsgd", {"lam": 0.0}),
        ("lsgd", {"lam": 0.0, "far": 0.0, "groups": 3}),
        ("lsgd", {"lam": 0.7, "far": 0.0, "groups": 7}),  # everyone leads
        ("easgd", {"alpha": 0.0}),
        ("codistillation", {"w": 0.0}),
    ],
)
def test_without_a_pull_everyone_descends_alone(name, params):
    problem = {"name": "least_squares", **DATA, "clients": 7} if name == "codistillation" else P1
    step = 0.05 if name == "codistillation" else 0.2
    run = started(method(name, problem, step=step, rounds=80, **params).batch((1.0, 0.5)))
    want = alone(run, step)
    assert largest(torch.stack(each_round(run, points))[:, :1], want[:, :1]) < 1e-10


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_a_leader_feels_no_pull_and_the_others_do(groups):
    run = started(
        method("lsgd", {"name": "shared_quadratic"}, tau=3, groups=groups, step=0.2).batch()
    )
    X = scatter(run)
    losses = run.problem.oracle(X)[1][0]
    run.advance(1)
    walks = [X]
    for _ in range(3):
        walks.append(walks[-1] - 0.2 * run.problem.oracle(walks[-1], loss=False)[0])
    members = np.array_split(np.arange(6), groups)
    leads = [int(own[int(losses[own].argmin())]) for own in members]
    best = int(losses.argmin())
    assert best in leads
    for i in range(6):
        gap = largest(run.c.X[0, i], walks[-1][0, i])
        assert (gap < 1e-13) == (i == best), (i, gap)
    for own, lead in zip(members, leads):  # the whole round, by hand, for one follower
        (i,) = [j for j in own if j != lead][:1]
        x = X[0, i]
        for _ in range(3):
            pull = 0.1 * (x - X[0, lead])
            pull = pull + (0.1 * (x - X[0, best]) if groups > 1 else 0.0)
            x = x - 0.2 * (run.problem.A[i] @ x - run.problem.b[i]) - pull
        assert largest(run.c.X[0, i], x) < 1e-12


@pytest.mark.parametrize(("name", "params"), [("lsgd", {}), ("lsgd", {"groups": 2}), ("easgd", {})])
def test_all_reach_the_minimiser_of_a_shared_quadratic_and_stay(name, params):
    run = started(method(name, {"name": "shared_quadratic"}, rounds=700, tau=2, **params).batch())
    scatter(run, 3.0)
    run.advance(600)
    star = run.problem.minimizer()
    assert largest(run.c.X, star.expand_as(run.c.X)) < 1e-9
    run.c.X = star.expand(1, 6, -1).clone()
    run.s.x = star[None].clone()
    run.advance(100)
    assert largest(run.c.X, star.expand_as(run.c.X)) < 1e-13


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_leaders_alone_send_their_points(groups):
    run = finished(method("lsgd", {"name": "shared_quadratic"}, rounds=10, groups=groups).batch())
    assert run.bits("up")[0] == pytest.approx(10 * 64 * (1 + groups * 8 / 6))
    # three bits name a leader, and one or two the group of the best of all
    assert run.bits("down")[0] == pytest.approx(
        10 * (groups * (64 * 8 + 3) + (groups - 1).bit_length())
    )


# Springs -------------------------------------------------------------------------------------


def test_the_springs_leave_the_sum_alone():
    """sum x_i + z changes by -gamma sum g_i only."""
    run = started(method("easgd", step=0.1).batch((1.0, 0.5)))
    scatter(run)
    gammas = torch.tensor([[0.1], [0.05]], dtype=torch.float64)
    for _ in range(60):
        X, total = run.c.X, run.c.X.sum(1) + run.s.x
        run.advance(1)
        want = total - gammas * run.problem.oracle(X, loss=False)[0].sum(1)
        assert largest(run.c.X.sum(1) + run.s.x, want) < 1e-11


def test_where_elastic_averaging_ends():
    """gamma g_i(x_i) = alpha (z - x_i), z = mean x_i; the bias falls with the step."""
    run = finished(method("easgd", TOY, rounds=6000, step=0.05).batch((1.0, 0.5)), every=6000)
    alpha = 0.9 / 7
    for b, gamma in enumerate((0.05, 0.025)):
        G = run.problem.oracle(run.c.X, loss=False)[0][b]
        z = run.s.x[b]
        assert largest(run.c.X[b].mean(0), z) < 1e-10
        assert largest(gamma * G, alpha * (z - run.c.X[b])) < 1e-10
    bias = np.sqrt(run.recorder.column("grad_norm_sq")[:, -1])
    assert 1.4 < bias[0] / bias[1] < 2.2
    assert bias[1] > 1e-3


# Predictions ---------------------------------------------------------------------------------

PREDICTING = {
    "logistic": ({"name": "logistic", **DATA}, 1),
    "sigmoid": ({"name": "nonconvex_classification", **DATA}, 1),
    "squares": ({"name": "least_squares", **DATA}, 1),
    "one-hot": ({"name": "least_squares", "dataset": "digits", "clients": 5, "rows": 200}, 10),
}


@pytest.mark.parametrize("kind", PREDICTING)
def test_distilling_follows_the_gradient_of_its_loss(kind):
    problem, outputs = PREDICTING[kind]
    p = problems.build(problem["name"], {k: v for k, v in problem.items() if k != "name"})
    random = np.random.default_rng(0)
    x = torch.from_numpy(random.standard_normal((2, p.n, p.dim)))
    rows = torch.from_numpy(random.integers(0, sum(p.samples), (2, 7)))
    assert p.outputs == outputs
    assert p.predict(x, rows).shape == (2, p.n, 7, outputs)
    teacher = torch.from_numpy(random.uniform(0.1, 0.9, (2, p.n, 7, outputs)))
    with torch.enable_grad():
        at = x.clone().requires_grad_()
        q = p.predict(at, rows)
        if problem["name"] == "least_squares":
            D = 0.5 * (q - teacher).square()
        else:
            D = -(teacher * q.log() + (1 - teacher) * (1 - q).log())
        want = torch.autograd.grad(D.sum() / 7, at)[0]
    assert largest(p.distill(x, rows, teacher), want) < 1e-10


def test_predictions_are_of_the_rows_they_name():
    p = problems.build("logistic", dict(DATA))
    x = torch.zeros(1, p.n, p.dim, dtype=torch.float64)
    x[..., 3] = 2.0
    rows = torch.tensor([[0, 17, sum(p.samples) - 1]])
    features = p.rows.dense()[[0, 17, sum(p.samples) - 1], 3]
    want = 1 / (1 + np.exp(-2.0 * features))
    assert largest(p.predict(x, rows)[0, 2, :, 0], want) < 1e-12
    part = p.host(range(3, 5))
    assert largest(part.predict(x[:, 3:], rows), p.predict(x, rows)[:, 3:]) < 1e-15


def test_codistillation_brings_predictions_together():
    problem = {"name": "logistic", **DATA, "split": "sorted_by_label", "regularizer": "l2"}
    apart = []
    for w in (0.0, 1.0, 10.0):
        run = finished(
            method("codistillation", problem, None, 300, step=0.05, w=w).batch(), every=100
        )
        rows = torch.arange(sum(run.problem.samples))[None]
        apart.append(float(run.problem.predict(run.c.X, rows).var(1).mean()))
    assert apart[0] > 1.5 * apart[1] > 1.5 * 1.5 * apart[2], apart


def test_codistillation_sends_predictions_only_and_ramps():
    problem = PREDICTING["one-hot"][0]
    run = started(method("codistillation", problem, None, 10, common=4, ramp=5, step=0.05).batch())
    run.advance(1)
    assert run.net.ledger.up[COLUMNS.index("values")][0] == 4 * 10
    assert run.bits("down")[0] == 64 * 4 * 10
    X = scatter(run)
    run.advance(1)  # the second of five: two fifths of w
    rows = run.net.oracle.common_rows("common", 4)
    own = run.problem.predict(X, rows)
    teacher = (own.sum(1, keepdim=True) - own) / 4
    pull = run.problem.distill(X, rows, teacher)
    want = X - 0.05 * (run.problem.oracle(X)[0] + 0.4 * 0.5 * pull)
    assert largest(run.c.X, want) < 1e-13 * float(want.abs().max())


def test_checkpoints_of_every_round_are_as_good_as_predictions():
    problem = PREDICTING["one-hot"][0]
    args = {"common": 4, "ramp": 5, "step": 0.05}
    have, want = (
        finished(
            method("codistillation", problem, None, 20, exchange=exchange, every=1, **args).batch()
        )
        for exchange in ("checkpoints", "predictions")
    )
    assert largest(have.c.X, want.c.X) < 1e-12 * float(want.c.X.abs().max())


def test_checkpoints_are_sent_now_and_then_and_teach_until_the_next():
    problem = PREDICTING["one-hot"][0]
    chosen = {"exchange": "checkpoints", "every": 3, "common": 4}
    run = started(method("codistillation", problem, None, 7, step=1e-3, **chosen).batch())
    n, d, values = run.net.n, run.problem.dim, COLUMNS.index("values")
    for t in range(7):
        X = run.c.X.clone() if t else scatter(run)
        if t % 3 == 0:
            sent = X
        run.advance(1)
        rows = run.net.oracle.common_rows("common", 4)
        known = run.problem.predict(sent, rows)
        teacher = (known.sum(1, keepdim=True) - known) / (n - 1)
        pull = run.problem.distill(X, rows, teacher)
        want = X - 1e-3 * (run.problem.oracle(X)[0] + 0.5 * pull)
        assert largest(run.c.X, want) < 1e-13 * float(want.abs().max()), t
        checkpoints = t // 3 + 1
        assert run.net.ledger.up[values].tolist() == [checkpoints * d]
        assert run.net.ledger.down[values].tolist() == [checkpoints * n * d]
    assert run.net.oracle.evals.tolist() == [7 * (np.mean(run.problem.samples) + 4)]


def test_codistillation_needs_predictions():
    with pytest.raises(Skip, match="needs a problem with predictions"):
        method("codistillation", P1, step=0.1).batch()


def test_checkpoints_cost_what_they_hold():
    """Every third round: d values of each client up, all n d of them down; nothing between."""
    problem = PREDICTING["one-hot"][0]
    args = {"common": 4, "exchange": "checkpoints", "every": 3, "step": 1e-6}
    run = finished(method("codistillation", problem, None, 7, **args).batch())
    d, n = run.problem.dim, run.problem.n
    sent = np.array([0, 1, 1, 1, 2, 2, 2, 3])  # after rounds 0 to 7
    assert run.recorder.column("values_up")[0].tolist() == (d * sent).tolist()
    assert run.recorder.column("values_down")[0].tolist() == (n * d * sent).tolist()
