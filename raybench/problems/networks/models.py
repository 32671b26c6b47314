"""The networks that are known by name, as plain torch modules whose sizes are parameters.

Each function takes what the data look like and the sizes, and returns a module with torch's own
initialisation. A module maps a batch of inputs to outputs, sample by sample (but for BatchNorm).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Under vmap torch runs its kernel of attention once for each client and says that this may be slow. Attention by matrix
# products, which it batches, took longer: 0.17 to 0.19 s a step instead of 0.15, and 0.79 to 0.93 instead of 0.77 to 0.84.
warnings.filterwarnings("ignore", r"There is a performance drop.*scaled_dot_product", UserWarning)

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


@dataclass(frozen=True)
class InputSpec:
    """What a network sees: the shape of one input, and the number of classes, or of tokens."""

    shape: tuple[int, ...]
    classes: int


def mlp(spec: InputSpec, hidden: Sequence[int] = (64,), activation: str = "relu") -> nn.Module:
    """Return fully connected layers of these widths, and a linear one to the classes."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation is one of {', '.join(ACTIVATIONS)}")
    sizes = [math.prod(spec.shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], spec.classes))


def mnist_cnn(spec: InputSpec, dropout: float = 0.4) -> nn.Module:
    """Return the network of the DGC experiments on MNIST: 3,274,634 parameters on 28 x 28 images.

    Convolutions 5 x 5 of 32 and 64 channels, each with a pooling 2 x 2, then 1,024 units with dropout.
    Source: Tejalsjsu/DeepGradientCompression.
    """
    channels, height, width = spec.shape
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(64 * (height // 4) * (width // 4), 1024), nn.ReLU(), nn.Dropout(dropout)),
        nn.Linear(1024, spec.classes),
    )


def autoencoder(spec: InputSpec, code: int = 16) -> nn.Module:
    """Return a linear autoencoder without biases, Xavier normal: 784-16-784 has 25,088 parameters.

    Source: Szlendak, Tyurin, Richtarik 2021, section on PermK.
    """
    d = math.prod(spec.shape)
    layers = [nn.Linear(d, code, bias=False), nn.Linear(code, d, bias=False)]
    for layer in layers:
        nn.init.xavier_normal_(layer.weight)
    return nn.Sequential(nn.Flatten(), *layers)


def resnet18(spec: InputSpec) -> nn.Module:
    """Return torchvision's ResNet-18 with a stem for small images: 3 x 3, no pooling; 11,173,962 parameters."""
    from torchvision import models

    net = models.resnet18(num_classes=spec.classes)
    net.conv1 = nn.Conv2d(spec.shape[0], 64, 3, padding=1, bias=False)
    net.maxpool = nn.Identity()
    return net


def vgg11(spec: InputSpec) -> nn.Module:
    """Return torchvision's VGG-11 convolutions and one linear layer, for images of 32 x 32.

    9,225,610 parameters with ten classes.
    """
    from torchvision import models

    net = models.vgg11(num_classes=spec.classes).features
    net[0] = nn.Conv2d(spec.shape[0], 64, 3, padding=1)
    side = max(1, spec.shape[1] // 32) * max(1, spec.shape[2] // 32)
    return nn.Sequential(net, nn.Flatten(), nn.Linear(512 * side, spec.classes))


class _Block(nn.Module):
    """Two convolutions with BatchNorm and a shortcut that halves the image and pads the channels."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.stride, self.more = (1, 0) if before == after else (2, after - before)
        self.conv1 = nn.Conv2d(before, after, 3, self.stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        short = x[:, :, :: self.stride, :: self.stride]
        return F.relu(y + F.pad(short, (0, 0, 0, 0, self.more // 2, self.more - self.more // 2)))


def resnet20(spec: InputSpec, depth: int = 20) -> nn.Module:
    """Return the ResNet for CIFAR of 6 m + 2 layers, shortcuts without parameters: 269,722 at depth 20.

    Source: He, Zhang, Ren, Sun 2015, section 4.2, option A.
    """
    if depth < 8 or (depth - 2) % 6:
        raise ValueError("depth is 6 m + 2, such as 20, 32, 44, 56 or 110")
    widths = [16] + [w for w in (16, 32, 64) for _ in range((depth - 2) // 6)]
    blocks = [_Block(a, b) for a, b in pairwise(widths)]
    net = nn.Sequential(
        *(nn.Conv2d(spec.shape[0], 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *blocks,
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, spec.classes)),
    )
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
    return net


class _Attention(nn.Module):
    """Attention to the tokens before, and a feed-forward layer, each on normalised input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop1, self.drop2 = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(-2, -3)
            for t in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        values = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop1(self.out(values.transpose(-2, -3).flatten(-2)))
        return x + self.drop2(self.down(F.gelu(self.up(self.norm2(x)))))


class _Transformer(nn.Module):
    def __init__(
        self, length: int, tokens: int, width: int, layers: int, heads: int, dropout: float
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(_Attention(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)
        for name, value in self.named_parameters():
            if value.ndim == 2:  # residual branches are scaled down by their number, as in GPT-2
                branch = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(value, std=0.02 / (math.sqrt(2 * layers) if branch else 1.0))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position[: tokens.shape[-1]]
        return self.head(self.norm(self.blocks(x)))


def transformer(
    spec: InputSpec, width: int = 128, layers: int = 4, heads: int = 4, dropout: float = 0.0
) -> nn.Module:
    """Return a decoder-only language model: tokens (b, length) to scores (b, length, tokens).

    Learned positions, normalisation before each part, GELU; about 12 layers width^2 parameters.
    Source: Radford et al. 2019 (GPT-2).
    """
    if width % heads:
        raise ValueError(f"width {width} is no multiple of heads {heads}")
    return _Transformer(spec.shape[0], spec.classes, width, layers, heads, dropout)


NAMED = {
    f.__name__: f for f in (mlp, mnist_cnn, autoencoder, resnet18, resnet20, vgg11, transformer)
}
