"""The autoencoder of LGC beside torch's layers, and the supports of its messages."""

import pytest
import torch
from torch.nn import functional

import raybench
from raybench.algorithms import autoencoder
from raybench.compressors.composed import Support, SupportMessage
from raybench.core.streams import stream
from raybench.testing.vectors import gaussian

pytestmark = pytest.mark.thorough

LIKE = torch.zeros(1, dtype=torch.float64)
LENGTH, KNOTS = 159, 20  # of the smooth sequences that it learns


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


@pytest.mark.parametrize(("k", "latents"), [(1, 4), (31, 4), (32, 8), (47, 8), (48, 12), (240, 60)])
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
