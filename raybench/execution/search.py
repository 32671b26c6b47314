"""Which steps of a grid are tried: a few of each method at first, then more around the best of them.

The search is a pure function of how cells ended: it is played again from its beginning whenever the plan is
made, so that a sweep that was stopped goes on with the same cells, and none is ever run that the grid lacks.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from raybench.execution.batch import Batch, Resolved, by_shape
from raybench.execution.recorder import Recorder
from raybench.spec.model import Prune, canonical

MOST_WAYS = 256  # places of a minimum that are looked at, of longer ladders
Best = Callable[[Mapping[str, str]], Mapping[str, Sequence[float]]]
"""``best({cell: status})``: the step sizes that a search goes on around, by group, judged by these cells alone."""


@dataclass(frozen=True)
class Stage:
    """Where a search is.

    number: of the stage, from 1. tried: all cells up to and with this stage. new: those of this stage,
    none where the search is over.
    """

    number: int
    tried: frozenset[str]
    new: frozenset[str]


def steps_of(cells: Iterable[Resolved]) -> dict[str, dict[float, list[Resolved]]]:
    """Return the cells of every group by step size: those of a step differ in seed alone."""
    groups: dict[str, dict[float, list[Resolved]]] = {}
    for cell in cells:
        groups.setdefault(cell.cell.group, {}).setdefault(cell.step_size, []).append(cell)
    return groups


class Ladder:
    """The steps of one group of cells in order, with the ids of the cells of each."""

    def __init__(self, steps: Mapping[float, Sequence[Resolved]]) -> None:
        self.sizes = sorted(steps)
        self.cells = [[cell.id for cell in steps[size]] for size in self.sizes]

    def nearest(self, size: float, tested: Sequence[int]) -> int:
        """Return the place of the tested step that is nearest to a step size."""
        return min(tested, key=lambda i: abs(math.log(self.sizes[i] / size)))


def ladders(cells: Iterable[Resolved]) -> dict[str, Ladder]:
    """Return the steps of every group."""
    return {group: Ladder(steps) for group, steps in steps_of(cells).items()}


def coarse(steps: int, start: int) -> list[int]:
    """Return the places that are tried first: ``start`` of so many, evenly spaced, both ends among them."""
    if steps <= start:
        return list(range(steps))
    return [round(j * (steps - 1) / (start - 1)) for j in range(start)]


def around(tested: Sequence[int], centre: int) -> list[int]:
    """Return the places halfway between a tested one and its tested neighbours; none where they touch.

    tested: sorted, the centre among them.
    """
    at = bisect_left(tested, centre)
    beside = [*tested[max(0, at - 1) : at], *tested[at + 1 : at + 2]]
    return [(centre + other) // 2 for other in beside if abs(centre - other) > 1]


def stage_of(
    steps: Mapping[str, Ladder], ended: Mapping[str, str], start: int, best: Best
) -> Stage:
    """Return the stage that a search is in, given how cells ended; best is asked once per stage before, if
    there are steps that were not tried.

    ended: by cell id; cells that no stage asks for make no difference.
    """
    tested = {group: coarse(len(ladder.sizes), start) for group, ladder in steps.items()}
    number, before = 1, frozenset[str]()
    while True:
        names = frozenset(
            cell for group, ids in tested.items() for i in ids for cell in steps[group].cells[i]
        )
        new = names - before
        if not new <= ended.keys():
            return Stage(number, names, new)
        if all(len(ids) == len(steps[group].sizes) for group, ids in tested.items()):
            return Stage(number, names, frozenset())
        sizes = best({cell: ended[cell] for cell in names})
        more = {group: set(ids) for group, ids in tested.items()}
        for group, ids in tested.items():
            for size in sizes.get(group, ()):
                more[group].update(around(ids, steps[group].nearest(size, ids)))
        if not any(len(more[group]) > len(ids) for group, ids in tested.items()):
            return Stage(number, names, frozenset())
        tested = {group: sorted(places) for group, places in more.items()}
        number, before = number + 1, names


def foreseen(steps: Mapping[str, Ladder], start: int) -> tuple[int, int]:
    """Return about how many cells a search tries, and at most how many.

    Where each curve over the steps has one minimum: about, if every step is as likely to be the best one,
    and it is the one that ends lowest too; at most, wherever these two are.
    """
    about, upto = 0.0, 0
    for ladder in steps.values():
        many, cells = len(ladder.sizes), sum(map(len, ladder.cells))
        usual, longest = ways(many, start)
        about += usual * cells / many
        upto += math.ceil(min(many, 2 * longest - min(many, start)) * cells / many)
    return min(round(about), upto), upto


@lru_cache(maxsize=1024)
def ways(steps: int, start: int) -> tuple[float, int]:
    """Return how many of so many steps are tried on the way to one minimum: on average, and at most."""
    counts = []
    for minimum in range(0, steps, 1 + steps // MOST_WAYS):
        tested, more = coarse(steps, start), [0]
        while more:
            more = around(tested, min(tested, key=lambda i: (abs(i - minimum), i)))
            tested = sorted({*tested, *more})
        counts.append(len(tested))
    return sum(counts) / len(counts), max(counts)


def batches_to_prune(
    cells: Iterable[Resolved],
    ended: Iterable[str],
    most: Mapping[str, int],
    facts: Mapping[str, Mapping[str, Any]],
) -> list[Batch]:
    """Return the batches of the cells that have not ended; as ``batches_of``, but for who runs with whom.

    Which cells share a batch follows from all cells, not from which of them have ended, so that a sweep
    that was stopped goes on to prune the same ones. All seeds of a step share a batch, and all steps of a
    group, if they fit into one. If they do not the steps are dealt out to as few batches as hold them, and
    each batch prunes among its own; steps whose seeds fill more than a batch run alone and are not pruned.
    """
    ended, out = frozenset(ended), []
    for members in by_shape(cells):
        problem = canonical(members[0].cell.problem.config())
        for part in together(members, most[problem]):
            left = Batch(tuple(part), facts=facts[problem]).without(ended)
            out += [left] if left is not None else []
    return out


def together(cells: Iterable[Resolved], most: int) -> list[list[Resolved]]:
    """Return cells of one shape in parts of at most so many, as ``batches_to_prune`` says."""
    out: list[list[Resolved]] = []
    room = 0  # in the last part, for groups that fit in whole
    in_order = sorted(cells, key=lambda c: (c.cell.group, c.step_size, c.id))
    for steps in steps_of(in_order).values():
        sized = list(steps.values())
        each, size = max(map(len, sized)), sum(map(len, sized))
        if size <= room:
            out[-1] += [cell for step in sized for cell in step]
            room -= size
        elif size <= most:
            out.append([cell for step in sized for cell in step])
            room = most - size
        elif each <= most:
            parts = -(-len(sized) // (most // each))
            out += [[cell for step in sized[j::parts] for cell in step] for j in range(parts)]
            room = 0
        else:
            out += [step[j : j + most] for step in sized for j in range(0, len(step), most)]
            room = 0
    return out


def cuts_of(prune: Prune, steps: int, rounds: int) -> list[tuple[int, int]]:
    """Return (round, how many of so many steps go on) of each cut that a rule makes, in order; the last ones there are.

    Cuts are at rounds/eta^j, none before first * rounds, and no more than it takes to leave so many as
    ``least``: the i-th leaves ceil(steps/eta^i), or ``least`` if that is more.
    """
    at: list[int] = []
    while prune.halves and Fraction(1, prune.eta ** (len(at) + 1)) >= prune.first * (1 - 1e-9):
        at.append(math.ceil(Fraction(rounds, prune.eta ** (len(at) + 1))))
    rest: list[int] = []
    while len(rest) < len(at) and (rest[-1] if rest else steps) > prune.least:
        rest.append(max(prune.least, -(-steps // prune.eta ** (len(rest) + 1))))
    return list(zip(at[: len(rest)][::-1], rest, strict=True))


def rounds_of(batch: Batch, prune: Prune) -> float:
    """Return the rounds that a batch runs at most, summed over its cells, with what is pruned."""
    rounds, total = batch.cells[0].cell.rounds, 0.0
    for steps in steps_of(batch.cells).values():
        seeds = sum(map(len, steps.values())) / len(steps)
        left, before = len(steps), 0
        for at, rest in cuts_of(prune, len(steps), rounds):
            total += seeds * left * (at - before)
            left, before = rest, at
        total += seeds * left * (rounds - before)
    return total


Due: TypeAlias = tuple[int, list[list[int]]]  # how many steps go on, and the cells of each step
JUDGED_BY = ("grad_norm_sq", "loss", "test_loss")
"""What steps are compared by: the first that is known, as in tables of results."""


class Halving:
    """Successive halving among the cells of a batch: who ends at a cut follows from their curves alone.

    The steps of a group (cells that differ in seed and step only) are compared with one another, all
    seeds of a step together. After the i-th of the cuts of ``cuts_of`` the best ceil(steps/eta^i) are
    left. A step counts by the median over its seeds in the batch of the smallest ``JUDGED_BY`` recorded so
    far, infinite for a seed that has diverged; of equal ones the smaller step is better.
    """

    def __init__(self, batch: Batch, prune: Prune, rounds: int) -> None:
        self._groups: list[tuple[list[tuple[int, int]], list[list[int]]]] = []
        numbers = {cell.id: number for number, cell in enumerate(batch.cells)}
        for ladder in ladders(batch.cells).values():
            cuts = cuts_of(prune, len(ladder.sizes), rounds)
            if cuts:
                self._groups.append((cuts, [[numbers[i] for i in ids] for ids in ladder.cells]))

    def due(self, rounds: Sequence[int]) -> list[Due]:
        """Return the cuts that are due now, given the rounds recorded so far; mostly none.

        A cut takes place at the first recorded round at or after it.
        """
        before, now = rounds[-2] if len(rounds) > 1 else -1, rounds[-1]
        groups = []
        for cuts, steps in self._groups:
            rest = [rest for at, rest in cuts if before < at <= now]
            if rest:
                groups.append((rest[-1], steps))
        return groups

    def ends(self, due: Sequence[Due], recorder: Recorder, status: np.ndarray) -> list[int]:
        """Return the numbers of the cells that end at the cuts that are due; some may have ended before.

        status: of each cell (B,).
        """
        best = best_so_far(recorder)
        best = np.where(status == "diverged", math.inf, best)
        out: list[int] = []
        for rest, steps in due:
            scores = [float(np.median(best[cells])) for cells in steps]
            if not np.isfinite(scores).any():
                continue  # nothing is known to compare by
            order = sorted(range(len(steps)), key=lambda i: (scores[i], i))
            out += [number for i in order[rest:] for number in steps[i]]
        return out


def best_so_far(recorder: Recorder) -> np.ndarray:
    """Return the smallest value of ``JUDGED_BY`` that each cell has recorded, (B,), inf where none is known."""
    every = [recorder.smallest(name) for name in JUDGED_BY]
    return next((best for best in every if np.isfinite(best).any()), every[-1])
