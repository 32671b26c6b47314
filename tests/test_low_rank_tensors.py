"""Tensor operators: the bounds of their classes, tensorly as reference, and their messages."""

import itertools
import math

import pytest
import tensorly
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorly.decomposition import parafac, tensor_train, tucker

from raybench.compressors import tensors as methods
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
from raybench.core.streams import stream
from raybench.wire import unpack

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


@pytest.mark.parametrize("d", [*range(1, 40), 60, 64, 100])
def test_near_cube_has_fewest_values(d):
    sides = range(1, 12)
    fits = [c for c in itertools.product(sides, repeat=3) if math.prod(c) >= d]
    best = min((sum(c), math.prod(c)) for c in fits)
    dims = near_cube(d)
    assert (sum(dims), math.prod(dims)) == best
    assert math.prod(dims) - math.prod(dims) // dims[0] < d or d == 1


# Tensors ---------------------------------------------------------------------------------------


def counterexample():
    X = torch.zeros(7, 7, 7, dtype=torch.float64)
    j = torch.arange(1, 7)
    X[0, j, j] = X[j, 0, j] = X[j, j, 0] = 1
    return X.flatten()


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


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_tucker_is_never_worse_than_st_hosvd(data):
    dims = data.draw(st.lists(st.integers(2, 5), min_size=3, max_size=4))
    ranks = [data.draw(st.integers(1, n)) for n in dims]
    x = gaussian(6, math.prod(dims), seed=data.draw(st.integers(0, 1000)))
    start = relative(STHOSVD(dims, ranks), x)
    assert (relative(Tucker(dims, ranks), x) <= start + 1e-12).all()
    assert torch.equal(relative(Tucker(dims, ranks, 0), x), start)


def test_tucker_improves():
    x = gaussian(20, 6 * 6 * 6)
    gain = relative(STHOSVD((6, 6, 6), 2), x) - relative(Tucker((6, 6, 6), 2, 20), x)
    assert (gain > 1e-4).float().mean() > 0.9


@pytest.mark.parametrize("seed", range(3))
def test_as_good_as_tensorly(seed):
    dims = (5, 6, 7)
    X = gaussian(*dims, seed=seed)
    x = X.flatten()
    with tensorly.backend_context("numpy", local_threadsafe=True):
        A = X.numpy()

        def missed(found):
            value = torch.from_numpy(found)
            return float((value - X).square().sum() / X.square().sum())

        theirs = missed(tucker(A, rank=[2, 3, 2], n_iter_max=200, tol=1e-10).to_tensor())
        assert float(relative(Tucker(dims, (2, 3, 2), 200), x)) <= theirs + 1e-3
        train = tensor_train(A, rank=[1, 3, 4, 1]).to_tensor()
        value = TensorTrain(dims, (3, 4)).compress(x).decode()
        torch.testing.assert_close(value, torch.from_numpy(train).flatten())
        theirs = missed(parafac(A, 3, n_iter_max=300, init="svd", tol=1e-12).to_tensor())
        assert float(relative(CP(dims, 3, 300), x)) <= theirs + 0.03  # local minima


def test_cp_finds_a_tensor_of_low_rank_and_never_loses_to_rank_one():
    lines = [gaussian(4, 2, n, seed=n) for n in (5, 6, 7)]
    x = torch.einsum("xri,xrj,xrk->xijk", *lines).flatten(1)
    assert (relative(CP((5, 6, 7), 2, 300), x) < 1e-8).all()
    y = gaussian(30, 210)
    one = relative(STHOSVD((5, 6, 7), 1), y)
    for rank in (1, 2, 4, 9):
        assert (relative(CP((5, 6, 7), rank, 3), y) <= one + 1e-12).all()
    assert relative(CP((5, 6, 7), 9), y).mean() < relative(CP((5, 6, 7), 2), y).mean() - 0.1


def test_full_ranks_rebuild_x():
    x = gaussian(3, 60)
    X = x.view(3, 3, 4, 5)
    core, *factors = methods.hooi(X, (3, 4, 5), 2)
    value = torch.einsum("xabc,xia,xjb,xkc->xijk", core, *factors)
    torch.testing.assert_close(value, X)


# Messages ---

FORMS = {
    "tucker": ("xabc,xia,xjb,xkc->xijk", (3, 2, 2)),
    "tt": ("xaib,xbjc,xckd->xijk", (3, 2)),
    "cp": ("xri,xrj,xrk->xijk", (3,)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [60, 58])
def test_tensor_messages_decode_to_their_product(form, dtype, d):
    equation, ranks = FORMS[form]
    dims = (3, 4, 5)
    values = gaussian(6, values_of(form, dims, ranks), dtype=dtype)
    m = TensorMessage(d, dtype, values, form, dims, ranks)
    want = torch.einsum(equation, *m.parts()).flatten(1)[:, :d]
    assert close(m.decode(), want, dtype)
    assert close(m.scaled(0.3).add_to(want.clone()), 1.3 * want, dtype)
    assert m.bits.tolist() == [values.shape[-1] * 8 * dtype.itemsize] * 6
    assert torch.equal(unpack(m.pack()).decode(), m.decode())
    shared = TensorMessage(d, dtype, values.view(2, 3, -1), form, dims, ranks)
    assert close(shared.scaled(2.0).sum_clients(), 2 * want.view(2, 3, d).sum(1), dtype)
    here = torch.tensor([[True, False, True], [False] * 3])
    some = shared.masked(here)
    assert close(some.sum_clients(), (want.view(2, 3, d) * here[..., None]).sum(1), dtype)
    assert (some.sum_clients()[1] == 0).all()


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
            TensorMessage.read({**known, key: wrong}, payload, None)
