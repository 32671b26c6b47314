"""Every problem: gradients, hosting, evaluation, against formulas in numpy; constants that are never violated, and minima."""

import math
from itertools import pairwise

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
import torch
from scipy.special import expit, logsumexp
from sklearn.datasets import dump_svmlight_file
from tiers import first_of_each
from torch.autograd.functional import hessian
from torch.nn.functional import cross_entropy

from raybench import problems
from raybench.core.errors import InputError
from raybench.core.streams import Sample, stream
from raybench.problems import Layout, Problem, minimum, scores
from raybench.problems.base import Fact, share_right, share_signed
from raybench.problems.clients import Regularizer
from raybench.problems.least_squares import LeastSquares
from raybench.problems.quadratic import Quadratic
from raybench.problems.scores import DenseScores
from raybench.testing.problems import conformance


class OnlyLosses(Problem):
    """f_i(x) = sum cos((i + 1) x): a user's problem with nothing but f_i."""

    def __init__(self):
        super().__init__(3, 4)

    def f_i(self, i, x):
        return torch.cos((i + 1) * x).sum(-1)


CANCER = {"dataset": "breast_cancer", "clients": 5, "scale": "columns"}
DIGITS = {"dataset": "digits", "clients": 4, "scale": "columns", "rows": 120}
CASES = {
    "logistic nonconvex": ("logistic", {**CANCER, "intercept": True}),
    "logistic l2": ("logistic", {**CANCER, "regularizer": "l2", "split": "sorted_by_label"}),
    "logistic l1": ("logistic", {**CANCER, "regularizer": "l1", "lambda": 0.01}),
    "logistic none": ("logistic", {**CANCER, "regularizer": "none", "split": {"dirichlet": 0.5}}),
    "logistic digits": ("logistic", {"dataset": "digits", "clients": 3, "positive": [1, 2, 3]}),
    "logistic, one client": ("logistic", {**CANCER, "split": "sorted_by_label", "clients": 1}),
    "sigmoid none": ("nonconvex_classification", {**CANCER, "regularizer": "none"}),
    "sigmoid l2": ("nonconvex_classification", CANCER),
    "sigmoid nonconvex": (
        "nonconvex_classification",
        {**CANCER, "regularizer": "nonconvex", "lambda": 0.2, "remainder": "last"},
    ),
    "squares": ("least_squares", CANCER),
    "ridge": ("least_squares", {**CANCER, "regularizer": "l2", "lambda": {"times_L": 1e-3}}),
    "squares, few rows": ("least_squares", {**CANCER, "clients": 40}),
    "squares nonconvex": ("least_squares", {**CANCER, "regularizer": "nonconvex"}),
    "squares one-hot": (
        "least_squares",
        {"dataset": "digits", "clients": 4, "scale": "rows", "regularizer": "l2"},
    ),
    "softmax": ("softmax", {**DIGITS, "intercept": True}),
    "softmax l2": ("softmax", {**DIGITS, "regularizer": "l2", "split": "sorted_by_label"}),
    "quadratic": ("quadratic", {"shape": [3, 4], "clients": 4, "heterogeneity": 1.0}),
    "tridiagonal": ("tridiagonal", {"dim": 12, "clients": 5, "noise": 0.3}),
    "vertical": ("vertical_least_squares", {**CANCER, "test_size": 0.25}),
    "vertical single": ("vertical_least_squares", {**CANCER, "clients": 30}),
    "yours": OnlyLosses,
}
THOROUGH = {
    *("logistic l2", "logistic none", "logistic digits", "logistic, one client"),
    *("sigmoid none", "sigmoid l2", "sigmoid nonconvex", "squares"),  # kernels take long to compile
}
_made: dict[str, Problem] = {}


@pytest.fixture(
    params=[
        pytest.param(case, marks=[pytest.mark.thorough] if case in THOROUGH else [])
        for case in CASES
    ]
)
def problem(request) -> Problem:
    """Each problem, made once."""
    if request.param not in _made:
        case = CASES[request.param]
        _made[request.param] = case() if callable(case) else problems.build(*case)
    return _made[request.param]


def points(problem, *lead, size=0.5, seed=0):
    random = torch.Generator().manual_seed(seed)
    return size * torch.randn(*lead, problem.dim, dtype=problem.dtype, generator=random)


def test_conformance(problem):
    """Gradients, clients apart and together, samples, constants and minima: what the kit checks."""
    assert not [str(f) for f in conformance(problem) if not f.ok]


def test_single_precision(problem):
    if isinstance(problem, OnlyLosses):
        return
    case = next(CASES[k] for k, v in _made.items() if v is problem)
    single = problems.build(case[0], {**case[1], "dtype": "float32"})
    x = points(problem, 3)
    grads, losses = single.oracle(x.float())
    assert grads.dtype == losses.dtype == single.start().dtype == torch.float32
    want, f = problem.oracle(x)
    assert torch.allclose(grads.double(), want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))
    assert torch.allclose(losses.double(), f, rtol=1e-4, atol=1e-4)
    # the same problem in another number format: the constants are those of the float64 one
    assert math.isclose(single.constants.L, problem.constants.L, rel_tol=1e-12)


def test_nothing_mixes_devices(problem):
    """On the meta device tensors have shapes only, and any mix with the CPU's raises."""
    moved = problem.to("meta")
    x = points(problem, 2).to("meta")
    for at in (x, x[:, None].expand(-1, problem.n, -1)):
        grads, losses = moved.oracle(at)
        assert grads.device.type == losses.device.type == "meta"
        assert grads.shape == (2, problem.n, problem.dim)
    indices = torch.zeros(2, problem.n, 1, dtype=torch.int64, device="meta")
    sample = Sample(indices, stream(0).spread((2, problem.n)))  # drawn from in main memory
    assert moved.grad(x, sample).shape == grads.shape
    assert moved.start().device.type == "meta"
    assert moved.host(range(1)).oracle(x)[0].shape == (2, 1, problem.dim)
    assert moved.constants is problem.constants
    assert problem.oracle(points(problem, 2))[0].device.type == "cpu"


def rows_of(problem):
    return [(np.asarray(a), b) for a, b in problem.rows.parts()]


def reg_of(kind, lam, x):
    if kind == "nonconvex":
        return lam * (x**2 / (1 + x**2)).sum(), 2 * lam * x / (1 + x**2) ** 2
    return (lam / 2 * x @ x, lam * x) if kind == "l2" else (0.0, 0 * x)


@pytest.mark.parametrize("name", ["logistic", "nonconvex_classification", "least_squares"])
@pytest.mark.parametrize("kind", ["nonconvex", "l2", "l1", "none"])
def test_direct_formula(name, kind):
    problem = problems.build(name, {**CANCER, "regularizer": kind, "lambda": 0.3})
    x = points(problem, 1)
    at = x[0].numpy()
    losses, grads = [], []
    for A, y in rows_of(problem):
        z = A @ at
        if name == "logistic":
            loss, slope = np.logaddexp(0, -y * z), -y * expit(-y * z)
        elif name == "least_squares":
            loss, slope = (z - y) ** 2 / 2, z - y
        else:
            s = expit(-y * z)
            loss, slope = s**2, -2 * y * s**2 * (1 - s)
        value, shift = reg_of(kind, 0.3, at)
        losses.append(loss.mean() + value)
        grads.append(A.T @ slope / len(y) + shift)
    got = problem.oracle(x)
    assert np.allclose(got[0][0].numpy(), grads, rtol=1e-11, atol=1e-13)
    assert np.allclose(got[1][0].numpy(), losses, rtol=1e-12)
    assert problem.has_prox == (kind == "l1")
    assert float(problem.penalty(x)) == pytest.approx(0.3 * abs(at).sum() if kind == "l1" else 0)


def test_regulariser_at_extremes():
    x = torch.tensor([[1e-170, -1e-3, 2.0, 1e200, -1e154]], dtype=torch.float64)
    reg = Regularizer("nonconvex", 0.5)
    grads, value = reg.both(x)
    assert torch.allclose(grads, reg.grad(x), rtol=1e-14, atol=0)
    assert torch.allclose(value, reg.value(x), rtol=1e-14)
    assert float(value) == pytest.approx(0.5 * (1e-6 / (1 + 1e-6) + 0.8 + 2), rel=1e-14)
    assert torch.isfinite(grads).all()


def test_lambda_as_multiple_of_L():
    plain = problems.build("logistic", {**CANCER, "regularizer": "none"})
    given = problems.build("logistic", {**CANCER, "regularizer": "l2", "lambda": {"times_L": 0.01}})
    assert given.regularizer.lam == pytest.approx(0.01 * plain.constants.L)
    assert given.constants.mu == given.regularizer.lam
    usual = problems.build("nonconvex_classification", CANCER)
    lam = usual.regularizer.lam
    assert math.isclose(usual.constants.L, (1 + 1e-6) * lam / 1e-6, rel_tol=1e-12)


def test_one_hot_targets_are_a_matrix():
    problem = problems.build("least_squares", {"dataset": "digits", "clients": 4, "rows": 400})
    assert problem.layout == Layout((("x", (64, 10)),))
    (X,) = problem.layout.views(points(problem, 2))
    assert X.shape == (2, 64, 10)
    A = np.concatenate([a for a, _ in rows_of(problem)])
    Y = np.concatenate([b for _, b in rows_of(problem)])
    assert Y.shape == (400, 10)
    residual = A @ X[0].numpy() - Y
    loss = float(problem.oracle(points(problem, 2))[1][0].mean())
    assert loss == pytest.approx((residual**2).sum() / 800)


def test_evaluate():
    whole = problems.build("logistic", {**CANCER, "test_size": 0.25})
    assert sum(whole.samples) + len(whole.test.labels) <= 569
    x = points(whole, 2)
    result = whole.evaluate(x)
    z = whole.test.labels[:, None] * (whole.test.features @ x.numpy().T)
    assert np.allclose(result["accuracy"], (z > 0).mean(0))
    assert np.allclose(result["test_loss"], np.logaddexp(0, -z).mean(0))
    assert set(problems.build("logistic", CANCER).evaluate(x)) == {"accuracy"}
    assert problems.build("quadratic", {}).evaluate(x) == {}
    for name in ("least_squares", "softmax"):
        digits = problems.build(name, {"dataset": "digits", "clients": 2, "test_size": 0.2})
        X = points(digits, 3)
        scores = digits.test.features @ digits.layout.views(X)[0].numpy()
        labels = digits.test.labels if name == "softmax" else digits.test.labels.argmax(1)
        result = digits.evaluate(X)
        assert np.allclose(result["accuracy"], (scores.argmax(-1) == labels).mean(1))
        if name == "softmax":
            own = np.take_along_axis(scores, labels[None, :, None], -1)[..., 0]
            want = logsumexp(scores, -1) - own
        else:
            want = 0.5 * ((scores - digits.test.labels) ** 2).sum(-1)
        assert np.allclose(result["test_loss"], want.mean(-1))


def test_vertical_blocks():
    problem = problems.build("vertical_least_squares", {**CANCER, "clients": 7})
    x = points(problem, 3)
    blocks = problem.split(x)
    assert blocks.shape == (3, 7, 5)  # 30 features, 7 clients: blocks of 5 and 4
    assert torch.equal(problem.assemble(blocks), x)
    products = problem.products(blocks)
    assert products.shape == (3, 7, problem.message_dim)
    assert problem.message_dim == 569
    A = torch.from_numpy(problem.train.dense())
    assert torch.allclose(products.sum(1), x @ A.T)
    grads = problem.assemble(problem.block_grad(blocks, problem.residual(products.sum(1))))
    assert torch.allclose(grads, problem.oracle(x)[0][:, 0], rtol=1e-10)
    rows = torch.tensor([[3, 500], [0, 1], [7, 2]])
    some, v = problem.products(blocks, rows), products.sum(1)
    each = rows[:, None].expand(-1, 7, -1)
    assert torch.allclose(some, products.gather(-1, problem.places(each)))
    r = problem.residual(some.sum(1), rows)
    assert torch.allclose(r, 569 / 2 * problem.residual(v).gather(-1, rows))
    want = torch.stack([own @ A[at] for own, at in zip(r, rows, strict=True)])
    assert torch.allclose(problem.assemble(problem.block_grad(blocks, r, rows)), want)
    assert torch.allclose(problem.change(blocks, 2 * blocks), -products)
    part = problem.host(range(2, 5))
    assert torch.equal(part.split(x), blocks[:, 2:5])
    assert torch.allclose(part.products(blocks[:, 2:5]), products[:, 2:5])
    assert torch.equal(part.assemble(blocks), x)
    start = problem.start()
    assert 0 <= start.min() < start.max() <= 1
    with pytest.raises(InputError, match=r"problem\.clients"):
        problems.build("vertical_least_squares", {**CANCER, "clients": 31})


def test_tridiagonal_matrices():
    problem = problems.build("tridiagonal", {"dim": 6, "clients": 3, "noise": 0.5, "lambda": 0.1})
    eye = torch.eye(6, dtype=torch.float64)
    zero = problem.oracle(torch.zeros(1, 6, dtype=torch.float64))[0][0]
    columns = problem.oracle(eye)[0] - zero  # (6, n, 6): A_i e_k
    T = 2 * np.eye(6) - np.eye(6, k=1) - np.eye(6, k=-1)
    shared = 0.1 - np.linalg.eigvalsh(problem.nu.mean() / 4 * T)[0]
    for i, nu in enumerate(problem.nu):
        assert np.allclose(columns[:, i].numpy(), nu / 4 * T + shared * np.eye(6))
    assert problem.start()[0] == pytest.approx(math.sqrt(6))


def test_quadratic_shape():
    assert problems.build("quadratic", {"shape": [14, 8]}).dim == 112
    for shape, dim in (([2, 3], 7), ([0, 2], None), ([], None)):
        with pytest.raises(InputError, match=r"problem\.shape"):
            problems.build("quadratic", {"shape": shape, "dim": dim})


# Constants ----------------------------------------------------------------------------------------


ABOVE = 1 + 1e-9


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
    if isinstance(problem, OnlyLosses):  # claims nothing
        return
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
        assert isinstance(problem, LeastSquares | OnlyLosses)  # grows with x, or nothing is claimed
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
    problem = problems.build("nonconvex_classification", {**CANCER, "regularizer": "none"})
    for (A, y), L, L_sample in zip(
        problem.rows.parts(), problem.constants.L_i, problem.constants.L_sample_i, strict=True
    ):
        assert pytest.approx(kind.curvature * np.linalg.norm(A, 2) ** 2 / len(y)) == L
        assert L_sample == pytest.approx(kind.curvature * np.square(A).sum(1).max())


PLAIN = {Fact.BOUNDED_CLIENTS, Fact.CONVEX_CLIENTS, Fact.CONVEX_SAMPLES}
STRONG = PLAIN | {Fact.STRONGLY_CONVEX}
SQUARE = {Fact.QUADRATIC}


def test_facts_of_quadratics():
    eye = torch.eye(3, dtype=torch.float64)
    zero = torch.zeros(2, 3, dtype=torch.float64)
    flat = torch.diag(torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64))
    tilted = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]], dtype=torch.float64)
    for A, b, facts in (
        (torch.stack([eye, 2 * eye]), zero, STRONG),
        (torch.stack([3 * eye, -eye]), zero, {Fact.STRONGLY_CONVEX}),
        (torch.stack([flat, flat]), zero, PLAIN | {Fact.SAME_CLIENTS}),
        # f is bounded, no f_i is
        (torch.stack([flat, flat]), tilted, PLAIN - {Fact.BOUNDED_CLIENTS}),
        (torch.stack([flat, eye]), tilted, STRONG - {Fact.BOUNDED_CLIENTS}),
        (torch.stack([eye, -3 * eye]), zero, set()),
    ):
        assert Quadratic(A, b).constants.facts == facts | SQUARE
    alike = problems.build("tridiagonal", {"dim": 9, "clients": 3, "noise": 0.0, "lambda": 0.01})
    assert alike.constants.facts == STRONG | SQUARE | {Fact.SAME_CLIENTS}


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


def hessians(problem):
    eye = torch.eye(problem.dim, dtype=torch.float64)
    zero = problem.grad(torch.zeros_like(eye[:1]))
    return (problem.grad(eye) - zero).transpose(0, 1).numpy()  # (n, d, d)


@pytest.mark.parametrize("name", ["quadratic", "tridiagonal", "ridge", "squares, few rows"])
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


@pytest.mark.parametrize("noise", [0.0, 3.0])
@pytest.mark.parametrize("clients", [1, 9])
@pytest.mark.parametrize("dim", [1, 25])
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
        longest = np.square(A).sum(1).max()
        assert problem.constants.L_sample_i[i] == pytest.approx(longest / 4)


def test_vertical_constants():
    problem = problems.build("vertical_least_squares", {**CANCER, "clients": 7})
    A = problem.train.dense()
    blocks = [A[:, a:b] for a, b in pairwise([0, 5, 10, 14, 18, 22, 26, 30])]
    want = 2 * max(np.linalg.norm(block, 2) ** 2 for block in blocks)
    assert problem.constants.extra["L_blk"] == pytest.approx(want, rel=1e-9)
    assert math.isclose(problem.constants.L, 2 * np.linalg.norm(A, 2) ** 2, rel_tol=1e-9)


# Softmax: gradients against automatic differentiation, constants against the Hessian ----------------


TWO = {"dataset": "breast_cancer", "clients": 3, "scale": "columns", "rows": 90}
SOFTMAX = {
    "nonconvex": {**DIGITS, "intercept": True},
    "l1": {**DIGITS, "regularizer": "l1", "lambda": 0.01},
    "uneven": {**DIGITS, "regularizer": "none", "split": {"dirichlet": 0.5}},
    "single": {**DIGITS, "rows": 30, "dtype": "float32", "lambda": 0.01},
    "two classes": TWO,
}


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    """The path of a LIBSVM file of 90 rows, 120 features of which 4 % are stored, 4 classes."""
    random = np.random.default_rng(3)
    A = scipy.sparse.random_array((90, 120), density=0.04, rng=random, format="csr")
    path = tmp_path_factory.mktemp("data") / "sparse.txt"
    dump_svmlight_file(A, random.integers(4, size=90), str(path), zero_based=False)
    return str(path)


def loss_of(problem, i):
    """Return f_i as a function of x (d,), by torch's own cross-entropy."""
    A, y = (torch.as_tensor(part) for part in problem.rows.parts()[i])

    def f(x):
        value = cross_entropy(A.to(x) @ x.view(A.shape[1], -1), y)
        return value + problem.regularizer.value(x) * problem.regularizer.smooth

    return f


@pytest.mark.parametrize("case", first_of_each(SOFTMAX))
def test_gradients_are_those_of_automatic_differentiation(case):
    problem = problems.build("softmax", SOFTMAX[case])
    x = points(problem, 3)
    grads, losses = problem.oracle(x)
    for b in range(3):
        for i in range(problem.n):
            at = x[b].clone().requires_grad_()
            loss = loss_of(problem, i)(at)
            torch.testing.assert_close(losses[b, i], loss.detach())
            torch.testing.assert_close(grads[b, i], torch.autograd.grad(loss, at)[0])


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("name", ["softmax", "least_squares"])
def test_cells_in_groups_are_as_all_at_once(monkeypatch, name, count):
    """So many cells that their scores do not fit into memory together; none at all is no error."""
    problem = problems.build(name, TWO)
    x = points(problem, count)
    grads, losses = problem.oracle(x)
    assert (grads.shape, losses.shape) == ((count, 3, problem.dim), (count, 3))
    monkeypatch.setattr(scores, "SCORES_AT_ONCE", 1)
    torch.testing.assert_close(problem.oracle(x), (grads, losses))
    assert problem.oracle(x, loss=False)[1] is None


def test_dense_and_compressed_rows_agree(sparse):
    problem = problems.build("softmax", {"dataset": sparse, "clients": 4, "remainder": "last"})
    other = problems.build("softmax", {"dataset": sparse, "clients": 4, "remainder": "last"})
    other._kept["linear"] = DenseScores(other.rows, other.dtype, other.device)
    for x in (points(problem, 3), points(problem, 3, 4)):
        for one, two in zip(problem.oracle(x), other.oracle(x), strict=True):
            torch.testing.assert_close(one, two)
        sample = Sample.at(torch.randint(22, (3, 4, 6), generator=torch.Generator().manual_seed(1)))
        torch.testing.assert_close(problem.grad(x, sample), other.grad(x, sample))


def test_with_two_classes_the_constants_are_attained_at_zero():
    problem = problems.build("softmax", {**TWO, "regularizer": "none"})
    for i, bound in enumerate(problem.constants.L_i):
        top = torch.linalg.eigvalsh(hessian(loss_of(problem, i), points(problem, size=0.0)))[-1]
        assert float(top) == pytest.approx(bound, rel=1e-9)


@pytest.mark.thorough
def test_the_minimum_is_what_scipy_finds():
    params = {**DIGITS, "regularizer": "l2", "lambda": 0.01, "split": {"dirichlet": 1.0}}
    problem = problems.build("softmax", params)

    def f(x):
        grads, losses = problem.oracle(torch.from_numpy(x)[None])
        return float(losses.mean()), grads.mean(1)[0].numpy()

    start = np.zeros(problem.dim)
    result = scipy.optimize.minimize(f, start, jac=True, method="L-BFGS-B", tol=1e-14)
    assert problem.constants.f_star == pytest.approx(result.fun, rel=1e-9)
    best = problem.minimizer()
    assert float(problem.grad(best[None]).mean(1).norm()) < 1e-10
    assert problem.constants.mu == 0.01


@pytest.mark.parametrize(
    "name", first_of_each(["vertical_least_squares", "logistic", "nonconvex_classification"])
)
def test_accuracy_at_zero_is_that_of_a_guess(name):
    problem = problems.build(name, {"dataset": "breast_cancer", "clients": 3})
    assert problem.evaluate(torch.zeros(1, problem.dim).double())["accuracy"].tolist() == [0.5]


def test_ties_are_shared():
    scores = torch.tensor([[1.0, 1.0, 0.0], [0.0, 2.0, 2.0], [3.0, 1.0, 2.0], [0.0, 0.0, 0.0]])
    labels = torch.tensor([0, 0, 0, 2])
    assert float(share_right(scores, labels)) == pytest.approx((0.5 + 0 + 1 + 1 / 3) / 4)
    assert float(share_right(scores * torch.nan, labels)) == 0
    assert float(share_signed(torch.tensor([1.0, -1.0, 0.0, torch.nan]))) == pytest.approx(1.5 / 4)
