"""What two ranks find of gradients that are no plain ones: accumulated, unused, sparse, scaled, narrow.

Each function is one finding, by its name; ``loop_ranks`` runs them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from loop_base import TOP, hooked, trained
from loop_kit import data, everyone, far, loss, network, sgd, spread, steps, vector
from torch import nn
from torch.distributed import get_rank as rank
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import raybench.torch as rt


def accumulated() -> Any:
    """Two backward passes, one step: as the gradient of their sum, with one message."""
    model = network()
    parallel = DistributedDataParallel(model)
    hook = rt.attach(parallel, "ef21", TOP, "global")
    optimizer = sgd(model)
    other = network()
    ours = rt.CompressedOptimizer(sgd(other), TOP)
    for t in range(0, 8, 2):
        optimizer.zero_grad()
        with parallel.no_sync():
            loss(parallel, t, rank()).backward()
        loss(parallel, t + 1, rank()).backward()
        optimizer.step()
        ours.zero_grad()
        loss(other, t, rank()).backward()
        loss(other, t + 1, rank()).backward()
        ours.step()
    return [far(vector(model), vector(other)), hook.report().steps, ours.report().steps]


def never_silent() -> Any:
    """A step without messages is an error, and the next proper one goes on."""
    model, _, parallel, optimizer = hooked(count=3)
    optimizer.zero_grad()
    with parallel.no_sync():
        loss(parallel, 3, rank()).backward()
    before = vector(model)
    try:
        optimizer.step()
        said = ""
    except RuntimeError as error:
        said = str(error)
    kept = far(before, vector(model))
    steps(parallel, optimizer, rank(), [4, 5])
    return [said, kept, spread(model)]


def forgotten() -> Any:
    """A model that is given up takes its hook along: no memory stays, and no step is watched."""
    import gc
    import weakref

    model, hook, parallel, optimizer = hooked(count=2)
    gone = [weakref.ref(x) for x in (model, hook)]
    del model, hook, parallel, optimizer
    gc.collect()
    return [ref() is None for ref in gone]


class Gated(nn.Module):
    """A network of which rank 1 uses one branch in odd steps only."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = network(seed=1), network(seed=2)

    def forward(self, x: Any, both: bool = True) -> Any:
        return self.left(x) + (self.right(x) if both else 0.0)


def unused() -> Any:
    """Parameters without a gradient on a rank count as zeros there, and all ranks stay equal."""
    found = {}
    for name in ("ef21", "diana"):
        model = Gated()
        opt = rt.CompressedOptimizer(sgd(model), TOP if name == "ef21" else "rand_k:k=10%", name)
        for t in range(6):
            opt.zero_grad()
            inputs, targets = data(t, rank())
            F.cross_entropy(model(inputs, rank() == 0 or t % 2 == 1), targets).backward()
            opt.step()
        found[name] = spread(model)
    parallel = DistributedDataParallel(Gated(), find_unused_parameters=True)
    rt.attach(parallel, "ef21", TOP)
    optimizer = sgd(parallel)
    for t in range(6):
        optimizer.zero_grad()
        inputs, targets = data(t, rank())
        F.cross_entropy(parallel(inputs, rank() == 0 or t % 2 == 1), targets).backward()
        optimizer.step()
    return {**found, "hook": spread(parallel)}


def nothing_to_send() -> Any:
    """A rank whose gradients are all zero, or missing, takes part."""
    model = network()
    opt = rt.CompressedOptimizer(sgd(model), TOP)
    for t in range(5):
        opt.zero_grad()
        if rank() == 0:
            loss(model, t, rank()).backward()
        opt.step()
    return [spread(model), far(vector(model), vector(network()))]


def sparse() -> Any:
    """Sparse gradients of an embedding are as dense ones."""
    ends = []
    for kind in (False, True):
        torch.manual_seed(0)
        table = nn.Embedding(40, 8, sparse=kind).double()
        opt = rt.CompressedOptimizer(sgd(table), "top_k:k=20%")
        for t in range(5):
            opt.zero_grad()
            source = torch.Generator().manual_seed(10 * t + rank())
            table(torch.randint(0, 40, (12,), generator=source)).square().sum().backward()
            opt.step()
        ends.append(vector(table))
    return far(*ends)


def of_varying_length() -> Any:
    """Messages whose lengths differ between ranks and steps arrive."""
    model, opt = trained("ef21", "hard_threshold:threshold=0.01", 12, allow_unproven=True)
    sizes = opt.report().rows["bytes_up"]
    return [spread(model), float(sizes.min()), float(sizes.max())]


class Scaler(torch.amp.GradScaler):
    """A scaler on the CPU that begins with a small factor."""

    def __init__(self) -> None:
        super().__init__("cpu", init_scale=8.0, growth_interval=3)


def with_infinity(t: int, model: nn.Module) -> None:
    if t == 4 and rank() == 1:
        next(model.parameters()).grad.view(-1)[0] = torch.inf


def scaled() -> Any:
    """A step that one rank's scaler would skip is skipped by all, and memories stay as they were."""
    model = network(torch.float32)
    opt, scaler = rt.CompressedOptimizer(sgd(model), TOP, "ef21"), Scaler()
    kept = []
    for t in range(8):
        opt.zero_grad()
        scaler.scale(loss(model, t, rank(), torch.float32)).backward()
        with_infinity(t, model)
        before = (
            opt.state_dict()["raybench"]["parts"][0]["exchanges"][0]["c"]["g"].clone(),
            vector(model),
        )
        scaler.step(opt)
        scaler.update()
        after = opt.state_dict()["raybench"]["parts"][0]["exchanges"][0]["c"]["g"], vector(model)
        kept.append(max(far(a, b) for a, b in zip(before, after)))
    other = network(torch.float32)
    unscaled = rt.CompressedOptimizer(sgd(other), TOP, "ef21")
    steps(other, unscaled, rank(), [0, 1, 2, 3, 5, 6, 7], torch.float32)
    return [kept, far(vector(model), vector(other)), spread(model)]


def scaled_hook() -> Any:
    """The same with the hook, which has to know the scaler."""
    model, scaler = network(torch.float32), Scaler()
    parallel = DistributedDataParallel(model)
    hook = rt.attach(parallel, "ef21", TOP, "global", scaler=scaler)
    optimizer = sgd(model)
    for t in range(8):
        optimizer.zero_grad()
        f = scaler.scale(loss(parallel, t, rank(), torch.float32))
        (f * torch.inf if t == 4 and rank() == 1 else f).backward()
        scaler.step(optimizer)
        scaler.update()
    other = network(torch.float32)
    unscaled = rt.CompressedOptimizer(sgd(other), TOP, "ef21")
    steps(other, unscaled, rank(), [0, 1, 2, 3, 5, 6, 7], torch.float32)
    log = hook.report()
    return [far(vector(model), vector(other)), spread(model), [log.steps, log.skipped]]


def narrow() -> Any:
    """Gradients of 16 bits: memories are of float32, and all ranks stay equal."""
    found = {}
    for dtype in (torch.bfloat16, torch.float16):
        model = network(dtype)
        opt = rt.CompressedOptimizer(sgd(model, 0.05), TOP, "ef14:memory=gradient")
        losses = steps(model, opt, rank(), [0] * 30, dtype)
        memory = opt.state_dict()["raybench"]["parts"][0]["exchanges"][0]["c"]["e"]
        found[str(dtype)] = [spread(model), str(memory.dtype), losses[0], losses[-1]]
    parallel = DistributedDataParallel(network(torch.bfloat16))
    rt.attach(parallel, "ef21", TOP)
    steps(parallel, sgd(parallel), rank(), range(5), torch.bfloat16)
    return {**found, "hook": spread(parallel)}


def compiled() -> Any:
    """A compiled model trains as one that is not."""
    model = network()
    opt = rt.CompressedOptimizer(sgd(model), TOP)
    steps(torch.compile(model, backend="aot_eager"), opt, rank(), range(5))
    return far(vector(model), vector(trained(count=5)[0]))


TIMES = [*range(5), *range(6, 9)]
"""Steps but the fifth, in which ``spoilt`` has a NaN on rank 1."""


class Spoilt:
    """NaN in one gradient of the first layer, the last one that a backward pass reaches, on rank 1 when ``on``."""

    def __init__(self, model: nn.Sequential) -> None:
        self.on = False
        model[0].weight.register_hook(self.changed)

    def changed(self, grad: Any) -> Any:
        return (
            grad.index_put((torch.tensor(0), torch.tensor(0)), grad.new_tensor(torch.nan))
            if self.on
            else grad
        )


def with_and_without(run: Callable[[nn.Sequential, Callable[..., Any]], Any]) -> Any:
    """Return how far a run with a NaN ends from one without the step, the ranks' spread, what was counted and said."""

    def end(spoils: bool) -> Any:
        model = network()
        spoilt = Spoilt(model)

        def train(module: Any, optimizer: Any) -> None:
            for t in range(9) if spoils else TIMES:
                spoilt.on = spoils and t == 5 and rank() == 1
                steps(module, optimizer, rank(), [t])

        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            done = run(model, train).report()
        return vector(model), done, [str(w.message) for w in said], spread(model)

    (x, log, said, apart), (y, other, quiet, _) = end(True), end(False)
    counts = [log.steps, log.skipped, other.steps, other.skipped]
    return [far(x, y), apart, counts, everyone(said), quiet]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW, which moves along its memory even where gradients are zero."""
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def not_finite() -> Any:
    """A step with a NaN on one rank is as if it had not happened, for every way in."""

    def optimizer(model: nn.Sequential, train: Any, **more: Any) -> Any:
        opt = rt.CompressedOptimizer(adam(model), "rand_k:k=10%", "diana", **more)
        train(model, opt)
        return opt

    def hook(model: nn.Sequential, train: Any, **more: Any) -> Any:
        parallel = DistributedDataParallel(model, bucket_cap_mb=0.004)
        hook = rt.attach(parallel, "ef21", "rand_k:k=10%", allow_unproven=True, size=1, **more)
        train(parallel, adam(model))
        return hook

    return {
        "optimizer": with_and_without(optimizer),
        "delayed": with_and_without(lambda m, train: optimizer(m, train, delay={"rounds": 2})),
        "hook": with_and_without(hook),
        "hook without overlap": with_and_without(lambda m, train: hook(m, train, overlap=False)),
    }


def unknown_scaler() -> Any:
    """A hook that does not know the scaler: that sees the infinity on all ranks and takes a smaller factor."""
    model, scaler = network(torch.float32), Scaler()
    spoilt = Spoilt(model)
    parallel = DistributedDataParallel(model)
    hook = rt.attach(parallel, "gd", None, size=1)
    optimizer, factors = sgd(model), []
    for t in range(3):
        spoilt.on = t == 1 and rank() == 1
        optimizer.zero_grad()
        scaler.scale(loss(parallel, t, rank(), torch.float32)).backward()
        scaler.step(optimizer)
        scaler.update()
        factors.append(scaler.get_scale())
    return [everyone(factors), hook.report().skipped, spread(model)]


def local_not_finite() -> Any:
    """A local step with a NaN is left out on its rank alone; a NaN in parameters sends all back to the shared point."""
    model = network()
    spoilt = Spoilt(model)
    opt = rt.CompressedOptimizer(adam(model), None, "diloco", local={"steps": 3})
    for t in range(6):
        spoilt.on = t == 4 and rank() == 1
        steps(model, opt, rank(), [t])
    alone = [spread(model), everyone(opt.report().skipped)]
    before = vector(model)
    steps(model, opt, rank(), [6, 7])
    if rank() == 1:
        model[0].bias.data[0] = torch.nan
    opt.zero_grad()
    opt.step()
    return [*alone, far(before, vector(model)), everyone(opt.report().skipped)]
