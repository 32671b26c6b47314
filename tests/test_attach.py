"""Models and optimizers as people have them, with ``attach``: it does what DistributedDataParallel does, or refuses."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from gloo_kit import everyone, on_ranks, shared_folder
from loop_kit import TOP, D, data, far, hooked, loss, network, plain, sgd, spread, steps, vector
from torch import nn
from torch.distributed import get_rank as rank
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import raybench.torch as rt
from raybench.core.errors import InputError
from raybench.torch.frameworks import read_checkpoint, write_checkpoint

# Optimizers -----------------------------------------------------------------------------------------


def with_temperature(model: nn.Module, **more: Any) -> torch.optim.Optimizer:
    """Return an optimizer whose first group holds nothing of the model."""
    temperature = nn.Parameter(torch.ones(()))
    groups = [{"params": [temperature]}, {"params": [*model.parameters()]}]
    return torch.optim.SGD(groups, lr=0.1, **more)


@on_ranks(2)
def test_an_optimizer_is_watched_whichever_group_holds_the_model():
    """A NaN, a step without messages and parameters that drift apart are noticed as in the first group."""
    model = network()
    parallel = DistributedDataParallel(model)
    hook = rt.attach(parallel, "ef21", TOP, check_every=1)
    optimizer = with_temperature(model)
    steps(parallel, optimizer, rank(), [0])
    before = vector(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer.zero_grad()
        (loss(parallel, 1, rank()) * (torch.nan if rank() else 1.0)).backward()
        optimizer.step()
    assert far(before, vector(model)) == 0
    with parallel.no_sync():
        loss(parallel, 2, rank()).backward()
    with pytest.raises(RuntimeError, match="never exchanged"):
        optimizer.step()
    if rank() == 1:
        model[0].bias.data[0] += 1.0
    with pytest.raises(RuntimeError, match=r"drifted apart: 0\.bias of rank 1"):
        steps(parallel, optimizer, rank(), [3])
    hook.detach()


class Counting(torch.optim.SGD):
    """A subclass whose step calls that of its base, for which torch calls hooks once more."""

    count = 0

    def step(self, closure: Any = None) -> Any:
        self.count += 1
        return super().step(closure)


@pytest.mark.parametrize("closing", [False, True])
@on_ranks(2)
def test_a_step_within_a_step_is_one_step(closing):
    model = network()
    parallel = DistributedDataParallel(model)
    hook = rt.attach(parallel, "gd", None)
    optimizer = Counting(model.parameters(), lr=0.1)
    for t in range(10):

        def closure(t: int = t) -> Any:
            optimizer.zero_grad()
            f = loss(parallel, t, rank())
            f.backward()
            return f

        if closing:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    assert far(vector(model), vector(plain())) < 1e-14
    assert [optimizer.count, hook.report().steps] == [10, 10]
    with parallel.no_sync():
        loss(parallel, 10, rank()).backward()
    with pytest.raises(RuntimeError, match="never exchanged"):
        optimizer.step()


@on_ranks(2)
def test_a_step_before_all_gradients_is_none():
    """As loops have it that quiet a warning of schedulers."""
    model = network()
    parallel = DistributedDataParallel(model)
    rt.attach(parallel, "gd", None)
    optimizer = sgd(model)
    optimizer.step()
    steps(parallel, optimizer, rank(), range(10))
    assert far(vector(model), vector(plain())) < 1e-14


# Parameters -----------------------------------------------------------------------------------------


class Words(nn.Module):
    """An embedding with a sparse gradient, or a layer that is frozen at first; then another one."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 8, sparse=sparse)
        self.layer, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
        self.layer.requires_grad_(sparse)


@on_ranks(2)
def test_what_cannot_be_served_is_refused_before_the_first_step():
    model = Words(sparse=False)
    parallel = DistributedDataParallel(model)
    model.layer.requires_grad_(True)
    with pytest.raises(InputError, match=r"layer\.weight was frozen at DistributedDataParallel"):
        rt.attach(parallel, "ef21", TOP)
    model = Words(sparse=True)
    parallel = DistributedDataParallel(model)
    model.layer.requires_grad_(False)
    with pytest.raises(InputError, match="where gradients are sparse"):
        rt.attach(parallel, "ef21", TOP)
    parallel = DistributedDataParallel(network())
    parallel.register_comm_hook(None, allreduce_hook)
    with pytest.raises(InputError, match="a hook of torch already"):
        rt.attach(parallel, "ef21", TOP)


@on_ranks(2)
def test_a_gradient_that_does_not_come_is_named():
    """In place of a step along gradients of which some are exchanged."""
    model = network()
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.004)
    hook = rt.attach(parallel, "gd", None)
    optimizer = sgd(model)
    steps(parallel, optimizer, rank(), [0, 1])
    model[0].bias.requires_grad_(False)
    before = vector(model)
    with pytest.raises(RuntimeError, match=r"no gradient of 0\.bias"):
        steps(parallel, optimizer, rank(), [2])
    assert far(before, vector(model)) == 0
    hook.detach()


# Parts of a model -----------------------------------------------------------------------------------


class Pair(nn.Module):
    """Two networks of which a pass uses one, or both."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = network(seed=1), network(seed=2)

    def forward(self, x: torch.Tensor, names: str) -> Any:
        return sum(getattr(self, name)(x) for name in names.split())


def loss_of(model: nn.Module, t: int, names: str, r: int) -> torch.Tensor:
    inputs, targets = data(t, r)
    return F.cross_entropy(model(inputs, names), targets)


@pytest.mark.parametrize("algorithm", ["ef14:memory=gradient", "power_sgd:rank=1"])
@pytest.mark.parametrize("cap", [1, 1 << 20])
@on_ranks(2)
def test_what_a_pass_does_not_use_stays_out_of_it(algorithm, cap):
    """Two optimizers in turn: the sum of what is applied and the mean memory are the sum of mean gradients."""
    model = Pair()
    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    hook = rt.attach(parallel, algorithm, "top_k:k=3" if "ef14" in algorithm else None, size=cap)
    nets = {"left": model.left, "right": model.right}
    optimizers = {name: sgd(net, 1.0) for name, net in nets.items()}
    start, total = vector(model), torch.zeros(2 * D, dtype=torch.float64)
    for t in range(8):
        name = "left" if t % 2 else "right"
        before = [p.grad for p in nets["left" if t % 2 == 0 else "right"].parameters()]
        for r in range(2):
            grads = torch.autograd.grad(loss_of(model, t, name, r), [*nets[name].parameters()])
            flat = torch.cat([g.flatten() for g in grads]) / 2
            total[D * (name == "right") :][:D] += flat
        optimizers[name].zero_grad()
        loss_of(parallel, t, name, rank()).backward()
        optimizers[name].step()
        after = [p.grad for p in nets["left" if t % 2 == 0 else "right"].parameters()]
        assert all(a is b for a, b in zip(before, after, strict=True))
    memories: dict[str, torch.Tensor] = {}
    for part in hook.buckets:
        memories |= part.flat.layout.named(part.exchange.c.e[0, 0])
    mine = torch.cat([memories[name].flatten() for name, _ in model.named_parameters()])
    mean = sum(torch.tensor(v, dtype=torch.float64) for v in everyone(mine.tolist())) / 2
    assert far(start - vector(model) + mean, total) < 1e-12
    assert float(mean.norm()) > 0.1 * float(total.norm())
    assert spread(model) == 0
    if cap == 1:
        assert hook.report().rows["bytes_up"][1:].max() < 2000 * (1 + ("power" in algorithm))


@on_ranks(2)
def test_directions_that_nobody_takes_are_refused():
    """Where a method remembers: of both networks messages went out, of which one optimizer alone takes a step."""
    for algorithm, compressor in (("ef14:memory=gradient", TOP), ("gd", None)):
        model = Pair()
        parallel = DistributedDataParallel(model)
        hook = rt.attach(parallel, algorithm, compressor)
        left, right = sgd(model.left), sgd(model.right)
        for t in range(3):
            parallel.zero_grad()
            loss_of(parallel, t, "left right", rank()).backward()
            left.step()
            right.step()
        for t, optimizer in enumerate((left, right), 3):
            parallel.zero_grad()
            loss_of(parallel, t, "left right", rank()).backward()
            if algorithm != "gd" and optimizer is right:
                with pytest.raises(
                    InputError, match=r"right\.0\.weight was exchanged(.|\n)*by itself"
                ):
                    optimizer.step()
            else:
                optimizer.step()
        hook.detach()


@on_ranks(2)
def test_methods_that_remember_across_tensors_refuse_what_is_not_used():
    model = Pair()
    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    hook = rt.attach(parallel, "ef21", TOP, delay={"rounds": 1})
    loss_of(parallel, 0, "left", rank()).backward()  # the other was not used yet
    loss_of(parallel, 1, "left right", rank()).backward()
    with pytest.raises(InputError, match=r"ef21 cannot leave out left\.0\.weight"):
        loss_of(parallel, 2, "right", rank()).backward()
    hook.detach()


# Numbers --------------------------------------------------------------------------------------------


class Linear(nn.Module):
    """A matrix and a vector whose gradients are what goes in."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.vector = nn.Parameter(torch.zeros(6, 6)), nn.Parameter(torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.matrix * x).sum() + (self.vector * x[0]).sum()


@pytest.mark.parametrize("way", ["hook", "optimizer"])
@on_ranks(2)
def test_a_direction_that_overflows_is_skipped(way):
    """Gradients of 1e30 are finite, not so what PowerSGD makes of them and its memory; it begins anew."""
    model = Linear()
    module: Any = DistributedDataParallel(model) if way == "hook" else model
    optimizer: Any = sgd(model, 1e-31)
    if way == "hook":
        reporter = rt.attach(module, "power_sgd:rank=2")
    else:
        reporter = optimizer = rt.CompressedOptimizer(optimizer, None, "power_sgd:rank=2")
    skipped = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for t, size in enumerate((1.0, 1e30, 1e30, 1.0, 1.0, 1.0)):
            optimizer.zero_grad()
            source = torch.Generator().manual_seed(10 * t + rank())
            module(torch.randn(6, 6, generator=source) * (size if rank() else 1.0)).backward()
            optimizer.step()
            skipped.append(reporter.report().skipped)
            assert bool(torch.isfinite(vector(model)).all())
    assert skipped == [0, 0, 1, 2, 2, 2]
    assert any("(rank 1), or in what the method makes" in str(w.message) for w in caught)
    assert spread(model) == 0


@on_ranks(2)
def test_scales_stay_the_same_on_all_ranks():
    """An infinity on one rank is known to the scalers of all, whose factors would differ from then on."""
    for unscales in (False, True):
        model, factor = network(torch.float32), torch.amp.GradScaler("cpu", init_scale=8.0)
        optimizer = rt.CompressedOptimizer(sgd(model), TOP)
        for t in range(3):
            optimizer.zero_grad()
            factor.scale(loss(model, t, rank(), torch.float32)).backward()
            if t == 1 and rank() == 1:
                model[0].weight.grad.view(-1)[0] = torch.inf
            if unscales:
                factor.unscale_(optimizer)
            factor.step(optimizer)
            factor.update()
            assert factor.get_scale() == (8.0 if t == 0 else 4.0)
        assert optimizer.report().skipped == 1


@on_ranks(2)
def test_memories_of_other_weights_are_refused():
    """As where a folder holds a checkpoint of another run at the same step."""
    _, hook, parallel, optimizer = hooked("ef14:memory=gradient", count=3)
    write_checkpoint(hook, shared_folder())
    memory = [exchange.c.e.clone() for exchange in hook.exchanges]
    read_checkpoint(hook, shared_folder(), loaded=True)
    steps(parallel, optimizer, rank(), [3])
    read_checkpoint(hook, shared_folder())  # before the weights are there
    assert all(torch.equal(e, x.c.e) for e, x in zip(memory, hook.exchanges, strict=True))
    with pytest.raises(InputError, match="memories of other weights"):
        read_checkpoint(hook, shared_folder(), loaded=True)


@on_ranks(2)
def test_optimizers_of_sparse_gradients_get_them():
    ends = []
    for wraps in (True, False):
        torch.manual_seed(0)
        table = nn.Embedding(40, 8, sparse=True).double()
        optimizer: Any = torch.optim.SparseAdam([*table.parameters()], lr=0.1)
        module: Any = table if wraps else DistributedDataParallel(table)
        if wraps:
            optimizer = rt.CompressedOptimizer(optimizer, None, "gd")
        for t in range(4):
            optimizer.zero_grad()
            source = torch.Generator().manual_seed(10 * t + rank())
            module(torch.randint(0, 40, (12,), generator=source)).square().sum().backward()
            optimizer.step()
        ends.append(vector(table))
    assert far(*ends) < 1e-12
