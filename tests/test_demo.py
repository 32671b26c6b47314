"""DeMo and its compressor: cosine coefficients of chunks, against plain numpy and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.fft
import torch
from test_forged_messages import parts_of, signed

import raybench
from raybench.compressors.block_top_k import (
    DCTTopK,
    chunks_of,
    cosine,
    restored,
    transformed,
)
from raybench.core.layout import Layout
from raybench.core.streams import stream
from raybench.testing.trial import Method, started
from raybench.testing.vectors import gaussian
from raybench.wire import SparseMessage

pytestmark = pytest.mark.thorough

LAYOUT = Layout((("a", (96, 70)), ("b", (7,)), ("c", (6, 2, 5)), ("d", (130,)), ("e", (3, 67))))
CHUNKS = ((96, 70, 48, 35), (1, 7, 1, 7), (6, 10, 6, 10), (1, 130, 1, 26), (3, 67, 3, 1))
NET = {"model": "mlp:hidden=[6]", "dataset": "digits", "clients": 3, "rows": 90}
PROBLEM = {"name": "network", **NET, "batch": "full", "dtype": "float64"}


def test_chunks_have_the_largest_sides_that_divide():
    assert chunks_of(LAYOUT, 50) == CHUNKS
    assert chunks_of(Layout.vector(128), 64) == ((1, 128, 1, 64),)
    assert chunks_of(Layout((("none", (0, 3)), ("one", ()))), 64) == ((1, 1, 1, 1),)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coefficients_are_scipys(dtype):
    x = gaussian(2, LAYOUT.dim, dtype=dtype)
    z = transformed(x, CHUNKS)
    pieces = z.split(LAYOUT.sizes, -1)
    whole, rows = LAYOUT.views(x)[0][1].numpy(), LAYOUT.views(x)[3][1].numpy()
    chunk = scipy.fft.dctn(whole[48:, 35:], norm="ortho")
    near = 1e-5 if dtype == torch.float32 else 1e-13
    np.testing.assert_allclose(pieces[0][1].view(2, 2, 48, 35)[1, 1], chunk, atol=near)
    np.testing.assert_allclose(
        pieces[3][1].view(5, 26)[3], scipy.fft.dct(rows[78:104], norm="ortho"), atol=near
    )
    torch.testing.assert_close(restored(z, CHUNKS), x, rtol=0, atol=near)
    torch.testing.assert_close(z.norm(dim=-1), x.norm(dim=-1), rtol=10 * near, atol=0)


def test_the_matrix_is_the_transform():
    """The one of the GPU and the one of the CPU are the same map."""
    A = cosine(35, torch.float64, torch.device("cpu"))
    np.testing.assert_allclose(A, scipy.fft.dct(np.eye(35), axis=0, norm="ortho"), atol=1e-14)


def test_the_largest_coefficients_of_every_chunk_are_kept():
    op = DCTTopK(3, chunk=50).fit(LAYOUT.dim, 3, LAYOUT)
    x = gaussian(LAYOUT.dim)
    message = op.compress(x)
    kept = transformed(message.decode(), CHUNKS)
    want = transformed(x, CHUNKS)
    for own, full, (_, _, p, q) in zip(
        kept.split(LAYOUT.sizes), want.split(LAYOUT.sizes), CHUNKS, strict=True
    ):
        for a, b in zip(own.view(-1, p * q), full.view(-1, p * q), strict=True):
            top = b.abs().topk(min(3, p * q)).indices
            torch.testing.assert_close(a[top], b[top], rtol=1e-4, atol=1e-5)
            assert int((a.abs() > 1e-4).sum()) <= 3
    counts = sum(min(3, p * q) * (a // p) * (b // q) for a, b, p, q in CHUNKS)
    assert message.cost.values == counts


@pytest.mark.parametrize(
    "lie",
    [
        {"chunks": [[96, 70, 48, 35]]},
        {"chunks": [[96, 70, 47, 35], *map(list, CHUNKS[1:])]},
        {"chunks": "many"},
        {"chunks": [[1, LAYOUT.dim, 1, -1]]},
        {"chunks": None},
    ],
    ids=str,
)
def test_chunks_that_lie_are_refused(lie):
    message = DCTTopK(3, chunk=50).fit(LAYOUT.dim, 3, LAYOUT).compress(gaussian(LAYOUT.dim))
    head, sent = parts_of(message.pack())
    assert torch.equal(raybench.unpack(signed(head, sent)).decode(), message.decode())
    head["tree"].update(lie)
    with pytest.raises(ValueError, match="message"):
        raybench.unpack(signed(head, sent))


# The method ------------------------------------------------------------------------------------------


def by_hand(problem, x, rounds, gamma, k, combine, beta=0.9, decay=0.1):
    """Return x after rounds of DeMo in numpy, parameter by parameter: here each is a single chunk."""
    layout = problem.layout
    assert max(max(shape) for _, shape in layout) <= 64
    x, m = x.clone(), torch.zeros(problem.n, problem.dim, dtype=x.dtype)
    for _ in range(rounds):
        m = beta * m + gamma * problem.oracle(x[None])[0][0]
        step, rest = [], []
        for views in zip(*map(layout.views, m), strict=True):
            before = np.stack(views)
            axes = range(1, before.ndim)
            z = scipy.fft.dctn(before, axes=axes, norm="ortho").reshape(problem.n, -1)
            top = np.argsort(-np.abs(z), axis=1)[:, :k]
            sent, senders = np.zeros_like(z), np.zeros_like(z)
            np.put_along_axis(sent, top, np.take_along_axis(z, top, 1), 1)
            np.put_along_axis(senders, top, 1, 1)
            count = np.maximum(senders.sum(0), 1) if combine == "senders" else problem.n
            mean = (sent.sum(0) / count).reshape(before.shape[1:])
            step.append(np.sign(scipy.fft.idctn(mean, norm="ortho")).ravel())
            sent = scipy.fft.idctn(sent.reshape(before.shape), axes=axes, norm="ortho")
            rest.append((before - sent).reshape(problem.n, -1))
        m = torch.from_numpy(np.concatenate(rest, axis=1))
        x = (1 - gamma * decay) * x - gamma * torch.from_numpy(np.concatenate(step))
    return x


def method(combine, rounds=6, k=5):
    params = {"beta": 0.9, "decay": 0.1, "combine": combine}
    return Method("demo", params, {"name": "dct_top_k", "k": k}, PROBLEM, step=0.003, rounds=rounds)


@pytest.mark.parametrize("combine", ["mean", "senders"])
def test_iterates_are_those_by_hand(combine):
    run = started(method(combine).batch())
    x = run.s.x[0].clone()
    run.advance(6)
    want = by_hand(run.problem, x, 6, 0.003, 5, combine)
    torch.testing.assert_close(run.s.x[0], want, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "text",
    ["top_k:k=3", "rand_k:k=3", "natural", "per_tensor:of='top_k:k=2',sizes=[[4,5]]"]
    + ["top_k_natural:k=3", "optimal_rescale:of='top_k:k=3'", "optimal_rescale:of=sign"]
    + ["induced:first='top_k:k=2',then='rand_k:k=2'"],
)
def test_the_mean_of_senders_by_hand(text):
    x = torch.arange(1.0, 55.0).view(2, 3, 9).sin()
    message = (
        raybench.compressor(text)
        .bind(9, 3)
        .operator.compress(x, stream(0).each(range(2)).each(range(3)))
    )
    value = message.decode()
    sent = (value != 0).sum(1)
    want = torch.where(sent > 0, value.sum(1) / sent.clamp(min=1), 0.0)
    torch.testing.assert_close(message.mean_of_senders(), want)
    assert (sent < 3).any() or text in ("natural", "optimal_rescale:of=sign")


def test_a_zero_that_was_sent_counts():
    values = torch.tensor([[[1.0, 0.0], [3.0, 5.0]]])
    message = SparseMessage(4, values.dtype, torch.tensor([[[0, 2], [0, 2]]]), values)
    assert message.mean_of_senders().tolist() == [[2.0, 0.0, 2.5, 0.0]]
    gone = message.masked(torch.tensor([[True, False]]))
    assert gone.mean_of_senders().tolist() == [[1.0, 0.0, 0.0, 0.0]]
