"""Data sets by name or path, their labels, and how their rows are dealt out to clients."""

from raybench.data.dataset import load, load_test
from raybench.data.examples import Examples, Pair
from raybench.data.images import images
from raybench.data.split import PLAIN as split_names
from raybench.data.split import TAG_PARAMS as split_tags
from raybench.data.split import by_column, hold_out, split
from raybench.data.tables import Dataset
from raybench.data.text import text
from raybench.data.views import views

__all__ = [
    "Dataset",
    "Examples",
    "Pair",
    "by_column",
    "hold_out",
    "images",
    "load",
    "load_test",
    "split",
    "split_names",
    "split_tags",
    "text",
    "views",
]
