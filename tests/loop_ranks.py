"""What two ranks do with ``raybench.torch``; ``test_loops`` asserts what they find.

Each function is one finding, by its name; run by ``loop_kit.results``.
"""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import Any

import loop_gradients
import loop_replicas
import torch
import torch.distributed as dist
from loop_base import TOP, hooked, plain, trained
from loop_kit import far, join, leave, loss, network, save, sgd, spread, steps, vector
from torch import nn
from torch.distributed import get_rank as rank
from torch.nn.parallel import DistributedDataParallel

import raybench.torch as rt


def identity() -> Any:
    """Uncompressed messages are data-parallel training."""
    want = vector(plain())
    return {
        "optimizer": far(want, vector(trained("gd", None)[0])),
        "ef21": far(want, vector(trained("ef21", "identity")[0])),
        "hook": far(want, vector(hooked("gd", None)[0])),
        "steps_after_start": far(want, vector(trained(start_after=10)[0])),
    }


def same_start() -> Any:
    """Ranks that begin at different points take over rank 0's."""
    model = network(seed=rank())
    rt.CompressedOptimizer(sgd(model), TOP)
    return far(vector(model), vector(network(seed=0)))


def buckets() -> Any:
    """Memory belongs to parameters: buckets of any size, rebuilt after the first step, change nothing."""
    want = vector(trained(granularity="tensor")[0])
    found = {}
    for size in (1, 4000, 1 << 20):
        model, hook, *_ = hooked(size=size)
        found[str(size)] = [far(want, vector(model)), spread(model), len(hook.exchanges)]
    return found


def whole_model() -> Any:
    """One message of all gradients is what the optimizer sends."""
    return far(vector(trained()[0]), vector(hooked(granularity="global")[0]))


def start_after() -> Any:
    """The first steps are dense, and the method begins afterwards."""
    _, opt = trained(start_after=3)
    log = opt.report()
    return [log.dense_steps, log.rows["bytes_up"].tolist()]


def detached() -> Any:
    """After ``detach`` gradients are averaged as they are; another method may be attached then."""
    model, hook, parallel, optimizer = hooked(count=5)
    hook.detach()
    before = vector(model)
    steps(parallel, optimizer, rank(), [5])
    moved = vector(model)
    other = network()
    other.load_state_dict(model.state_dict())
    torch.nn.utils.vector_to_parameters(before, other.parameters())
    steps(DistributedDataParallel(other), sgd(other), rank(), [5])
    again = rt.attach(parallel, "ef21", TOP)
    steps(parallel, optimizer, rank(), [6])
    return [far(moved, vector(other)), spread(model), again.report().steps]


def clipping() -> Any:
    """What a user clips before the step is what is compressed."""
    model = network()
    opt = rt.CompressedOptimizer(sgd(model), "identity", "ef21")
    loss(model, 0, rank()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    opt.step()
    return float(opt.state_dict()["raybench"]["parts"][0]["exchanges"][0]["c"]["g"].norm())


def parameter_groups() -> Any:
    """Groups of parameters keep their own step sizes; schedulers reach them."""
    model = network()
    layers = list(model.children())
    inner = torch.optim.AdamW(
        [
            {"params": layers[0].parameters(), "lr": 0.0},
            {"params": [*layers[2].parameters(), *layers[4].parameters()], "lr": 1e-2},
        ]
    )
    opt = rt.CompressedOptimizer(inner, TOP)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)
        for t in range(3):
            steps(model, opt, rank(), [t])
            schedule.step()
    rates = [group["lr"] for group in inner.param_groups]
    return [far(layers[0].weight, network()[0].weight), rates, spread(model)]


def small_tensors() -> Any:
    """Tensors of few numbers are sent as they are, and come exact."""
    found = {}
    for name, least in (("auto", None), ("200", 200), ("0", 0)):
        model = network()
        opt = rt.CompressedOptimizer(sgd(model), "top_k:k=3", granularity="tensor", min_numel=least)
        for p in model.parameters():
            p.grad = torch.ones_like(p) * (rank() + 1)
        opt.step()
        found[name] = [bool((p.grad == 1.5).all()) for p in model.parameters()]
    return found


def by_groups() -> Any:
    """Tensors by name have compressors of their own."""
    model = network()
    named = list(model.named_parameters())
    opt = rt.CompressedOptimizer(
        sgd(model),
        "zero",
        "dcgd",
        "tensor",
        groups=[("0.*", "identity")],
        min_numel=0,
        named_parameters=named,
    )
    loss(model, 0, rank()).backward()
    opt.step()
    return [name for name, p in named if bool(p.grad.abs().sum() > 0)]


def by_groups_in_parts() -> Any:
    """With a hook, too, where a pattern has tensors in some parts only."""
    model = network()
    parallel = DistributedDataParallel(model)
    groups = [("0.*", "identity")]
    rt.attach(parallel, "dcgd", "zero", "tensor", groups=groups, min_numel=0, size=1)
    loss(parallel, 0, rank()).backward()
    try:
        rt.attach(
            DistributedDataParallel(network()), "dcgd", "zero", "tensor", groups=[("x", "zero")]
        )
        said = ""
    except Exception as error:
        said = str(error)
    sent = [name for name, p in model.named_parameters() if bool(p.grad.abs().sum() > 0)]
    return [sent, said]


def diloco() -> Any:
    """Local steps: ranks part and meet again; H = 1 of SGD is data-parallel SGD."""
    model = network()
    opt = rt.CompressedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=1e-3), algorithm="diloco", local={"steps": 4}
    )
    apart = []
    for t in range(8):
        steps(model, opt, rank(), [t])
        apart.append(spread(model))
    one = network()
    steps(one, rt.CompressedOptimizer(sgd(one), None, "gd", local={"steps": 1}), rank(), range(10))
    return [apart, opt.report().exchanges, far(vector(one), vector(plain()))]


def overlap() -> Any:
    """Whether messages are sent while the backward pass goes on changes nothing."""
    ends = [vector(hooked(overlap=on, size=1)[0]) for on in (True, False)]
    return far(*ends)


def collectives() -> Any:
    """Messages that are added up on the way, or by parts."""
    want = vector(plain())
    model = trained("dcgd", "bf16", collective="reduce")[0]
    parts = trained("dcgd", "identity", collective="all_to_all")[0]
    return [far(want, vector(model)), far(want, vector(parts)), spread(model)]


def saved() -> Any:
    """A rank goes on from what it saved, and the whole is put together for others."""
    found = {}
    for name, operator in (("ef21", TOP), ("ef14", TOP), ("power_sgd", None), ("dgc", "dgc:k=10%")):
        model, opt = trained(name, operator, 5)
        state = opt.state_dict()
        path = f"{SAVED}/{name}.{rank()}.pt"
        torch.save({"model": model.state_dict(), "opt": state}, path)
        steps(model, opt, rank(), range(5, 10))
        other = network(seed=7)
        again = rt.CompressedOptimizer(sgd(other), operator, name)
        read = torch.load(path, weights_only=True)
        other.load_state_dict(read["model"])
        again.load_state_dict(read["opt"])
        steps(other, again, rank(), range(5, 10))
        shapes = [
            list(x.shape) for x in state["raybench"]["parts"][0]["exchanges"][0]["c"].values()
        ]
        found[name] = [far(vector(model), vector(other)), shapes]
    model, hook, parallel, optimizer = hooked(count=5)
    state = hook.state_dict()
    kept = {name: x.clone() for name, x in model.state_dict().items()}
    steps(parallel, optimizer, rank(), range(5, 8))
    end = vector(model)
    hook.load_state_dict(state)
    model.load_state_dict(kept)
    steps(parallel, optimizer, rank(), range(5, 8))
    found["hook"] = [far(end, vector(model)), []]
    return found


PRESETS = {
    "diloco": None,
    "muloco": None,
    "sparseloco": "top_k:k=10%",
    "local_ef21": "top_k:k=10%",
    "heavy_ball": None,
    "momentum_sgd": None,
    "ef21_hb": "top_k:k=10%",
}
"""All methods that bring local steps or an outer optimizer, with a compressor."""


def local(model: nn.Module, name: str, operator: Any, **more: Any) -> Any:
    """Return a preset around AdamW with three local steps, and an outer step that makes a second one visible."""
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps, outer = {"steps": 3}, {"step_size": 0.7}
    return rt.CompressedOptimizer(inner, operator, name, local=steps, outer=outer, **more)


def presets() -> Any:
    """Presets go on as if they had not stopped: in the middle of local steps, and with more or fewer ranks.

    Another number of ranks has the same data on every rank and compressors without an error, so that the number
    of ranks changes nothing but rounding.
    """
    found = {}
    alone = [dist.new_group([r]) for r in range(2)][rank()]
    for name, operator in PRESETS.items():
        model = network()
        opt = local(model, name, operator)
        steps(model, opt, rank(), range(7))
        kept, state = deepcopy([model.state_dict(), opt.state_dict()])
        steps(model, opt, rank(), range(7, 13))
        other = network(seed=7)
        again = local(other, name, operator)
        other.load_state_dict(kept)
        again.load_state_dict(state)
        steps(other, again, rank(), range(7, 13))
        found[name] = [far(vector(model), vector(other))]
        operator = operator and "identity"
        for before, after in ((None, alone), (alone, None)):
            model = network()
            opt = local(model, name, operator, group=before)
            steps(model, opt, 0, range(6))
            states: list[Any] = [deepcopy(opt.state_dict())]
            if before is None:
                states = [None, None]
                dist.all_gather_object(states, opt.state_dict())  # copies
            other = network()
            other.load_state_dict(model.state_dict())
            again = local(other, name, operator, group=after)
            again.load_state_dict(rt.whole(states))
            steps(model, opt, 0, range(6, 12))
            steps(other, again, 0, range(6, 12))
            found[name].append(far(vector(model), vector(other)))
    return found


USUAL = (
    identity,
    same_start,
    whole_model,
    start_after,
    detached,
    loop_gradients.accumulated,
    loop_gradients.never_silent,
    loop_gradients.forgotten,
    loop_gradients.unused,
    loop_gradients.nothing_to_send,
    loop_gradients.sparse,
    loop_gradients.scaled,
    loop_gradients.scaled_hook,
    loop_gradients.not_finite,
    loop_gradients.unknown_scaler,
    loop_gradients.local_not_finite,
    clipping,
    parameter_groups,
    small_tensors,
    by_groups,
    by_groups_in_parts,
    diloco,
    overlap,
    saved,
    loop_replicas.not_alike,
    loop_replicas.changed,
    loop_replicas.drifted,
    loop_replicas.averaged_twice,
    loop_replicas.closures,
    loop_replicas.line_searches,
    loop_replicas.lost_line_search,
)
RARE = (
    buckets,
    loop_gradients.of_varying_length,
    loop_gradients.narrow,
    loop_gradients.compiled,
    collectives,
    presets,
)

if __name__ == "__main__":
    import sys
    import traceback

    SAVED = sys.argv[1]
    join()
    out = {}
    for check in RARE if sys.argv[2] == "rare" else USUAL:
        try:
            out[check.__name__] = check()
        except Exception:
            out[check.__name__] = traceback.format_exc()
            save(out)
            raise
    save(out)
    leave()
