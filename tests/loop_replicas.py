"""What two ranks find of replicas that are not alike, of closures, and of what is counted.

Each function is one finding, by its name; ``loop_ranks`` runs them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from loop_base import TOP, plain
from loop_kit import data, everyone, far, loss, network, sgd, spread, steps, vector
from torch import nn
from torch.distributed import get_rank as rank
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import raybench.torch as rt


def said(work: Callable[[], Any]) -> list[str]:
    """Return what each rank is told by an error."""
    try:
        work()
        text = ""
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    return everyone(text)


def wrapped(compressor: Any = TOP, lr: float = 0.1, model: Any = None, **more: Any) -> Any:
    """Return an optimizer around one of a model."""
    return rt.CompressedOptimizer(
        sgd(network() if model is None else model, lr), compressor, **more
    )


def attached(compressor: Any = TOP, **more: Any) -> Any:
    """Return a hook of a model."""
    return rt.attach(DistributedDataParallel(network()), "ef21", compressor, **more)


def frozen(layer: int, here: bool) -> nn.Sequential:
    """Return a network of which a layer is frozen."""
    model = network()
    model[layer].requires_grad_(not here)
    return model


def not_alike() -> Any:
    """What differs at the start ends with a message on all ranks."""
    one = rank() == 1
    return {
        "seed": said(lambda: wrapped("rand_k:k=10%", algorithm="diana", seed=rank())),
        "compressor": said(lambda: wrapped("top_k:k=20%" if one else TOP)),
        "a wrong compressor": said(lambda: wrapped("topk" if one else TOP)),
        "algorithm": said(lambda: wrapped(algorithm="ef21_sgdm" if one else "ef21")),
        "shapes": said(lambda: wrapped(model=nn.Linear(3, 2 + rank()))),
        "types": said(lambda: wrapped(model=network(torch.float32 if one else torch.float64))),
        "requires_grad": said(lambda: wrapped(model=frozen(2, one))),
        "number": said(lambda: wrapped(model=network()[: 3 + 2 * rank()])),
        "lr": said(lambda: wrapped(lr=0.1 + rank())),
        "hook, seed": said(lambda: attached(seed=rank())),
        "hook, compressor": said(lambda: attached("top_k:k=20%" if one else TOP)),
        "local steps may differ": said(lambda: wrapped(lr=0.1 + rank(), local={"steps": 2})),
    }


def changed() -> Any:
    """Parameters that begin to ask for a gradient on one rank alone, or on all."""

    def wrapped_first(who: list[int]) -> Any:
        model = frozen(2, here=True)
        opt = rt.CompressedOptimizer(sgd(model), TOP, named_parameters=model.named_parameters())
        steps(model, opt, rank(), [0, 1])
        model[2].requires_grad_(rank() in who)
        return said(lambda: steps(model, opt, rank(), [2]))

    def attached_first(who: list[int]) -> Any:
        model = frozen(2, here=True)
        parallel = DistributedDataParallel(model)
        with rt.attach(parallel, "ef21", TOP):
            optimizer = sgd(model)
            steps(parallel, optimizer, rank(), [0, 1])
            model[2].requires_grad_(rank() in who)
            return said(lambda: steps(parallel, optimizer, rank(), [2]))

    found = {}
    for who in ([1], [0, 1]):
        found[f"optimizer {who}"] = wrapped_first(who)
        found[f"hook {who}"] = attached_first(who)
    model = network()
    opt = rt.CompressedOptimizer(sgd(model), TOP)
    kept = opt.state_dict()
    steps(model, opt, rank(), [0, 1])
    if rank() == 1:
        opt.load_state_dict(kept)
    found["one rank goes on from a checkpoint"] = said(lambda: steps(model, opt, rank(), [2]))
    return found


def drifted() -> Any:
    """Parameters that differ in one bit are found, at the next comparison and by name."""
    found = {}

    def tamper(model: nn.Module) -> None:
        if rank() == 1:
            model[2].bias.data[3] += 1e-15

    model = network()
    named = list(model.named_parameters())
    opt = rt.CompressedOptimizer(sgd(model), TOP, check_every=2, named_parameters=named)
    steps(model, opt, rank(), range(4))
    tamper(model)
    found["optimizer"] = [said(lambda t=t: steps(model, opt, rank(), [t])) for t in (4, 5)]
    model = network()
    parallel = DistributedDataParallel(model)
    with rt.attach(parallel, "ef21", TOP, check_every=2):
        optimizer = sgd(model)
        steps(parallel, optimizer, rank(), range(4))
        tamper(model)
        found["hook"] = [said(lambda t=t: steps(parallel, optimizer, rank(), [t])) for t in (4, 5)]
    model = network()
    settings: Any = {"algorithm": "gd", "local": {"steps": 3}, "check_every": 2}
    opt = rt.CompressedOptimizer(sgd(model), None, **settings)
    steps(model, opt, rank(), range(6))
    if rank() == 1:
        opt._local.x[7] += 1e-9
    found["local"] = [said(lambda t=t: steps(model, opt, rank(), [t])) for t in (6, 7, 8)]
    return found


def averaged_twice() -> Any:
    """Gradients that DistributedDataParallel has averaged already are said, and no others are."""
    found = []
    for wraps in (True, False):
        model = network()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            opt = rt.CompressedOptimizer(sgd(model), TOP)
            steps(DistributedDataParallel(model) if wraps else model, opt, rank(), range(2))
        texts = [str(w.message) for w in caught if "very same" in str(w.message)]
        found.append(everyone(texts))
    return found


def closing(
    model: nn.Module, opt: Any, t: int, seen: list[bool] | None = None
) -> Callable[[], Any]:
    """Return a closure as loops of Lightning have it."""

    def closure() -> Any:
        if seen is not None:
            seen.append(torch.is_grad_enabled())
        opt.zero_grad()
        f = loss(model, t, rank())
        f.backward()
        return f

    return closure


def closures() -> Any:
    """A closure is what its body would be, and its own loss comes back."""
    model, other = network(), network()
    opt = rt.CompressedOptimizer(sgd(model), TOP)
    ours = rt.CompressedOptimizer(sgd(other), TOP)
    seen: list[bool] = []
    losses = [float(opt.step(closing(model, opt, t, seen)).detach()) for t in range(5)]
    want = steps(other, ours, rank(), range(5))
    diloco = network()
    inner = rt.CompressedOptimizer(sgd(diloco), None, "gd", local={"steps": 1})
    for t in range(10):
        inner.step(closing(diloco, inner, t))
    hooked = network()
    parallel = DistributedDataParallel(hooked)
    rt.attach(parallel, "ef21", TOP, "global")
    optimizer = sgd(hooked)
    for t in range(5):
        optimizer.step(closing(parallel, optimizer, t))
    search = torch.optim.LBFGS(hooked.parameters())
    return [
        far(vector(model), vector(other)),
        losses == want,
        seen,
        far(vector(diloco), vector(plain())),
        far(vector(hooked), vector(other)),
        said(lambda: search.step(closing(parallel, search, 5))),
    ]


def both(model: nn.Module) -> Any:
    """Return the mean of both ranks' losses on the minibatches of step 0."""
    pairs = [data(0, r) for r in range(2)]
    return sum(F.cross_entropy(model(inputs), targets) for inputs, targets in pairs) / 2


def line_searches() -> Any:
    """LBFGS: every evaluation is exchanged, and all ranks decide by the mean loss."""
    settings: Any = {"lr": 1.0, "max_iter": 4, "line_search_fn": "strong_wolfe"}
    model, alone = network(), network()
    opt = rt.CompressedOptimizer(torch.optim.LBFGS(model.parameters(), **settings), None, "gd")
    one = torch.optim.LBFGS(alone.parameters(), **settings)

    def closure() -> Any:
        one.zero_grad()
        f = both(alone)
        f.backward()
        return f

    for _ in range(3):
        opt.step(closing(model, opt, 0))
        one.step(closure)
    log = opt.report()
    evaluations = one.state[next(iter(alone.parameters()))]["func_evals"]
    found = [
        far(vector(model), vector(alone)),
        spread(model),
        log.steps,
        log.exchanges,
        evaluations,
    ]
    model = network()
    opt = rt.CompressedOptimizer(torch.optim.LBFGS(model.parameters(), **settings), TOP)
    before = float(both(model).detach())
    for _ in range(3):
        opt.step(closing(model, opt, 0))
    return [*found, spread(model), before, float(both(model).detach())]


def lost_line_search() -> Any:
    """A trial point without a finite gradient on one rank: all go back to where the step began, and go on later."""
    model = network()
    opt = rt.CompressedOptimizer(torch.optim.LBFGS(model.parameters(), max_iter=4), None, "gd")
    opt.step(closing(model, opt, 0))
    before, calls = vector(model), [0]

    def closure() -> Any:
        f = closing(model, opt, 0)()
        calls[0] += 1
        if calls[0] == 2 and rank() == 1:
            model[0].weight.grad[0, 0] = torch.nan
        return f

    opt.step(closure)
    kept, counted = far(before, vector(model)), opt.report().skipped
    f = float(both(model).detach())
    opt.step(closing(model, opt, 0))
    return [kept, counted, calls[0], f, float(both(model).detach()), spread(model)]
