"""The parameters of a model as one vector: gradients copied into it and back, without work per coordinate."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.torch.replicas import local


class Flat:
    """Named parameters that make up vectors (d,) of float32, or of float64 where they are; of sharded ones, this rank's part.

    Raises InputError where there is none, or they are of several devices. frozen: those that are frozen now, too.
    """

    def __init__(self, named: Iterable[tuple[str, Tensor]], frozen: bool = False) -> None:
        pairs = [(n, p) for n, p in named if (p.requires_grad or frozen) and local(p).numel()]
        self.params = [p for _, p in pairs]
        if not self.params:
            raise InputError.of("optimizer", "no parameter asks for a gradient", "a model to train")
        devices = {p.device for p in self.params}
        if len(devices) > 1:
            what = f"parameters are on {len(devices)} devices"
            raise InputError.of("optimizer", what, "one device for each rank")
        if any(p.is_complex() for p in self.params):
            raise InputError.of("optimizer", "a parameter is complex", "real numbers")
        self.layout = Layout(tuple((name, tuple(local(p).shape)) for name, p in pairs))
        double = any(p.dtype == torch.float64 for p in self.params)
        self.dtype = torch.float64 if double else torch.float32
        self.renew()

    @property
    def nbytes(self) -> int:
        """Bytes of the gradients as they are, in the parameters' own types."""
        return sum(local(p).numel() * p.element_size() for p in self.params)

    def renew(self) -> None:
        """Take another vector for gradients: somebody keeps the one there was."""
        self.vector = torch.zeros(self.layout.dim, dtype=self.dtype, device=self.params[0].device)
        self.views = self.layout.views(self.vector)

    def gradients(self) -> Tensor:
        """Return the gradients in one vector, which the next call fills anew; where there is none, zeros.

        Sparse gradients are made dense.
        """
        views, grads = [], []
        for view, p in zip(self.views, self.params, strict=True):
            if p.grad is not None:
                views.append(view)
                grads.append(p.grad.to_dense() if p.grad.is_sparse else p.grad)
        if len(grads) < len(self.params):
            self.vector.zero_()
        if grads:
            torch._foreach_copy_(views, grads)
        return self.vector

    def set_gradients(self, u: Tensor, sparse: bool = False) -> None:
        """Make u (d,) the gradients, copied, in the parameters' own types; sparse in rows where asked."""
        if sparse:
            for p, view in zip(self.params, self.layout.views(u), strict=True):
                p.grad = view.to(p.dtype).to_sparse(1)
            return
        targets = []
        for p in self.params:
            if p.grad is None or p.grad.is_sparse:
                p.grad = torch.empty_like(p)
            targets.append(p.grad)
        torch._foreach_copy_(targets, self.layout.views(u))

    def point(self) -> Tensor:
        """Return the parameters in a vector of its own."""
        x = torch.empty_like(self.vector)
        torch._foreach_copy_(self.layout.views(x), self._data)
        return x

    def move(self, x: Tensor) -> None:
        """Set the parameters to x (d,)."""
        torch._foreach_copy_(self._data, self.layout.views(x))

    @property
    def _data(self) -> list[Tensor]:
        return [local(p.detach()) for p in self.params]


def finite(params: Iterable[Tensor]) -> bool:
    """Return whether no gradient of parameters holds NaN or infinity."""
    grads = [local(p.grad) for p in params if p.grad is not None]
    values = [g._values() if g.is_sparse else g for g in grads]
    filled = [v for v in values if v.numel()]
    sizes = torch._foreach_norm(filled, math.inf) if filled else []
    return not sizes or all(torch.stack([torch.isfinite(size) for size in sizes]).tolist())


def named(
    optimizer: torch.optim.Optimizer, given: Iterable[tuple[str, Tensor]] | None
) -> list[tuple[str, Tensor]]:
    """Return an optimizer's parameters in its order, with their names where it or the user says them."""
    names_by_id = {id(p): name for name, p in given or ()}
    out = []
    for number, group in enumerate(optimizer.param_groups):
        names = group.get("param_names") or [f"{number}.{i}" for i in range(len(group["params"]))]
        pairs = zip(names, group["params"], strict=True)
        out += [(names_by_id.get(id(p), name), p) for name, p in pairs]
    return out
