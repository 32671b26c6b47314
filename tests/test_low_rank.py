"""Low rank: compressors on matrices and tensors: best approximations, guarantees, messages."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raybench.compressors.low_rank import SVD, PowerStep, near_square, truncated_svd
from raybench.compressors.tensors import (
    CP,
    HOSVD,
    STHOSVD,
    TensorMessage,
    TensorTrain,
    Tucker,
    near_cube,
    values_of,
)
from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.core.streams import stream
from raybench.wire import FactorsMessage

DTYPES = (torch.float64, torch.float32)


def gaussian(*shape, seed=0, dtype=torch.float64):
    return stream(seed).normal(math.prod(shape)).view(shape).to(dtype)


def orthogonal(n, seed=0):
    return torch.linalg.qr(gaussian(n, n, seed=seed)).Q


def relative(op, x, source=None):
    """||C(x) - x||^2 / ||x||^2 per row."""
    value = op.compress(x, source).decode()
    return (value - x).double().square().sum(-1) / x.double().square().sum(-1)


def close(got, want, dtype):
    scale = 1e-12 if dtype == torch.float64 else 1e-5
    return bool((got.double() - want.double()).abs().max() <= scale * want.double().abs().max())


# Shapes ----------------------------------------------------------------------------------------


def test_near_square_has_fewest_values():
    for d in (*range(1, 70), 997, 1000, 4095):
        fewest = min(a - (-d // a) for a in range(1, d + 1) if a <= -(-d // a))
        a, b = near_square(d)
        assert a + b == fewest
        assert a * b >= d > (a - 1) * b
        assert a == min(s for s in range(1, fewest) if s * (fewest - s) >= d)


# Singular values -------------------------------------------------------------------------------

SIDES = [(1, 6), (6, 1), (5, 7), (14, 8), (32, 40), (3, 333), (40, 35), (64, 130), (130, 64)]


@pytest.mark.thorough
@pytest.mark.parametrize(("a", "b"), SIDES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e15])
def test_svd_equals_numpy(a, b, dtype, scale):
    X = gaussian(6, a, b, dtype=dtype) * scale
    X[1] = 0
    X[2] = X[2, :1]
    X[3] *= torch.logspace(0, -15, b, dtype=dtype)
    r = -(-min(a, b) // 2)
    U, rest = truncated_svd(X, r)
    assert (U.dtype, rest.dtype) == (dtype, dtype)
    left, values, right = np.linalg.svd(X.double().numpy(), full_matrices=False)
    want = torch.from_numpy(left[:, :, :r] * values[:, None, :r] @ right[:, :r])
    assert close(U @ rest, want, dtype)
    assert close(rest, U.mT.double() @ X.double(), dtype)
    inner = U.mT.double() @ U.double()
    assert (inner - torch.diag_embed(inner.diagonal(dim1=1, dim2=2))).abs().max() < 1e-5
    for i in range(6):
        alone = truncated_svd(X[i : i + 1].clone(), r)
        assert close((alone[0] @ alone[1])[0], (U @ rest)[i], dtype)


# Matrices --------------------------------------------------------------------------------------


@pytest.mark.parametrize("r", [1, 3, 5])
def test_svd_is_best_and_its_bound_tight_on_orthogonal_matrices(r):
    x = torch.stack([orthogonal(12), gaussian(12, 12)]).flatten(1)
    error = relative(SVD(r, (12, 12)), x)
    values = torch.linalg.svdvals(x.view(2, 12, 12)).square()
    torch.testing.assert_close(error, values[:, r:].sum(-1) / values.sum(-1))
    assert SVD(r, (12, 12)).alpha(144) == r / 12
    assert error[0] == pytest.approx(1 - r / 12, rel=1e-12)


def test_bits_and_what_is_sent_dense():
    x = gaussian(24)
    assert SVD(2, (6, 4)).compress(x).bits == 2 * (6 + 4) * 64
    assert PowerStep(2, (4, 6)).compress(x.float()).bits == 2 * (6 + 4) * 32
    dense = SVD(3, (6, 4))
    assert dense.compress(x).bits == 24 * 64
    assert (dense.alpha(24), dense.b1(24), dense.b2(24)) == (1.0, (1.0, 1.0), (1.0, 1.0))
    assert torch.equal(dense.compress(x).decode(), x)
    assert SVD(1, (5, 5)).b1(24) == (pytest.approx(0.04), 1.0)  # padded
    assert SVD(1, (5, 5)).b1(25) == (pytest.approx(0.2), 1.0)


def test_convolutions_are_folded_to_first_by_rest():
    x = gaussian(3, 8 * 3 * 2 * 2)
    folded, matrix = SVD(2, [8, 3, 2, 2]), SVD(2, (8, 12))
    assert torch.equal(folded.compress(x).decode(), matrix.compress(x).decode())
    assert folded.alpha(96) == 2 / 8


def reference_step(op, x, source, a, b):
    M = torch.nn.functional.pad(x.double(), (0, a * b - x.shape[-1])).view(-1, a, b)
    Q = source.normal(b * op.rank).view(-1, op.rank, b).mT
    for _ in range(op.iterations):
        P = torch.linalg.qr(M @ Q).Q
        Q = M.mT @ P
    return (P @ Q.mT).flatten(1)[:, : x.shape[-1]]


@pytest.mark.parametrize("d", [24, 33, 6007])
@pytest.mark.parametrize("dtype", DTYPES)
def test_power_step_is_subspace_iteration(d, dtype):
    x, source = gaussian(5, d, dtype=dtype), stream(3).each(range(5))
    for op in (PowerStep(1), PowerStep(2, iterations=3)):
        want = reference_step(op, x, source, *near_square(d))
        assert close(op.compress(x, source).decode(), want, dtype)


def test_power_step_on_matrices_of_lower_rank():
    row, column = gaussian(6), gaussian(8, seed=1)
    one = torch.outer(column, row).flatten()
    x = torch.stack([one, torch.zeros(48).double(), one * 1e-300, one * 1e150])
    for dtype in DTYPES:
        keep = x[:2].to(dtype) if dtype == torch.float32 else x
        value = PowerStep(3, (8, 6)).compress(keep).decode()
        assert close(value, keep, dtype)
        assert (value[1] == 0).all()


# Hard inputs, sizes, errors --------------------------------------------------------------------


def test_ranks_are_shares_or_lowered():
    assert STHOSVD((4, 6, 10), ("50%", 0.5, 99)).reached((4, 6, 10)) == (2, 3, 6)
    assert HOSVD((4, 6, 50), 99).reached((4, 6, 50)) == (4, 6, 24)
    assert TensorTrain((4, 6, 10), 99).reached((4, 6, 10)) == (4, 10)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SVD(1, (0, 4)), "no sizes"),
        (lambda: SVD(1, 24), "no sizes"),
        (lambda: SVD(1, (5, 4)).alpha(24), "5 x 4 = 20 entries for 24"),
        (lambda: SVD(1, (30, 1)).compress(gaussian(24)), "no slice of the first axis"),
        (lambda: CP((2, 3, 9)).bind(24), "2 x 3 x 9 = 54 entries for 24"),
        (lambda: STHOSVD((2, 3, 4), (1, 1)).bind(24), "2 ranks"),
        (lambda: TensorTrain((2, 3, 4), (1, 1, 1)).bind(24), "give 2, or one for all"),
        (lambda: HOSVD(ranks=0), "0 of "),
        (lambda: HOSVD(ranks=[]), "no ranks"),
        (lambda: HOSVD(ranks="200%"), "share"),
    ],
)
def test_errors(make, says):
    with pytest.raises(InputError, match=says):
        make()


def test_auto_takes_the_shape_of_a_single_tensor():
    conv, several = Layout((("w", (8, 3, 2, 2)),)), Layout((("w", (8, 3)), ("b", (8,))))
    assert SVD(2).bind(96, layout=conv).compressor == SVD(2, (8, 3, 2, 2))
    assert CP().bind(96, layout=conv).compressor == CP((8, 3, 2, 2))
    assert SVD(2, (12, 8)).bind(96, layout=conv).compressor == SVD(2, (12, 8))
    for layout in (several, Layout.vector(32), None):
        assert SVD().bind(32, layout=layout).compressor == SVD()


def test_near_cube_has_fewest_values():
    shapes = [(sum(c), math.prod(c)) for c in itertools.product(range(1, 12), repeat=3)]
    for d in (*range(1, 40), 60, 64, 100):
        dims = near_cube(d)
        entries = math.prod(dims)
        assert (sum(dims), entries) == min(shape for shape in shapes if shape[1] >= d)
        assert entries - entries // dims[0] < d or d == 1


# Tensors ---------------------------------------------------------------------------------------


def counterexample():
    X = torch.zeros(7, 7, 7, dtype=torch.float64)
    j = torch.arange(1, 7)
    X[0, j, j] = X[j, 0, j] = X[j, j, 0] = 1
    return X.flatten()


@pytest.mark.thorough
def test_plain_hosvd_is_not_contractive():
    x = counterexample()
    assert HOSVD((7, 7, 7), 1).compress(x).decode().abs().max() < 1e-12
    assert HOSVD((7, 7, 7), 1).alpha(343) is None
    for op in (STHOSVD((7, 7, 7), 1), Tucker((7, 7, 7), 1), CP((7, 7, 7), 1)):
        assert relative(op, x) <= 1 - op.alpha(343)
        assert op.alpha(343) == pytest.approx(1 / 49)


def test_alpha_formulas():
    assert STHOSVD((7, 7, 7), 2).alpha(343) == pytest.approx(2 / 7 * 2 / 7 * 2 / 4)
    mixed = STHOSVD((4, 5, 6, 7), (2, 1, 3, 2)).alpha(840)
    assert mixed == pytest.approx(2 / 4 * 1 / 5 * 3 / 6 * 2 / 6)
    assert TensorTrain((4, 5, 6), (2, 3)).alpha(120) == pytest.approx(2 / 4 * 3 / 6)
    assert TensorTrain((4, 5, 6), 1).alpha(120) == pytest.approx(1 / 4 * 1 / 5)
    assert CP((4, 5, 6), 3).alpha(120) == pytest.approx(1 / 4 * 1 / 5)
    assert TensorTrain((9, 9), 4).alpha(81) == pytest.approx(4 / 9)


def hard_tensors(dims, count=60):
    """Random tensors of many spectra, sparse ones, permutations, rotated diagonals."""
    yield from gaussian(count, *dims)
    yield from gaussian(count, *dims, seed=1).pow(5)
    sparse = stream(2).uniform(count * math.prod(dims)).view(count, *dims)
    yield from gaussian(count, *dims, seed=3) * (sparse < 0.08)
    n = min(dims)
    for seed in range(count):
        X = torch.zeros(dims, dtype=torch.float64)
        for i in range(n):
            at = stream(seed).fold(i).integers(len(dims), torch.tensor(n))
            X[tuple(at.tolist())] += 1
        yield X
    X = torch.zeros(dims, dtype=torch.float64)
    for i in range(n):
        X[(i,) * len(dims)] = 1
    yield X


OPS = [
    *(op((4, 4, 4), r) for op in (STHOSVD, Tucker) for r in (1, 2, (2, 1, 2), (1, 2, 2))),
    *(TensorTrain((4, 4, 4), r) for r in (1, 2, (1, 2))),
    *(CP((4, 4, 4), r) for r in (1, 2, 3)),
    *(op((3, 4, 2, 3), 1) for op in (STHOSVD, Tucker, TensorTrain, CP)),
]


@pytest.mark.thorough
@pytest.mark.parametrize("op", OPS, ids=str)
def test_contraction_on_hard_tensors(op):
    x = torch.stack([X.flatten() for X in hard_tensors(op.dims)])
    x = x[(x != 0).any(-1)]
    d = x.shape[-1]
    alpha = op.alpha(d)
    assert 0 < alpha < 1
    value = op.compress(x).decode()
    size = x.square().sum(-1)
    assert ((value - x).square().sum(-1) <= (1 - alpha) * size * (1 + 1e-9)).all()
    inner, own = (value * x).sum(-1), value.square().sum(-1)
    torch.testing.assert_close(inner, own, rtol=1e-7, atol=1e-9)  # an orthogonal projection
    assert (own >= alpha * size * (1 - 1e-9)).all()


def test_a_train_of_two_axes_is_tight():
    assert relative(TensorTrain((9, 9), 4), orthogonal(9).flatten()) == pytest.approx(5 / 9)


@pytest.mark.thorough
@given(st.data())
@settings(max_examples=25, deadline=None)
def test_tucker_is_never_worse_than_st_hosvd(data):
    dims = data.draw(st.lists(st.integers(2, 5), min_size=3, max_size=4))
    ranks = [data.draw(st.integers(1, n)) for n in dims]
    x = gaussian(6, math.prod(dims), seed=data.draw(st.integers(0, 1000)))
    start = relative(STHOSVD(dims, ranks), x)
    assert (relative(Tucker(dims, ranks), x) <= start + 1e-12).all()
    assert torch.equal(relative(Tucker(dims, ranks, 0), x), start)


@pytest.mark.thorough
def test_cp_finds_a_tensor_of_low_rank_and_never_loses_to_rank_one():
    lines = [gaussian(4, 2, n, seed=n) for n in (5, 6, 7)]
    x = torch.einsum("xri,xrj,xrk->xijk", *lines).flatten(1)
    assert (relative(CP((5, 6, 7), 2, 300), x) < 1e-8).all()
    y = gaussian(30, 210)
    one = relative(STHOSVD((5, 6, 7), 1), y)
    for rank in (1, 2, 4, 9):
        assert (relative(CP((5, 6, 7), rank, 3), y) <= one + 1e-12).all()
    assert relative(CP((5, 6, 7), 9), y).mean() < relative(CP((5, 6, 7), 2), y).mean() - 0.1


# Messages --------------------------------------------------------------------------------------


def test_factors_may_hold_more_than_d_but_not_less():
    left, right = gaussian(2, 3, 4, 2), gaussian(2, 3, 5, 2, seed=1)
    want = (left @ right.mT).flatten(-2)[..., :18]
    torch.testing.assert_close(FactorsMessage(18, torch.float64, left, right).decode(), want)
    with pytest.raises(ValueError, match="4 x 5 entries for 21"):
        FactorsMessage(21, torch.float64, left, right).decode()


def test_a_header_that_lies_is_refused():
    values = gaussian(values_of("tt", (3, 4, 5), (3, 2)))
    m = TensorMessage(60, torch.float64, values, "tt", (3, 4, 5), (3, 2))
    known, payload = m.known(), m.payload()
    assert torch.equal(TensorMessage.read(known, payload, None).decode(), m.decode())
    for key, wrong in (
        ("dims", [3, 4, 6]),
        ("ranks", [3, 1]),
        ("d", 61),
        ("d", 40),
        ("form", "cp"),
    ):
        with pytest.raises(ValueError):
            TensorMessage.demand({**known, key: wrong}, payload.shape[-1])
