"""Softmax regression: gradients against automatic differentiation, constants against the Hessian."""

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
import torch
from sklearn.datasets import dump_svmlight_file
from tiers import first_of_each
from torch.autograd.functional import hessian
from torch.nn.functional import cross_entropy

from raybench import problems
from raybench.core.streams import Sample
from raybench.problems import scores
from raybench.problems.base import share_right, share_signed
from raybench.problems.scores import DenseScores

DIGITS = {"dataset": "digits", "clients": 4, "scale": "columns", "rows": 120}
TWO = {"dataset": "breast_cancer", "clients": 3, "scale": "columns", "rows": 90}
CASES = {
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


def points(problem, *lead, seed=0, size=0.5):
    random = torch.Generator().manual_seed(seed)
    return size * torch.randn(*lead, problem.dim, dtype=problem.dtype, generator=random)


def loss_of(problem, i):
    """Return f_i as a function of x (d,), by torch's own cross-entropy."""
    A, y = (torch.as_tensor(part) for part in problem.rows.parts()[i])

    def f(x):
        value = cross_entropy(A.to(x) @ x.view(A.shape[1], -1), y)
        return value + problem.regularizer.value(x) * problem.regularizer.smooth

    return f


@pytest.mark.parametrize("case", first_of_each(CASES))
def test_gradients_are_those_of_automatic_differentiation(case):
    problem = problems.build("softmax", CASES[case])
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
