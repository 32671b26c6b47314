"""Local steps of nodes, and methods across replicas that FSDP2 shards: four real ranks."""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_kit import everyone, on_ranks
from loop_kit import TOP, D, far, loss, network, sgd, spread, steps, vector
from tiers import first_of_each
from torch import nn
from torch.distributed import get_rank as rank
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import raybench.torch as rt
from raybench.core.errors import InputError
from raybench.torch.saved import parts_of_ranks

STEPS = 12
H = {"steps": 3}
OUTER = {"optimizer": "nesterov", "momentum": 0.9, "step_size": 0.7}


def node_group() -> Any:
    """Return the mesh of this rank's node, of nodes of two ranks."""
    nodes = dist.get_world_size() // 2
    mesh = init_device_mesh("cpu", (nodes, 2), mesh_dim_names=("node", "rank"))
    return mesh["rank"]


def layered(model: Any, mesh: Any) -> Any:
    """Return a model that is sharded layer by layer."""
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def wrapped(way: str) -> tuple[Any, Any]:
    """Return a model in DistributedDataParallel or FSDP2 within its node, and the node's group."""
    mesh, model = node_group(), network()
    if way == "fsdp":
        return layered(model, mesh), mesh.get_group()
    return DistributedDataParallel(model, process_group=mesh.get_group()), mesh.get_group()


def full(model: Any) -> torch.Tensor:
    """Return all parameters, of every shard."""
    parts = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([p.detach().flatten() for p in parts])


def run(way: str, compressor: Any, times: range = range(STEPS), **more: Any) -> tuple[Any, Any]:
    """Train nodes; return the model and what exchanges."""
    model, node = wrapped(way)
    opt = rt.CompressedOptimizer(
        sgd(model), compressor, outer=OUTER, node=node, **{"algorithm": "ef14", "local": H, **more}
    )
    steps(model, opt, rank(), times)
    return model, opt


def as_two_clients(compressor: Any, **more: Any) -> tuple[torch.Tensor, Any]:
    """Return where two ranks end whose gradients are those of a node, the others doing the same, and what exchanges.

    Ranks 0 and 2 are a group, and 1 and 3; each adds up the gradients of its own node by hand.
    """
    within, model = node_group().get_group(), network()
    groups = [dist.new_group([place, place + 2]) for place in range(2)]
    opt = rt.CompressedOptimizer(
        sgd(model),
        compressor,
        local=H,
        outer=OUTER,
        group=groups[rank() % 2],
        **{"algorithm": "ef14", **more},
    )
    for t in range(STEPS):
        opt.zero_grad()
        loss(model, t, rank()).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=within)
            p.grad /= 2
        opt.step()
    return vector(model), opt


@pytest.mark.parametrize("algorithm", first_of_each(["ef14", "ef21"]))
@on_ranks(4)
def test_a_node_is_one_client_whose_first_rank_exchanges(algorithm):
    end, single = as_two_clients(TOP, algorithm=algorithm)
    model, opt = run("ddp", TOP, algorithm=algorithm)
    assert far(vector(model), end) < 1e-12
    assert spread(model) == 0
    reports = everyone(opt.report())
    assert [r.ranks for r in reports] == [2] * 4
    assert [r.exchanges for r in reports] == [4, 0, 4, 0]
    assert reports[0].bytes_up == single.report().bytes_up > 0
    assert [r.bytes_up for r in reports][1::2] == [0, 0]


@pytest.mark.thorough
@on_ranks(4)
def test_shards_of_a_node_are_exchanged_by_the_ranks_that_hold_them():
    """Uncompressed it is the run of two clients; compressed, each shard keeps its own largest coordinates."""
    end, single = as_two_clients(None, algorithm="gd")
    model, opt = run("fsdp", None, algorithm="gd")
    assert far(full(model), end) < 1e-12
    sent = [r.bytes_up for r in everyone(opt.report())]
    assert sent[0] + sent[1] == pytest.approx(single.report().bytes_up, rel=0.02)
    model, opt = run("fsdp", TOP)
    x = equal_parameters(model)
    assert far(x, end) > 1e-6
    assert 0 < opt.report().bytes_up < sent[0] / 3


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
@on_ranks(4)
def test_a_nan_of_one_rank_leaves_no_node_behind(way):
    """A local step of the whole node is left out; an infinite message skips the exchange of all nodes and shards."""
    model, opt = run(way, TOP, range(4))
    with (
        pytest.warns(UserWarning, match="leaves the local step out")
        if rank() > 1
        else nullcontext()
    ):
        opt.zero_grad()
        (loss(model, 4, rank()) * (torch.nan if rank() == 3 else 1.0)).backward()
        opt.step()
    assert [r.skipped for r in everyone(opt.report())] == [0, 0, 1, 1]
    with torch.no_grad():
        if rank() == 0 or (way == "ddp" and rank() == 1):  # with FSDP2 a shard of one node
            first = next(iter(model.parameters()))
            getattr(first, "to_local", lambda first=first: first)()[0, 0] = torch.inf
    before = opt.report().skipped
    opt._local[0].count = H["steps"] - 1
    assert opt._local[0].after_step() is False
    assert bool(equal_parameters(model).isfinite().all())
    assert opt.report().skipped == before


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("late", "delay"), [({}, {"delay": {"rounds": 1}}), ({"late": 2, "mix": 0.5}, {})]
)
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
@on_ranks(4)
def test_nodes_go_on_from_what_they_saved(way, late, delay):
    """In the middle of a round, with a late exchange under way, fragments, and the outer state on the CPU."""
    more: dict[str, Any] = {"local": {**H, "fragments": 2, **late}, "offload": True, **delay}
    model, opt = run(way, TOP, range(7), **more)
    kept = deepcopy(model.state_dict()), opt.state_dict()
    steps(model, opt, rank(), range(7, STEPS))
    again, other = run(way, TOP, range(0), **more)
    again.load_state_dict(kept[0])
    other.load_state_dict(kept[1])
    steps(again, other, rank(), range(7, STEPS))
    assert far(full(model), full(again)) == 0
    y = full(again)
    with other.shared_point():
        assert far(equal_parameters(again), y) > 0
    assert far(full(again), y) == 0


@pytest.mark.thorough
@on_ranks(4)
def test_other_nodes_go_on_from_what_all_have_saved():
    """Two nodes of two ranks, then four of one: all begin at the shared point, and x - mean e is what it was."""
    model, opt = run("ddp", TOP)
    x, states = full(model), everyone(opt.state_dict())
    parts = parts_of_ranks(rt.whole(states)).values()
    before = [part["exchanges"][0]["c"]["e"] for part in parts if part["place"] == 0]
    alone = dist.new_subgroups(group_size=1)[0]
    again = network(seed=7)
    more = rt.CompressedOptimizer(sgd(again), TOP, "ef14", local=H, outer=OUTER, node=alone)
    more.load_state_dict(rt.whole(states))
    assert far(full(again), x) == 0
    after = everyone(more._exchange.c.e)
    assert far(sum(after) / 4, sum(before) / 2) < 1e-15
    steps(again, more, rank(), range(STEPS, STEPS + 3))
    assert spread(again) == 0
    assert far(full(again), x) > 0


@pytest.mark.thorough
@on_ranks(4)
def test_settings_of_nodes_that_do_not_fit_are_refused_on_all_ranks():
    model, node = wrapped("ddp")
    with pytest.raises(InputError, match="node: without local steps"):
        rt.CompressedOptimizer(sgd(model), TOP, node=node)
    with pytest.raises(InputError, match="group: node says"):
        rt.CompressedOptimizer(sgd(model), TOP, local=H, node=node, group=dist.group.WORLD)
    uneven = dist.new_subgroups_by_enumeration([[0], [1, 2, 3]])[0]
    with pytest.raises(InputError, match="nodes have 1 and 3 ranks"):
        rt.CompressedOptimizer(sgd(network()), TOP, "ef14", local=H, node=uneven)
    sharded, _ = wrapped("fsdp")
    with pytest.raises(InputError, match="parameters are sharded"):
        rt.CompressedOptimizer(sgd(sharded), TOP, "ef14", local=H)
    with pytest.raises(InputError, match="sharded over other ranks"):
        rt.CompressedOptimizer(sgd(sharded), TOP, "ef14", local=H, node=dist.group.WORLD)
    for key, value, says in (
        ("fragments", 9, "fragments: 9 of 6 parameters"),
        ("late", 4, "local.late: 4"),
        ("mix", 2, "local.mix: 2"),
    ):
        with pytest.raises(InputError, match=says):
            rt.CompressedOptimizer(sgd(network()), TOP, "ef14", local={**H, key: value})
    with pytest.raises(InputError, match="check_every"):
        rt.CompressedOptimizer(
            sgd(network()), TOP, "ef14", local={**H, "fragments": 2}, check_every=1
        )


@on_ranks(2)
def test_fragments_are_exchanged_in_turn():
    """Each once in H steps, at steps of its own; one fragment is all parameters at once."""
    ends = []
    for fragments in (1, 2):
        model = network()
        local = {"steps": 4, "fragments": fragments}
        opt = rt.CompressedOptimizer(sgd(model), None, "gd", local=local)
        steps(model, opt, rank(), range(STEPS))
        ends.append(opt.report())
        counts = [len(exchange.rows) for exchange in opt.exchanges]
        assert counts == [STEPS / 4] * fragments
        assert [f.count for f in opt._local] == [i * 4 // fragments for i in range(fragments)]
    assert ends[0].bytes_up == pytest.approx(ends[1].bytes_up, rel=0.01)


@on_ranks(2)
def test_fragments_hold_the_same_tensors_on_every_rank_of_a_node():
    """Though the second one holds no part of the first layer; more than all ranks hold parts of are refused by all."""
    mesh = node_group()
    more: dict[str, Any] = {"node": mesh.get_group(), "algorithm": "ef14"}
    layers = nn.Linear(60, 1), nn.Linear(1, 30)
    model = fully_shard(nn.Sequential(*layers).double(), mesh=mesh)
    opt = rt.CompressedOptimizer(sgd(model), TOP, local={**H, "fragments": 2}, **more)
    fragments = [[name for name, _ in fragment.flat.layout] for fragment in opt._local]
    assert everyone(fragments) == [[["0.0", "0.1", "0.2"], ["0.3"]], [["0.2"], ["0.3"]]]
    for t in range(4):
        model(torch.full((2, 60), float(rank() + t)).double()).square().sum().backward()
        opt.step()
    with opt.shared_point():
        equal_parameters(model)
    with pytest.raises(InputError, match="fragments: 3 of 2 parameters"):
        rt.CompressedOptimizer(sgd(model), TOP, local={**H, "fragments": 3}, **more)
    nothing = fully_shard(nn.Linear(60, 1), mesh=mesh)
    with pytest.raises(InputError, match="no parameter has a part on every rank"):
        rt.CompressedOptimizer(sgd(nothing), TOP, local=H, **more)


# Methods across the replicas of a model that FSDP2 shards -----------------------------------------


SINGLE = torch.float32
COUNT = 6


def sharded(replicas: int = 2) -> tuple[Any, Any]:
    """Return a model whose layers are sharded over two ranks, and the group of a shard's replicas."""
    mesh = init_device_mesh("cpu", (replicas, 2), mesh_dim_names=("replicate", "shard"))
    model = network(SINGLE)
    return layered(model, mesh["shard"]), mesh["replicate"].get_group()


def equal_parameters(model: Any) -> torch.Tensor:
    """Return all parameters, the same on every rank."""
    x = full(model)
    assert all(torch.equal(x, other) for other in everyone(x))
    return x


def run_sharded(algorithm: str, operator: Any, ends: int = COUNT) -> Any:
    """Train, averaging as it is from step ``ends``; return the parameters and the hook."""
    model, replicas = sharded()
    optimizer = sgd(model)
    hook = rt.attach(model, algorithm, operator, group=replicas)
    for t in range(COUNT):
        if t == ends:
            hook.detach()
        steps(model, optimizer, rank(), [t], SINGLE)
    return equal_parameters(model), hook


def plain() -> torch.Tensor:
    """Return where data-parallel SGD over all ranks ends."""
    model = network(SINGLE)
    optimizer = sgd(model)
    for t in range(COUNT):
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
    x, hook = run_sharded("gd", None)
    assert far(x, end) < 1e-6
    assert 4 * D / 2 <= hook.report().bytes_up <= 4 * D / 2 * 1.1  # a shard, padded
    assert far(run_sharded("ef21", "identity", ends=4)[0], end) < 1e-6


@pytest.mark.thorough
@on_ranks(4)
def test_a_method_remembers_a_vector_for_every_shard():
    x, hook = run_sharded("ef21", TOP)
    assert far(x, plain()) > 1e-4
    assert hook.report().bytes_up < 4 * D / 2 / 4
    assert len(hook.exchanges) == 3  # two layers, and what is left
    [part] = parts_of_ranks(hook.state_dict()).values()
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
        for t in range(COUNT):
            if t == 3 and not spoils:
                continue
            bad[0] = spoils and t == 3 and rank() == dist.get_world_size() - 1
            steps(model, optimizer, rank(), [t], SINGLE)
        report = hook.report()
        assert [report.steps, report.skipped] == ([COUNT, 1] if spoils else [COUNT - 1, 0])
        ends.append(equal_parameters(model))
    assert far(*ends) == 0


@on_ranks(2)
def test_a_nan_in_one_shard_skips_the_step_of_all():
    """Bit for bit: what other modules had exchanged is undone, on ranks whose own shards are finite too."""
    skips_a_nan(replicas=1)


@pytest.mark.thorough
@on_ranks(4)
def test_a_nan_in_one_replica_skips_the_step_of_all():
    skips_a_nan(replicas=2)


@on_ranks(2)
def test_passes_that_ask_for_no_all_reduce_wait_for_one_that_does():
    """One exchange of the sum of two passes' gradients, as torch has it."""
    ends, costs = [], []
    for apart in (True, False):
        model, group = sharded(replicas=1)
        optimizer, hook = sgd(model), rt.attach(model, "ef21", TOP, group=group)
        for t in range(4):
            optimizer.zero_grad()
            if apart:
                model.set_requires_all_reduce(False)
                loss(model, 2 * t, rank(), SINGLE).backward()
                model.set_requires_all_reduce(True)
                loss(model, 2 * t + 1, rank(), SINGLE).backward()
            else:
                sum(loss(model, 2 * t + i, rank(), SINGLE) for i in range(2)).backward()
            optimizer.step()
        ends.append(equal_parameters(model))
        costs.append(hook.report().bytes_up)
    assert far(*ends) < 1e-5
    assert costs[0] == costs[1] > 0


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
