"""A model and a data set of your own: put yours in their place."""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset


def model():
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def data():
    x, y = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(x / 16).float(), torch.tensor(y))
