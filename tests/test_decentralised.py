"""Methods on a graph: what they keep, what they reduce to, where they end."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from toys import ConvexL1, descend, each_round, path, registered

from raybench import problems
from raybench.execution.build import GRAPHS, mixing
from raybench.testing.trial import DATA, Method, finished, started
from raybench.wire.neighbours import Neighbours

P1 = {"name": "quadratic", "dim": 12, "clients": 7, "mu": 0.05, "seed": 3}
ALONE = {"name": "quadratic", "dim": 12, "clients": 1, "mu": 0.05, "seed": 3}
TOY, L1 = {"name": "convex_l1"}, {"name": "convex_l1", "weight": 0.2}
RAND, TENTH = {"name": "rand_k", "k": 3}, {"name": "rand_k", "k": 1}
TWO_BITS = {"name": "dithering", "s": 1, "p": "inf"}
EXACT = ["extra", "gradient_tracking", "exact_diffusion", "lead"]
DENSE = [*EXACT, "diffusion", "dgd"]
FAR = {"x0": {"normal": 2.0}}


@pytest.fixture(scope="module", autouse=True)
def toys():
    with registered("problem", convex_l1=ConvexL1):
        yield


def method(name, problem=P1, compressor=None, rounds=60, graph="ring", step=None, **params):
    more = FAR if name in CENTRAL else {**FAR, "graph": graph}
    return Method(name, params, compressor, problem, rounds=rounds, step=step, more=more)


CENTRAL = ("lsgd", "easgd", "codistillation", "gd")


def points(run) -> torch.Tensor:
    return run.c.X.clone()


def largest(a, b) -> float:
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())


def scatter(run, size=1.0) -> torch.Tensor:
    """Move the clients apart, and return where they are."""
    run.advance(0)
    noise = np.random.default_rng(1).standard_normal(run.c.X.shape)
    run.c.X = run.c.X + size * torch.from_numpy(noise)
    return run.c.X.clone()


def mix(W: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
    return torch.einsum("ij,bjd->bid", W, X)


# Gossip --------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", sorted(GRAPHS))
def test_gossip_forgets_each_mode_at_its_eigenvalue(graph):
    """v_k'X^{t+1} = lambda_k v_k'X^t for every eigenvector of W; so lambda_2 is the rate."""
    run = started(method("gossip", TOY, "identity", 25, graph).batch((1.0, 0.5), (0, 1)))
    run.advance(1)  # the only round with a gradient step
    scatter(run)
    seen = each_round(run, points)
    values, vectors = torch.linalg.eigh(mixing(graph, 7).W)
    assert largest(seen[0], seen[0].mean(1, keepdim=True)) > 0.1
    size = float(seen[0].abs().max())
    for now, then in pairwise(seen):
        want = values[:, None] * mix(vectors.T, now)
        assert largest(mix(vectors.T, then), want) < 1e-12 * size


@pytest.mark.parametrize("graph", ["ring", "star", "complete"])
@pytest.mark.parametrize("compressor", [{"name": "top_k", "k": 1}, TENTH, "natural", "scaled_sign"])
def test_compressed_gossip_agrees_on_the_mean_of_the_first_steps(graph, compressor):
    run = started(method("gossip", TOY, compressor, 1500, graph).batch())
    x, gamma = run.s.x.clone(), run.batch.cells[0].step_size
    want = x - gamma * run.problem.oracle(x, loss=False)[0].mean(1)
    run.advance(1)
    before = float((run.c.X - want[:, None]).square().sum())
    W = mixing(graph, 7).W
    run.advance(1500)
    assert largest(run.c.X.mean(1), want) < 1e-11
    assert largest(run.c.Hw, mix(W, run.c.H)) < 1e-12
    assert float((run.c.X - want[:, None]).square().sum()) < 1e-9 * before


def test_gossip_that_mixes_too_much_diverges():
    run = finished(method("gossip", TOY, TENTH, 1000, mix=0.6).batch())
    assert run.status[0] == "diverged" or run.recorder.column("consensus_error")[0, -1] > 1e3


@pytest.mark.parametrize("graph", ["ring", "grid"])
def test_choco_sgd_without_compression_is_diffusion(graph):
    ours = method("choco_sgd", P1, "identity", 100, graph, 0.2).batch((1.0, 0.5), (0, 1))
    theirs = method("diffusion", P1, None, 100, graph, 0.2).batch((1.0, 0.5), (0, 1))
    assert largest(path(started(ours)), path(started(theirs))) < 1e-12


@pytest.mark.parametrize("compressor", ["natural", {"name": "top_k", "k": 3}])
def test_choco_sgd_comes_near_and_nearer_with_smaller_steps(compressor):
    run = finished(method("choco_sgd", TOY, compressor, 2000).batch((0.4, 0.04)), every=100)
    norms = run.recorder.column("grad_norm_sq")
    assert 10 < norms[0, -1] / norms[1, -1] < 1000, norms[:, -1]


# Special cases that are gradient descent, or one another ---------------------------------------


@pytest.mark.parametrize("name", [*DENSE, "choco_sgd", "lsgd"])
def test_one_client_does_gradient_descent(name):
    operator = "identity" if name in ("lead", "choco_sgd") else None
    run = started(method(name, ALONE, operator, 300, step=0.3).batch((1.0, 0.5), (0, 1)))
    plain = descend(started(method("gd", ALONE, rounds=300, step=0.3).batch()), 0.3)
    seen = torch.stack(each_round(run, lambda r: points(r)[:, 0]))
    assert largest(seen[:, :1], plain) < 1e-8
    assert largest(seen[:, :1], seen[:, 1:]) > 1e-3


def test_diffusion_on_the_complete_graph_is_gradient_descent():
    run = started(method("diffusion", P1, None, 300, "complete", 0.3).batch())
    plain = descend(started(method("gd", rounds=300, step=0.3).batch()), 0.3)
    assert largest(torch.stack(each_round(run, points)), plain[:, :, None]) < 1e-8


def test_combining_first_is_the_same_orbit_seen_half_a_round_later():
    """W (cta after t rounds) = atc from W x^0, so with equal starts both orbits interlace."""
    atc = torch.stack(each_round(started(method("diffusion", step=0.2).batch()), points))
    cta = torch.stack(
        each_round(started(method("diffusion", step=0.2, order="cta").batch()), points)
    )
    W = mixing("ring", 7).W
    assert max(largest(mix(W, c), a) for a, c in zip(atc, cta)) < 1e-12
    assert largest(atc, cta) > 1e-2


@pytest.mark.parametrize("graph", ["ring", "star", "exponential"])
def test_lead_without_compression_is_exact_diffusion(graph):
    ours = method("lead", P1, "identity", 300, graph, step=0.3).batch((1.0, 0.5), (0, 1))
    theirs = method("exact_diffusion", P1, None, 300, graph, step=0.3).batch((1.0, 0.5), (0, 1))
    assert largest(path(started(ours)), path(started(theirs))) < 1e-8


def test_lead_is_prox_lead_without_a_penalty():
    ours, theirs = (method(name, TOY, RAND, 100).batch() for name in ("lead", "prox_lead"))
    assert np.array_equal(path(started(ours)), path(started(theirs)))


# Where they end ------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", sorted(GRAPHS))
@pytest.mark.parametrize("name", EXACT)
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


def test_lead_is_exact_with_two_bits():
    run = finished(method("lead", TOY, TWO_BITS, 1000, alpha=0.5, mix=0.5).batch(), every=100)
    assert run.recorder.column("grad_norm_sq")[0, -1] < 1e-22
    # to two neighbours: a norm, and five ternary digits a byte
    assert run.bits("up")[0] == 1000 * 2 * (64 + 16)


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


@pytest.mark.parametrize("graph", sorted(GRAPHS))
def test_lead_keeps_its_sums_with_coarse_messages(graph):
    run = started(method("lead", TOY, TENTH, 40, graph).batch((1.0, 0.5), (0, 1)))
    W = mixing(graph, 7).W

    def look(r):
        sums = float(r.c.D.sum(1).abs().max()) / max(1.0, float(r.c.D.abs().max()))
        return sums, largest(r.c.Hw, mix(W, r.c.H))

    assert np.array(each_round(run, look)).max() < 1e-12
    assert float(run.c.D.abs().max()) > 0


def test_gradient_tracking_tracks():
    run = started(method("gradient_tracking", rounds=200).batch((1.0, 0.5)))
    gaps = each_round(
        run, lambda r: largest(r.c.Y.mean(1), r.problem.oracle(r.c.X, loss=False)[0].mean(1))
    )
    assert max(gaps) < 1e-12


def test_the_minimiser_is_a_fixed_point_of_exact_diffusion_and_not_of_diffusion():
    star = problems.build("quadratic", {k: v for k, v in P1.items() if k != "name"}).minimizer()
    moved = {}
    for name in ("exact_diffusion", "diffusion"):
        run = started(method(name, step=0.3).batch())
        run.advance(0)
        X = star.expand(1, 7, -1).clone()
        run.c.X = run.c.Z = X
        run.c.psi = X - 0.3 * run.problem.oracle(X, loss=False)[0]
        run.advance(50)
        moved[name] = largest(run.c.X, X)
    assert moved["exact_diffusion"] < 1e-11
    assert moved["diffusion"] > 1e-2


@pytest.mark.parametrize(
    ("name", "order"), [("diffusion", "atc"), ("diffusion", "cta"), ("dgd", "")]
)
def test_the_bias_of_diffusion_halves_with_the_step(name, order):
    params = {"order": order} if order else {}
    run = finished(method(name, TOY, None, 4000, **params).batch((0.2, 0.1, 0.05)), every=4000)
    norms = np.sqrt(run.recorder.column("grad_norm_sq")[:, -1])
    apart = np.sqrt(run.recorder.column("consensus_error")[:, -1])
    assert (norms > 1e-3).all(), norms
    for sizes in (norms, apart):
        assert ((sizes[:-1] / sizes[1:] > 1.6) & (sizes[:-1] / sizes[1:] < 2.2)).all(), sizes


def test_dgd_ends_at_the_minimiser_of_its_penalised_sum():
    """(I - W) X + gamma G(X) = 0."""
    run = finished(method("dgd", TOY, None, 3000, step=0.1).batch(), every=3000)
    A, b = run.problem.A, run.problem.b
    n, d = b.shape
    system = torch.kron(torch.eye(n) - mixing("ring", 7).W, torch.eye(d)) + 0.1 * torch.block_diag(
        *A
    )
    want = torch.linalg.solve(system, 0.1 * b.flatten()).view(n, d)
    assert largest(run.c.X[0], want) < 1e-10


@pytest.mark.parametrize("name", ["diffusion", "dgd", "exact_diffusion"])
def test_minibatches_reach_a_floor_and_pay_for_what_they_read(name):
    problem = {"name": "least_squares", **DATA}
    run = finished(method(name, problem, None, 300, batch=2).batch((1.0,), (0, 1)), every=20)
    norms = run.recorder.column("grad_norm_sq")
    assert (run.net.oracle.evals == 600).all()
    assert (norms[:, -1] < 0.1 * norms[:, 0]).all()
    assert largest(norms[:1], norms[1:]) > 0


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
    found = whole.mixed(X)
    want = W @ X.double()
    assert found.dtype == dtype
    assert found.is_contiguous()
    assert largest(found, want) < (1e-14 if dtype == torch.float64 else 1e-6)
    part = Neighbours(W[n // 2 :]).mixed(X[3:])
    assert largest(part, want[3:, n // 2 :]) < (1e-14 if dtype == torch.float64 else 1e-6)
    if not whole._dense and not Neighbours(W[n // 2 :])._dense:
        assert torch.equal(part, found[3:, n // 2 :])
