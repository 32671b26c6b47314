"""Methods across the replicas of a model that FSDP2 shards: four real ranks, a mesh of 2 x 2."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from loop_kit import TOP, D, everyone, far, loss, network, on_ranks, sgd
from torch.distributed import get_rank as rank
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import raybench.torch as rt
from raybench.core.errors import InputError
from raybench.torch.saved import opened

SINGLE = torch.float32
STEPS = 10


def sharded(replicas: int = 2) -> tuple[Any, Any]:
    """Return a model whose layers are sharded over two ranks, and the group of a shard's replicas."""
    mesh = init_device_mesh("cpu", (replicas, 2), mesh_dim_names=("replicate", "shard"))
    model = network(SINGLE)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh["shard"])
    return fully_shard(model, mesh=mesh["shard"]), mesh["replicate"].get_group()


def vector(model: Any) -> torch.Tensor:
    """Return all parameters, the same on every rank."""
    x = torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])
    assert all(torch.equal(x, other) for other in everyone(x))
    return x


def run(algorithm: str, operator: Any, ends: int = STEPS) -> Any:
    """Train, averaging as it is from step ``ends``; return the parameters and the hook."""
    model, replicas = sharded()
    optimizer = sgd(model)
    hook = rt.attach(model, algorithm, operator, group=replicas)
    for t in range(STEPS):
        if t == ends:
            hook.detach()
        optimizer.zero_grad()
        loss(model, t, rank(), SINGLE).backward()
        optimizer.step()
    return vector(model), hook


def plain() -> torch.Tensor:
    """Return where data-parallel SGD over all ranks ends."""
    model = network(SINGLE)
    optimizer = sgd(model)
    for t in range(STEPS):
        optimizer.zero_grad()
        loss(model, t, rank(), SINGLE).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.thorough
@on_ranks(4)
def test_uncompressed_messages_are_data_parallel_training_of_all_ranks():
    """After detaching gradients are averaged as well; float32, added up in another order."""
    end = plain()
    x, hook = run("gd", None)
    assert far(x, end) < 1e-6
    assert 4 * D / 2 <= hook.report().bytes_up <= 4 * D / 2 * 1.1  # a shard, padded
    assert far(run("ef21", "identity", ends=4)[0], end) < 1e-6


@pytest.mark.thorough
@on_ranks(4)
def test_a_method_remembers_a_vector_for_every_shard():
    x, hook = run("ef21", TOP)
    assert far(x, plain()) > 1e-4
    assert hook.report().bytes_up < 4 * D / 2 / 4
    assert len(hook.exchanges) == 3  # two layers, and what is left
    [part] = opened(hook.state_dict()).values()
    states = part["exchanges"]
    assert len(states) == 3
    assert sum(state["c"]["g"].shape[-1] for state in states) >= D / 2


def skips_a_nan(replicas: int) -> None:
    """A NaN in the first layer's first row, of which other modules and shards see none, is as if the step had not been."""
    ends = []
    for spoils in (True, False):
        model, group = sharded(replicas)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        bad = [False]

        def damaged(grad: torch.Tensor, bad: list[bool] = bad) -> torch.Tensor:
            first = torch.zeros_like(grad, dtype=torch.bool)
            first[0, 0] = bad[0]
            return grad.masked_fill(first, torch.nan)

        def watched(module: Any, inputs: Any, y: torch.Tensor, damaged: Any = damaged) -> None:
            y.register_hook(damaged)

        model[0].register_forward_hook(watched)
        hook = rt.attach(model, "ef21", TOP, group=group)
        for t in range(STEPS):
            if t == 5 and not spoils:
                continue
            bad[0] = spoils and t == 5 and rank() == dist.get_world_size() - 1
            optimizer.zero_grad()
            loss(model, t, rank(), SINGLE).backward()
            optimizer.step()
        report = hook.report()
        assert [report.steps, report.skipped] == ([10, 1] if spoils else [9, 0])
        ends.append(vector(model))
    assert far(*ends) == 0


@on_ranks(2)
def test_a_nan_in_one_shard_skips_the_step_of_all():
    """Bit for bit: what other modules had exchanged is undone, on ranks whose own shards are finite too."""
    skips_a_nan(replicas=1)


@pytest.mark.thorough
@on_ranks(4)
def test_a_nan_in_one_replica_skips_the_step_of_all():
    skips_a_nan(replicas=2)


@pytest.mark.thorough
@on_ranks(4)
def test_what_differs_is_said_on_all_ranks():
    texts = []
    for settings in ({"seed": rank()}, {"start_after": int(rank() == 3)}):
        model, replicas = sharded()
        with pytest.raises(InputError) as error:
            rt.attach(model, "ef21", TOP, group=replicas, **settings)
        texts.append(everyone(str(error.value)))
    seeds, starts = texts
    assert seeds[0].startswith("seed: rank 0 has 0, rank 1 2")
    assert seeds[1].startswith("seed: rank 0 has 1, rank 1 3")
    assert starts[0].startswith("group: ranks that hold other shards differ")
    assert starts[1].startswith("start_after: rank 0 has 0, rank 1 1")


@pytest.mark.thorough
@on_ranks(4)
def test_one_method_at_a_time_across_ranks_that_are_said():
    model, replicas = sharded()
    with pytest.raises(InputError, match=r"mesh\['replicate'\].get_group\(\)"):
        rt.attach(model, "ef21", TOP)
    first = rt.attach(model, "gd", None, group=replicas)
    with pytest.raises(InputError, match=r"detach\(\) that one first"):
        rt.attach(model, "ef21", TOP, group=replicas)
    first.detach()
    rt.attach(model, "ef21", TOP, group=replicas)
