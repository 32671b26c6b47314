"""The conformance kit on every registered method, and on methods that are wrong on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from _pytest.mark import ParameterSet
from toys import TOP, registered, title

from raybench.algorithms.base import Algorithm, Contractive, Dense, Estimator, zeros_like
from raybench.core import registry
from raybench.core.cells import State
from raybench.core.counts import Clock
from raybench.execution.build import method_of
from raybench.execution.net import vectors_of
from raybench.testing import Checks, Finding, findings, trial
from raybench.testing.algorithms import CHECKS, close, methods
from raybench.testing.trial import PLAIN, TrialMethod, finished, started
from raybench.wire.transport import on_virtual_ranks
from raybench.wire.wire import BookedWire

NAMES = registry.names("algorithm")
ROUNDS = 16  # in which the phases of a method follow one another, and wild cells diverge
QUICK = {"robust": {"rule": "median"}}  # geometric medians of wild cells take ten times as long


def of_few_rounds(m: TrialMethod) -> TrialMethod:
    return replace(m, rounds=ROUNDS, more=QUICK if m.name.startswith("byz_") else {})


SOUND = [of_few_rounds(m) for name in NAMES for m in methods(registry.lookup("algorithm", name))]
FIRST = {m.name: m for m in SOUND[::-1]}  # as each is used most
OF_PARAMETERS = {
    name: CHECKS[name]
    for name in ("runs at its own step", "books what it packs", "clients use what was sent")
    + ("alone or in a batch", "goes on from its state")
}


def tried() -> Iterator[ParameterSet]:
    """Yield a sample of pairs: of each method the first, with all checks, and so one more operator, another each time.

    Beside them the first set that changes a parameter, with the checks that one more branch of a method may fail.
    """
    for at, first in enumerate(FIRST.values()):
        own = [m for m in SOUND if m.name == first.name]
        more = [m for m in own[1:] if m.params == first.params]
        for m in (first, *more[at % max(1, len(more)) :][:1]):
            yield pytest.param(m, CHECKS, id=title(m))
        changed = [m for m in own if m.params != first.params]
        names = [str([k for k in m.params if m.params[k] != first.params[k]]) for m in changed]
        for m in dict(zip(names[::-1], changed[::-1], strict=True)).values():
            yield pytest.param(m, OF_PARAMETERS, id=title(m))


def test_every_method_is_tried():
    assert {m.name for m in SOUND} == set(NAMES)


@pytest.mark.parametrize("method", FIRST.values(), ids=title)
def test_runs_goes_on_and_is_shared_out(method: TrialMethod):
    """As it is used most: interrupted and continued bit for bit, and on two ranks to rounding. The kit has more."""
    m = replace(method, rounds=12)
    whole = trial.ending(finished(m.batch(trial.MULTIPLES, trial.SEEDS)))
    assert whole["x"].isfinite().all()
    saved = trial.interrupted(m)
    anew = trial.ending(trial.continued(m, saved))
    assert whole.keys() == anew.keys()
    for name, want in whole.items():
        assert torch.equal(anew[name].nan_to_num(), want.nan_to_num()), name
    if m.entry.facts.clock:  # these run in one process
        return
    for result in on_virtual_ranks(2, lambda t: trial.recorded(trial.continued(m, saved, t))):
        for name, got in result.items():
            close(got.nan_to_num(), whole[name].nan_to_num(), 1e-9, f"{name} on two ranks")


@pytest.mark.thorough
@pytest.mark.parametrize(("method", "checks"), tried())
def test_conforms(method: TrialMethod, checks: Checks):
    wrong = [str(f) for f in findings(checks, method, method.name) if not f.ok]
    assert not wrong, "\n".join(wrong)


# Methods are estimators: with the wire alone, given gradients by anyone's loop, they do what they do in a sweep


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


@pytest.mark.thorough
@pytest.mark.parametrize("method", HELD, ids=title)
def test_a_loop_of_ones_own_takes_the_same_steps(method):
    """x <- x - gamma g with gradients that the loop computes, on a wire that knows no problem.

    A loop may reuse its buffers: what it gave and what it got stays as it was.
    """
    problem = {**PLAIN, "shape": [[4, 3]]}
    batch = TrialMethod(
        method.name, method.params, method.compressor, problem, method.downlink, step=0.02
    ).batch((1.0, 0.5), (0, 1))
    run = started(batch)
    f, held = run.problem, Buffers()
    wire = BookedWire(vectors_of(f), run.net.roots)
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


# Wrong methods: each must be caught by the check that is there for it -------------------------


class Faulty(Algorithm):
    """EF21 whose parts can be broken one by one."""

    def start(a, net, s, c):
        c.g, s.g = zeros_like(net.grad(s.x)), zeros_like(s.x)

    def server(a, net, s, c, m):
        s.g = s.g + net.up(m).mean()

    def round(a, net, s, c):
        s.x = net.down(Dense(s.x - a.gamma * s.g))
        m = a.C(net.grad(s.x) - c.g, net.stream("up"))
        m.add_to(c.g)
        a.server(net, s, c, m)


class Sound(Faulty):
    """Nothing is wrong here."""


class LocalCount(Faulty):
    """Divides by the clients of its own process."""

    def server(a, net, s, c, m):
        s.g = s.g + net.up(m).sum() / net.n_here


class GlobalRandom(Faulty):
    """Draws from torch's generator."""

    def server(a, net, s, c, m):
        s.g = s.g + net.up(m).mean() * (1 + 0.01 * torch.rand(1))


class ForgottenCells(Faulty):
    """Keeps state for all cells where the engine cannot select: an attribute of its own class."""

    def start(a, net, s, c):
        super().start(net, s, c)
        a.kept = SimpleNamespace(g=s.g)

    def server(a, net, s, c, m):
        a.kept.g = a.kept.g + net.up(m).mean()
        s.g = a.kept.g


class LooksAtTheRecord(Faulty):
    """Behaves otherwise in rounds that are recorded."""

    def server(a, net, s, c, m):
        s.g = s.g + net.up(m).mean() * (1.0 if net.oracle.loss_wanted else 0.99)


class MisBooked(Faulty):
    """Sends a second message past the books."""

    def server(a, net, s, c, m):
        s.g = s.g + net.up(m).mean()
        net.ledger.book_up(m, "gather")


class RemembersOnItself(Faulty):
    """Counts its rounds on itself and acts on it, so that a run that is continued acts otherwise."""

    def server(a, net, s, c, m):
        a.rounds = getattr(a, "rounds", 0) + 1
        s.g = s.g + net.up(m).mean() * (1.0 if a.rounds > 1 else 0.5)


class TakesBack(Faulty):
    """Every third round it takes back what it booked for two."""

    def server(a, net, s, c, m):
        s.g = s.g + net.up(m).mean()
        if net.t % 3 == 2:
            net.ledger.up[:] /= 3


class WritesIntoGradients(Faulty):
    """Doubles gradients at points of the clients' own where they lie, past torch's count of writes."""

    def round(a, net, s, c):
        s.x = net.down(Dense(s.x - a.gamma * s.g))
        grad = net.grad(s.x[:, None].expand_as(c.g))
        m = a.C(grad - c.g, net.stream("up"))
        grad.numpy()[:] *= 2
        m.add_to(c.g)
        a.server(net, s, c, m)


class WrongAxes(Faulty):
    """State without the axis of the cells."""

    def start(a, net, s, c):
        super().start(net, s, c)
        s.seen = torch.zeros(7, dtype=s.x.dtype)


FAULTS = {
    LocalCount: "ranks change nothing",
    GlobalRandom: "seed decides all",
    ForgottenCells: "alone or in a batch",
    LooksAtTheRecord: "recording costs nothing",
    MisBooked: "books what it packs",
    RemembersOnItself: "goes on from its state",
    WrongAxes: "state has cells first",
    TakesBack: "counts never fall",
    WritesIntoGradients: "gradients are left alone",
}


def faults_of(checks: Checks, kind: type[Faulty]) -> list[Finding]:
    """Return what the checks say of a class."""
    theory = registry.lookup("algorithm", "ef21").facts.theory
    kind.declared = {"up": Contractive, "theory": theory}
    with registered("algorithm", faulty=kind):
        return findings(checks, TrialMethod("faulty", {}, TOP), kind.__name__)


@pytest.mark.parametrize(
    ("kind", "check"), FAULTS.items(), ids=lambda v: getattr(v, "__name__", "")
)
def test_a_wrong_method_is_caught(kind, check):
    (result,) = faults_of({check: CHECKS[check]}, kind)
    assert not result.ok, f"{kind.__doc__} went unnoticed"
    assert result.detail.strip()


def test_the_same_method_done_right_passes():
    results = faults_of(CHECKS, Sound)
    assert {f.check for f in results} == set(CHECKS)
    assert all(f.ok for f in results)
