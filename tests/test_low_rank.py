"""Low-rank and tensor operators: decompositions against numpy, the bounds of their classes, hard inputs."""

import math

import numpy as np
import pytest
import torch

import raybench
from raybench.compressors.low_rank import SVD, PowerStep, near_square, truncated_svd
from raybench.compressors.tensors import CP, HOSVD, STHOSVD, TensorTrain, Tucker, near_cube
from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.core.streams import stream
from raybench.testing.compressors import conformance
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


@pytest.mark.parametrize("d", [*range(1, 70), 997, 1000, 4095])
def test_near_square_has_fewest_values(d):
    pairs = [(a, -(-d // a)) for a in range(1, d + 1) if a <= -(-d // a)]
    fewest = min(a + b for a, b in pairs)
    a, b = near_square(d)
    assert a + b == fewest
    assert a * b >= d > (a - 1) * b
    assert a == min(s for s in range(1, fewest) if s * (fewest - s) >= d)


def test_large_shapes():
    assert near_square(11_181_642) == (3318, 3370)
    assert near_square(10**6) == (1000, 1000)
    assert near_cube(10**6) == (100, 100, 100)


# Singular values -------------------------------------------------------------------------------

SIDES = [(1, 6), (6, 1), (5, 7), (14, 8), (32, 40), (3, 333), (40, 35), (64, 130), (130, 64)]


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


@pytest.mark.parametrize("iterations", [1, 2])
def test_power_step_keeps_r_of_rank_in_the_mean(iterations):
    n, r, count = 10, 3, 4000
    spread = (
        orthogonal(n) @ torch.diag(0.6 ** torch.arange(n, dtype=torch.float64)) @ orthogonal(n, 1)
    )
    low = orthogonal(n)[:, :5] @ orthogonal(n, 1)[:5]  # rank 5, equal singular values
    op = PowerStep(r, (n, n), iterations)
    kept = [
        1 - relative(op, M.reshape(1, -1).expand(count, -1), stream(1).each(range(count)))
        for M in (orthogonal(n), low, spread)
    ]
    assert op.alpha(n * n) == r / n
    error = 5 * torch.stack(kept).std(-1) / math.sqrt(count)
    torch.testing.assert_close(kept[0].mean().item(), r / n, atol=1e-10, rtol=0)
    assert abs(kept[1].mean() - r / 5) <= error[1] + 1e-10
    assert kept[2].mean() >= r / n + 0.2  # far above the bound where the spectrum decays


def test_power_step_on_matrices_of_lower_rank():
    row, column = gaussian(6), gaussian(8, seed=1)
    one = torch.outer(column, row).flatten()
    x = torch.stack([one, torch.zeros(48).double(), one * 1e-300, one * 1e150])
    for dtype in DTYPES:
        keep = x[:2].to(dtype) if dtype == torch.float32 else x
        value = PowerStep(3, (8, 6)).compress(keep).decode()
        assert close(value, keep, dtype)
        assert (value[1] == 0).all()


# Messages --------------------------------------------------------------------------------------


def test_factors_may_hold_more_than_d():
    left, right = gaussian(2, 3, 4, 2), gaussian(2, 3, 5, 2, seed=1)
    m = FactorsMessage(18, torch.float64, left, right)
    want = (left @ right.mT).flatten(-2)[..., :18]
    torch.testing.assert_close(m.decode(), want)
    torch.testing.assert_close(m.sum_clients(), want.sum(1))
    target = torch.ones(2, 3, 36, dtype=torch.float64)[..., ::2]  # not contiguous
    torch.testing.assert_close(m.add_to(target), want + 1)
    with pytest.raises(ValueError, match="4 x 5 entries for 21"):
        FactorsMessage(21, torch.float64, left, right).decode()


# Hard inputs, sizes, errors --------------------------------------------------------------------

LARGE = [
    (SVD(2), 40 * 41 - 3),
    (PowerStep(5), 40 * 41 - 3),
    (TensorTrain((37, 40, 3), (35, 2)), 37 * 40 * 3 - 1),
    (Tucker((34, 35, 3), (33, 33, 1)), 34 * 35 * 3),
    (CP((34, 35, 36), 3), 34 * 35 * 36),
]


@pytest.mark.parametrize(("op", "d"), LARGE, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_itself_alone_and_whatever_is_beside_it(op, d, dtype):
    x, source = gaussian(3, d, dtype=dtype), stream(0).each(range(3))
    value = op.compress(x, source).decode()
    broken = x.clone()
    broken[1, 5] = math.nan
    shown = op.compress(broken, source).decode()
    assert shown[1].isnan().all()
    for i in (0, 2):
        alone = op.compress(x[i : i + 1].clone(), source.at(torch.tensor([i]))).decode()
        assert close(alone[0], value[i], dtype)
        assert close(shown[i], value[i], dtype)


@pytest.mark.parametrize(
    "make",
    [
        lambda d: SVD(2),
        lambda d: PowerStep(2, (4, 6)),
        lambda d: PowerStep(1, (3, 2, 2, 2), 3),
        lambda d: HOSVD((2, 2, 2, 3), 1),
        lambda d: STHOSVD((2, 2, 2, 3), ("50%", 1, 1, 2)),
        lambda d: Tucker((5, 5), 2),
        lambda d: TensorTrain((2, 2, 2, 3), (2, 1, 1)),
        lambda d: CP((2, 3, 4), 2),
    ],
)
def test_conformance_with_other_parameters(make):
    found = conformance(make, samples=2000, big=0)
    assert not [str(f) for f in found if not f.ok]


def test_ranks_are_shares_or_lowered():
    assert STHOSVD((4, 6, 10), ("50%", 0.5, 99)).reached((4, 6, 10)) == (2, 3, 6)
    assert HOSVD((4, 6, 50), 99).reached((4, 6, 50)) == (4, 6, 24)
    assert TensorTrain((4, 6, 10), 99).reached((4, 6, 10)) == (4, 10)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SVD(0), "rank: 0 is out of range"),
        (lambda: SVD(1, (0, 4)), "no sizes"),
        (lambda: SVD(1, 24), "no sizes"),
        (lambda: SVD(1, (5, 4)).alpha(24), "5 x 4 = 20 entries for 24"),
        (lambda: SVD(1, (30, 1)).compress(gaussian(24)), "no slice of the first axis"),
        (lambda: PowerStep(1, iterations=0), "iterations"),
        (lambda: CP((2, 3, 9)).bind(24), "2 x 3 x 9 = 54 entries for 24"),
        (lambda: STHOSVD((2, 3, 4), (1, 1)).bind(24), "2 ranks"),
        (lambda: TensorTrain((2, 3, 4), (1, 1, 1)).bind(24), "give 2, or one for all"),
        (lambda: HOSVD(ranks=0), "ranks: 0"),
        (lambda: HOSVD(ranks=[]), "no ranks"),
        (lambda: HOSVD(ranks="200%"), "share"),
        (lambda: Tucker(iterations=-1), "iterations"),
        (lambda: CP(rank=True), "rank"),
    ],
)
def test_errors(make, says):
    with pytest.raises(InputError, match=says):
        make()


def test_auto_takes_the_shape_of_a_single_tensor():
    conv, several = Layout((("w", (8, 3, 2, 2)),)), Layout((("w", (8, 3)), ("b", (8,))))
    assert SVD(2).bind(96, layout=conv).operator == SVD(2, (8, 3, 2, 2))
    assert CP().bind(96, layout=conv).operator == CP((8, 3, 2, 2))
    assert SVD(2, (12, 8)).bind(96, layout=conv).operator == SVD(2, (12, 8))
    for layout in (several, Layout.vector(32), None):
        assert SVD().bind(32, layout=layout).operator == SVD()


def test_from_sweep_files():
    assert raybench.compressor("svd", rank=2, shape=[[14, 8]]) == SVD(2, (14, 8))
    assert raybench.compressor("cp:dims=[[7, 4, 4]],rank=3") == CP((7, 4, 4), 3)
    want = Tucker((7, 4, 4), ("50%", 2, 2))
    assert raybench.compressor("tucker:dims=[[7, 4, 4]],ranks=[[50%, 2, 2]]") == want
    assert raybench.compressor("tensor_train") == TensorTrain()
