"""raybench's methods in training loops of one's own: what two real ranks do with an optimizer and with a hook."""

from __future__ import annotations

import gc
import io
import math
import warnings
import weakref
from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_kit import everyone, on_ranks, shared_folder
from loop_kit import (
    TOP,
    D,
    far,
    hooked,
    loss,
    memory,
    network,
    plain,
    sgd,
    spread,
    steps,
    trained,
    vector,
)
from tiers import first_of_each
from torch import nn
from torch.distributed import checkpoint
from torch.distributed import get_rank as rank
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

import raybench.torch as rt
from raybench.core.errors import InputError
from raybench.torch.saved import parts_of_ranks


@on_ranks(2)
def test_uncompressed_messages_are_data_parallel_training():
    end = vector(plain())
    assert far(end, vector(trained("gd", None)[0])) < 1e-14
    assert far(end, vector(trained("ef21", "identity")[0])) < 1e-14
    assert far(end, vector(hooked("gd", None)[0])) < 1e-14
    assert far(end, vector(trained(start_after=10)[0])) < 1e-14


@on_ranks(2)
def test_ranks_take_over_the_start_of_rank_0():
    model = network(seed=rank())
    rt.CompressedOptimizer(sgd(model), TOP)
    assert far(vector(model), vector(network(seed=0))) == 0


@on_ranks(2)
def test_memory_belongs_to_parameters_whatever_the_buckets():
    """Buckets of any size, rebuilt after the first step, change nothing."""
    end = vector(trained(granularity="tensor")[0])
    for size, parts in ((1, 6), (4000, 4), (1 << 20, 1)):
        model, hook, *_ = hooked(size=size)
        assert [far(end, vector(model)), spread(model), len(hook.exchanges)] == [0, 0, parts]


@on_ranks(2)
def test_first_steps_are_dense_where_asked():
    report = trained(start_after=3)[1].report()
    sizes = report.rows["bytes_up"].tolist()
    assert report.dense_steps == 3
    assert sizes[:3] == [D * 8] * 3
    assert max(sizes[3:]) < D * 8 / 5


@on_ranks(2)
def test_a_hook_can_be_detached_and_another_attached():
    """After ``detach`` gradients are averaged as they are."""
    model, hook, parallel, optimizer = hooked(count=5)
    hook.detach()
    other = network()
    other.load_state_dict(model.state_dict())
    steps(parallel, optimizer, rank(), [5])
    steps(DistributedDataParallel(other), sgd(other), rank(), [5])
    assert far(vector(model), vector(other)) < 1e-15
    again = rt.attach(parallel, "ef21", TOP)
    steps(parallel, optimizer, rank(), [6])
    assert spread(model) == 0
    assert again.report().steps == 1


@on_ranks(2)
def test_accumulated_gradients_are_one_message():
    """Two backward passes, one step: as the gradient of their sum."""
    model, other = network(), network()
    parallel = DistributedDataParallel(model)
    hook, optimizer = rt.attach(parallel, "ef21", TOP, "global"), sgd(model)
    opt = rt.CompressedOptimizer(sgd(other), TOP)
    for t in range(0, 8, 2):
        optimizer.zero_grad()
        with parallel.no_sync():
            loss(parallel, t, rank()).backward()
        loss(parallel, t + 1, rank()).backward()
        optimizer.step()
        opt.zero_grad()
        loss(other, t, rank()).backward()
        loss(other, t + 1, rank()).backward()
        opt.step()
    assert far(vector(model), vector(other)) == 0
    assert [hook.report().steps, opt.report().steps] == [4, 4]


@on_ranks(2)
def test_a_step_without_messages_is_an_error():
    """The next proper one goes on."""
    model, _, parallel, optimizer = hooked(count=3)
    optimizer.zero_grad()
    with parallel.no_sync():
        loss(parallel, 3, rank()).backward()
    before = vector(model)
    with pytest.raises(RuntimeError, match=r"never exchanged(.|\n)*no_sync"):
        optimizer.step()
    assert far(before, vector(model)) == 0
    steps(parallel, optimizer, rank(), [4, 5])
    assert spread(model) == 0


@on_ranks(2)
def test_a_model_that_is_given_up_takes_its_hook_along():
    model, hook, parallel, optimizer = hooked(count=2)
    references = [weakref.ref(x) for x in (model, hook)]
    del model, hook, parallel, optimizer
    gc.collect()
    assert [reference() for reference in references] == [None, None]


@on_ranks(2)
def test_a_hook_is_collected_while_an_optimizer_steps():
    """The garbage collector runs when it likes."""
    old: list[object] = [*hooked(count=1)]
    old.append(old)
    reference = weakref.ref(old[1])

    def collect(*_: object) -> None:
        gc.collect()

    handle = register_optimizer_step_pre_hook(collect)
    _, _, parallel, optimizer = hooked(count=1)
    del old
    steps(parallel, optimizer, rank(), [1])
    handle.remove()
    assert reference() is None


@on_ranks(2)
def test_groups_of_parameters_keep_their_step_sizes():
    """Schedulers reach them, without a warning."""
    model = network()
    first, second, third = model[0], model[2], model[4]
    rest = [*second.parameters(), *third.parameters()]
    groups = [{"params": first.parameters(), "lr": 0.0}, {"params": rest, "lr": 1e-2}]
    inner = torch.optim.AdamW(groups)
    opt = rt.CompressedOptimizer(inner, TOP)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)
        for t in range(3):
            steps(model, opt, rank(), [t])
            schedule.step()
    assert far(first.weight, network()[0].weight) == 0
    assert [group["lr"] for group in inner.param_groups] == [0, 1e-2 / 8]
    assert spread(model) == 0


@on_ranks(2)
def test_small_tensors_are_sent_as_they_are():
    """Sizes 600, 30, 900, 30, 150, 5; a message of 3 entries is not half as long as one of 5 values."""
    cases = {
        None: [False] * 5 + [True],
        150: [False, True, False, True, False, True],
        0: [False] * 6,
    }
    for least, exact in cases.items():
        model = network()
        opt = rt.CompressedOptimizer(sgd(model), "top_k:k=3", granularity="tensor", min_numel=least)
        for p in model.parameters():
            p.grad = torch.ones_like(p) * (rank() + 1)
        opt.step()
        assert [bool((p.grad == 1.5).all()) for p in model.parameters()] == exact


@on_ranks(2)
def test_tensors_have_operators_by_name():
    """With a hook, too, where a pattern has tensors in some parts only."""
    settings: Any = {"groups": [("0.*", "identity")], "min_numel": 0}
    model, other = network(), network()
    names = list(model.named_parameters())
    opt = rt.CompressedOptimizer(
        sgd(model), "zero", "dcgd", "tensor", named_parameters=names, **settings
    )
    loss(model, 0, rank()).backward()
    opt.step()
    parallel = DistributedDataParallel(other)
    rt.attach(parallel, "dcgd", "zero", "tensor", size=1, **settings)
    loss(parallel, 0, rank()).backward()
    for each in (model, other):
        sent = [name for name, p in each.named_parameters() if bool(p.grad.any())]
        assert sent == ["0.weight", "0.bias"]
    model = network()
    opt = rt.CompressedOptimizer(
        sgd(model), "zero", "dcgd", "tensor", collective="all_to_all",
        named_parameters=list(model.named_parameters()), **settings
    )  # fmt: skip
    loss(model, 0, rank()).backward()
    opt.step()
    assert [name for name, p in model.named_parameters() if bool(p.grad.any())] == sent
    third = DistributedDataParallel(network())
    with pytest.raises(InputError, match="'x' names no tensor"):
        rt.attach(third, "dcgd", "zero", "tensor", groups=[("x", "zero")])


@on_ranks(2)
def test_local_steps_part_the_ranks_and_exchanges_join_them():
    """H = 1 of SGD is data-parallel SGD."""
    model, other = network(), network()
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    opt = rt.CompressedOptimizer(inner, algorithm="diloco", local={"steps": 4})
    for t in range(8):
        steps(model, opt, rank(), [t])
        assert (spread(model) == 0) == (t % 4 == 3)
    assert opt.report().exchanges == 2
    each = rt.CompressedOptimizer(sgd(other), None, "gd", local={"steps": 1})
    steps(other, each, rank(), range(10))
    assert far(vector(other), vector(plain())) < 1e-14


# Going on elsewhere ---------------------------------------------------------------------------------


def stored(value: Any) -> Any:
    """Return a value as ``torch.load`` reads what ``torch.save`` has written, without pickled code."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@on_ranks(2)
def test_one_rank_goes_on_from_two():
    """Of n' ranks after n: the means of all memories are kept."""
    alone = [dist.new_group([r]) for r in range(2)][rank()]
    model, two = trained(count=5)
    parts = [stored(part) for part in everyone(two.state_dict())]
    opt = rt.CompressedOptimizer(sgd(model), TOP, "ef21", group=alone)
    with pytest.raises(InputError, match="saved by 2 ranks, loaded by 1"):
        opt.load_state_dict(parts[0])
    with pytest.raises(InputError, match=r"parts of ranks \[1\] of 2"):
        rt.whole(parts[1:])
    opt.load_state_dict(rt.whole(parts[::-1]))  # in any order
    before = torch.stack(everyone(memory(two, "g"))).mean(0)
    torch.testing.assert_close(memory(opt, "g"), before, rtol=1e-14, atol=1e-16)
    assert all(math.isfinite(f) for f in steps(model, opt, 0, range(5, 15)))


@pytest.mark.parametrize("way", ["optimizer", "hook", "local"])
@on_ranks(2)
def test_a_distributed_checkpoint_keeps_what_every_rank_remembers(way):
    """Equal names would be taken for copies of one value: ranks then went on from another's memory."""

    def start(seed: int) -> Any:
        model = network(seed=seed)
        if way == "hook":
            parallel = DistributedDataParallel(model)
            return parallel, sgd(parallel), rt.attach(parallel, "ef21", TOP)
        more = {"local": {"steps": 3}} if way == "local" else {}
        adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
        opt = rt.CompressedOptimizer(adam, TOP, "ef14:memory=gradient", **more)
        return model, opt, opt

    model, optimizer, stateful = start(0)
    steps(model, optimizer, rank(), range(4))
    folder = shared_folder() / "checkpoint"
    checkpoint.save({"model": model, "compressed": stateful}, checkpoint_id=folder)
    steps(model, optimizer, rank(), range(4, 8))
    other, again, stateful = start(7)
    checkpoint.load({"model": other, "compressed": stateful}, checkpoint_id=folder)
    steps(other, again, rank(), range(4, 8))
    assert far(vector(model), vector(other)) == 0
    parts = parts_of_ranks(rt.whole(folder))
    assert [(part["rank"], part["n"]) for part in parts.values()] == [(0, 2), (1, 2)]


@pytest.mark.parametrize(
    ("name", "more"), [("ef21", {}), ("gd", {}), ("ef21", {"local": {"steps": 1, "late": 1}})]
)
@on_ranks(2)
def test_a_checkpoint_of_rank_0_alone_is_refused_at_the_next_exchange(name, more):
    """Late ones too, which have a group of their own. Where ranks remember nothing of their own, that of rank 0 serves all."""
    model, opt = trained(name, TOP if name == "ef21" else None, 3, **more)
    state = opt.state_dict() if rank() == 0 else None
    text = said(lambda: steps(model, opt, rank(), [3, 4]))
    if name == "ef21":
        assert "state_dict() a different number of times: rank 0 1, rank 1 0" in text
    else:
        assert text == ""
        opt.load_state_dict(everyone(state)[0])


@on_ranks(2)
def test_a_hook_that_could_not_be_attached_leaves_the_loop_alone():
    """Though who keeps the error, as a notebook does, keeps what was made of the hook."""
    parallel = DistributedDataParallel(network())
    with pytest.raises(InputError, match="needs the step size") as error:
        rt.attach(parallel, "ef14", TOP)
    steps(parallel, sgd(parallel), rank(), range(2))
    assert error.traceback


@pytest.mark.parametrize("framework", ["accelerate.optimizer", "lightning.pytorch.strategies"])
@on_ranks(2)
def test_frameworks_that_write_the_state_of_rank_0_are_refused(framework):
    """What they do when they move an optimizer to its device is none of it."""
    _, opt = trained(count=2)
    names = {"__name__": framework, "opt": opt}
    exec("def __init__():\n    return opt.state_dict()", names)
    names["__init__"]()
    exec("def save():\n    return opt.state_dict()", names)
    with pytest.raises(InputError, match=r"(?s)saves that of rank 0 alone.*raybench\.torch"):
        names["save"]()


PRESETS = {
    "diloco": None,
    "muloco": None,
    "sparseloco": TOP,
    "local_ef21": TOP,
    "heavy_ball": None,
    "momentum_sgd": None,
    "ef21_hb": TOP,
}
"""All methods that bring local steps or an outer optimizer, with a compressor."""


def local(model: nn.Module, name: str, operator: Any, **more: Any) -> Any:
    """Return a preset around AdamW with three local steps, and an outer step that makes a second one visible."""
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    outer = {"step_size": 0.7}
    return rt.CompressedOptimizer(inner, operator, name, local={"steps": 3}, outer=outer, **more)


@pytest.mark.parametrize("name", first_of_each(PRESETS, PRESETS.get))
@on_ranks(2)
def test_presets_go_on_as_if_they_had_not_stopped(name):
    """In the middle of local steps bit for bit; with more or fewer ranks to rounding.

    Another number of ranks has the same data on every rank and compressors without an error, so that the number of
    ranks changes nothing but rounding.
    """
    operator = PRESETS[name]
    model, other = network(), network(seed=7)
    opt = local(model, name, operator)
    steps(model, opt, rank(), range(4))
    kept, state = deepcopy([model.state_dict(), opt.state_dict()])
    steps(model, opt, rank(), range(4, 8))
    again = local(other, name, operator)
    other.load_state_dict(kept)
    again.load_state_dict(state)
    steps(other, again, rank(), range(4, 8))
    assert far(vector(model), vector(other)) == 0
    alone = [dist.new_group([r]) for r in range(2)][rank()]
    for before, after in ((None, alone), (alone, None)):
        model, other = network(), network()
        opt = local(model, name, operator and "identity", group=before)
        steps(model, opt, 0, range(3))
        state = opt.state_dict()
        other.load_state_dict(model.state_dict())
        again = local(other, name, operator and "identity", group=after)
        again.load_state_dict(rt.whole(everyone(state) if before is None else [deepcopy(state)]))
        steps(model, opt, 0, range(3, 6))
        steps(other, again, 0, range(3, 6))
        assert far(vector(model), vector(other)) < 1e-12


# Replicas that are not alike, and closures ----------------------------------------------------------


def said(work: Any) -> str:
    """Return what an error tells all ranks alike, "" where there is none."""
    try:
        work()
        text = ""
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    assert everyone(text) == [text] * 2
    return text


def frozen() -> nn.Sequential:
    """Return a network of which a layer is frozen."""
    model = network()
    model[2].requires_grad_(False)
    return model


def wrapped(
    model: Any = None, lr: float = 0.1, compressor: Any = TOP, algorithm: str = "ef21", **more: Any
) -> Any:
    inner = sgd(network() if model is None else model, lr)
    return rt.CompressedOptimizer(inner, compressor, algorithm, **more)


def attached(compressor: Any = TOP, **more: Any) -> Any:
    return rt.attach(DistributedDataParallel(network()), "ef21", compressor, **more)


@on_ranks(2)
def test_what_differs_between_ranks_ends_with_one_message_on_all():
    for key, first, second, words in (
        ("seed", 0, 1, "seed: rank 0 has 0, rank 1 1"),
        ("compressor", TOP, "top_k:k=2", "compressor: rank 0 has top_k:k=10%, rank 1 top_k:k=2"),
        ("compressor", TOP, "topk", "compressor: rank 0 has top_k:k=10%, rank 1 topk"),
        ("algorithm", "ef21", "ef21_sgdm", "algorithm: rank 0 has ef21, rank 1 ef21_sgdm"),
        ("model", nn.Linear(3, 2), nn.Linear(3, 3), "0.0 (2, 3) torch.float32, rank 1 0.0 (3, 3)"),
        (
            "model",
            network(),
            network(torch.float32),
            "torch.float64, rank 1 0.0 (30, 20) torch.float32",
        ),
        ("model", network(), frozen(), "rank 1 0.2 (30, 30) torch.float64, requires_grad=False"),
        ("model", network()[:3], network(), "parameter 4: rank 0 has nothing, rank 1 0.4 (5, 30)"),
        ("lr", 0.1, 1.1, "param_groups[0].lr: rank 0 has 0.1, rank 1 1.1"),
    ):
        mine = {key: second if rank() else first}
        for way in [wrapped, attached] if key in ("seed", "compressor") else [wrapped]:
            text = said(lambda way=way, mine=mine: way(**mine))
            assert text.startswith("InputError: ")
            assert words in text
            assert len(text.splitlines()) == 2


@on_ranks(2)
def test_ranks_may_take_local_steps_in_their_own_ways():
    assert said(lambda: wrapped(local={"steps": 2}, lr=0.1 + rank())) == ""


@pytest.mark.parametrize("way", ["optimizer", "hook"])
@pytest.mark.parametrize("who", first_of_each([[1], [0, 1]]))
@on_ranks(2)
def test_parameters_that_are_unfrozen_later_are_refused_on_all_ranks(way, who):
    model = frozen()
    optimizer: Any = sgd(model)
    module: Any = model
    if way == "hook":
        module = DistributedDataParallel(model)
        hook = rt.attach(module, "ef21", TOP)
    else:
        optimizer = rt.CompressedOptimizer(
            optimizer, TOP, named_parameters=model.named_parameters()
        )
    steps(module, optimizer, rank(), [0, 1])
    model[2].requires_grad_(rank() in who)
    text = said(lambda: steps(module, optimizer, rank(), [2]))
    if way == "hook":
        hook.detach()
    start = f"InputError: requires_grad: that of 2.weight has become True on rank {who[0]}\n"
    assert text.startswith(start)


@on_ranks(2)
def test_ranks_go_on_from_the_same_step():
    model = network()
    opt = rt.CompressedOptimizer(sgd(model), TOP)
    kept = opt.state_dict()
    steps(model, opt, rank(), [0, 1])
    if rank() == 1:
        opt.load_state_dict(kept)
    text = said(lambda: steps(model, opt, rank(), [2]))
    assert "different numbers of exchanges: rank 0 2, rank 1 0" in text


@pytest.mark.parametrize("way", ["optimizer", "hook", "local"])
@on_ranks(2)
def test_parameters_that_drift_apart_are_named_at_the_next_comparison(way):
    """Those that differ in one bit; with local steps, of the shared point."""
    model = network()
    module: Any = model
    optimizer: Any = sgd(model)
    if way == "hook":
        module = DistributedDataParallel(model)
        hook = rt.attach(module, "ef21", TOP, check_every=2)
    elif way == "optimizer":
        names = list(model.named_parameters())
        optimizer = wrapped(model, check_every=2, named_parameters=names)
    else:
        optimizer = wrapped(
            model, compressor=None, algorithm="gd", local={"steps": 3}, check_every=2
        )
    at, name = (9, "0.0") if way == "local" else (6, "2.bias")
    begin = 6 if way == "local" else 4
    steps(module, optimizer, rank(), range(begin))
    if rank() == 1 and way == "local":
        optimizer._local[0].x[7] += 1e-9
    elif rank() == 1:
        model[2].bias.data[3] += 1e-15
    for t in range(begin, at - 1):
        assert said(lambda t=t: steps(module, optimizer, rank(), [t])) == ""
    text = said(lambda: steps(module, optimizer, rank(), [at - 1]))
    if way == "hook":
        hook.detach()
    start = f"RuntimeError: step {at}: the replicas have drifted apart: {name} of rank 1 "
    assert text.startswith(start)


@on_ranks(2)
def test_gradients_that_were_averaged_already_are_noticed():
    for wraps in (True, False):
        model = network()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            opt = rt.CompressedOptimizer(sgd(model), TOP)
            steps(DistributedDataParallel(model) if wraps else model, opt, rank(), range(2))
        texts = [str(w.message) for w in caught if "very same" in str(w.message)]
        assert len(texts) == (wraps and rank() == 0)
        assert all("attach" in text for text in texts)


# Process groups -------------------------------------------------------------------------------------


def test_nothing_here_keeps_a_process_group_alive(tmp_path):
    """A group that is held beyond its end goes on running threads, which abort a process that ends."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/a", rank=0, world_size=1)
    own = dist.new_group([0], timeout=timedelta(seconds=77))
    opts = [rt.CompressedOptimizer(sgd(network()), TOP, group=group) for group in (None, own)]
    model = DistributedDataParallel(network(), process_group=own)
    count = len(dist.distributed_c10d._world.pg_map)
    with rt.attach(model, "ef21", TOP):
        groups = [weakref.ref(g) for g in dist.distributed_c10d._world.pg_map]
        timeouts = [g()._get_backend(torch.device("cpu")).options._timeout for g in groups]
        assert [t.total_seconds() for t in timeouts] == [1800, 77, 77]
    assert len(dist.distributed_c10d._world.pg_map) == count == 2
    second = rt.attach(model, "ef21", TOP)
    assert len(dist.distributed_c10d._world.pg_map) == 3
    del model, own
    dist.destroy_process_group()
    gc.collect()
    assert [g() for g in groups] == [None] * 3
    second.detach()
    with pytest.raises(RuntimeError, match="was destroyed"):
        opts[1].step()
