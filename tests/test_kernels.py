"""The compiled kernels against dense torch, and one cell's independence of all others."""

from itertools import product

import numpy as np
import pytest
import scipy.sparse
import torch
from tiers import first_of_each

from raybench.core import parallel
from raybench.core.compiled import compiled
from raybench.core.streams import Sample
from raybench.problems import kernels
from raybench.problems.clients import DataProblem, Regularizer, Rows
from raybench.problems.margins import MarginProblem, SparseMargins
from raybench.problems.scores import DenseScores

# Loss, whether all values are 1, cells. Each is a kernel of its own, which takes two seconds to compile, so make test
# takes each loss, both kinds of rows and each width of a tile (8, 1 and 16 cells) once.
KERNELS = [("logistic", False, 24), ("logistic", True, 1), ("sigmoid_sq", False, 9)]
REST = [
    k for k in product(("logistic", "sigmoid_sq"), (False, True), (1, 9, 24)) if k not in KERNELS
]


def rows(d=37, counts=(5, 1, 300, 140), density=0.2, pattern=False, seed=0):
    random = np.random.default_rng(seed)
    N = sum(counts)
    A = scipy.sparse.random_array((N, d), density=density, rng=random, format="csr")
    A.data = np.ones_like(A.data) if pattern else random.standard_normal(A.nnz)
    A = A.tolil()
    A[3] = 0  # a row without features
    A = scipy.sparse.csr_array(A)
    A.eliminate_zeros()
    return Rows(A, np.sign(random.standard_normal(N)), np.cumsum([0, *counts]))


class Dense(MarginProblem):
    """The same by dense torch, for all devices: a problem on rows without regulariser."""

    def __init__(self, held, loss):
        super(DataProblem, self).__init__(len(held.counts), held.features.shape[1])
        self.rows, self.loss, self.regularizer = held, loss, Regularizer("none", 0.0)
        self._kept["linear"] = DenseScores(held, self.dtype, self.device)

    def kernel(self, batch=None):
        return None

    def oracle(self, x, shift=None, loss=True):
        grads, losses = super().oracle(x, loss)
        return (grads if shift is None else grads + self.spread(shift)), losses

    def minibatch(self, x, sample, shift):
        grads = self.grad(x, Sample.at(sample))
        return grads if shift is None else grads + self.spread(shift)


def both(held, loss):
    return SparseMargins(held, loss, torch.float64), Dense(held, loss)


def points(*shape, scale=1.0, seed=0):
    random = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, dtype=torch.float64, generator=random)


def close(got, want, tolerance=1e-12):
    return (got - want).abs().max() <= tolerance * want.abs().max()


@pytest.mark.parametrize(
    ("loss", "pattern", "B"),
    [*KERNELS, *(pytest.param(*kernel, marks=pytest.mark.thorough) for kernel in REST)],
)
def test_kernel_equals_dense(loss, pattern, B):
    held = rows(pattern=pattern)
    ours, reference = both(held, loss)
    for lead in ((B,), (B, 4)):
        x, shift = points(*lead, 37, scale=2.0), points(*lead, 37, seed=1)
        for added in (None, shift):
            got, want = ours.oracle(x, added, True), reference.oracle(x, added, True)
            assert close(got[0], want[0])
            assert close(got[1], want[1])
            assert got[0].is_contiguous()
        assert ours.oracle(x, None, False)[1] is None
        assert torch.equal(ours.oracle(x, None, False)[0], ours.oracle(x, None, True)[0])


@pytest.mark.parametrize(
    ("loss", "pattern"),
    [
        *(("logistic", True), ("sigmoid_sq", False)),
        pytest.param("logistic", False, marks=pytest.mark.thorough),
        pytest.param("sigmoid_sq", True, marks=pytest.mark.thorough),
    ],
)
def test_minibatch_equals_dense(loss, pattern):
    ours, reference = both(rows(pattern=pattern), loss)
    counts = torch.tensor([5, 1, 300, 140])
    draws = torch.rand(6, 4, 9, generator=torch.Generator().manual_seed(0))
    sample = (draws * counts[None, :, None]).long()
    for lead in ((6,), (6, 4)):
        x, shift = points(*lead, 37), points(*lead, 37, seed=1)
        for added in (None, shift):
            got, want = (k.minibatch(x, sample, added) for k in (ours, reference))
            assert close(got, want)
    with pytest.raises(IndexError, match="outside"):
        ours.minibatch(points(6, 37), sample + 1, None)


def test_single_precision_is_computed_in_double():
    held = rows()
    x = points(9, 37).float()
    single = SparseMargins(held, "logistic", torch.float32)
    double = SparseMargins(held, "logistic", torch.float64)
    got, want = single.oracle(x, None, True), double.oracle(x.double(), None, True)
    for a, b in zip(got, want):
        assert a.dtype == torch.float32
        assert torch.equal(a, b.float())


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e308, -1e200])
@pytest.mark.parametrize("B", [3, 20])
def test_a_diverged_cell_disturbs_no_other(B, bad, dense):
    kernel = both(rows(), "logistic")[dense]
    x = points(B, 37)
    clean = kernel.oracle(x, None, True)
    x[1] = bad
    grads, losses = kernel.oracle(x, None, True)
    others = torch.arange(B) != 1
    assert torch.equal(grads[others], clean[0][others])
    assert torch.equal(losses[others], clean[1][others])
    if not np.isfinite(bad):
        assert not torch.isfinite(losses[1, 2:]).any()
    else:
        assert not (losses[1, 2:] < 1e100).any()  # the loss of a margin near -1e200 and beyond


@pytest.mark.parametrize(
    ("loss", "B"),
    first_of_each([("logistic", 1), ("logistic", 4), ("sigmoid_sq", 1), ("sigmoid_sq", 4)]),
)
def test_saturated_margins(loss, B):
    A = scipy.sparse.csr_array(np.array([[1.0], [1.0]]))
    held = Rows(A, np.array([1.0, -1.0]), np.array([0, 1, 2]))
    ours = SparseMargins(held, loss, torch.float64)
    for x in (800.0, 1e308, float("inf")):
        grads, losses = ours.oracle(torch.full((B, 1), x, dtype=torch.float64), None, True)
        assert (losses[:, 0] == 0).all()
        assert (losses[:, 1] == (x if loss == "logistic" else 1.0)).all()
        assert (grads[:, 0] == 0).all()
        assert (grads[:, 1] == (1.0 if loss == "logistic" else 0.0)).all()


@pytest.mark.parametrize("B", first_of_each([1, 9]))
def test_small_losses_keep_their_digits(B):
    A = scipy.sparse.csr_array(np.ones((700, 1)))
    held = Rows(A, np.ones(700), np.array([0, 700]))
    x = torch.linspace(5, 600, B, dtype=torch.float64)[:, None]
    losses = SparseMargins(held, "logistic", torch.float64).oracle(x, None, True)[1]
    assert torch.allclose(losses, torch.log1p(torch.exp(-x)), rtol=1e-12, atol=0)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(monkeypatch, threads):
    ours = SparseMargins(rows(), "logistic", torch.float64)
    before = torch.get_num_threads()
    x, sample = points(70, 37), torch.zeros(70, 4, 2, dtype=torch.int64)
    try:
        torch.set_num_threads(1)
        want = *ours.oracle(x, x, True), ours.minibatch(x, sample, x)
        monkeypatch.setattr(parallel, "WORTH_THREADS", 0)
        torch.set_num_threads(threads)
        got = *ours.oracle(x, x, True), ours.minibatch(x, sample, x)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(got, want))


def wide_rows():
    random = np.random.default_rng(0)
    A = scipy.sparse.random_array((40, 70_000), density=1e-3, rng=random, format="csr")
    return Rows(A, np.sign(random.standard_normal(40)), np.array([0, 15, 40]))


def test_wide_rows_use_wide_indices():
    held = wide_rows()
    _, index, _ = SparseMargins(held, "logistic", torch.float64).rows
    assert index.tolist() == scipy.sparse.csr_array(held.features).indices.tolist()
    assert int(index.max()) >= 2**16


@pytest.mark.thorough
def test_kernel_of_wide_rows_equals_dense():
    ours, reference = both(wide_rows(), "logistic")
    x = points(3, 70_000)
    for got, want in zip(ours.oracle(x, None, True), reference.oracle(x, None, True)):
        assert close(got, want)


exp_minus = kernels.exp_minus


@compiled
def exp_all(a):
    out = np.empty_like(a)
    for i in range(len(a)):
        out[i] = exp_minus(a[i])
    return out


def test_exp_is_accurate_to_an_ulp():
    a = np.concatenate([np.linspace(0, 708, 1_000_001), 10.0 ** np.arange(-320, 3), [0.0]])
    want = np.exp(-a)
    assert (np.abs(exp_all(a) - want) <= 1.0 * np.spacing(want)).all()
    assert np.array_equal(exp_all(np.array([709.0, 1e308, np.inf])), np.zeros(3))
    assert np.isnan(exp_all(np.array([np.nan]))).all()
