"""Smoothness constants: never violated, reached on quadratics, and the minima they come with."""

import math
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse
import torch

from raybench import problems
from raybench.core.streams import Sample
from raybench.problems import minimum
from raybench.problems.base import Fact
from raybench.problems.least_squares import LeastSquares
from raybench.problems.quadratic import Quadratic

CANCER = {"dataset": "breast_cancer", "clients": 5, "scale": "columns"}
CASES = {
    **{
        f"{name} {kind}": (name, {**CANCER, "regularizer": kind, "lambda": 0.2})
        for name in ("logistic", "nonconvex_classification", "least_squares")
        for kind in ("nonconvex", "l2", "none")
    },
    "squares, few rows": ("least_squares", {**CANCER, "clients": 40}),
    "squares one-hot": ("least_squares", {"dataset": "digits", "clients": 4, "scale": "rows"}),
    "softmax": (
        "softmax",
        {"dataset": "digits", "clients": 4, "rows": 80, "scale": "rows", "regularizer": "l2"},
    ),
    "logistic by label": ("logistic", {**CANCER, "split": "sorted_by_label", "clients": 1}),
    "quadratic": ("quadratic", {"dim": 12, "clients": 4, "heterogeneity": 1.0}),
    "tridiagonal": ("tridiagonal", {"dim": 30, "clients": 5, "noise": 0.3}),
    "vertical": ("vertical_least_squares", CANCER),
}
ABOVE = 1 + 1e-9
_made = {}


@pytest.fixture(params=CASES)
def problem(request):
    if request.param not in _made:
        _made[request.param] = problems.build(*CASES[request.param])
    return _made[request.param]


def pairs(problem, count=200, seed=0):
    """Points at many scales and a near neighbour of each (curvature is largest at some)."""
    random = torch.Generator().manual_seed(seed)
    shape = (count, problem.dim)
    scale = 10 ** (4 * torch.rand(count, 1, generator=random, dtype=torch.float64) - 3)
    x = scale * torch.randn(shape, generator=random, dtype=torch.float64)
    y = x + 0.1 * scale * torch.randn(shape, generator=random, dtype=torch.float64)
    return x, y


def of_samples(problem, x):
    """Gradients of single samples at x (B, d): a list per sample of (B, n, d), rows past the end clamped."""
    counts = torch.tensor(problem.samples)
    for j in range(max(problem.samples)):
        chosen = torch.full((len(x), problem.n, 1), j).clamp(max=(counts - 1)[None, :, None])
        yield problem.grad(x, Sample.at(chosen))


def test_no_sample_is_steeper_than_its_constant(problem):
    x, y = pairs(problem, count=20)
    far, bounds = (x - y).norm(dim=1), torch.tensor(problem.constants.L_sample_i)
    most = torch.zeros(problem.n, dtype=torch.float64)
    for one, other in zip(of_samples(problem, x), of_samples(problem, y), strict=True):
        most = torch.maximum(most, ((one - other).norm(dim=2) / far[:, None]).max(0).values)
    assert (most <= bounds * ABOVE).all()
    assert (bounds >= torch.tensor(problem.constants.L_i) * (1 - 1e-9)).all()
    assert problem.constants.L_sample_max == max(problem.constants.L_sample_i)


def test_the_noise_of_samples_is_bounded_where_it_is_said_to_be(problem):
    bound = problem.constants.sample_variance
    if bound is None:
        assert isinstance(problem, LeastSquares)  # grows with x
        return
    x, _ = pairs(problem, count=30)
    counts, whole = torch.tensor(problem.samples), problem.grad(x)
    total = torch.zeros(30, problem.n, dtype=torch.float64)
    for j, one in enumerate(of_samples(problem, x)):
        total += torch.where(j < counts, (one - whole).square().sum(-1), 0.0)
    result = (total / counts).mean(1)
    assert (result <= bound * ABOVE).all()
    if max(problem.samples) > 1:
        assert result.max() > 0.05 * bound


def test_slopes_and_curvature_of_the_losses():
    z = np.linspace(-30, 30, 2_000_001)
    s = 1 / (1 + np.exp(z))  # sigma(-z)
    for name, slope in (("logistic", s), ("nonconvex_classification", 2 * s**2 * (1 - s))):
        kind = type(problems.build(name, CANCER))
        assert kind.slope == pytest.approx(slope.max(), abs=1e-9)
    second = s**2 * (1 - s) * (4 - 6 * s)
    assert kind.curvature == pytest.approx(np.abs(second).max(), abs=1e-9)


PLAIN = {Fact.BOUNDED_CLIENTS, Fact.CONVEX_CLIENTS, Fact.CONVEX_SAMPLES}
STRONG = PLAIN | {Fact.STRONGLY_CONVEX}
SQUARE = {Fact.QUADRATIC}
FACTS = {
    "logistic nonconvex": {Fact.BOUNDED_CLIENTS},
    "logistic l2": STRONG,
    "logistic none": PLAIN,
    "logistic l1": PLAIN | {Fact.CONVEX_PENALTY},
    "nonconvex_classification l2": {Fact.BOUNDED_CLIENTS},
    "nonconvex_classification l1": {Fact.BOUNDED_CLIENTS, Fact.CONVEX_PENALTY},
    "least_squares nonconvex": {Fact.BOUNDED_CLIENTS},
    "least_squares l2": STRONG | SQUARE,
    "least_squares none": STRONG | SQUARE,  # 30 features, none superfluous
    "least_squares l1": STRONG | SQUARE | {Fact.CONVEX_PENALTY},
    "softmax": STRONG,
    "squares one-hot": PLAIN | SQUARE,  # some pixels are always 0
    "quadratic": SQUARE | {Fact.STRONGLY_CONVEX},
    "tridiagonal": SQUARE | {Fact.STRONGLY_CONVEX},
    "vertical": STRONG,
}


@pytest.mark.parametrize("name", FACTS)
def test_facts(name):
    known = {**CASES}
    for kind in ("logistic", "nonconvex_classification", "least_squares"):
        known[f"{kind} l1"] = (kind, {**CANCER, "regularizer": "l1", "lambda": 0.2})
    assert problems.build(*known[name]).constants.facts == FACTS[name]


def test_facts_of_quadratics():
    eye = torch.eye(3, dtype=torch.float64)
    zero = torch.zeros(2, 3, dtype=torch.float64)
    flat = torch.diag(torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64))
    tilted = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]], dtype=torch.float64)
    for A, b, facts in (
        (torch.stack([eye, 2 * eye]), zero, STRONG),
        (torch.stack([3 * eye, -eye]), zero, {Fact.STRONGLY_CONVEX}),
        (torch.stack([flat, flat]), zero, PLAIN),
        (
            torch.stack([flat, flat]),
            tilted,
            PLAIN - {Fact.BOUNDED_CLIENTS},
        ),  # f is bounded, no f_i is
        (torch.stack([flat, eye]), tilted, STRONG - {Fact.BOUNDED_CLIENTS}),
        (torch.stack([eye, -3 * eye]), zero, set()),
    ):
        assert Quadratic(A, b).constants.facts == facts | SQUARE
    alike = problems.build("tridiagonal", {"dim": 9, "clients": 3, "noise": 0.0, "lambda": 0.01})
    assert alike.constants.facts == STRONG | SQUARE


def test_an_own_problem_states_what_it_wants():
    class Own(problems.Problem):
        def __init__(self):
            super().__init__(2, 3)
            self.L, self.L_i, self.mu = 1.0, (1.0, 2.0), 0.5
            self.facts = {"convex_clients", Fact.STRONGLY_CONVEX}

    c = Own().constants
    assert c.facts == {Fact.CONVEX_CLIENTS, Fact.STRONGLY_CONVEX}
    assert (c.L_sample_i, c.sample_variance) == ((1.0, 2.0), 0.0)  # a client's only sample is f_i
    wrong = Own()
    wrong.facts = {"convex_everything"}
    with pytest.raises(ValueError, match="convex_everything"):
        wrong.find_constants()


def test_f_star_is_reached(problem):
    c = problem.constants
    if c.f_star is None:
        return
    assert c.f_inf == c.f_star
    g = problem.grad(torch.zeros(1, problem.dim, dtype=torch.float64))[0].mean(0).numpy()
    best = problem.minimizer()
    if best is None:  # quadratic, all of them
        H = hessians(problem).mean(0)
        best = torch.from_numpy(np.linalg.lstsq(H, -g, rcond=1e-13)[0])
    grads, losses = problem.oracle(best[None])
    assert grads.mean(1).norm() < 1e-8 * max(c.L, np.linalg.norm(g))
    assert float(losses.mean()) == pytest.approx(c.f_star, rel=1e-9, abs=1e-12)


def hessians(problem):
    eye = torch.eye(problem.dim, dtype=torch.float64)
    zero = problem.grad(torch.zeros_like(eye[:1]))
    return (problem.grad(eye) - zero).transpose(0, 1).numpy()  # (n, d, d)


@pytest.mark.parametrize(
    "name", ["quadratic", "tridiagonal", "least_squares l2", "squares, few rows"]
)
def test_constants_of_quadratics_are_exact(name):
    problem = problems.build(*CASES[name])
    H, c = hessians(problem), problem.constants
    mean = H.mean(0)
    squares = np.mean([h @ h for h in H], axis=0)
    assert np.allclose(c.L_i, [np.abs(np.linalg.eigvalsh(h)).max() for h in H], rtol=1e-9)
    assert math.isclose(c.L, np.linalg.eigvalsh(mean)[-1], rel_tol=1e-9)
    if name == "squares, few rows":
        return  # there only bounds
    assert c.L_plus == pytest.approx(math.sqrt(np.linalg.eigvalsh(squares)[-1]), rel=1e-9)
    variance = np.linalg.eigvalsh(squares - mean @ mean)[-1]
    assert c.L_pm == pytest.approx(math.sqrt(variance), rel=1e-7)
    values = np.linalg.eigvalsh(mean)
    assert c.mu == pytest.approx(values[0], rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("noise", [0.0, 0.1, 3.0])
@pytest.mark.parametrize("clients", [1, 2, 9])
@pytest.mark.parametrize("dim", [1, 2, 25])
def test_closed_forms_of_the_tridiagonal_problem(dim, clients, noise):
    params = {"dim": dim, "clients": clients, "noise": noise, "lambda": 1e-3, "seed": 4}
    problem = problems.build("tridiagonal", params)
    zero = torch.zeros(1, dim, dtype=torch.float64)
    A = torch.from_numpy(hessians(problem).copy())
    dense = Quadratic(A, -problem.grad(zero)[0]).constants
    c = problem.constants
    assert np.allclose(c.L_i, dense.L_i, rtol=1e-10)
    for name in ("L", "L_plus", "f_star"):
        assert getattr(c, name) == pytest.approx(getattr(dense, name), rel=1e-9)
    assert c.L_pm == pytest.approx(dense.L_pm, rel=1e-7, abs=1e-9)
    assert c.mu == pytest.approx(dense.mu, rel=1e-9)


def test_generated_quadratic():
    problem = problems.build("quadratic", {"dim": 20, "clients": 6, "mu": 0.02, "seed": 3})
    assert problem.constants.mu == pytest.approx(0.02, rel=1e-9)
    other = problems.build("quadratic", {"dim": 20, "clients": 6, "mu": 0.02, "seed": 4})
    assert not torch.equal(problem.A, other.A)
    alike = problems.build("quadratic", {"dim": 20, "clients": 6, "heterogeneity": 0.0})
    spread = problems.build("quadratic", {"dim": 20, "clients": 6, "heterogeneity": 2.0})
    assert (
        spread.constants.L_max / spread.constants.L_AM
        > alike.constants.L_max / alike.constants.L_AM
    )


def test_unbounded_quadratics_have_no_minimum():
    A = torch.diag(torch.tensor([1.0, -0.1], dtype=torch.float64))[None]
    saddle = Quadratic(A, torch.zeros(1, 2, dtype=torch.float64)).constants
    assert (saddle.f_star, saddle.f_inf, saddle.mu) == (None, None, None)
    assert saddle.L == 1
    flat = torch.diag(torch.tensor([2.0, 0.0], dtype=torch.float64))[None]
    tilted = Quadratic(flat, torch.tensor([[1.0, 1.0]], dtype=torch.float64)).constants
    assert tilted.f_star is None
    level = Quadratic(flat, torch.tensor([[1.0, 0.0]], dtype=torch.float64)).constants
    assert (level.f_star, level.mu) == (pytest.approx(-0.25), pytest.approx(2.0))


@pytest.mark.parametrize("dense", [5, 1000])
@pytest.mark.parametrize("shape", [(60, 40), (40, 60)])
def test_largest_eigenvalue_by_every_way(monkeypatch, shape, dense):
    monkeypatch.setattr(minimum, "MOST_BY_DENSE_SOLVER", dense)  # 5: by Lanczos
    random = np.random.default_rng(0)
    A, w = random.standard_normal(shape), random.random(shape[0])
    want = np.linalg.norm(A * np.sqrt(w)[:, None], 2) ** 2
    for given in (A, scipy.sparse.csr_array(A)):
        assert minimum.lmax_gram(given, w) == pytest.approx(want, rel=1e-9)
    assert np.allclose(minimum.row_norms_sq(scipy.sparse.csr_array(A)), (A**2).sum(1))


def test_logistic_constants_are_reached_at_zero():
    problem = problems.build("logistic", {**CANCER, "regularizer": "none"})
    x = torch.zeros(1, problem.dim, dtype=torch.float64)
    for i, (A, y) in enumerate(problem.rows.parts()):
        v = torch.from_numpy(np.linalg.svd(A, full_matrices=False)[2][:1])
        change = problem.grad(1e-5 * v)[0, i] - problem.grad(x)[0, i]
        bound = problem.constants.L_i[i]
        assert float(change.norm()) / 1e-5 == pytest.approx(bound, rel=1e-6)
        assert bound == pytest.approx(np.linalg.norm(A, 2) ** 2 / (4 * len(y)))


def test_samples_constant_of_ridge_is_exact():
    problem = problems.build("least_squares", {**CANCER, "regularizer": "l2", "lambda": 0.3})
    squares = np.zeros((30, 30))
    for A, _ in problem.rows.parts():
        for a in A:
            H = np.outer(a, a) + 0.3 * np.eye(30)
            squares += H @ H / (len(A) * problem.n)
    want = math.sqrt(np.linalg.eigvalsh(squares)[-1])
    assert problem.constants.L_samples == pytest.approx(want, rel=1e-10)


def test_vertical_constants():
    problem = problems.build("vertical_least_squares", {**CANCER, "clients": 7})
    A = problem.train.dense()
    blocks = [A[:, a:b] for a, b in pairwise([0, 5, 10, 14, 18, 22, 26, 30])]
    want = 2 * max(np.linalg.norm(block, 2) ** 2 for block in blocks)
    assert problem.constants.extra["L_blk"] == pytest.approx(want, rel=1e-9)
    assert math.isclose(problem.constants.L, 2 * np.linalg.norm(A, 2) ** 2, rel_tol=1e-9)
