"""Step schedules, averaged iterates, compressed and aggregated downlinks, and methods on graphs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiers import first_of_each
from toys import FAR, P1, TOP, ConvexL1, Shared, each_round, largest, path, registered

from raybench import problems
from raybench.core.errors import InputError
from raybench.execution.build import GRAPHS, mixing
from raybench.execution.resolve import Skip
from raybench.execution.run import Average, factor
from raybench.testing.trial import DATA, TrialMethod, finished, started
from raybench.wire.neighbours import Neighbours


def gd(step, **more) -> TrialMethod:
    return TrialMethod("gd", {}, None, P1, rounds=12, more={**FAR, "step_size": step, **more})


def run_of(method):
    from raybench import spec
    from raybench.execution.resolve import Resolver
    from raybench.testing.trial import batch_of

    config = {**method.config({}, 0), **method.more}
    (cell,) = spec.load(config).cells
    return started(batch_of([Resolver(allow_unproven=True).resolve(cell)]))


@pytest.mark.parametrize(
    ("schedule", "at"),
    [
        ("constant", {1: 1, 100: 1}),
        ("sqrt", {1: 1, 4: 0.5, 100: 0.1}),
        ("inverse", {1: 1, 4: 0.25}),
        ("cosine", {1: 1, 51: 0.5}),
        ("linear", {1: 1, 51: 0.5, 100: 0.01}),
    ],
)
def test_factors(schedule, at):
    for t, want in at.items():
        assert factor(schedule, 0, t, 100) == pytest.approx(want)
        assert factor(schedule, 10, t, 100) == pytest.approx(want * min(1, t / 10))


def test_average_iterates():
    last = run_of(gd({"value": 0.2}))
    points = torch.stack(each_round(last, lambda r: r.s.x.clone()))
    mean = run_of(gd({"value": 0.2}, iterate="average"))
    mean.advance(12)
    want = points.mean(0)
    torch.testing.assert_close(mean.average.value, want, rtol=1e-12, atol=1e-12)
    losses = mean.problem.oracle(want)[1].mean(1)
    assert float(losses) == pytest.approx(mean.recorder.column("loss")[0, -1], rel=1e-12)
    weighted = run_of(gd({"value": 0.2}, iterate="weighted"))
    weighted.advance(12)
    w = (1 - 0.2 * weighted.problem.constants.mu / 2) ** -np.arange(1, 14.0)
    want = (torch.tensor(w)[:, None, None] * points).sum(0) / w.sum()
    torch.testing.assert_close(weighted.average.value, want, rtol=1e-12, atol=1e-12)
    assert torch.equal(mean.s.x, last.s.x)


def test_average_of_some_cells():
    full, part = Average(torch.tensor([0.0, 0.5, 0.1])), None
    for t in range(6):
        x = torch.arange(6.0).view(3, 2) * (t + 1) ** 2
        full.add(x)
        part = full.select(torch.tensor([2])) if t == 2 else part
        if t > 2:
            part.add(x[2:])
    torch.testing.assert_close(part.value, full.value[2:])


# Downlinks ------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_compressed_downlink_converges_and_costs_less():
    method = TrialMethod("ef21", {}, TOP, P1, step=0.2, rounds=3000, more=FAR, downlink=TOP)
    run = finished(method.batch())
    assert run.recorder.last("grad_norm_sq")[0] < 1e-12
    dense = finished(TrialMethod("ef21", {}, TOP, P1, step=0.2, rounds=3000, more=FAR).batch())
    assert run.bits("down")[0] < 0.5 * dense.bits("down")[0]
    assert torch.allclose(run.s.x, run.s.y, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("downlink", [TOP, {"name": "sign"}])  # sign is of no class at all
def test_a_compressed_downlink_has_no_borrowed_theory(downlink):
    with pytest.raises(Skip, match="no theoretical step"):
        TrialMethod("ef21", {}, TOP, P1, downlink=downlink)._resolved({"theory": 1.0}, 0)


def test_aggregate_downlink_is_charged_by_the_union():
    method = TrialMethod(
        "ef21", {"init": "zero"}, TOP, P1, step=0.02, more=FAR, downlink="aggregate"
    )
    run = started(method.batch())
    plain = started(TrialMethod("ef21", {"init": "zero"}, TOP, P1, step=0.02, more=FAR).batch())
    assert np.array_equal(path(run), path(plain))
    rounds, width, index = 40, 64, 4
    down, up = run.bits("down")[0], run.bits("up")[0]
    assert up == rounds * 3 * (width + index)
    assert rounds * 3 * width < down <= rounds * 12 * (width + index)
    assert down < plain.bits("down")[0]


# Graphs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("weights", ["metropolis", "laplacian"])
@pytest.mark.parametrize("n", first_of_each([12, 1, 2, 4, 5, 9, 16, 25, 36]))
def test_mixing_matrices(name, weights, n):
    W, degrees = mixing(name, n, {"weights": weights})
    assert torch.equal(W, W.T)
    torch.testing.assert_close(W.sum(1), torch.ones(n, dtype=torch.float64))
    assert float(W.min()) >= 0
    lowest = float(torch.linalg.eigvalsh(W).min())
    assert lowest > -0.6 - 1e-9  # dgd lasts at its step 0.25/L_max where this is above -0.75
    assert torch.equal((W - torch.diag(W.diag()) > 0).sum(1).double(), degrees)
    if n > 1:
        assert mixing(name, n, {"weights": weights}).gap > 0  # connected


def test_graphs_by_hand():
    assert mixing("grid", 6).degrees.tolist() == [2, 3, 2, 2, 3, 2]
    assert mixing("torus", 9).degrees.tolist() == [4] * 9
    assert mixing("exponential", 8).degrees.tolist() == [5] * 8  # 1, 2, 4 (its own inverse)
    assert mixing("star", 4).degrees.tolist() == [3, 1, 1, 1]
    one, two = (mixing("erdos_renyi", 9, {"p": 0.4, "seed": s}).W for s in (0, 1))
    assert not torch.equal(one, two)
    assert torch.equal(one, mixing("erdos_renyi", 9, {"p": 0.4, "seed": 0}).W)
    with pytest.raises(InputError, match="unconnected"):
        mixing("erdos_renyi", 40, {"p": 0.001})
    gaps = [mixing(name, 16).gap for name in ("path", "ring", "torus", "exponential", "complete")]
    assert gaps == sorted(gaps)


# Methods on a graph, and others with a point for every client -------------------------------------


TOY = {"name": "convex_l1"}


@pytest.fixture(scope="module", autouse=True)
def toys():
    with registered("problem", convex_l1=ConvexL1, shared_quadratic=Shared):
        yield


def method(name, problem=P1, compressor=None, rounds=60, graph="ring", step=None, **params):
    more = FAR if name in CENTRAL else {**FAR, "graph": graph}
    return TrialMethod(name, params, compressor, problem, rounds=rounds, step=step, more=more)


CENTRAL = ("lsgd", "easgd", "codistillation", "gd")


def test_the_consensus_error_is_the_spread_of_the_points():
    run = finished(method("dgd", TOY, None, 5, "star").batch((1.0, 0.5)))
    X = run.c.X.numpy()
    want = np.square(X - X.mean(1, keepdims=True)).sum(-1).mean(-1)
    assert want.min() > 0
    np.testing.assert_allclose(run.recorder.column("consensus_error")[:, -1], want, rtol=1e-12)


@pytest.mark.parametrize(("name", "messages"), [("dgd", 1), ("extra", 1), ("gradient_tracking", 2)])
def test_bits_are_booked_per_neighbour(name, messages):
    run = finished(method(name, TOY, None, 10, "star").batch())
    degrees = (6 + 6 * 1) / 7  # the hub has six neighbours, the others one
    assert run.bits("up")[0] == pytest.approx(10 * messages * degrees * 64 * 10)
    assert run.bits("down")[0] == 0


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("n", [1, 2, 9, 20])
def test_sums_over_neighbours_are_the_matrix_product(graph, n, dtype):
    """Of any part of the clients and cells, bit for bit where few are neighbours."""
    W, _ = mixing(graph, n)
    X = torch.from_numpy(np.random.default_rng(n).standard_normal((5, n, 33))).to(dtype)
    whole = Neighbours(W)
    result = whole.mixed(X)
    want = W @ X.double()
    assert result.dtype == dtype
    assert result.is_contiguous()
    assert largest(result, want) < (1e-14 if dtype == torch.float64 else 1e-6)
    part = Neighbours(W[n // 2 :]).mixed(X[3:])
    assert largest(part, want[3:, n // 2 :]) < (1e-14 if dtype == torch.float64 else 1e-6)
    if not whole._dense and not Neighbours(W[n // 2 :])._dense:
        assert torch.equal(part, result[3:, n // 2 :])


# Leaders -------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_leaders_alone_send_their_points(groups):
    run = finished(method("lsgd", {"name": "shared_quadratic"}, rounds=10, groups=groups).batch())
    assert run.bits("up")[0] == pytest.approx(10 * 64 * (1 + groups * 8 / 6))
    # three bits name a leader, and one or two the group of the best of all
    told = groups * (64 * 8 + 3) + (groups - 1).bit_length()
    assert run.bits("down")[0] == pytest.approx(10 * told)


# Predictions ---------------------------------------------------------------------------------

PREDICTING = {
    "logistic": ({"name": "logistic", **DATA}, 1),
    "sigmoid": ({"name": "nonconvex_classification", **DATA}, 1),
    "squares": ({"name": "least_squares", **DATA}, 1),
    "one-hot": ({"name": "least_squares", "dataset": "digits", "clients": 5, "rows": 200}, 10),
}


@pytest.mark.parametrize("kind", first_of_each(PREDICTING))
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


def test_checkpoints_cost_what_they_hold():
    """Every third round: d values of each client up, all n d of them down; nothing between."""
    problem = PREDICTING["one-hot"][0]
    args = {"common": 4, "exchange": "checkpoints", "every": 3, "step": 1e-6}
    run = finished(method("codistillation", problem, None, 7, **args).batch())
    d, n = run.problem.dim, run.problem.n
    sent = np.array([0, 1, 1, 1, 2, 2, 2, 3])  # after rounds 0 to 7
    assert run.recorder.column("values_up")[0].tolist() == (d * sent).tolist()
    assert run.recorder.column("values_down")[0].tolist() == (n * d * sent).tolist()
