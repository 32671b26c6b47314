"""LGC: its phases in numpy, what it sends, and its autoencoder beside torch's layers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy_methods import top
from tiers import first_of_each
from torch.nn import functional
from toys import TOP, each_round, on_p1

import raybench
from raybench.algorithms import autoencoder
from raybench.compressors.composed import Support, SupportMessage
from raybench.core.errors import InputError
from raybench.core.streams import stream
from raybench.testing.trial import TrialMethod, started
from raybench.testing.vectors import gaussian
from raybench.wire.ledger import COLUMNS

SMALL = {"width": 4, "momentum": 0.7, "masking": False, "innovation": 1}
PHASES = {"dense_rounds": 3, "fit_rounds": 6, "fit_steps": 2, "fit_step": 0.01}
BOTH = pytest.mark.parametrize("variant", ["all_reduce", "server"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("compressor", "params", "says"),
    [
        *((op, {}, r"compressor(.|\n)*top_k") for op in ("natural", {"name": "dgc", "k": 3})),
        (TOP, {"innovation": 13}, "13 of 12"),
    ],
)
def test_what_the_plan_refuses(compressor, params, says):
    with pytest.raises(InputError, match=says):
        on_p1("lgc", compressor, **params).batch()


# The phases -------------------------------------------------------------------------------------------


def reference(k, variant, W, dense, fit, leader, innovation, momentum, masking):
    """Yield the iterates of LGC in plain numpy; W() are the weights that its last phase has."""

    def product(y, w):  # strided
        rows = [y[:, 2 * j : 2 * j + 3].ravel() @ w for j in range((y.shape[1] - 1) // 2)]
        return np.array(rows).T

    def E(values):
        y = np.zeros((1, 16 * max(1, -(-(len(values) - 15) // 16)) + 15))
        y[0, : len(values)] = values
        for w in W()[:4]:
            y = product(y, w)
            y = np.where(y > 0, y, 0.01 * y)
        return W()[4].T @ y

    def D(y, length):
        for w in W()[5:9]:
            out = np.zeros((w.shape[1] // 3, 2 * y.shape[1] + 1))
            for j in range(y.shape[1]):
                out[:, 2 * j : 2 * j + 3] += (y[:, j] @ w).reshape(3, -1).T
            y = np.where(out > 0, out, 0.01 * out)
        return (W()[9].T @ y)[0, :length]

    x, u, v = k["x"], 0, 0
    for t in range(1, k["rounds"] + 1):
        u = momentum * u + k["grad"](x)
        v = v + u
        n = len(v)
        if t <= dense:
            sent = v
        elif t <= dense + fit:
            sent = top(v, k["k"])
        else:
            lead = (t - 1) % n if leader == "rotating" else 0
            S = np.sort(np.argsort(-np.abs(v[lead]))[: k["k"]])
            every = v if variant == "all_reduce" else v[lead : lead + 1]
            codes = np.mean([E(own[S]) for own in every], 0)
            h = D(codes, len(S))
            sent = np.zeros_like(v)
            for own, out in zip(v, sent, strict=True):
                out[S] = (h @ own[S]) / (h @ h) * h
            if innovation != "off":
                rest = v - sent
                more = top(rest, innovation)
                sent = sent + (more if variant == "server" else np.where(more[lead] != 0, rest, 0))
        v = v - sent
        u = np.where(sent != 0, 0, u) if masking and t > dense else u
        x = x - 0.05 * sent.mean(0)
        yield x


@BOTH
@pytest.mark.parametrize(
    ("leader", "innovation", "masking"), [("rotating", 2, False), ("first", "off", True)]
)
def test_iterates_are_those_by_hand(variant, leader, innovation, masking):
    more = {"leader": leader, "innovation": innovation, "masking": masking, "momentum": 0.6}
    method = on_p1(
        "lgc", {"name": "top_k", "k": 8}, 20, 0.05, width=4, variant=variant, **PHASES, **more
    )
    run = started(method.batch())
    run.advance(0)

    def grad(x):
        return run.problem.oracle(torch.from_numpy(x)[None])[0][0].numpy()

    k = {"x": run.s.x[0].numpy().copy(), "grad": grad, "rounds": 20, "k": 8}
    phases = (PHASES["dense_rounds"], PHASES["fit_rounds"])
    weights = lambda: [w[0].numpy() for w in run.s.W]  # noqa: E731
    by_hand = reference(k, variant, weights, *phases, leader, innovation, 0.6, masking)
    for t in range(20):
        run.advance(1)
        want = next(by_hand)
        np.testing.assert_allclose(run.s.x[0], want, rtol=1e-9, atol=1e-11, err_msg=f"round {t}")


@BOTH
def test_what_travels(variant):
    """Values and bits of indices, a round of each phase, per client up and once down."""
    d, n, k, more, width = 100, 4, 40, 3, 4
    problem = {"name": "quadratic", "dim": d, "clients": n, "seed": 1}
    params = {**SMALL, **PHASES, "innovation": more, "variant": variant}
    method = TrialMethod("lgc", params, {"name": "top_k", "k": k}, problem, step=0.01, rounds=12)
    at = [COLUMNS.index(name) for name in ("values", "index_explicit")]
    ways = lambda r: np.stack([side[at, 0] for side in (r.net.ledger.up, r.net.ledger.down)])  # noqa: E731
    each = each_round(started(method.batch()), ways)
    booked = np.diff(each, axis=0)
    latents, wide = 8, 7  # 4 for 16 values, 8 for 32 to 47; an index of 100
    W = 3 * width * (1 + 2 * width + 8 * width + 4 * width) + 4 * width
    W += 3 * (4 * 2 + 2 * width + width * 2 * width + 2 * width * 2) + 2
    dense, sparse = [[d, 0], [d, 0]], [[k, k * wide], [d, 0]]
    if variant == "server":
        last = [[latents / n + 1 + more, (k / n + more) * wide], [d + latents, k * wide]]
    else:
        last = [[latents + 1 + more, (k + more) * wide / share] for share in (n, 1)]
    latest = [np.array(last) for _ in range(3)]
    latest[0] = latest[0] + np.array([[0, 0], [W, 0]])
    np.testing.assert_allclose(booked, [dense] * 3 + [sparse] * 6 + latest)


# Its autoencoder, beside torch's layers, and the supports of its messages -------------------------


LIKE = torch.zeros(1, dtype=torch.float64)


def weights(width=6, cells=2):
    return autoencoder.initial(stream(range(cells)), width, LIKE)


def torchs(W, x):
    """Return latents and reconstruction of vectors x (N, k) by torch's own layers, of one cell's weights."""
    y = functional.pad(x, (0, 16 * autoencoder.places(x.shape[1]) + 15 - x.shape[1]))[:, None]
    for w in W[:4]:
        y = functional.leaky_relu(
            functional.conv1d(y, w.view(-1, 3, w.shape[1]).permute(2, 0, 1), stride=2)
        )
    z = functional.conv1d(y, W[4].T[..., None])
    y = z
    for w in W[5:9]:
        filters = w.view(w.shape[0], 3, -1).permute(0, 2, 1)
        y = functional.leaky_relu(functional.conv_transpose1d(y, filters, stride=2))
    y = functional.conv1d(y, W[9].T[..., None])
    return z.transpose(1, 2).flatten(1), y[:, 0, : x.shape[1]]


@pytest.mark.parametrize(
    ("k", "latents"), first_of_each([(47, 8), (1, 4), (31, 4), (32, 8), (48, 12), (240, 60)])
)
def test_layers_are_torchs(k, latents):
    W, x = weights(), gaussian(2, 3, k)
    z = autoencoder.encoded(W, x)
    y = autoencoder.decoded(W, z, k)
    assert z.shape == (2, 3, latents)
    for cell in range(2):
        own_z, own_y = torchs([w[cell] for w in W], x[cell])
        torch.testing.assert_close(z[cell], own_z, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(y[cell], own_y, rtol=1e-12, atol=1e-12)


def test_the_widths_are_those_of_the_published_layers():
    shapes = [tuple(w.shape[1:]) for w in weights(64, 1)]
    assert shapes[:5] == [(3, 64), (192, 128), (384, 256), (768, 64), (64, 4)]
    assert shapes[5:] == [(4, 96), (32, 192), (64, 384), (128, 96), (32, 1)]


def test_it_knows_no_scale():
    W, x = weights(), gaussian(2, 3, 50)
    y = autoencoder.decoded(W, autoencoder.encoded(W, x), 50)
    tiny = autoencoder.decoded(W, autoencoder.encoded(W, 1e-9 * x), 50)
    torch.testing.assert_close(1e9 * tiny, y, rtol=1e-12, atol=1e-12)
    error = autoencoder.error(W, x, False)
    torch.testing.assert_close(autoencoder.error(W, 1e-9 * x, False), error, rtol=1e-12, atol=0)
    assert autoencoder.error(W, 0 * x, False).tolist() == [0, 0]


@pytest.mark.thorough
@pytest.mark.parametrize("common", [False, True])
def test_a_fit_is_torchs_adam(common):
    W, x = weights(), gaussian(2, 3, 40)
    fitted, moments = W, [[torch.zeros_like(w) for w in W] for _ in range(2)]
    theirs = [w.clone().requires_grad_() for w in W]
    adam = torch.optim.Adam(theirs, lr=0.01)
    for t in range(1, 8):
        loss = 0.0
        for cell in range(2):
            z, y = torchs([w[cell] for w in theirs], x[cell])
            own = x[cell]
            if common:
                own = own.mean(0, keepdim=True)
                z = z.mean(0, keepdim=True)
                y = autoencoder.decoded([w[cell : cell + 1] for w in theirs], z[None], 40)[0]
            loss = loss + (y - own).square().sum() / own.square().sum()
        torch.testing.assert_close(autoencoder.error(fitted, x, common).sum(), loss.detach())
        adam.zero_grad()
        loss.backward()
        adam.step()
        fitted, moments = autoencoder.fitted(fitted, moments, x, common, 0.01, t)
        for ours, want in zip(fitted, theirs, strict=True):
            torch.testing.assert_close(ours, want.detach(), rtol=1e-6, atol=1e-9)


# Supports ---------------------------------------------------------------------------------------------


def test_a_support_is_what_a_message_lists():
    x = gaussian(2, 3, 9)
    for text in ("top_k:k=4", "per_tensor:of=(top_k:k=2),sizes=[[4,5]]", "identity"):
        message = raybench.compressor(text).compress(x)
        support = Support(message)
        assert isinstance(support, SupportMessage)
        assert torch.equal(support.decode() != 0, message.decode() != 0)
        assert support.cost.values == 0
    mixed = raybench.compressor("per_tensor:of=(top_k:k=2),sizes=[[4,5]]").compress(x)
    assert torch.equal(
        x.gather(-1, Support(mixed).indices), mixed.decode()[mixed.decode() != 0].view(2, 3, 4)
    )
    for text in (
        "natural",
        "rand_k:k=2",
        "hard_threshold:threshold=1",
        "chain:first=(top_k:k=4),then=natural",
    ):
        with pytest.raises(TypeError, match="fixed number"):
            Support(raybench.compressor(text).compress(x))
