"""From a sweep file to its cells: read, merge, check, multiply out, and give every cell its id."""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raybench import registry
from raybench.errors import Complaint, InputError
from raybench.spec import exclude, ids, merge, model, sections, settings, yaml
from raybench.spec.cells import Cell, Section, Step, Sweep
from raybench.spec.sections import MAX_CELLS, Option
from raybench.spec.values import Found, show
from raybench.store import accounting

OVERRIDES = ("compressor", "step_size", "downlink", "rounds")
"""Keys of the sweep that an entry of ``algorithm`` may set for itself."""


def load(
    source: str | Path | Mapping[str, Any],
    *,
    sets: Sequence[str] = (),
    plugins: Sequence[str] = (),
    name: str | None = None,
) -> Sweep:
    """Return the sweep that a file, YAML text (of more than one line) or a mapping describes.

    sets: overrides such as ``problem.clients=50``. plugins: plug-in files besides those the sweep
    names. name: replaces the sweep's name; without any it is the file's. Relative paths are looked
    up in the working directory, then beside the file. Raises InputError with everything that is
    wrong.
    """
    raw, origin, base, stem = _raw(source)
    for text in sets:
        raw = merge.assign(raw, text)
    raw["name"] = name or raw.get("name") or stem
    if plugins:
        own = raw.get("plugins") or []
        raw["plugins"] = [*([own] if isinstance(own, str) else own), *plugins]
    raw = _absolute(raw, base)
    document, found = model.read(raw)
    try:
        booking = accounting.parse(raw.get("accounting"))
    except InputError as error:
        found.extend(error.complaints)
    for file in _texts(raw.get("plugins")):
        try:
            registry.load_plugin(file)
        except InputError as error:
            found.extend(error.complaints)
    if document is not None:
        _metrics(document, found)
    grids = _grids(raw, found)
    if found or document is None:
        raise InputError(list(dict.fromkeys(found)))
    cells, notes, excluded = _cells(grids)
    return Sweep(
        name=document.name or stem,
        cells=cells,
        notes=notes,
        excluded=excluded,
        record=document.record,
        accounting=booking,
        resources=document.resources,
        evaluate=document.evaluate,
        train=document.train,
        timeout=document.timeout,
        attempts=document.attempts,
        plugins=document.plugins,
        allow_unproven=document.allow_unproven,
        text=yaml.dump({key: value for key, value in raw.items() if value is not None}),
        source=origin,
    )


def _raw(source: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], str, Path, str]:
    """Return (document, where it is from, folder for relative paths, default name)."""
    if isinstance(source, Mapping):
        return yaml.plain(source), "", Path.cwd(), "sweep"
    text, origin, base, stem = str(source), "", Path.cwd(), "sweep"
    if isinstance(source, Path) or "\n" not in source:
        file = Path(source).expanduser()
        try:
            text, origin, base = file.read_text(encoding="utf-8"), str(source), file.parent
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text file"
            fix = "give the path of a sweep file; `raybench ls` lists the shipped ones"
            raise InputError.of(show(str(source), bare=True), str(reason), fix) from error
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem).strip("-._") or "sweep"
    document = yaml.parse(text, origin)
    if not isinstance(document, dict):
        what = "the file is empty" if document is None else f"expected keys, not {show(document)}"
        raise InputError.of(origin, what, "a sweep names at least problem and algorithm")
    return document, origin, base, stem[:100]


def _texts(value: Any) -> list[str]:
    return [
        item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)
    ]


def _absolute(document: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Return the document with the paths of existing files made absolute, so workers find them."""

    def located(value: Any, *, folders: bool = False) -> Any:
        if isinstance(value, list):
            return [located(item, folders=folders) for item in value]
        if not isinstance(value, str) or "\0" in value or len(value) > 1000:
            return value
        for start in (Path.cwd(), base):
            file = start / Path(value).expanduser()
            if file.is_file() or (folders and "/" in value and file.is_dir()):
                return str(file.resolve())
        return value

    out = copy.deepcopy(dict(document))
    if out.get("plugins") is not None:
        out["plugins"] = located(out["plugins"])
    cases = out.get("cases")
    for part in [out, *(cases if isinstance(cases, list) else [])]:
        if not isinstance(part, dict):
            continue
        problems = part.get("problem")
        for problem in problems if isinstance(problems, list) else [problems]:
            if isinstance(problem, dict) and "dataset" in problem:
                problem["dataset"] = located(problem["dataset"], folders=True)
        starts = part.get("x0")
        if isinstance(starts, (str, list)):
            many = starts if isinstance(starts, list) else [starts]
            many = [located(x) if str(x).endswith(".npy") else x for x in many]
            part["x0"] = many if isinstance(starts, list) else many[0]
    return out


def _metrics(document: model.Document, found: Found) -> None:
    for i, metric in enumerate(document.evaluate.metrics):
        try:
            registry.lookup("metric", metric, f"evaluate.metrics[{i}]")
        except InputError as error:
            found.extend(error.complaints)


@dataclass(frozen=True)
class _Method:
    """An entry of ``algorithm`` with the axes that it may override."""

    option: Option
    compressors: list[Option]
    downlinks: list[Option]
    steps: list[Step]
    rounds: list[int]

    @property
    def dense(self) -> bool:
        """Tell whether the method sends no compressed messages, so its compressor is ignored."""
        return _meta("algorithm", self.option.section).get("up") is None


@dataclass(frozen=True)
class _Grid:
    """The axes of one case."""

    problems: list[Option]
    methods: list[_Method]
    graphs: list[Section]
    proxes: list[Any]
    participations: list[float]
    f_stars: list[float | None]
    stops: list[dict[str, float]]
    starts: list[Any]
    seeds: list[int]
    patterns: list[exclude.Pattern]

    def __len__(self) -> int:
        methods = sum(
            len(m.compressors) * len(m.downlinks) * len(m.steps) * len(m.rounds)
            for m in self.methods
        )
        shared = (self.graphs, self.proxes, self.participations, self.f_stars, self.stops)
        rest = math.prod(len(axis) for axis in (*shared, self.starts, self.seeds))
        return len(self.problems) * methods * rest


def _meta(kind: str, section: Section | None) -> Mapping[str, Any]:
    return {} if section is None else registry.lookup(kind, section.name).meta


def _grids(document: Mapping[str, Any], found: Found) -> list[_Grid]:
    """Return the grid of every case; complaints name the path where the user wrote the key."""
    try:
        cases = merge.cases(document)
    except InputError as error:
        found.extend(error.complaints)
        cases = merge.cases({**document, "cases": None})
    grids = []
    for where, merged, case in cases:
        wrong: Found = []
        grids.append(_grid(merged, wrong))
        found.extend(merge.blame(complaint, where, case) for complaint in wrong)
    size = sum(map(len, grids))
    if size > MAX_CELLS:
        found.append(Complaint("", f"the grid has {size:,} cells", f"at most {MAX_CELLS:,}"))
    return grids


def _grid(raw: Mapping[str, Any], found: Found) -> _Grid:
    for key in ("problem", "algorithm"):
        if raw.get(key) is None:
            names = ", ".join(registry.names(key))
            found.append(Complaint(key, "required", f"allowed: {names}"))
    problems = _named("problem", raw.get("problem"), found)
    compressors = sections.read("compressor", raw.get("compressor"), "compressor", found)
    downlinks = sections.read("compressor", raw.get("downlink"), "downlink", found)
    steps = settings.steps(raw.get("step_size"), "step_size", found)
    rounds = settings.scalars(settings.ROUNDS, raw.get("rounds"), "rounds", found)
    methods = []
    for option in _named("algorithm", raw.get("algorithm"), found):
        own, at = option.overrides, option.where
        method = _Method(
            option,
            sections.read("compressor", own["compressor"], f"{at}.compressor", found)
            if "compressor" in own
            else compressors,
            sections.read("compressor", own["downlink"], f"{at}.downlink", found)
            if "downlink" in own
            else downlinks,
            settings.steps(own["step_size"], f"{at}.step_size", found)
            if "step_size" in own
            else steps,
            settings.scalars(settings.ROUNDS, own["rounds"], f"{at}.rounds", found)
            if "rounds" in own
            else rounds,
        )
        missing = [c for c in method.compressors if c.section is None]
        if missing and not method.dense and option.section is not None:
            fix = f"allowed: {', '.join(registry.names('compressor'))}"
            what = f"{option.section.name} needs a compressor"
            found.append(Complaint(missing[0].where, what, fix))
        methods.append(method)
    return _Grid(
        problems,
        methods,
        settings.graphs(raw.get("graph"), "graph", found),
        settings.proxes(raw.get("prox"), "prox", found),
        settings.scalars(settings.PARTICIPATION, raw.get("participation"), "participation", found),
        settings.scalars(settings.F_STAR, raw.get("f_star"), "f_star", found),
        settings.stops(raw.get("stop"), "stop", found),
        [None] if raw.get("x0") is None else settings.starts(raw["x0"], "x0", found),
        settings.scalars(settings.SEED, raw.get("seed"), "seed", found),
        exclude.read(raw.get("exclude"), "exclude", found),
    )


def _named(kind: str, value: Any, found: Found) -> list[Option]:
    if value is None:
        return []
    overrides = OVERRIDES if kind == "algorithm" else ()
    out = sections.read(kind, value, kind, found, overrides=overrides)
    for option in out:
        if option.section is None:
            names = ", ".join(registry.names(kind))
            found.append(Complaint(option.where, f"a {kind} is needed", f"allowed: {names}"))
    return [option for option in out if option.section is not None]


def _cells(grids: Sequence[_Grid]) -> tuple[tuple[Cell, ...], tuple[str, ...], int]:
    """Return (unique cells in grid order, notes, number of excluded cells)."""
    every: dict[str, Cell] = {}
    out: dict[str, Cell] = {}
    asked: Counter[str] = Counter()
    dropped: set[str] = set()
    used: dict[str, bool] = {}
    found: Found = []
    dense: dict[str, int] = {}
    for grid in grids:
        mine = list(_expand(grid))
        exclude.check(grid.patterns, mine, found)
        if found:
            continue
        for method in grid.methods:
            if method.dense and method.option.section is not None:
                dense[method.option.section.name] = len(method.compressors)
        for pattern in grid.patterns:
            used.setdefault(show(dict(pattern.raw), bare=True), False)
        for cell in mine:
            asked[cell.algorithm.name] += 1
            every[cell.id] = cell
            hits = [p for p in grid.patterns if p.matches(cell)]
            used.update({show(dict(p.raw), bare=True): True for p in hits})
            if hits:
                dropped.add(cell.id)
            else:
                out.setdefault(cell.id, cell)
    if found:
        raise InputError(list(dict.fromkeys(found)))
    if not out:
        fix = "loosen a pattern" if every else "every axis needs at least one value"
        raise InputError.of("exclude" if every else "", "the grid is empty: no cells", fix)
    kept = Counter(cell.algorithm.name for cell in every.values())
    notes = []
    for method_name, count in asked.items():
        if count > kept[method_name]:
            times = dense.get(method_name, 1)
            by = f" x {times} compressors" if times > 1 else ""
            notes.append(f"{method_name}{by}: {count} cells merged to {kept[method_name]}")
    notes += [f"exclude {text} matches no cell" for text, hit in used.items() if not hit]
    return tuple(out.values()), tuple(notes), len(dropped - set(out))


def _expand(grid: _Grid) -> Iterator[Cell]:
    """Yield the cells of a grid in order (seed fastest, then step), what is ignored set to None."""
    cache: dict[tuple[str, Section | None], Any] = {}

    def plugin(kind: str, section: Section | None) -> Any:
        key = (kind, section)
        if key not in cache:
            cache[key] = ids.plugin(kind, section)
        return cache[key]

    shared = list(
        itertools.product(
            grid.graphs, grid.proxes, grid.participations, grid.f_stars, grid.stops, grid.starts
        )
    )
    for problem, method in itertools.product(grid.problems, grid.methods):
        algorithm = method.option.section
        assert problem.section is not None
        assert algorithm is not None
        own_start = _meta("problem", problem.section).get("x0", "zeros")
        server = not _meta("algorithm", algorithm).get("decentralised")
        for up, down, rest, rounds in itertools.product(
            method.compressors, method.downlinks, shared, method.rounds
        ):
            graph, prox, participation, f_star, stop, x0 = rest
            compressor = None if method.dense else up.section
            topology = None if server else graph
            start = own_start if x0 is None else x0
            content = {
                "problem": plugin("problem", problem.section),
                "algorithm": plugin("algorithm", algorithm),
                "compressor": plugin("compressor", compressor),
                "downlink": plugin("compressor", down.section),
                "x0": None if start == own_start else ids.start(start),
                "rounds": rounds,
                "stop": stop,
                "graph": ids.graph(topology),
                "prox": prox,
                "participation": None if participation == 1 else participation,
                "f_star": f_star,
            }
            content = {key: value for key, value in content.items() if value is not None}
            group = ids.digest(content)
            for step, seed in itertools.product(method.steps, grid.seeds):
                yield Cell(
                    id=ids.digest({**content, "step": ids.step(step), "seed": seed}),
                    group=group,
                    problem=problem.section,
                    algorithm=algorithm,
                    compressor=compressor,
                    downlink=down.section,
                    step=step,
                    seed=seed,
                    x0=start,
                    rounds=rounds,
                    stop=stop,
                    graph=topology,
                    prox=prox,
                    participation=participation,
                    f_star=f_star,
                )
