"""Methods of practice: momentum, deep gradient compression, signs, matrix steps, Streaming DiLoCo."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.fft
import torch
from test_hostile import parts_of, signed
from tiers import first_of_each
from toys import P1, TOP, VALUES, each_round, full_gradients, on_p1, registered

import raybench
from raybench.compressors.base import keeping, kept_by, shares
from raybench.compressors.block_top_k import DCTTopK, chunks_of, cosine, restored, transformed
from raybench.core import registry
from raybench.core.errors import InputError
from raybench.core.layout import Layout, clipped
from raybench.core.streams import stream
from raybench.problems.quadratic import Quadratic
from raybench.testing.trial import TrialMethod, finished, recorded, started
from raybench.testing.vectors import gaussian
from raybench.wire import SparseMessage


class Tensors(Quadratic):
    """Convex quadratics of five clients whose variable is a 3 x 4 matrix, a vector of 4, a 2 x 3 matrix."""

    layout_of = Layout((("w", (3, 4)), ("b", (4,)), ("v", (2, 3))))

    def __init__(self) -> None:
        random = np.random.default_rng(2)
        Q = np.linalg.qr(random.standard_normal((5, 22, 22))).Q
        A = Q * random.uniform(0.3, 2.0, (5, 1, 22)) @ Q.swapaxes(1, 2)
        b = random.standard_normal((5, 22))
        super().__init__(torch.from_numpy(A), torch.from_numpy(b), layout=self.layout_of)


@pytest.fixture(scope="module", autouse=True)
def problems():
    with registered("problem", tensors=Tensors):
        yield


# Deep gradient compression --------------------------------------------------------------------


def test_tensors_are_clipped_one_by_one():
    layout, limit = Tensors.layout_of, 0.7
    g = torch.linspace(-2, 3, 3 * 22, dtype=torch.float64).view(3, 22)
    g[1] *= 1e-2
    g[2] = 0
    before, after = layout.views(g), layout.views(clipped(layout, g, limit))
    for whole, cut in zip(before, after, strict=True):
        norm, now = whole.flatten(1).norm(dim=-1), cut.flatten(1).norm(dim=-1)
        assert torch.allclose(now, norm.clamp(max=limit), rtol=1e-12)
        assert norm[0] > limit > norm[1] > 0
        assert torch.equal(cut[1:], whole[1:])
        scale = (now[0] / norm[0]).item()
        assert torch.allclose(cut[0], scale * whole[0], rtol=1e-12)


@pytest.mark.parametrize(
    ("compressor", "of"),
    [
        (TOP, lambda share: -(-share * 22 // 1)),
        (
            {"name": "per_tensor", "of": "top_k:k=1"},
            lambda share: sum(-(-share * size // 1) for size in (12, 4, 6)),
        ),
    ],
    ids=["whole", "per_tensor"],
)
def test_dgc_warms_up(compressor, of):
    """The shares of the warm-up, so many rounds each, then the compressor's own k."""
    params = {"warmup": [["50%", 0.25, "10%"]], "warmup_rounds": 4}
    method = TrialMethod("dgc", params, compressor, {"name": "tensors"}, step=0.02, rounds=15)
    counts = each_round(started(method.batch()), lambda r: r.net.ledger.up[VALUES].copy())
    sent = np.diff(np.concatenate(counts))[:15]
    assert sent.tolist() == [of(0.5)] * 4 + [of(0.25)] * 4 + [of(0.1)] * 4 + [3.0] * 3


def test_warm_up_ratios():
    """Those of the paper, and base^(j/6) of 0.1%: 0.316, 0.1, 0.0316, 0.01, 0.00316."""
    op = registry.lookup("compressor", "dgc").target(k="0.1%")
    assert shares("off", op, 1000) == []
    assert shares("paper", op, 10**6) == ["25%", "6.25%", "1.5625%", "0.4%"]
    result = [float(str(share).rstrip("%")) / 100 for share in shares("geometric", op, 10**6)]
    assert result == pytest.approx([0.316, 0.1, 0.0316, 0.01, 0.00316], rel=2e-3)
    assert shares(["99.99%", 4, "30%"], op, 10) == ["100%", 4, "30%"]
    for wrong in ("150%", 0, "much"):
        with pytest.raises(InputError, match=r"warmup\[1\]"):
            shares(["25%", wrong], op, 100)


def test_operators_with_another_k():
    def made(name, **params):
        return registry.lookup("compressor", name).target(**params)

    assert keeping(made("top_k", k=3), "50%") == made("top_k", k="50%")
    nested = keeping(made("per_tensor", of="chain:first=(top_k:k=1),then=natural"), "25%")
    x = torch.arange(1.0, 9.0)
    assert int((nested.bind(8)(x, started(on_p1("gd").batch()).net.roots).decode() != 0).sum()) == 2
    assert kept_by(nested) == "25%"
    assert kept_by(made("natural")) is None
    for without in (made("natural"), made("per_tensor", of="scaled_sign")):
        with pytest.raises(InputError, match="keeps no number"):
            keeping(without, 1)


# Signs ----------------------------------------------------------------------------------------


def test_ties_by_coin():
    """Two clients that disagree everywhere: the vote is the server's coin, fair and the same for all."""
    problem = {**P1, "clients": 2, "dim": 200}
    run = started(
        TrialMethod("sign_sgd", {"ties": "random"}, None, problem, step=1.0, rounds=1).batch()
    )
    g = full_gradients(run)
    run.advance(1)
    tie = (g[:, 0] >= 0) != (g[:, 1] >= 0)
    went = -run.s.x[tie]
    assert set(went.tolist()) == {-1.0, 1.0}
    assert abs(float(went.mean())) < 4 / tie.sum().item() ** 0.5
    assert torch.equal(-run.s.x[~tie], g[:, 0][~tie].sign())


# Steps that are matrices of norm 1 -------------------------------------------------------------

NET = {"name": "network", "model": "mlp:hidden=[6],activation=tanh", "dataset": "digits"}
NET |= {"clients": 3, "rows": 90, "batch": "full", "dtype": "float64"}


def dion_by_hand(run, rounds, gamma, rank=4, mu=0.95, beta2=0.95, decay=0.1):
    """Dion on the mean gradient with QR, as microsoft/dion's simple form: for one client."""
    f, layout = run.problem, run.problem.layout
    Q = [None if q is None else q[0].clone() for q in run.s.Q]
    x = f.start().clone()
    M = [torch.zeros(shape, dtype=x.dtype) for _, shape in layout]
    for _ in range(rounds):
        steps = []
        for j, g in enumerate(layout.views(f.grad(x[None])[0].mean(0))):
            if g.ndim < 2:
                steps.append(torch.sign(0.9 * M[j] + 0.1 * g))
                M[j] = beta2 * M[j] + (1 - beta2) * g
                continue
            M[j] = M[j] + g
            P = torch.linalg.qr(M[j] @ Q[j]).Q
            R = M[j].T @ P
            M[j] = M[j] - (1 - mu) * P @ R.T
            Q[j] = R / (R.norm(dim=0) + 1e-8)
            steps.append((g.shape[0] / g.shape[1]) ** 0.5 * P @ Q[j].T)
        x = x - gamma * (layout.concat(steps) + decay * x)
    return x


def test_dion_by_hand():
    problem = {**NET, "clients": 1}
    method = TrialMethod("dion", {"rank": 4, "decay": 0.1}, None, problem, step=0.02, rounds=15)
    run = started(method.batch())
    run.advance(0)
    want = dion_by_hand(run, 15, 0.02)
    run.advance(15)
    torch.testing.assert_close(run.s.x[0], want, rtol=1e-9, atol=1e-11)


@pytest.mark.thorough
def test_ef21_muon_with_the_identity_norm_is_ef21_sgdm(monkeypatch):
    operator = {"name": "top_k", "k": "10%"}
    want = finished(
        TrialMethod(
            "ef21_sgdm", {"eta": 0.3, "batch": 90}, operator, NET, step=0.1, rounds=8
        ).batch()
    )
    monkeypatch.setattr("raybench.algorithms.ef21_momentum.steepest", lambda G, norm: G)
    got = finished(
        TrialMethod(
            "ef21_muon", {"eta": 0.3, "batch": 90}, operator, NET, step=0.1, rounds=8
        ).batch()
    )
    torch.testing.assert_close(got.s.x, want.s.x, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("norm", first_of_each(["spectral", "sign", "euclidean"]))
def test_steps_have_norm_one(norm):
    method = TrialMethod(
        "ef21_muon", {"norm": norm, "init": "full"}, {"name": "identity"}, NET, step=0.5, rounds=1
    )
    run = finished(method.batch())
    moved = run.problem.layout.views((run.problem.start() - run.s.x[0]) / 0.5)
    for (_, shape), step in zip(run.problem.layout, moved, strict=True):
        if norm == "euclidean":
            assert float(step.norm()) == pytest.approx(1.0, rel=1e-9)
        elif norm == "sign" or len(shape) < 2:
            assert set(step.unique().tolist()) <= {-1.0, 0.0, 1.0}
        else:
            size = float(torch.linalg.matrix_norm(step, 2))
            assert 0.6 < size / max(1.0, shape[0] / shape[1]) ** 0.5 < 1.3


# Streaming DiLoCo: fragments in turns ------------------------------------------------------------

WORK = {"inner_step": 0.01, "weight_decay": 0.1}


def diloco(params, rounds=7, problem=NET, name="streaming_diloco", **more):
    compressor = {"name": "identity"} if name == "streaming_diloco" else None
    return TrialMethod(
        name, {**WORK, **params}, compressor, problem, step=0.7, rounds=rounds, **more
    )


def streaming_by_hand(problem, x, rounds, steps, late, mix, momentum=0.9, gamma=0.7):
    """Return x after so many rounds with two fragments, by torch's AdamW."""
    x, v, n = x.clone(), torch.zeros_like(x), problem.n
    ys = [torch.nn.Parameter(x.clone()) for _ in range(n)]
    own = {"lr": 0.01, "betas": (0.9, 0.999), "weight_decay": 0.1}
    inner = [torch.optim.AdamW([y], **own) for y in ys]
    parts = [slice(0, 384), slice(384, 460)]
    waiting = None

    def work(count):
        for _ in range(count):
            for i, y in enumerate(ys):
                y.grad = problem.oracle(y.detach()[None])[0][0, i]
                inner[i].step()

    def apply(part, g):
        v[part] = momentum * v[part] + g
        x[part] -= gamma * (g + momentum * v[part])
        for y in ys:
            y.data[part] = mix * y.data[part] + (1 - mix) * x[part]

    for t in range(rounds):
        if waiting is not None and late:
            work(late)
            apply(*waiting)
            work(steps - late)
        else:
            work(steps)
        part = parts[t % 2]
        waiting = part, torch.stack([(x - y.detach())[part] for y in ys]).mean(0)
        if not late:
            apply(*waiting)
    return x


@pytest.mark.parametrize(("late", "mix"), first_of_each([(1, 0.5), (0, 0.0), (0, 0.5), (2, 0.0)]))
def test_iterates_are_those_of_torchs_adamw(late, mix):
    run = started(diloco({"steps": 3, "late": late, "mix": mix}).batch())
    x = run.s.x[0].clone()
    run.advance(7)
    want = streaming_by_hand(run.problem, x, 7, 3, late, mix)
    assert not torch.allclose(want, x)
    torch.testing.assert_close(run.s.x[0], want, rtol=1e-9, atol=1e-11)


def test_a_round_costs_its_fragment():
    result = recorded(finished(diloco({"steps": 2}, rounds=4).batch()))
    assert result["values_up"][0].tolist() == [0, 384, 460, 844, 920]
    assert result["values_down"][0].tolist() == [0, 384, 460, 844, 920]


def test_what_is_late_arrives_within_the_round():
    with pytest.raises(InputError, match=r"algorithm\.late[\s\S]*steps"):
        started(diloco({"steps": 3, "late": 3}).batch())


# DeMo and its compressor: cosine coefficients of chunks, against plain numpy and scipy ------------


LAYOUT = Layout((("a", (96, 70)), ("b", (7,)), ("c", (6, 2, 5)), ("d", (130,)), ("e", (3, 67))))
CHUNKS = ((96, 70, 48, 35), (1, 7, 1, 7), (6, 10, 6, 10), (1, 130, 1, 26), (3, 67, 3, 1))
RELU = {"model": "mlp:hidden=[6]", "dataset": "digits", "clients": 3, "rows": 90}
PROBLEM = {"name": "network", **RELU, "batch": "full", "dtype": "float64"}


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


@pytest.mark.thorough
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


def demo_by_hand(problem, x, rounds, gamma, k, combine, beta=0.9, decay=0.1):
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


def demo(combine, rounds=6, k=5):
    params = {"beta": 0.9, "decay": 0.1, "combine": combine}
    return TrialMethod(
        "demo", params, {"name": "dct_top_k", "k": k}, PROBLEM, step=0.003, rounds=rounds
    )


@pytest.mark.parametrize("combine", ["mean", "senders"])
def test_iterates_are_those_by_hand(combine):
    run = started(demo(combine).batch())
    x = run.s.x[0].clone()
    run.advance(6)
    want = demo_by_hand(run.problem, x, 6, 0.003, 5, combine)
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
        .compressor.compress(x, stream(0).each(range(2)).each(range(3)))
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
