"""Two ranks train what a sweep's cell trains, by ``CompressedOptimizer``; rank 0 compares."""

import sys
from typing import Any

import torch
from loop_kit import far, join, leave, save
from torch import Tensor

import raybench.torch as rt
from raybench import spec
from raybench.execution.execute import hosted
from raybench.execution.plan import make_plan
from raybench.execution.run import Options, Run
from raybench.wire.transport import Transport

ROUNDS = 20
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


def config(algorithm: Any, operator: Any, batch: Any, dtype: str) -> dict[str, Any]:
    problem = {"name": "network", "model": "mlp", "dataset": "digits", "clients": 2, "rows": 200}
    cell = {
        "problem": {**problem, "batch": batch, "dtype": dtype},
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


if __name__ == "__main__":
    rank, found = join(), {}
    for dtype in sys.argv[2:]:
        for name, (algorithm, operator) in CELLS.items():
            for batch in ("full", 8):
                cell = config(algorithm, operator, batch, dtype)
                x = looped(cell, 0.05)
                if rank == 0:
                    torch.save(x, f"{sys.argv[1]}/{name}.{batch}.{dtype}.pt")
                    found[f"{name} {batch} {dtype}"] = far(x, swept(cell, 0.05))
    save(found)
    leave()
