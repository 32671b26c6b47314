"""Four ranks, two replicas of two shards each: FSDP2 within a replica, a method across them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from loop_kit import everyone, far, join, loss, network, save, sgd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import raybench.torch as rt
from raybench.core.errors import InputError

SINGLE = torch.float32
STEPS = 10


def sharded(mesh: Any) -> Any:
    model = network(SINGLE)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh["shard"])
    return fully_shard(model, mesh=mesh["shard"])


def vector(model: Any) -> torch.Tensor:
    return torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])


def run(mesh: Any, rank: int, algorithm: str, operator: Any, ends: int = STEPS) -> Any:
    """Train, averaging as it is from step ``ends``; return the parameters, their spread, and the hook."""
    model = sharded(mesh)
    optimizer = sgd(model)
    hook = rt.attach(model, algorithm, operator, group=mesh["replicate"].get_group())
    for t in range(STEPS):
        if t == ends:
            hook.detach()
        optimizer.zero_grad()
        loss(model, t, rank, SINGLE).backward()
        optimizer.step()
    x = vector(model)
    every = [torch.zeros_like(x) for _ in range(4)]
    dist.all_gather(every, x)
    return x, max(far(x, other) for other in every), hook


def spoilt(mesh: Any, rank: int, spoils: bool) -> Any:
    """Train with a NaN in step 5: in the first layer's first row, so that other modules and shards see none."""
    model = sharded(mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    bad = [False]

    def damaged(grad: torch.Tensor) -> torch.Tensor:
        return (
            grad.index_put((torch.tensor(0), torch.tensor(0)), grad.new_tensor(torch.nan))
            if bad[0]
            else grad
        )

    model[0].register_forward_hook(lambda module, inputs, y: y.register_hook(damaged) and None)
    hook = rt.attach(model, "ef21", "top_k:k=10%", group=mesh["replicate"].get_group())
    for t in range(STEPS):
        if t == 5 and not spoils:
            continue
        bad[0] = spoils and t == 5 and rank == 3
        optimizer.zero_grad()
        loss(model, t, rank, SINGLE).backward()
        optimizer.step()
    x = vector(model)
    every = [torch.zeros_like(x) for _ in range(4)]
    dist.all_gather(every, x)
    return x, max(far(x, other) for other in every), hook.report()


def plain(rank: int) -> torch.Tensor:
    """Return where data-parallel SGD over all four ranks ends."""
    model = network(SINGLE)
    optimizer = sgd(model)
    for t in range(STEPS):
        optimizer.zero_grad()
        loss(model, t, rank, SINGLE).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 4
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


if __name__ == "__main__":
    rank = join()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    want = plain(rank)
    x, apart, hook = run(mesh, rank, "gd", None)
    found: dict[str, Any] = {"gd": [far(x, want), apart, hook.report().bytes_up]}
    x, apart, hook = run(mesh, rank, "ef21", "top_k:k=10%")
    found["ef21"] = [far(x, want), apart, hook.report().bytes_up, len(hook.exchanges)]
    state = hook.state_dict()
    found["state"] = [list(e["c"]["g"].shape) for e in state["raybench"]["parts"][0]["exchanges"]]
    x, apart, _ = run(mesh, rank, "ef21", "identity", ends=4)
    found["detached"] = [far(x, want), apart]
    x, apart, log = spoilt(mesh, rank, True)
    y, _, other = spoilt(mesh, rank, False)
    found["spoilt"] = [far(x, y), apart, everyone(log.skipped), log.steps, other.skipped]
    across, found["said"] = mesh["replicate"].get_group(), []
    for settings in ({"seed": rank}, {"start_after": int(rank == 3)}):
        try:
            rt.attach(sharded(mesh), "ef21", "top_k:k=10%", group=across, **settings)
        except InputError as error:
            found["said"].append(everyone(str(error)))
    try:
        rt.attach(sharded(mesh), "ef21", "top_k:k=10%")
    except InputError as error:
        found["without a group"] = str(error)
    model = sharded(mesh)
    first = rt.attach(model, "gd", None, group=across)
    try:
        rt.attach(model, "ef21", "top_k:k=10%", group=across)
    except InputError as error:
        found["a second method"] = str(error)
    first.detach()
    rt.attach(model, "ef21", "top_k:k=10%", group=across)
    save(found)
    dist.destroy_process_group()  # torch keeps groups of meshes
