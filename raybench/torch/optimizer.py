"""A torch optimizer whose gradients, or local steps, are exchanged by one of raybench's methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from raybench.algorithms.build import check_loop, named_method, part
from raybench.compressors.compose import Made
from raybench.core.errors import InputError
from raybench.torch.exchange import Exchange, Plan
from raybench.torch.flat import Flat, named_parameters
from raybench.torch.local import LocalSteps
from raybench.torch.report import Report, report
from raybench.torch.saved import optimizer_of, parts_of
from raybench.wire.collectives import GATHER


class CompressedOptimizer(torch.optim.Optimizer):
    """``optimizer`` around which the ranks of torch.distributed exchange compressed messages.

    Every rank is a client with data of its own and a model that is the same everywhere; ``step`` takes the
    place of the all-reduce of gradients, so the model must not be wrapped in DistributedDataParallel as well (for that see
    ``attach``). Without torch.distributed there is one client. At construction all take over
    rank 0's parameters.

    compressor: an operator such as ``top_k:k=1%``. algorithm: an estimator such as ``ef21``, ``ef14``, ``diana``,
    ``dgc``, ``power_sgd:rank=4``, as text or as a mapping with ``name`` and parameters. granularity: messages of
    the whole gradient (``global``), of every ``tensor``, or of tensors together (``bucket``).
    collective: ``gather``, ``reduce`` or ``all_to_all``. groups: (pattern, operator) pairs, with
    ``granularity="tensor"``. min_numel: smaller tensors are sent as they are; by default those whose messages
    would not be half as long, where tensors have messages of their own; 0 for none. start_after: steps at first that
    average gradients as they are. local: ``{"steps": H}``: ``optimizer`` does H steps on every rank by itself, and
    what they sum up to is exchanged. outer: how the shared point then moves: ``{"optimizer": "nesterov",
    "momentum": 0.9, "step_size": 0.7}``, by default by 1 along it. delay: ``{"rounds": r}``, the
    direction of r exchanges before. group: the ranks, by default all. named_parameters: names for ``groups`` where
    the optimizer knows none. watch: steps between two measurements of norms. seed: of random operators, the same
    on all ranks. allow_unproven: operators that no theory of the method covers, too.

    Methods whose messages hold the step size (``ef14``) need plain SGD, or ``memory: gradient``. A parameter without a
    gradient counts as having a gradient of zeros. Raises InputError where parts do not fit.
    """

    # GradScaler then calls ``step`` on every rank, and says what it found: one rank alone must not skip it.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        compressor: Made | None = None,
        algorithm: str | Mapping[str, Any] = "ef21",
        granularity: str = "global",
        *,
        collective: str = GATHER,
        downlink: Made | None = None,
        groups: Sequence[tuple[str, Made]] = (),
        min_numel: int | None = None,
        start_after: int = 0,
        local: Mapping[str, Any] | None = None,
        outer: Mapping[str, Any] | None = None,
        delay: Mapping[str, Any] | None = None,
        seed: int = 0,
        watch: int = 50,
        allow_unproven: bool = False,
        group: dist.ProcessGroup | None = None,
        named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    ) -> None:
        self.optimizer = optimizer
        name, params = method_given(algorithm)
        self._plan = Plan(
            name,
            compressor,
            granularity,
            collective,
            downlink,
            tuple(groups),
            min_numel,
            start_after,
            seed,
            None if delay is None else part("delay", delay),
            watch,
            params,
            allow_unproven,
        )
        entry, numbers = named_method(name, params)
        is_local = local is not None or "local" in getattr(entry.target, "presets", ())
        check_loop(entry, numbers, is_local)
        if outer is not None and not is_local:
            what = "without local steps your optimizer is the outer one"
            raise InputError.of("outer", what, "local={'steps': H}, or leave it out")
        self._flat = Flat(_named(optimizer, named_parameters))
        self._exchange = Exchange(self._plan, self._flat.layout, self._flat.vector, group, is_local)
        self._agree_on_start()
        self._local = (
            LocalSteps(entry, numbers, local, outer, self._exchange, self._flat)
            if is_local
            else None
        )
        self._check_step_size()

    def _agree_on_start(self) -> None:
        """Give every rank rank 0's parameters; raise InputError where their shapes differ."""
        transport, x = self._exchange.transport, self._flat.point()
        shapes = torch.tensor([hash(self._flat.layout.sizes)], device=x.device)
        every = transport.gather_rows(shapes[None, None], self._exchange.n)
        if not bool((every == every[:, :1]).all()):
            what = "the ranks' parameters have different shapes"
            raise InputError.of("optimizer", what, "the same model on every rank")
        if transport.size > 1:
            mine = x if transport.rank == 0 else torch.zeros_like(x)
            self._flat.move(transport.all_reduce([mine])[0])

    def _check_step_size(self) -> None:
        if not self._exchange.in_steps or self._local is not None:
            return
        if type(self.optimizer) is not torch.optim.SGD or any(
            group["momentum"] or group["weight_decay"] for group in self.param_groups
        ):
            what = f"{self._plan.algorithm} keeps its memory in units of the step: plain SGD only"
            fix = (
                "algorithm={'name': .., 'memory': 'gradient'} where it has that, or another method"
            )
            raise InputError.of("algorithm", what, fix)

    # What an optimizer is -----------------------------------------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of the optimizer within: schedulers change their step sizes."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of the optimizer within."""
        return self.optimizer.state

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        plan = self._plan
        return f"CompressedOptimizer({plan.algorithm}, {plan.compressor}, {self.optimizer!r})"

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: memories are of the parameters that were there at construction."""
        what = "memories are made for the parameters of the start"
        raise InputError.of("add_param_group", what, "add it first, then wrap the optimizer")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Exchange what the ranks' gradients say and let the optimizer step along it; return the closure's loss.

        Every rank must call it. Under a GradScaler a step in which any rank found an infinity is skipped by
        all of them, and memories stay.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._local is not None:
            if not self._overflowed(alone=True):
                self._unscale()
                self.optimizer.step()
            self._local.after_step()
            return loss
        if self._overflowed():
            return loss
        self._unscale()
        gamma = self._step_size()
        grad = self._flat.gradients()
        u = self._exchange(grad, gamma)
        self._flat.set_gradients(u / gamma if self._exchange.in_steps and not self._dense else u)
        if self._exchange.keeps(grad):
            self._flat.renew()
        self.optimizer.step()
        return loss

    @property
    def _dense(self) -> bool:
        """Whether the step just exchanged was one of the first, dense ones."""
        return self._exchange.steps <= self._plan.start_after

    def _step_size(self) -> float:
        rates = {float(group["lr"]) for group in self.param_groups}
        gamma = rates.pop()
        if self._exchange.in_steps and (rates or gamma <= 0):
            what = "messages hold the step size: one that is above 0 for all parameters is needed"
            raise InputError.of("lr", what, "algorithm={'name': .., 'memory': 'gradient'}")
        return gamma

    def _overflowed(self, alone: bool = False) -> bool:
        """Return whether a GradScaler found an infinity, on any rank unless this one goes ``alone``."""
        found = vars(self).get("found_inf")
        if found is None:
            return False
        mine = found.detach().reshape(1).to(self._flat.vector)
        total = mine if alone else self._exchange.transport.all_reduce([mine.clone()])[0]
        return bool(total.sum() > 0)

    def _unscale(self) -> None:
        scale = vars(self).get("grad_scale")
        if scale is not None:
            found = [p.grad for p in self._flat.params if p.grad is not None]
            torch._foreach_mul_(found, 1.0 / scale.to(self._flat.vector.device).item())

    # What it did, and going on elsewhere ------------------------------------------------------------

    def report(self) -> Report:
        """Return what the messages cost and did so far; ``print`` gives a line."""
        names = (
            self._plan.algorithm,
            "" if self._plan.compressor is None else str(self._plan.compressor),
        )
        flat = self._flat
        return report([self._exchange.log], names, flat.layout.dim, flat.dtype.itemsize)

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank remembers: the optimizer's state, and the method's, of the same shapes everywhere.

        Every rank saves its own and loads it again. ``raybench.torch.whole`` puts those of all ranks
        together, for another number of ranks.
        """
        own: dict[str, Any] = {"exchanges": [self._exchange.state()]}
        if self._local is not None:
            own["local"] = self._local.state()
        about = {"format": 1, "algorithm": self._plan.algorithm, "parts": [own]}
        return {"optimizer": self.optimizer.state_dict(), "raybench": about}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a rank's own ``state_dict``, or from the whole of any number of ranks.

        With another number of ranks means over the ranks stay as they were: that of what has not been sent, x
        - mean e being kept, and that of all else. Raises InputError where it does not fit.
        """
        parts = parts_of(state_dict, self._plan.algorithm)
        self._exchange.load([part["exchanges"][0] for part in parts])
        self.optimizer.load_state_dict(dict(optimizer_of(state_dict, self._exchange.rank)))
        if self._local is not None:
            mine = parts[min(self._exchange.rank, len(parts) - 1)]
            self._local.load(
                mine["local"], resized=parts[0]["exchanges"][0]["n"] != self._exchange.n
            )


def method_given(algorithm: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the text and the further parameters of a method given as text or as a mapping."""
    if isinstance(algorithm, str):
        return algorithm, {}
    if not isinstance(algorithm, Mapping) or not isinstance(algorithm.get("name"), str):
        what = f"{algorithm!r} is no method"
        raise InputError.of("algorithm", what, "'ef21', or {'name': 'diana', 'alpha': 0.1}")
    return algorithm["name"], {k: v for k, v in algorithm.items() if k != "name"}


_named = named_parameters
