"""Multiply axes out into unique cells, merge what comes out the same, take out what is excluded."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from raybench.core import registry
from raybench.core.errors import InputError
from raybench.spec import exclude, ids
from raybench.spec.axes import Grid
from raybench.spec.cells import Cell
from raybench.spec.parts import Section
from raybench.spec.values import Found


def cells(grids: Sequence[Grid]) -> tuple[tuple[Cell, ...], tuple[str, ...], int]:
    """Return (unique cells in grid order, notes, number of excluded cells).

    Raises InputError where nothing remains, and for patterns that cannot match.
    """
    asked: Counter[str] = Counter()
    every: dict[str, Cell] = {}
    out: dict[str, Cell] = {}
    used: dict[str, bool] = {}
    found: Found = []
    for grid in grids:
        mine = list(_expanded(grid))
        wrong: Found = []
        exclude.check(grid.patterns, mine, wrong)
        if wrong:
            found += grid.blame(wrong)
            continue
        used.update({str(p): used.get(str(p), False) for p in grid.patterns})
        asked.update(cell.algorithm.name for cell in mine)
        for cell in mine:
            every.setdefault(cell.id, cell)
            hits = [pattern for pattern in grid.patterns if pattern.matches(cell)]
            used.update({str(pattern): True for pattern in hits})
            if not hits:
                out.setdefault(cell.id, cell)
    if found:
        raise InputError(list(dict.fromkeys(found)))
    if not out:
        raise InputError.of(
            "exclude", "the grid is empty: every cell is excluded", "loosen a pattern"
        )
    kept = Counter(cell.algorithm.name for cell in every.values())
    notes = [
        f"{name}{_ignored(grids, name)}: {count} cells merged to {kept[name]}"
        for name, count in asked.items()
        if count > kept[name]
    ]
    deaf = dict.fromkeys(
        method.algorithm.name
        for grid in grids
        for method in grid.methods
        if not method.compresses("down") and any(d.section for d in method.downlinks)
    )
    notes += [f"{name} compresses nothing on the way down: downlink ignored" for name in deaf]
    notes += [f"exclude {text} matches no cell" for text, hit in used.items() if not hit]
    return tuple(out.values()), tuple(notes), len(every) - len(out)


def _ignored(grids: Sequence[Grid], name: str) -> str:
    """Return the axes that a method does not look at, as `` x 3 compressors``."""
    text = ""
    for way, noun in (("up", "compressors"), ("down", "downlinks")):
        sizes = {
            len(method.compressors if way == "up" else method.downlinks)
            for grid in grids
            for method in grid.methods
            if method.algorithm.name == name and not method.compresses(way)
        }
        if max(sizes, default=1) > 1:
            text += f" x {max(sizes)} {noun}"
    return text


def _expanded(grid: Grid) -> Iterator[Cell]:
    """Yield the cells of a grid in order (seed fastest, then step), what is ignored set to None."""
    cache: dict[tuple[str, Section | None], Any] = {}

    def plugin(kind: str, section: Section | None) -> Any:
        key = (kind, section)
        if key not in cache:
            cache[key] = ids.plugin(kind, section)
        return cache[key]

    shared = list(
        itertools.product(
            *(grid.graphs, grid.proxes, grid.participations, grid.f_stars, grid.iterates),
            *(grid.stops, grid.starts),
        )
    )
    for problem, method in itertools.product(grid.problems, grid.methods):
        algorithm = method.algorithm
        assert problem.section is not None
        own_start = registry.lookup("problem", problem.section.name).facts.x0
        server = not method.facts.decentralised
        for up, down, rest, rounds in itertools.product(
            method.compressors, method.downlinks, shared, method.rounds
        ):
            graph, prox, participation, f_star, iterate, stop, x0 = rest
            compressor = up.section if method.compresses("up") else None
            downlink = down.section if method.compresses("down") else None
            topology = None if server else graph
            start = own_start if x0 is None else x0
            content = {
                "problem": plugin("problem", problem.section),
                "algorithm": plugin("algorithm", algorithm),
                "compressor": plugin("compressor", compressor),
                "downlink": plugin("compressor", downlink),
                "x0": None if start == own_start else ids.start(start),
                "rounds": rounds,
                "stop": stop,
                "graph": ids.graph(topology),
                "prox": prox,
                "participation": None if participation == 1 else participation,
                "f_star": f_star,
                "iterate": None if iterate == "last" else iterate,
            }
            content = {key: value for key, value in content.items() if value is not None}
            for step, seed in itertools.product(method.steps, grid.seeds):
                shape = {k: v for k, v in ids.step(step).items() if k in ("schedule", "warmup")}
                yield Cell(
                    id=ids.digest({**content, "step": ids.step(step), "seed": seed}),
                    group=ids.digest({**content, **shape}),
                    problem=problem.section,
                    algorithm=algorithm,
                    compressor=compressor,
                    downlink=downlink,
                    step=step,
                    seed=seed,
                    x0=start,
                    rounds=rounds,
                    stop=stop,
                    graph=topology,
                    prox=prox,
                    participation=participation,
                    f_star=f_star,
                    iterate=iterate,
                )
