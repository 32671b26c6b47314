"""The vectors that compressors are tried on: families, drawn ones, and real gradients of networks on images."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from raybench.core.streams import Stream, stream


def families(d: int) -> dict[str, Tensor]:
    """Return one vector (d,) float64 of each family on which compressors behave differently."""
    at = torch.arange(1, d + 1, dtype=torch.float64)
    signs = 1 - 2.0 * (at % 2)
    normal = stream(1).normal(d)
    chi2 = stream(2).normal(d).square() + stream(3).normal(d).square()
    critical = torch.full((d,), 1 / (1 + math.sqrt(d)), dtype=torch.float64)
    critical[0] = 1.0
    return {
        "gaussian": normal,
        "student t2": stream(4).normal(d) / (chi2 / 2).sqrt(),
        "one-hot": -3.0 * (at == d // 2 + 1).double(),
        "flat": 2 / 3 * signs,  # powers of two are farthest from 2/3
        "zipf": signs / at,
        "terngrad-critical": critical,
        "tiny": 1e-6 * normal,
    }


def drawn(d: int, draws: int, seed: int = 0) -> dict[str, Tensor]:
    """Return vectors (draws, d), float32, with i.i.d. entries of each family.

    gaussian; laplace; uniform on (0, 1); exponential; student t2 (two degrees of freedom: no
    variance, heavy tails); lognormal (of sigma 2, random signs).
    """
    root = stream(seed).fold("study").each(range(draws))

    def signs(name: str) -> Tensor:
        return 1 - 2 * (root.fold(name).uniform(d) < 0.5).double()

    def exponentials(name: str) -> Tensor:
        return -torch.log1p(-root.fold(name).uniform(d))

    scale = exponentials("t2 scale").clamp_min(1e-12).sqrt()
    vectors = {
        "gaussian": root.fold("gaussian").normal(d),
        "laplace": exponentials("laplace") * signs("laplace sign"),
        "uniform": root.fold("uniform").uniform(d),
        "exponential": exponentials("exponential"),
        "student t2": root.fold("t2").normal(d) / scale,
        "lognormal": torch.exp(2 * root.fold("lognormal").normal(d)) * signs("lognormal sign"),
    }
    return {name: value.float() for name, value in vectors.items()}


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return standard Gaussians of a shape."""
    return stream(seed).fold("gaussian").normal(math.prod(shape)).view(shape).to(dtype)


def cells_and_clients(cells: int, clients: int, seed: int = 0) -> Stream:
    """Return streams of shape (cells, clients), as the engine hands them to compressors."""
    return stream(seed).each(torch.arange(cells)).each(torch.arange(clients))


# Real gradients ------------------------------------------------------------------------------------

CLASSES = 10
SIZE = 11_181_642  # parameters of torchvision's resnet18(num_classes=10)
SIDE = 64  # at 32 the last layers see one pixel, and 62% of their gradient is zero by construction
RATE = 0.05
SOURCES = {"cifar10_part": "CIFAR-10", "digits": "digits"}


class Gradient(NamedTuple):
    """A gradient (d,) float32 and a line that says what it is."""

    vector: Tensor
    about: str


def resnet18(seed: int = 0, batch: int = 64, steps: int = 3) -> Gradient:
    """Return the gradient of ResNet-18's cross-entropy on a batch of images, d = 11,181,642.

    After ``steps`` steps of SGD from the usual random weights, on that batch. The images are those of
    CIFAR-10 where the data folder holds ``cifar10_part``, else scikit-learn's digits, either scaled
    to 64 x 64. The same seed gives the same gradient on one machine.
    """
    from torchvision.models import resnet18 as build

    images, labels, source = _images(batch)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(num_classes=CLASSES)
    parameters = list(model.parameters())
    for step in range(steps + 1):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        grads = torch.autograd.grad(loss, parameters)
        if step < steps:
            with torch.no_grad():
                for parameter, grad in zip(parameters, grads, strict=True):
                    parameter -= RATE * grad
    vector = torch.cat([grad.flatten() for grad in grads])
    return Gradient(
        vector, f"gradient of ResNet-18 on {len(labels)} images of {source} after {steps} steps"
    )


def gradients(draws: int, seed: int = 0, steps: int = 300) -> dict[str, Tensor]:
    """Return minibatch gradients (draws, 51946), float32, of a convolutional network on digits.

    At the initial weights and after ``steps`` steps of SGD with momentum, batches of 32 images of
    scikit-learn's digits (8 x 8 pixels).
    """
    from sklearn.datasets import load_digits
    from torch.nn import Conv2d, Flatten, Linear, MaxPool2d, ReLU, Sequential
    from torch.nn.functional import cross_entropy

    data = load_digits()
    images = torch.tensor(data.images[:, None] / 16, dtype=torch.float32)
    labels = torch.tensor(data.target)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = (Conv2d(1, 32, 3, padding=1), ReLU(), Conv2d(32, 64, 3, padding=1), ReLU())
        head = (MaxPool2d(2), Flatten(), Linear(1024, 32), ReLU(), Linear(32, 10))
        net = Sequential(*body, *head)

        def gradient() -> Tensor:
            net.zero_grad()
            batch = torch.randint(len(labels), (32,))
            cross_entropy(net(images[batch]), labels[batch]).backward()
            return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])

        first = torch.stack([gradient() for _ in range(draws)])
        sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        for _ in range(steps):
            gradient()
            sgd.step()
        last = torch.stack([gradient() for _ in range(draws)])
    return {"gradient, start": first, "gradient, trained": last}


def thinned(x: Tensor, d: int) -> Tensor:
    """Return d evenly spaced coordinates of x (m,), d <= m: of every layer its share."""
    if d == x.numel():
        return x
    return x[torch.arange(d, device=x.device) * x.numel() // d].contiguous()


def _images(batch: int) -> tuple[Tensor, Tensor, str]:
    """Return images (batch, 3, 64, 64) of mean 0 and deviation 1, labels (batch,), their source."""
    from raybench.data.catalogue import PART, folder
    from raybench.data.images import images as named

    name = "cifar10_part" if (folder() / PART).is_file() else "digits"
    part = named(name).train[:batch]
    images = torch.from_numpy(part.inputs).float()
    images = torch.nn.functional.interpolate(images, size=(SIDE, SIDE), mode="bilinear")
    images = (images - images.mean()) / images.std()
    return images.expand(-1, 3, -1, -1), torch.from_numpy(part.targets), SOURCES[name]
