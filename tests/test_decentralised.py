"""Methods on a graph, and others with a point for every client: what they keep and send, where they end."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from toys import FAR, P1, ConvexL1, Shared, largest, registered

from raybench import problems
from raybench.execution.build import GRAPHS, mixing
from raybench.execution.resolve import Skip
from raybench.testing.trial import DATA, Method, finished
from raybench.wire.neighbours import Neighbours

pytestmark = pytest.mark.thorough

TOY, L1 = {"name": "convex_l1"}, {"name": "convex_l1", "weight": 0.2}
TENTH = {"name": "rand_k", "k": 1}
TWO_BITS = {"name": "dithering", "s": 1, "p": "inf"}
EXACT = ["extra", "gradient_tracking", "exact_diffusion", "lead"]


@pytest.fixture(scope="module", autouse=True)
def toys():
    with registered("problem", convex_l1=ConvexL1, shared_quadratic=Shared):
        yield


def method(name, problem=P1, compressor=None, rounds=60, graph="ring", step=None, **params):
    more = FAR if name in CENTRAL else {**FAR, "graph": graph}
    return Method(name, params, compressor, problem, rounds=rounds, step=step, more=more)


CENTRAL = ("lsgd", "easgd", "codistillation", "gd")


# Where they end ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "graph"),
    [
        (name, graph)
        for i, name in enumerate(EXACT)
        for j, graph in enumerate(sorted(GRAPHS))
        if (i + j) % 2 == 0
    ],
)
def test_exact_methods_are_exact_on_every_graph(name, graph):
    operator = "natural" if name == "lead" else None
    run = finished(method(name, TOY, operator, 800, graph).batch((1.0, 1.8)), every=100)
    norms, apart = (run.recorder.column(c) for c in ("grad_norm_sq", "consensus_error"))
    if name == "gradient_tracking":  # linear as well, but slow where the graph mixes slowly
        assert (norms[:, -1] < 1e-5 * norms[:, 0]).all(), norms
        assert ((norms[:, -1] < 0.8 * norms[:, -2]) | (norms[:, -1] < 1e-20)).all(), norms
    else:
        assert (norms[:, -1] < 1e-14 * norms[:, 0]).all(), norms
        assert (apart[:, -1] < 1e-18).all(), apart


@pytest.mark.parametrize("name", ["extra", "exact_diffusion", "prox_lead"])
@pytest.mark.parametrize("graph", ["ring", "star"])
def test_the_proximal_ones_are_exact_with_l1(name, graph):
    operator = TWO_BITS if name == "prox_lead" else None
    rates = {"alpha": 0.5, "mix": 0.5} if name == "prox_lead" else {}
    run = finished(method(name, L1, operator, 1500, graph, **rates).batch(), every=100)
    assert run.recorder.column("grad_norm_sq")[0, -1] < 1e-22  # of the gradient mapping
    assert run.recorder.column("consensus_error")[0, -1] < 1e-22
    assert 0 < int((run.c.X[0, 0].abs() < 1e-12).sum()) < 10


def test_lead_converges_with_a_tenth_of_the_coordinates():
    """With its own rates; with 0.5 and 0.5 it diverges."""
    (cell,) = method("lead", TOY, TENTH).batch().cells
    assert cell.params["alpha"] == pytest.approx(0.1)
    assert cell.params["mix"] == pytest.approx(0.002)
    run = finished(method("lead", TOY, TENTH, 4000, "complete").batch((1.0,), (0, 1)), every=400)
    norms = run.recorder.column("grad_norm_sq")
    assert (norms[:, -1] < 1e-3 * norms[:, 0]).all(), norms
    assert (norms[:, -1] < norms[:, 5]).all()
    wild = method("lead", TOY, TENTH, 4000, "complete", alpha=0.5, mix=0.5)
    assert finished(wild.batch()).status[0] == "diverged"


@pytest.mark.parametrize(("name", "messages"), [("dgd", 1), ("extra", 1), ("gradient_tracking", 2)])
def test_bits_are_booked_per_neighbour(name, messages):
    run = finished(method(name, TOY, None, 10, "star").batch())
    degrees = (6 + 6 * 1) / 7  # the hub has six neighbours, the others one
    assert run.bits("up")[0] == pytest.approx(10 * messages * degrees * 64 * 10)
    assert run.bits("down")[0] == 0


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
    assert run.bits("down")[0] == pytest.approx(
        10 * (groups * (64 * 8 + 3) + (groups - 1).bit_length())
    )


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
