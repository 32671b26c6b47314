"""Models and optimizers as people have them, with ``attach``: it does what DistributedDataParallel does, or refuses."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from gloo_kit import on_ranks
from loop_kit import TOP, far, loss, network, plain, sgd, steps, vector
from torch import nn
from torch.distributed import get_rank as rank
from torch.nn.parallel import DistributedDataParallel

import raybench.torch as rt

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
