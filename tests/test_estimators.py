"""Methods are estimators: with the wire alone, given gradients by anyone's loop, they do what they do in a sweep."""

from __future__ import annotations

import pytest
import torch
from toys import title

from raybench.algorithms.base import Algorithm, Estimator
from raybench.core import registry
from raybench.core.cells import State
from raybench.core.counts import Clock
from raybench.execution.build import method_of
from raybench.execution.net import vectors_of
from raybench.testing.algorithms import methods
from raybench.testing.trial import PLAIN, Method, started
from raybench.wire.wire import Wire

pytestmark = pytest.mark.thorough


def plain(kind: type[Algorithm]) -> bool:
    """Return whether a training loop of one's own could hold the method: it replaces both ends of a round."""
    own = ("source", "outer_step", "start", "round", "apply", "step")
    if not issubclass(kind, Estimator) or kind.presets:
        return False
    return all(getattr(kind, name) is getattr(Estimator, name) for name in own)


HELD = [
    m
    for name in registry.names("algorithm")
    if plain(registry.lookup("algorithm", name).target)
    for m in methods(registry.lookup("algorithm", name))
    if m.downlink is None
    or not m.entry.target.broadcasts_model  # a loop of one's own has no compressed broadcast
]


class Buffers:
    """Tensors that nobody may write to, with copies of what they held."""

    def __init__(self) -> None:
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append((x, x.clone()))
        return x

    def untouched(self) -> bool:
        return all(torch.equal(now, then) for now, then in self.seen)


@pytest.mark.parametrize("method", HELD, ids=title)
def test_a_loop_of_ones_own_takes_the_same_steps(method):
    """x <- x - gamma g with gradients that the loop computes, on a wire that knows no problem.

    A loop may reuse its buffers: what it gave and what it got stays as it was.
    """
    problem = {**PLAIN, "shape": [[4, 3]]}
    batch = Method(
        method.name, method.params, method.compressor, problem, method.downlink, step=0.02
    ).batch((1.0, 0.5), (0, 1))
    run = started(batch)
    f, held = run.problem, Buffers()
    wire = Wire(vectors_of(f), run.net.roots)
    a, s, c = method_of(batch.cells, f, Clock()), State(), State()
    assert isinstance(a, Estimator)
    x = run.s.x.clone()
    a.setup(wire, s, c)
    if a.opens:
        s.g = held(a.open(wire, s, c, held(f.grad(x))))
    run.advance(0)
    for t in range(1, 21):
        wire.begin(t)
        g = s.g if a.opens else held(a.estimate(wire, s, c, held(f.grad(x))))
        x = x - g if a.in_steps else x - a.gamma * g
        if a.opens:
            s.g = held(a.estimate(wire, s, c, held(f.grad(x))))
        run.advance(1)
        torch.testing.assert_close(x, run.a.point(run.net, run.s, run.c), rtol=1e-12, atol=1e-14)
    assert held.untouched()
    assert (wire.ledger.up == run.net.ledger.up).all()
    if not a.broadcasts_model:  # the model is broadcast by the loop, where it is told
        assert (wire.ledger.down == run.net.ledger.down).all()
