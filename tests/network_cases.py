"""Small networks whose runs remember much: what tests interrupt and continue."""

from pathlib import Path
from typing import Any

NORMED = """
import torch
from raybench.plugins import Network


def small(train):
    d = train.inputs[0].size
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(d, 12), torch.nn.BatchNorm1d(12),
        torch.nn.ReLU(), torch.nn.Linear(12, train.classes),
    )
    return Network(model)
"""
DIGITS = {"name": "network", "dataset": "digits", "clients": 4, "rows": 80, "batch": 8}
TOP, RAND = {"name": "top_k", "k": "5%"}, {"name": "rand_k", "k": "5%"}
CASES: dict[str, dict[str, Any]] = {
    # memories of gradients, of messages, of running statistics, and of the clients' optimizers
    "vr_marina": {"p": 0.2, "batch": 4, "compressor": RAND, "step_size": {"value": 0.1}},
    "ef21": {"compressor": TOP, "step_size": {"value": 0.1}},
    "diloco": {"steps": 3, "inner_step": 0.01, "batch": 4, "step_size": {"value": 0.7}},
}


def problem_of(name: str, folder: Path) -> dict[str, Any]:
    """Return the network that a case runs on: with BatchNorm for EF21, else an MLP."""
    if name != "ef21":
        return {**DIGITS, "model": "mlp:hidden=[12]", "dtype": "float64"}
    file = folder / "normed.py"
    if not file.exists():
        file.write_text(NORMED)
    return {**DIGITS, "model": f"{file}:small", "dtype": "float64"}
