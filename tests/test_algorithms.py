"""The conformance kit on every registered method, and on methods that are wrong on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from _pytest.mark import ParameterSet
from toys import TOP, registered, title

from raybench.algorithms.base import Algorithm, Contractive, Dense, zeros_like
from raybench.core import registry
from raybench.testing import Checks, Finding, findings, trial
from raybench.testing.algorithms import CHECKS, close, methods
from raybench.testing.trial import Method, finished
from raybench.wire.transport import on_virtual_ranks

NAMES = registry.names("algorithm")
SOUND = [m for name in NAMES for m in methods(registry.lookup("algorithm", name))]
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
def test_runs_goes_on_and_is_shared_out(method: Method):
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
def test_conforms(method: Method, checks: Checks):
    wrong = [str(f) for f in findings(checks, method, method.name) if not f.ok]
    assert not wrong, "\n".join(wrong)


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


class LocalMean(Faulty):
    """The server averages the clients of its own process, unbooked."""

    def server(a, net, s, c, m):
        net.up(m)
        s.g = c.g.mean(1)


class NeverSent(LocalMean):
    """The same, and not even a message is sent (the model is broadcast, which is booked)."""

    def server(a, net, s, c, m):
        s.g = c.g.mean(1)


class LocalCount(Faulty):
    """Divides by the clients of its own process."""

    def server(a, net, s, c, m):
        s.g = s.g + net.up(m).sum() / net.n_here


class AcrossCells(Faulty):
    """One cell's estimator leaks into the next."""

    def server(a, net, s, c, m):
        s.g = s.g + net.up(m).mean()
        s.g = 0.999 * s.g + 0.001 * s.g.mean(0, keepdim=True)


class GlobalRandom(Faulty):
    """Draws from torch's generator."""

    def server(a, net, s, c, m):
        s.g = s.g + net.up(m).mean() * (1 + 0.01 * torch.rand(1))


class ForgottenCells(Faulty):
    """Keeps state for all cells where the engine cannot select: an attribute of its own class."""

    def start(a, net, s, c):
        super().start(net, s, c)
        a.kept = {"g": s.g}

    def server(a, net, s, c, m):
        a.kept["g"] = a.kept["g"] + net.up(m).mean()
        s.g = a.kept["g"]


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
    LocalMean: "ranks change nothing",
    NeverSent: "ranks change nothing",
    LocalCount: "ranks change nothing",
    AcrossCells: "alone or in a batch",
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
        return findings(checks, Method("faulty", {}, TOP), kind.__name__)


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
