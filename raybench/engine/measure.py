"""What is recorded at a point: f and its gradient over all clients, and what a problem measures besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from raybench.core import registry
from raybench.engine.net import Net

CHEAP_MEASURES = frozenset({"loss", "grad_norm_sq", "suboptimality", "estimator_error_sq"})
OF_LOSSES = frozenset({"loss", "suboptimality"})
OF_GRADIENTS = frozenset({"grad_norm_sq", "mean_client_grad_norm_sq", "estimator_error_sq"})
# a pass over the data each
COSTLY_MEASURES = frozenset({"mean_client_grad_norm_sq", "accuracy", "test_loss"})


def measured(
    net: Net,
    x: Tensor,
    what: frozenset[str],
    facts: Mapping[str, Any],
    *,
    estimate: Tensor | None = None,
    metrics: Sequence[str] = (),
) -> dict[str, np.ndarray]:
    """Return the columns of a row at x (B, d), (B,) each; what is not known or not asked for is left out.

    what: names of columns. facts: the problem's constants; f_star for the suboptimality, L for the
    step 1/L of the gradient mapping, which takes the gradient's place where f has a nonsmooth part.
    estimate: the method's g (B, d), whose error is recorded. metrics: names of plug-ins.
    """
    problem = net.oracle.problem
    found = net.oracle.measure(x, what)
    values: dict[str, Tensor] = dict(found.values)
    loss = grad = None
    if found.losses is not None:
        loss = _mean(net, found.losses)
    if found.grads is not None:
        grad = _mean(net, found.grads)
        if "mean_client_grad_norm_sq" in what:
            each = found.grads.square().sum(-1)
            values["mean_client_grad_norm_sq"] = _mean(net, each)
    if problem.has_prox:
        loss = None if loss is None else loss + problem.penalty(x)
        if grad is not None:
            L = float(facts.get("L") or 1.0)
            grad = (x - problem.prox(x - grad / L, 1 / L)) * L
    if loss is not None:
        values["loss"] = loss
        if facts.get("f_star") is not None:
            values["suboptimality"] = loss - facts["f_star"]
    if grad is not None:
        values["grad_norm_sq"] = grad.square().sum(-1)
        if estimate is not None and not problem.has_prox and estimate.shape == grad.shape:
            values["estimator_error_sq"] = (estimate - grad).square().sum(-1)
    for name in metrics:
        values[name] = registry.lookup("metric", name).target(problem, x)
    return {name: value.double().cpu().numpy() for name, value in values.items()}


def _mean(net: Net, x: Tensor) -> Tensor:
    """Return the mean over all clients of x (B, n_here, ..)."""
    return net.transport.gather_rows(x, net.n).mean(1)
