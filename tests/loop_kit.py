"""What loops of tests train on real ranks: ``raybench.torch`` on a small network, beside data-parallel training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import raybench.torch as rt
from raybench.torch.saved import parts_of_ranks

TOP = "top_k:k=10%"
D = 1715  # parameters of the network


def network(dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Sequential:
    """Return a small network."""
    torch.manual_seed(seed)
    layers = nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 5)
    return nn.Sequential(*layers).to(dtype)


def data(t: int, rank: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Return a rank's minibatch of step t."""
    source = torch.Generator().manual_seed(1000 * t + rank)
    inputs = torch.randn(16, 20, generator=source, dtype=torch.float64).to(dtype)
    return inputs, torch.randint(0, 5, (16,), generator=source)


def loss(model: nn.Module, t: int, rank: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return the loss of a rank's minibatch of step t."""
    inputs, targets = data(t, rank, dtype)
    return F.cross_entropy(model(inputs).float() if dtype.itemsize < 4 else model(inputs), targets)


def vector(model: nn.Module) -> Tensor:
    """Return all parameters."""
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def spread(model: nn.Module) -> float:
    """Return how far the ranks' parameters are apart."""
    x = vector(model)
    every = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(every, x)
    return max(float((other - x).abs().max()) for other in every)


def far(a: Tensor, b: Tensor) -> float:
    """Return the largest difference."""
    return float((a - b).abs().max())


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    """Return plain SGD."""
    return torch.optim.SGD(model.parameters(), lr=lr)


def memory(opt: Any, name: str) -> Tensor:
    """Return what this rank's method remembers under a name, (1, 1, d)."""
    [part] = parts_of_ranks(opt.state_dict()).values()
    return part["exchanges"][0]["c"][name]


def steps(
    model: nn.Module, optimizer: Any, rank: int, times: Sequence[int], dtype: Any = torch.float64
) -> list[float]:
    """Train on the minibatches of some steps and return their losses."""
    out = []
    for t in times:
        optimizer.zero_grad()
        f = loss(model, t, rank, dtype)
        f.backward()
        optimizer.step()
        out.append(float(f.detach()))
    return out


def trained(algorithm: Any = "ef21", compressor: Any = TOP, count: int = 10, **more: Any) -> Any:
    """Return a network trained by a ``CompressedOptimizer``, and that."""
    model = network()
    opt = rt.CompressedOptimizer(sgd(model), compressor, algorithm, **more)
    steps(model, opt, dist.get_rank(), range(count))
    return model, opt


def hooked(algorithm: Any = "ef21", compressor: Any = TOP, count: int = 10, **more: Any) -> Any:
    """Return a network trained with a hook, that, the parallel model and its optimizer."""
    model = network()
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.004)  # several, rebuilt after a step
    hook = rt.attach(parallel, algorithm, compressor, **{"granularity": "tensor", **more})
    optimizer = sgd(model)
    steps(parallel, optimizer, dist.get_rank(), range(count))
    return model, hook, parallel, optimizer


def plain(count: int = 10) -> nn.Module:
    """Return a network after data-parallel SGD."""
    model = network()
    steps(DistributedDataParallel(model), sgd(model), dist.get_rank(), range(count))
    return model
