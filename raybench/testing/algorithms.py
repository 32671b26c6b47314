"""What every algorithm must hold: its booking, its batch axes, its independence of where it runs.

``CHECKS`` are functions of a ``TrialMethod`` that raise AssertionError; ``conformance`` runs them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybench.core.errors import InputError
from raybench.core.registry import Entry
from raybench.execution.checks import Skip
from raybench.execution.run import Run
from raybench.testing import Checks, Finding, findings, made, subprocess, trial
from raybench.testing.certificates import certified
from raybench.testing.compressors import assert_bytes_suffice, examples, label_of, same_bits
from raybench.testing.leaks import Heard, Spy, difference, fence, tensors
from raybench.testing.trial import WILD, TrialMethod, compressors_for, finished, on_ranks, started
from raybench.wire import Message, unpack
from raybench.wire.compound import MeansMessage, PartsMessage
from raybench.wire.ledger import COLUMNS
from raybench.wire.transport import on_virtual_ranks

CHECKS = Checks()
MOST = 5  # local steps, rounds of a phase and the like with which methods are tried
MOST_RANKS = 3  # and no more than there are clients
SLACK = 16  # bits of padding in a message: its fields are packed to whole bytes
BOOKED = ("up", "down", "bytes_up_max")  # what a ledger holds
ROUNDS = SECRET_ROUNDS = 12
COMPARED = ("loss", "grad_norm_sq", "grad_evals", "bytes_up", "bytes_down", "bytes_up_max")


def point(run: Run) -> Tensor:
    """Return where the run is, (B, d)."""
    return run.a.point(run.net, run.s, run.c)


def close(a: Any, b: Any, rtol: float, what: str) -> None:
    """Assert that two arrays agree relative to the size of the second."""
    a, b = (np.asarray(x, dtype=float) for x in (a, b))
    assert a.shape == b.shape, f"{what}: shapes {a.shape} and {b.shape}"
    size = np.abs(b).max(initial=0.0)
    gap = np.abs(a - b).max(initial=0.0)
    assert gap <= rtol * size, f"{what} by {gap:.3g}, of a size of {size:.3g}"


def counts(run: Run) -> dict[str, np.ndarray]:
    """Return what a run has booked, and its gradient evaluations."""
    booked = {name: getattr(run.net.ledger, name).copy() for name in BOOKED}
    return {**booked, "gradient evaluations": run.net.oracle.evals.copy()}


def close_counts(run: Run, other: Run, rtol: float, what: str) -> None:
    """Assert that two runs have counted the same."""
    theirs = counts(other)
    for name, count in counts(run).items():
        close(count, theirs[name], rtol, f"counts of {name} {what}")


@CHECKS
def runs_at_its_own_step(m: TrialMethod) -> None:
    """At the theoretical step (or 0.1/L) the iterates stay finite, move, and something is sent."""
    run = started(m.batch((1.0, 0.5), (0, 1)))
    first = run.s.x.clone()
    run.advance(run.rounds)
    x, d = point(run), run.problem.dim
    assert (run.status == "ok").all(), f"it ended as {', '.join(run.status)}"
    assert x.shape == (2, d), f"point() has shape {tuple(x.shape)}, not (cells, d) = (2, {d})"
    assert x.dtype == run.problem.dtype, f"point() is {x.dtype}, the problem {run.problem.dtype}"
    assert not torch.equal(x, first), f"x did not move in {m.rounds} rounds"
    assert (run.net.ledger.up[COLUMNS.index("bytes")] > 0).all(), "no message was ever sent"


@CHECKS
def state_has_cells_first(m: TrialMethod) -> None:
    """Tensors of ``s`` have the cells on axis 0, those of ``c`` cells and clients on axes 0 and 1."""
    run = finished(m.batch((1.0, 0.5, 0.25)))
    for name, value in run.s:
        for part in tensors(value):
            assert part.shape[:1] == (3,), f"s.{name} has shape {tuple(part.shape)} for 3 cells"
    for name, value in run.c:
        for part in tensors(value):
            lead = (3, run.net.n_here)
            assert part.shape[:2] == lead, f"c.{name} has shape {tuple(part.shape)}, not {lead}.."


@CHECKS
def seed_decides_all(m: TrialMethod) -> None:
    """Two runs of a seed are equal bit by bit, whether in one go or round by round."""
    batch = m.batch((1.0, 0.5), (3, 4))
    once, again = finished(batch), started(batch)
    torch.manual_seed(torch.seed() % 2**32)
    while not again.advance(1):
        pass
    assert torch.equal(point(once), point(again)), "the same seed gave other iterates"
    assert np.array_equal(once.net.ledger.up, again.net.ledger.up), "it booked other messages"


@CHECKS
def books_what_it_packs(m: TrialMethod) -> None:
    """The ledger's bytes are those of the packed messages, its bits the same up to padding.

    Bytes as the mean over clients, and those of the largest client of each round.
    """
    batch = m.batch((1.0, 0.5), (0, 1))
    run = started(batch)
    spy = Spy(run.net)
    run.advance(15)
    for side in ("up", "down"):
        booked = getattr(run.net.ledger, side)[COLUMNS.index("bytes")]
        packed, messages = spy.bytes[side], spy.messages[side]
        close(booked, packed, 1e-12, f"booked bytes {side} differ from the packed ones")
        spare = 8 * packed - run.bits(side)
        fits = (spare >= -1e-6) & (spare <= SLACK * messages + 1e-6)
        assert fits.all(), f"{run.bits(side)} modelled bits {side}, {8 * packed} packed"
    largest = run.net.ledger.bytes_up_max
    close(largest, spy.largest, 1e-12, "booked bytes of the largest client differ")


@CHECKS
def counts_never_fall(m: TrialMethod) -> None:
    """From round to round no count of the ledger falls, whichever way, nor that of gradients; all are finite."""
    run = started(m.batch((1.0, 0.5), (0, 1)))
    before: dict[str, np.ndarray] = {}
    while not run.advance(1):
        now = counts(run)
        for name, count in now.items():
            assert np.isfinite(count).all(), f"{name} is {count.tolist()} in round {run.t}"
            fell = np.min(count - before.get(name, np.zeros_like(count)), initial=0.0)
            assert fell >= 0, f"a count of {name} falls by {-fell:g} in round {run.t}"
        before = now


@CHECKS
def gradients_are_left_alone(m: TrialMethod) -> None:
    """Nothing writes to a gradient that ``net`` has handed out, of a common point or of the clients' own.

    Others hold the same tensor: what was remembered of it, the record, and in a training loop the model.
    """
    run = started(m.batch((1.0, 0.5), (0, 1)))
    handed: list[tuple[Tensor, Tensor, int]] = []

    def keeping(call: Callable[..., Any]) -> Callable[..., Any]:
        def give(*args: Any, **more: Any) -> Any:
            result = call(*args, **more)
            grads = result[0] if isinstance(result, tuple) else result
            handed.append((grads, grads.clone(), grads._version))
            return result

        return give

    vars(run.net)["grad"] = keeping(run.net.grad)
    vars(run.net.oracle)["grad_and_loss"] = keeping(run.net.oracle.grad_and_loss)
    for _ in range(ROUNDS):
        run.advance(1)
        for grads, memory, version in handed:
            changed = grads._version != version or not same_bits(grads, memory)
            assert not changed, f"the method has written to a gradient by the end of round {run.t}"
        handed.clear()


@CHECKS
def messages_hold_no_more_than_their_bytes(m: TrialMethod) -> None:
    """Packed and unpacked, what it sends decodes to the same; kinds of its own do so in another process."""
    run = started(m.batch((1.0, 0.5), (0, 1)))
    messages: list[Message] = []
    for name in ("up", "all_gather", "mix", "broadcast", "down_each"):
        setattr(run.net, name, _keeping(getattr(run.net, name), messages))
    run.advance(3)
    for message in messages:
        same = same_bits(unpack(message.pack()).decode(), message.decode())
        assert same, f"a {message.kind} message is changed by packing"
    assert_bytes_suffice(messages)


def _keeping(call: Callable[[Message], Any], kept: list[Message]) -> Callable[[Message], Any]:
    def send(message: Message) -> Any:
        # messages in parts stand for several, each of which is packed for another client
        if not {PartsMessage, MeansMessage} & set(subprocess.kinds_of(message)):
            kept.append(message.select(torch.arange(message.lead[0])))
        return call(message)

    return send


@CHECKS
def calls_what_methods_may_call(m: TrialMethod) -> None:
    """In ``start`` and rounds: what ``algorithms.protocols`` lists, and nothing that is for the record only."""
    run = started(m.batch((1.0, 0.5), (0, 1)))
    fence(run)
    run.advance(ROUNDS)


@CHECKS
def clients_use_what_was_sent(m: TrialMethod) -> None:
    """What clients send and keep depends on the server only through ``down``, ``down_each``, ``model``, ``mean``, ``mix``.

    The server of a second run receives other messages, and broadcasts those of the first run.
    """
    batch = m.batch((1.0, 0.5), (0, 1))
    first, second = (started(batch, every=SECRET_ROUNDS) for _ in range(2))
    heard = Heard(first.net)
    first.advance(SECRET_ROUNDS)
    again = Heard(second.net, heard)
    second.advance(SECRET_ROUNDS)
    changes = difference(first, second, heard, again)
    assert not changes, (
        f"{changes} what depends on messages that the server received and sent to nobody: "
        "a broadcast is not booked, or smaller than what is used of it; send it by wire.model(x), "
        "wire.down(m), wire.down_each(m) or wire.mean(x), and use what these return"
    )


@CHECKS
def ranks_change_nothing(m: TrialMethod) -> None:
    """On one, two and three virtual ranks, where there are so many clients: the same iterates (1e-10), counts and gradients.

    Fails where clients are combined other than through ``net``. Methods on a simulated clock run in one process.
    """
    if m.entry.facts.clock:
        return
    batch = m.batch((1.0, 0.5, 0.7), (0, 1, 2))
    (alone,) = on_ranks(1, batch)
    x = point(alone)
    for size in range(2, min(MOST_RANKS, alone.net.n) + 1):
        results = on_ranks(size, batch, lambda run: (run, run.recorder.column("loss")))
        for rank, (run, losses) in enumerate(results):
            who = f"rank {rank} of {size}"
            # every rank holds the same replicated state; point() would exchange messages
            for name, value in run.s:
                for mine, theirs in zip(tensors(value), tensors(getattr(alone.s, name))):
                    close(mine, theirs, 1e-10, f"s.{name} on {who} differs from one process")
            close(losses, alone.recorder.column("loss"), 1e-10, f"f on {who} differs")
            close_counts(run, alone, 1e-12, f"on {who} differ")
    assert x.isfinite().all(), "the iterates are not finite"


@CHECKS
def alone_or_in_a_batch(m: TrialMethod) -> None:
    """A cell gives the same curve (1e-9) alone and among others, of which most diverge and leave."""
    multiples, seeds = (1.0, WILD, 0.5, WILD, WILD), (0, 1, 2, 3, 4)
    batch = m.batch(multiples, seeds)
    every = finished(batch)
    assert m.problem is not None or (every.status[[1, 3, 4]] == "diverged").all(), (
        f"at {WILD:g} times its step it ended as {', '.join(every.status)}"
    )
    for at in (0, 2):
        alone = finished(m.batch(multiples[at : at + 1], seeds[at : at + 1]))
        assert every.status[at] == "ok", f"beside diverging cells it ended as {every.status[at]}"
        for name in COMPARED:
            ours, theirs = every.recorder.column(name)[at], alone.recorder.column(name)[0]
            close(ours, theirs, 1e-9, f"{name} of a cell in a batch differs from it alone")


@CHECKS
def recording_costs_nothing(m: TrialMethod) -> None:
    """Iterates, messages and counted gradients do not depend on how often f is recorded."""
    batch = m.batch((1.0, 0.5), (0, 1))
    often, seldom = finished(batch, 1), finished(batch, m.rounds)
    close(point(often), point(seldom), 1e-12, "recording each round changes the iterates")
    close_counts(often, seldom, 0.0, "change where each round is recorded,")


@CHECKS
def goes_on_from_its_state(m: TrialMethod) -> None:
    """Interrupted after 5 rounds and continued: in a new process the same curve bit for bit.

    Shared out to three ranks instead, the same to rounding. What a method remembers must be in ``s``
    and ``c``.
    """
    run = finished(m.batch(trial.MULTIPLES, trial.SEEDS))
    whole, ranks = trial.ending(run), min(MOST_RANKS, run.net.n)
    checkpoint = trial.interrupted(m)
    anew = trial.in_another_process(m, checkpoint)
    assert whole.keys() == anew.keys(), f"columns {sorted(whole.keys() ^ anew.keys())}"
    for name, want in whole.items():
        same = torch.equal(anew[name].nan_to_num(), want.nan_to_num())
        assert same, f"{name} differs once the run was interrupted and continued"
    if m.entry.facts.clock:
        return
    shared = on_virtual_ranks(ranks, lambda t: trial.recorded(trial.continued(m, checkpoint, t)))
    for rank, state in enumerate(shared):
        for name, got in state.items():
            what = f"{name}, continued on rank {rank} of {ranks}, differs"
            close(got.nan_to_num(), whole[name].nan_to_num(), 1e-9, what)


def conformance(method: TrialMethod, about: str | None = None) -> list[Finding]:
    """Return the findings of all checks on a method."""
    compressor = method.compressor
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny tensors: waking threads would cost more than the work
    name = compressor if isinstance(compressor, str) or compressor is None else compressor["name"]
    label = label_of(method.name, dict(method.params))
    try:
        return findings(CHECKS, method, about or (f"{label} with {name}" if name else label))
    finally:
        torch.set_num_threads(threads)


def methods(
    entry: Entry,
    given: Mapping[str, Any] | None = None,
    problem: Mapping[str, Any] | None = None,
) -> list[TrialMethod]:
    """Return what a registered method is tried as: parameter sets, and compressors of its role.

    given: parameters that all sets have. problem: as in a sweep file, the small one by default.

    Combinations whose numbers do not fit the small problem, or have no automatic value there, are left out, the
    first excepted. Numbers of
    steps and rounds are small ones: thirty local steps show no more than a few, and the phases of a method
    follow one another within the rounds that are run.
    """
    sets = [
        {**_small(entry, example), **(given or {})} for example in examples(entry, given).values()
    ]
    compressors = compressors_for(entry)
    down = {"name": entry.facts.down.usual, "k": 4} if entry.facts.down else None
    pairs: list[tuple[Mapping[str, Any], Any]] = [(sets[0], q) for q in compressors]
    pairs += [(params, compressors[0]) for params in sets[1:]]
    pairings = [TrialMethod(entry.name, params, q, problem, down) for params, q in pairs]
    return [m for j, m in enumerate(pairings) if j == 0 or _fits(m)]


def _small(entry: Entry, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters with integers of at most ``MOST``, or the lowest that is allowed."""
    return {
        name: max(MOST, int(entry.params[name].low))
        if entry.params[name].kind == "integer" and isinstance(value, int) and value > MOST
        else value
        for name, value in params.items()
    }


def _fits(method: TrialMethod) -> bool:
    try:
        method.cell()
    except (InputError, Skip):
        return False
    return True


def check_entry(
    entry: Entry,
    given: Mapping[str, Any] | None = None,
    problem: Mapping[str, Any] | None = None,
) -> Iterator[Finding]:
    """Yield the findings of all checks on a registered method, over ``methods``, and of its theorems in the worst case."""
    for method in methods(entry, given, problem):
        yield from _checked(method)
    yield from certified(entry, given)


def _checked(m: TrialMethod) -> list[Finding]:
    return made(lambda: started(m.batch()).advance(1), m.name) or conformance(m)
