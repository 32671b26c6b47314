"""Gradients that are no plain ones, on two real ranks: unused, sparse, scaled, narrow, not finite, of closures."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gloo_kit import on_ranks
from loop_kit import (
    TOP,
    data,
    far,
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
from torch import nn
from torch.distributed import get_rank as rank
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import raybench.torch as rt
from raybench.core.errors import InputError

SINGLE = torch.float32


class Gated(nn.Module):
    """A network of which rank 1 uses one branch in odd steps only."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = network(seed=1), network(seed=2)

    def forward(self, x: Any, both: bool = True) -> Any:
        return self.left(x) + (self.right(x) if both else 0.0)


@pytest.mark.parametrize("way", ["ef21", "diana", "hook"])
@on_ranks(2)
def test_parameters_that_a_rank_does_not_use(way):
    """They count as zeros there, and all ranks stay equal."""
    model: Any = Gated()
    if way == "hook":
        model = DistributedDataParallel(model, find_unused_parameters=True)
        rt.attach(model, "ef21", TOP)
        optimizer: Any = sgd(model)
    else:
        operator = TOP if way == "ef21" else "rand_k:k=10%"
        optimizer = rt.CompressedOptimizer(sgd(model), operator, way)
    for t in range(6):
        optimizer.zero_grad()
        inputs, targets = data(t, rank())
        F.cross_entropy(model(inputs, rank() == 0 or t % 2 == 1), targets).backward()
        optimizer.step()
    assert spread(model) == 0


@on_ranks(2)
def test_sparse_gradients_are_as_dense_ones():
    ends = []
    for sparse in (False, True):
        torch.manual_seed(0)
        table = nn.Embedding(40, 8, sparse=sparse).double()
        opt = rt.CompressedOptimizer(sgd(table), "top_k:k=20%")
        for t in range(5):
            opt.zero_grad()
            source = torch.Generator().manual_seed(10 * t + rank())
            table(torch.randint(0, 40, (12,), generator=source)).square().sum().backward()
            opt.step()
        ends.append(vector(table))
    assert far(*ends) < 1e-15


@pytest.mark.thorough
@on_ranks(2)
def test_messages_of_varying_length_arrive():
    model, opt = trained("ef21", "hard_threshold:threshold=0.01", 12, allow_unproven=True)
    sizes = opt.report().rows["bytes_up"]
    assert spread(model) == 0
    assert sizes.min() < sizes.max()


# A GradScaler ---------------------------------------------------------------------------------------


def scaler() -> Any:
    """Return one on the CPU that begins with a small factor."""
    return torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)


def without_the_fourth_step() -> torch.Tensor:
    model = network(SINGLE)
    opt = rt.CompressedOptimizer(sgd(model), TOP, "ef21")
    steps(model, opt, rank(), [0, 1, 2, 3, 5, 6, 7], SINGLE)
    return vector(model)


@on_ranks(2)
def test_a_step_that_one_scaler_skips_is_skipped_by_all():
    """Memories stay as they were."""
    model, factor = network(SINGLE), scaler()
    opt = rt.CompressedOptimizer(sgd(model), TOP, "ef21")
    for t in range(8):
        opt.zero_grad()
        factor.scale(loss(model, t, rank(), SINGLE)).backward()
        if t == 4 and rank() == 1:
            model[0].weight.grad.view(-1)[0] = torch.inf
        before = memory(opt, "g").clone(), vector(model)
        factor.step(opt)
        factor.update()
        moved = max(far(a, b) for a, b in zip(before, (memory(opt, "g"), vector(model))))
        assert (moved == 0) == (t == 4)
    assert far(vector(model), without_the_fourth_step()) < 1e-6  # factors are powers of two
    assert spread(model) == 0


@on_ranks(2)
def test_a_hook_that_knows_the_scaler_keeps_infinities_out_of_memories():
    model, factor = network(SINGLE), scaler()
    parallel = DistributedDataParallel(model)
    hook = rt.attach(parallel, "ef21", TOP, "global", scaler=factor)
    optimizer = sgd(model)
    for t in range(8):
        optimizer.zero_grad()
        f = factor.scale(loss(parallel, t, rank(), SINGLE))
        (f * torch.inf if t == 4 and rank() == 1 else f).backward()
        factor.step(optimizer)
        factor.update()
    assert far(vector(model), without_the_fourth_step()) < 1e-6
    assert spread(model) == 0
    assert [hook.report().steps, hook.report().skipped] == [8, 1]


class Spoilt:
    """NaN in one gradient of the first layer, the last one that a backward pass reaches, where ``on``."""

    def __init__(self, model: nn.Sequential) -> None:
        self.on = False
        model[0].weight.register_hook(self.changed)

    def changed(self, grad: torch.Tensor) -> torch.Tensor:
        first = torch.zeros_like(grad, dtype=torch.bool)
        first[0, 0] = self.on
        return grad.masked_fill(first, torch.nan)


@on_ranks(2)
def test_a_scaler_that_the_hook_does_not_know_sees_what_is_skipped():
    """It sees the infinity on all ranks, and takes a smaller factor."""
    model, factor = network(SINGLE), scaler()
    spoilt = Spoilt(model)
    parallel = DistributedDataParallel(model)
    hook = rt.attach(parallel, "gd", None, size=1)
    optimizer = sgd(model)
    for t, scale in enumerate((8, 4, 4)):
        spoilt.on = t == 1 and rank() == 1
        optimizer.zero_grad()
        factor.scale(loss(parallel, t, rank(), SINGLE)).backward()
        factor.step(optimizer)
        factor.update()
        assert factor.get_scale() == scale
    assert hook.report().skipped == 1
    assert spread(model) == 0


# Not finite -----------------------------------------------------------------------------------------


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW, which moves along its memory even where gradients are zero."""
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def loop(way: str, model: nn.Sequential) -> tuple[Any, Any, Any]:
    """Return the module to train, its optimizer, and what reports."""
    if way.startswith("hook"):
        parallel = DistributedDataParallel(model, bucket_cap_mb=0.004)
        settings: Any = {"allow_unproven": True, "size": 1, "overlap": way == "hook"}
        hook = rt.attach(parallel, "ef21", "rand_k:k=10%", **settings)
        return parallel, adam(model), hook
    delay = {"rounds": 2} if way == "delayed" else None
    opt = rt.CompressedOptimizer(adam(model), "rand_k:k=10%", "diana", delay=delay)
    return model, opt, opt


@pytest.mark.parametrize("way", ["optimizer", "delayed", "hook", "hook without overlap"])
@on_ranks(2)
def test_a_nan_on_one_rank_is_as_if_the_step_had_not_been(way):
    """Bit for bit, with an optimizer and a method that have memories; the hook has sent other parts by then."""
    ends = []
    for spoils in (True, False):
        model = network()
        spoilt = Spoilt(model)
        module, optimizer, reporter = loop(way, model)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for t in range(9) if spoils else [0, 1, 2, 3, 4, 6, 7, 8]:
                spoilt.on = spoils and t == 5 and rank() == 1
                steps(module, optimizer, rank(), [t])
        texts = [str(w.message) for w in caught]
        report = reporter.report()
        assert [report.steps, report.skipped] == ([9, 1] if spoils else [8, 0])
        assert len(texts) == spoils
        start = "step 5: NaN or infinity in the gradients of 1 of 2 ranks (rank 1)"
        assert all(text.startswith(start) and "set_detect_anomaly" in text for text in texts)
        assert spread(model) == 0
        ends.append(vector(model))
    assert far(*ends) == 0


# Closures -------------------------------------------------------------------------------------------


def closing(model: nn.Module, opt: Any, t: int) -> Callable[[], Any]:
    """Return a closure as loops of Lightning have it."""

    def closure() -> Any:
        assert torch.is_grad_enabled()
        opt.zero_grad()
        f = loss(model, t, rank())
        f.backward()
        return f

    return closure


@on_ranks(2)
def test_a_closure_is_what_its_body_would_be():
    """Its own loss comes back."""
    model, other, single, hooked = network(), network(), network(), network()
    opt = rt.CompressedOptimizer(sgd(model), TOP)
    losses = [float(opt.step(closing(model, opt, t)).detach()) for t in range(5)]
    body = rt.CompressedOptimizer(sgd(other), TOP)
    assert losses == steps(other, body, rank(), range(5))
    assert far(vector(model), vector(other)) == 0
    local = rt.CompressedOptimizer(sgd(single), None, "gd", local={"steps": 1})
    for t in range(10):
        local.step(closing(single, local, t))
    assert far(vector(single), vector(plain())) < 1e-14
    parallel = DistributedDataParallel(hooked)
    rt.attach(parallel, "ef21", TOP, "global")
    optimizer = sgd(hooked)
    for t in range(5):
        optimizer.step(closing(parallel, optimizer, t))
    assert far(vector(hooked), vector(other)) == 0
    search = torch.optim.LBFGS(hooked.parameters())
    with pytest.raises(InputError, match="along a line, on each rank by its own loss"):
        search.step(closing(parallel, search, 5))


def both(model: nn.Module) -> Any:
    """Return the mean of both ranks' losses on the minibatches of step 0."""
    pairs = [data(0, r) for r in range(2)]
    return sum(F.cross_entropy(model(inputs), targets) for inputs, targets in pairs) / 2


@on_ranks(2)
def test_a_line_search_decides_alike_on_all_ranks():
    """LBFGS over two ranks is LBFGS of the mean loss; compressed it is the same on both, and descends."""
    settings: Any = {"lr": 1.0, "max_iter": 4, "line_search_fn": "strong_wolfe"}
    model, alone = network(), network()
    opt = rt.CompressedOptimizer(torch.optim.LBFGS(model.parameters(), **settings), None, "gd")
    single = torch.optim.LBFGS(alone.parameters(), **settings)

    def closure() -> Any:
        single.zero_grad()
        f = both(alone)
        f.backward()
        return f

    for _ in range(3):
        opt.step(closing(model, opt, 0))
        single.step(closure)
    report = opt.report()
    evaluations = single.state[next(iter(alone.parameters()))]["func_evals"]
    assert far(vector(model), vector(alone)) < 1e-9
    assert spread(model) == 0
    assert report.steps == 3
    assert report.exchanges == evaluations > 6
    model = network()
    opt = rt.CompressedOptimizer(torch.optim.LBFGS(model.parameters(), **settings), TOP)
    before = float(both(model).detach())
    for _ in range(3):
        opt.step(closing(model, opt, 0))
    assert spread(model) == 0
    assert float(both(model).detach()) < before / 2
