"""The minibatches that a sweep takes, for a training loop: the same samples of the same clients, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from raybench import problems
from raybench.algorithms.build import named_method, part
from raybench.core.errors import InputError
from raybench.core.streams import Sample, StreamDraws, stream
from raybench.problems.network import NetworkProblem
from raybench.torch.exchange import method_given
from raybench.torch.replicas import rank_here


class batches:
    """The minibatches of one client of a sweep's cell, by default of this rank: iterate over (inputs, targets).

    config: keys of a sweep file with single values: ``problem``, and where they matter ``seed``, ``algorithm``,
    ``local`` and ``rounds``. A client is a rank. model: the network at its start. Iterating never ends where
    ``rounds`` is not given. Raises InputError for bad input.
    """

    def __init__(self, config: Mapping[str, Any], rank: int | None = None) -> None:
        rank = rank_here() if rank is None else rank
        section = config.get("problem")
        if not isinstance(section, Mapping):
            raise InputError.of("problem", "is missing", "problem: {name: network, model: mlp, ..}")
        problem = problems.read_problem(section)
        if not isinstance(problem, NetworkProblem):
            raise InputError.of("problem.name", f"{section.get('name')} is no network", "network")
        if not 0 <= rank < problem.n:
            what = f"rank {rank} of {problem.n} clients"
            raise InputError.of("problem.clients", what, "as many clients as ranks")
        self.problem = problem.host(range(rank, rank + 1))
        self.draws = StreamDraws(
            stream([int(config.get("seed", 0))]), range(rank, rank + 1), problem.n
        )
        name, params = method_given(config.get("algorithm", "gd"))
        # how its messages are made does not matter here
        apart = ("compressor", "local", "outer", "delay")
        settings = {k: v for k, v in params.items() if k not in apart}
        entry, numbers = named_method(name, settings)
        self.opens = bool(getattr(entry.target, "opens", False))
        batch = numbers.get("batch", entry.target.batch)
        usual = "batch" in numbers and batch == entry.params["batch"].default
        if usual or batch is None:  # as in sweeps: a method's own is one that the user names
            batch = self.problem.batch
        self.batch = batch if isinstance(batch, int) else None
        local = config.get("local") or params.get("local")
        self.steps = int(numbers.get("steps", 1)) if local is None else part("local", local).steps
        self.rounds = config.get("rounds")

    def model(self) -> nn.Module:
        """Return the network at its start."""
        return self.problem.module()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a minibatch."""
        return self.problem.passes.task.losses(outputs, targets).mean()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs (b, ..) and targets (b, ..) of every gradient, in the order in which a sweep takes them."""
        samples = torch.tensor(self.problem.samples)[self.draws.clients]
        call = 0
        while self.rounds is None or call < self.rounds:
            self.draws.begin(call if self.opens else call + 1)
            call += 1
            if self.batch is None:  # a sweep does not augment full gradients
                rows = self.problem.rows[0][: int(samples[0])]
                for _ in range(self.steps):
                    yield self.problem.examples(self.problem.train, rows)
                continue
            whole = Sample.drawn(self.draws.stream("batch"), self.steps * self.batch, samples)
            for sample in whole.split(self.batch) if self.steps > 1 else [whole]:
                inputs, targets = self.problem.minibatch(sample)
                yield inputs[0, 0], targets[0, 0]
