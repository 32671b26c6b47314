"""The vectors of the study: drawn from distributions, and gradients of a network in training."""

from __future__ import annotations

import torch
from torch import Tensor

from raybench.core.streams import stream


def drawn(d: int, draws: int, seed: int = 0) -> dict[str, Tensor]:
    """Return vectors (draws, d), float32, with i.i.d. entries of each family.

    gaussian; laplace; uniform on (0, 1); exponential; student t2 (two degrees of freedom: no
    variance, heavy tails); lognormal (of sigma 2, random signs).
    """
    root = stream(seed).fold("study").each(range(draws))

    def uniforms(name: str) -> Tensor:
        return root.fold(name).uniform(d)

    def normals(name: str) -> Tensor:
        return root.fold(name).normal(d)

    def signs(name: str) -> Tensor:
        return 1 - 2 * (uniforms(name) < 0.5).double()

    def exponentials(name: str) -> Tensor:
        return -torch.log1p(-uniforms(name))

    found = {
        "gaussian": normals("gaussian"),
        "laplace": exponentials("laplace") * signs("laplace sign"),
        "uniform": uniforms("uniform"),
        "exponential": exponentials("exponential"),
        "student t2": normals("t2") / exponentials("t2 scale").clamp_min(1e-12).sqrt(),
        "lognormal": torch.exp(2 * normals("lognormal")) * signs("lognormal sign"),
    }
    return {name: value.float() for name, value in found.items()}


def gradients(draws: int, seed: int = 0, steps: int = 300) -> dict[str, Tensor]:
    """Return minibatch gradients (draws, 51946), float32, of a convolutional network on digits.

    At the initial weights and after ``steps`` steps of SGD with momentum, batches of 32 images of
    scikit-learn's digits (8 x 8 pixels).
    """
    from sklearn.datasets import load_digits

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = torch.nn.Sequential(
            torch.nn.Conv2d(1, 32, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(32, 64, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(1024, 32),
            torch.nn.ReLU(),
            torch.nn.Linear(32, 10),
        )
        data = load_digits()
        images = torch.tensor(data.images[:, None] / 16, dtype=torch.float32)
        labels = torch.tensor(data.target)

        def gradient() -> Tensor:
            net.zero_grad()
            batch = torch.randint(len(labels), (32,))
            torch.nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
            return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])

        first = torch.stack([gradient() for _ in range(draws)])
        step = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        for _ in range(steps):
            gradient()
            step.step()
        last = torch.stack([gradient() for _ in range(draws)])
    return {"gradient, start": first, "gradient, trained": last}
