"""A small network and the data set of digits that comes with scikit-learn, for the examples of frameworks."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset


def dataset() -> TensorDataset:
    """Return 1,797 pictures of 8 x 8 pixels as rows of 64 numbers, and their labels."""
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))


class Network(nn.Module):
    """Two layers. With labels it returns the loss too, as Hugging Face's Trainer asks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.layers(images)
        if labels is None:
            return {"logits": logits}
        return {"logits": logits, "loss": nn.functional.cross_entropy(logits, labels)}
