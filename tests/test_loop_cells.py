"""Loops on two real ranks end where the cells of sweeps do, and go on after ranks were killed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_kit import on_ranks, run
from loop_kit import far, network, sgd, steps
from torch import Tensor
from torch.distributed import get_rank as rank

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


@pytest.mark.parametrize("batch", ["full", 8])
@pytest.mark.parametrize("name", CELLS)
@on_ranks(2)
def test_a_loop_ends_where_the_same_cell_of_a_sweep_does(name, batch):
    cell = config(*CELLS[name], batch)
    assert far(looped(cell, STEP), swept(cell, STEP)) < 1e-9


# Killed ranks ---------------------------------------------------------------------------------------

STEPS, LAST = 30, 12


def train(folder: Path, name: str, dies: bool = False) -> list[float]:
    """Train from where a file is, saving after every step; return all losses."""
    model, file = network(), folder / f"{name}.{rank()}.pt"
    optimizer = sgd(model)
    optimizer.param_groups[0]["momentum"] = 0.9
    opt = rt.CompressedOptimizer(optimizer, "rand_k:k=10%", "diana")
    losses: list[float] = []
    if file.exists():
        kept = torch.load(file, weights_only=True)
        model.load_state_dict(kept["model"])
        opt.load_state_dict(kept["opt"])
        losses = kept["losses"]
    for t in range(len(losses), STEPS):
        losses += steps(model, opt, rank(), [t])
        kept = {"model": model.state_dict(), "opt": opt.state_dict(), "losses": losses}
        torch.save(kept, file.with_suffix(".new"))
        dist.barrier()  # a step is saved by all ranks or by none
        os.replace(file.with_suffix(".new"), file)
        dist.barrier()
        if dies and t == LAST:
            os.kill(os.getpid(), 9)
    return losses


def test_a_killed_loop_goes_on_with_the_same_losses(tmp_path):
    """Ranks are killed after a step, and started again: losses as undisturbed, bit for bit."""
    with pytest.raises(AssertionError, match="ended with -9"):
        run(2, train, folder=tmp_path, name="killed", dies=True)
    kept = torch.load(tmp_path / "killed.0.pt", weights_only=True)
    assert len(kept["losses"]) == LAST + 1
    resumed = run(2, train, folder=tmp_path, name="killed")
    assert resumed == run(2, train, folder=tmp_path, name="undisturbed")
    assert len(resumed[0]) == STEPS
