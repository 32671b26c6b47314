"""Loops on two real ranks end where the cells of sweeps do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gloo_kit import on_ranks
from loop_kit import far
from torch import Tensor

import raybench.torch as rt
from raybench import spec
from raybench.execution.execute import hosted
from raybench.execution.plan import make_plan
from raybench.execution.run import Options, Run
from raybench.wire.transport import Transport

pytestmark = pytest.mark.thorough

ROUNDS, STEP = 20, 0.05
ADAMW = {"name": "diloco", "steps": 4}
CELLS: dict[str, tuple[Any, Any]] = {
    "ef21": ("ef21", {"name": "top_k", "k": "10%"}),
    "ef14": ("ef14", {"name": "top_k", "k": "10%"}),
    "diana": ("diana", {"name": "rand_k", "k": "10%"}),
    "marina": ("marina", {"name": "rand_k", "k": "10%"}),
    "dgc": ("dgc", {"name": "dgc", "k": "5%"}),
    "power_sgd": ({"name": "power_sgd", "rank": 2}, None),
    "sign_sgd": ("sign_sgd", None),
    "ef_sign_sgd": ("ef_sign_sgd", None),
    "dion": ("dion", None),
    "demo": ("demo", {"name": "top_k", "k": "10%"}),
    "diloco": (ADAMW, None),
}


def config(algorithm: Any, operator: Any, batch: Any) -> dict[str, Any]:
    problem = {"name": "network", "model": "mlp", "dataset": "digits", "clients": 2, "rows": 200}
    cell = {
        "problem": {**problem, "batch": batch, "dtype": "float64"},
        "algorithm": algorithm,
        "rounds": ROUNDS,
        "seed": 3,
    }
    return cell if operator is None else {**cell, "compressor": operator}


def swept(cell: dict[str, Any], step: float) -> Tensor:
    """Return where the cell of a sweep ends, all clients in one process."""
    plan = make_plan(spec.load({**cell, "step_size": {"value": step}}))
    (batch,) = plan.batches
    run = Run(batch, hosted(batch, Transport(), "cpu"), Options())
    run.advance(ROUNDS)
    return run.s.x[0]


def looped(cell: dict[str, Any], step: float) -> Tensor:
    """Return where a training loop ends."""
    data = rt.batches(cell)
    model = data.model()
    operator = cell.get("compressor")
    text = None if operator is None else "{name}:k={k}".format(**operator)
    if cell["algorithm"] is ADAMW:
        inner: Any = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0)
        outer = {"optimizer": "nesterov", "momentum": 0.9, "step_size": step}
    else:
        inner, outer = torch.optim.SGD(model.parameters(), lr=step), None
    opt = rt.CompressedOptimizer(inner, text, cell["algorithm"], seed=cell["seed"], outer=outer)
    for inputs, targets in data:
        opt.zero_grad()
        data.loss(model(inputs), targets).backward()
        opt.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize(("name", "batch"), [*((name, 8) for name in CELLS), ("ef21", "full")])
@on_ranks(2)
def test_a_loop_ends_where_the_same_cell_of_a_sweep_does(name, batch):
    cell = config(*CELLS[name], batch)
    assert far(looped(cell, STEP), swept(cell, STEP)) < 1e-9
