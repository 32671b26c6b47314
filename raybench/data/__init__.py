"""Data sets by name or path, their labels, and how their rows are dealt out to clients."""

from raybench.data.dataset import Dataset, binary_labels, load
from raybench.data.known import KNOWN, Known, folder
from raybench.data.split import PLAIN as split_names
from raybench.data.split import hold_out, split

__all__ = [
    "KNOWN",
    "Dataset",
    "Known",
    "binary_labels",
    "folder",
    "hold_out",
    "load",
    "split",
    "split_names",
]
