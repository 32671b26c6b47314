"""From a sweep file to its cells: read, merge, check, multiply axes out, exclude, and give every cell its id."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raybench.core import registry, yaml
from raybench.core.errors import Complaint, InputError, nearest
from raybench.core.facts import USUAL_SHARE, AlgorithmFacts, ProblemFacts, Role
from raybench.core.registry import Param
from raybench.spec import cells, document, sections
from raybench.spec.cells import Cell, Sweep
from raybench.spec.keys import STEP, Key, ParameterTable, Scalar, StepSizeKey
from raybench.spec.model import Section, canonical
from raybench.spec.sections import MAX_CELLS, SectionEntry, Sections, options
from raybench.spec.values import FILES, Complaints, Wrong, locate, parted, show
from raybench.store.identity import as_written


def load(
    source: str | Path | Mapping[str, object],
    *,
    sets: Sequence[str] = (),
    plugins: Sequence[str] = (),
    name: str | None = None,
    data: Mapping[str, Path] | None = None,
    no_code: bool = False,
) -> Sweep:
    """Return the sweep that a file, YAML text (of more than one line) or a mapping describes.

    sets: overrides such as ``problem.clients=50``. plugins: plug-in files besides those the sweep
    names. name: replaces the sweep's name; without any it is the file's. data: files by the names that
    stand for them where a key may name a file. no_code: nothing that the sweep names is imported.
    Relative paths are looked up in the working directory, then beside the file. Raises InputError with
    everything that is wrong, and with ``no_code`` where the sweep names code.
    """
    raw, origin = whole(source, sets, plugins, name, data)
    code = tuple(code_of(raw))
    if code and no_code:
        fix = "read that code before you run it; then leave out what forbids it"
        raise InputError(
            [Complaint("", f"{text} is code, which may not run", fix) for text in code]
        )
    complaints: Complaints = []
    settings = _settings(raw, complaints)
    grids = read_grids(raw, complaints)
    if complaints:
        raise InputError(list(dict.fromkeys(complaints)))
    made, notes, excluded = expand(grids)
    return cells.Sweep(
        cells=made,
        notes=(*notes, *dict.fromkeys(_implied(raw))),
        excluded=excluded,
        code=code,
        text=yaml.dump({key: value for key, value in raw.items() if value is not None}),
        source=origin,
        **settings,
    )


LIBRARIES = ("torchvision:", "causal_lm:")  # models of these are no code of a user's


def code_of(document: object, key: str = "", naming: frozenset[str] | None = None) -> Iterator[str]:
    """Yield ``key: value`` of all that names code in a sweep's document: plug-ins, and functions of a user's own."""
    if naming is None:
        problems = (registry.lookup("problem", name) for name in registry.names("problem"))
        params = (pair for problem in problems for pair in problem.params.items())
        naming = frozenset({"plugins", *(name for name, param in params if param.runs_code)})
    if isinstance(document, Mapping):
        for name, value in document.items():
            yield from code_of(value, name if name in naming else key, naming)
    elif isinstance(document, list):
        for value in document:
            yield from code_of(value, key, naming)
    elif key and document is not None:
        text = str(document)
        if key == "plugins" or (registry.is_function(text) and not text.startswith(LIBRARIES)):
            yield f"{key}: {text}"


def whole(
    source: str | Path | Mapping[str, object],
    sets: Sequence[str],
    plugins: Sequence[str],
    name: str | None = None,
    data: Mapping[str, Path] | None = None,
) -> tuple[dict[str, object], str]:
    """Return a sweep's document with all that is laid over it, paths made absolute, and where it is from."""
    raw, origin, base, stem = _raw(source)
    for text in sets:
        raw = document.assign(raw, text)
    raw["name"] = name or raw.get("name") or stem
    if plugins:
        listed = raw.get("plugins") or []
        raw["plugins"] = [*([listed] if isinstance(listed, str) else listed), *plugins]
    return _located(raw, base, data or {}), origin


def _settings(raw: Mapping[str, object], complaints: Complaints) -> dict[str, Any]:
    """Return what holds for the whole sweep, by the field that holds it; and find unknown keys."""
    keys = document.EVERY_KEY
    for name in raw:
        if name not in keys:
            complaints.append(Complaint(name, "unknown key", nearest(name, keys)))
    out = {}
    for name, key in document.SETTINGS.items():
        out[key.field] = key.kind.absent()
        try:
            if raw.get(name) is not None:
                out[key.field] = key.kind.read(raw[name], name, complaints)
        except InputError as error:
            complaints.extend(error.complaints)
    return out


def _raw(source: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], str, Path, str]:
    """Return (document, where it is from, folder for relative paths, default name)."""
    if isinstance(source, Mapping):
        return yaml.plain(source), "", Path.cwd(), "sweep"
    text, origin, base, stem = str(source), "", Path.cwd(), "sweep"
    if isinstance(source, Path) or "\n" not in source:
        file = Path(source).expanduser()
        try:
            with file.open("rb") as stream:  # a little more than is read, so that it is refused
                text = stream.read(4 * yaml.MAX_LETTERS + 4).decode("utf-8")
            origin, base = str(source), file.parent
        except (OSError, ValueError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text file"
            fix = "give the path of a sweep file; `raybench ls` lists the shipped ones"
            raise InputError.of(str(source), str(reason), fix) from error
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem).strip("-._") or "sweep"
    raw = yaml.parse(text, origin)
    if not isinstance(raw, dict):
        what = "the file is empty" if raw is None else f"expected keys, not {show(raw)}"
        raise InputError.of(origin, what, "a sweep names at least problem and algorithm")
    return raw, origin, base, stem[:100]


def _located(raw: Mapping[str, Any], base: Path, data: Mapping[str, Path]) -> dict[str, object]:
    """Return the document with the paths of existing files made absolute, so workers find them.

    data: files by the names that stand for them, which go before other files.
    """

    def absolute(text: str, key: str) -> str:
        file, rest = parted(text)
        if file in data:
            return str(data[file].resolve())
        at = locate(file, Path.cwd(), base)
        if at is None or not (at.is_file() or (key in FILES and "/" in file)):
            return text
        return f"{at.resolve()}{rest}"

    def within(node: object, key: str) -> object:
        if isinstance(node, Mapping):
            return {name: within(value, name) for name, value in node.items()}
        if isinstance(node, list):
            return [within(item, key) for item in node]
        names_file = key in (*FILES, "plugins", "trace") or (
            key == "x0" and str(node).endswith(".npy")
        )
        return absolute(node, key) if isinstance(node, str) and names_file else node

    with_files = ("problem", "x0", "clock", "plugins")
    out = {k: within(v, k) if k in with_files else v for k, v in raw.items()}
    if isinstance(out.get("cases"), list):
        cases = [_located(c, base, data) if isinstance(c, Mapping) else c for c in raw["cases"]]
        out["cases"] = cases
    return out


# Patterns that take cells out: a cell is excluded where every key of a pattern matches ------------


# sections in which a parameter without a section's name is looked up, in this order
_BARE = ("algorithm", "compressor", "problem", "graph")
# what patterns call the number of a step, with the kind of step whose number it is; any kind's without
_STEPS = {
    "step": "",
    **dict.fromkeys(("step_size", "step_size.value", "step.value"), "value"),
    **dict.fromkeys(("step_multiple", "step_size.theory", "step.theory"), "theory"),
}
# what a pattern may name of a cell, by key: a section's kind, or a parameter, and the value; ... where it has none
Names = Mapping[str, tuple[Param | Sections, Any]]


def nameable(cell: Cell) -> Names:
    """Return what patterns may name of a cell, but for its step and seed, which its group does not share."""
    out: dict[str, tuple[Param | Sections, Any]] = _numbered("", ...)
    held: dict[str, Mapping[str, tuple[Param, Any]]] = {}
    for name, key in document.AXES.items():
        kind, value = key.kind, getattr(cell, key.field)
        if isinstance(kind, Scalar):
            # where the key is ignored its value stays None, which no pattern matches
            default = value is None and key.heard is None
            out[name] = kind.param, kind.written() if default else value
        elif isinstance(kind, Sections | ParameterTable):
            held[name] = kind.settings(value)
            out |= {f"{name}.{inner}": pair for inner, pair in held[name].items()}
            if isinstance(kind, Sections):
                out[name] = kind, None if value is None else value.name
    for name in reversed(_BARE):
        out |= held[name]
    return out


@dataclass(frozen=True)
class Pattern:
    """One entry of ``exclude``: raw values by key, dotted where a section is named.

    typed: texts of the values that it accepts and what is wrong with them, by key and what types them.
    """

    where: str
    raw: Mapping[str, Any]
    typed: dict[tuple[str, int], tuple[set[str], Complaints]] = field(default_factory=dict)

    def __str__(self) -> str:
        return show(dict(self.raw), bare=True)

    def matches(self, names: Names) -> bool:
        """Tell whether every key of the pattern matches a cell of which it may name these."""
        # all of them are asked, so that what no parameter takes is complained about
        return False not in [key in names and self._accepts(key, *names[key]) for key in self.raw]

    def _accepts(self, key: str, kind: Param | Sections, value: Any) -> bool:
        if (key, id(kind)) not in self.typed:
            complaints: Complaints = []
            values = _wanted(kind, self.raw[key], f"{self.where}.{key}", complaints)
            self.typed[key, id(kind)] = set(map(canonical, values)), complaints
        return value is not ... and canonical(value) in self.typed[key, id(kind)][0]

    def wrong(self, names: Iterable[str]) -> Complaints:
        """Return complaints of keys that no cell has and values that no parameter takes, of cells that were all tried.

        names: what may be named of them.
        """
        out: Complaints = []
        for key in self.raw:
            tries = [complaints for at, (_, complaints) in self.typed.items() if at[0] == key]
            if not tries:
                fix = nearest(key, names)
                out.append(Complaint(f"{self.where}.{key}", "unknown key", fix))
            elif all(tries):
                out += tries[0]
        return out


def _numbered(kind: str, number: Any) -> dict[str, tuple[Param | Sections, Any]]:
    """Return what patterns may name of a step of that kind, or of every kind without one."""
    steps = {n: k for n, k in _STEPS.items() if not kind or k in ("", kind)}
    return {name: (STEP[k or "value"], number) for name, k in steps.items()}


def pattern(item: Any, where: str) -> list[Pattern]:
    """Return the pattern that an entry of ``exclude`` is, with nested mappings dotted. Raises Wrong."""
    if not (isinstance(item, Mapping) and item):
        raise Wrong(f"expected a mapping, not {show(item)}")
    flat: dict[str, Any] = {}
    for key, value in item.items():
        kind = document.AXES[key].kind if key in document.AXES else None
        if isinstance(value, Mapping) and isinstance(kind, Sections | StepSizeKey | ParameterTable):
            flat |= {key if k == "name" else f"{key}.{k}": v for k, v in value.items()}
        else:
            flat[key] = value
    return [Pattern(where, flat)]


def _wanted(
    kind: Param | Sections, value: object, where: str, complaints: Complaints
) -> list[object]:
    """Return the values a pattern accepts; for a list-valued parameter a flat list is one value."""
    if isinstance(kind, Sections):
        names = [
            None if n == "none" else n for n in (value if isinstance(value, list) else [value])
        ]
        for name in (n for n in names if n is not None):
            try:
                kind.parameters(name, where)
            except InputError as error:
                complaints.extend(error.complaints)
        return names
    if kind.kind == "list" and isinstance(value, list):
        nested = value and all(isinstance(item, list) for item in value)
        value = value if nested else [value]
    return options(kind, value, where, complaints)


# The axes of every case ---------------------------------------------------------------------------


Axes = Mapping[str, list[Any]]  # the values of an axis, by its key


@dataclass(frozen=True)
class Method:
    """An entry of ``algorithm`` with the axes that it may set for itself, its own or the sweep's."""

    section: Section
    axes: Axes

    @property
    def facts(self) -> AlgorithmFacts:
        """What the method says about itself."""
        return registry.lookup("algorithm", self.section.name).facts


@dataclass(frozen=True)
class Grid:
    """The axes of one case: problems, methods with their own axes, and those all have in common."""

    problems: list[Section]
    methods: list[Method]
    axes: Axes
    patterns: list[Pattern]
    where: str
    case: Mapping[str, Any]

    def blame(self, complaints: Complaints) -> Complaints:
        """Return complaints with the paths of where the user wrote the keys."""
        return [document.blame(complaint, self.where, self.case) for complaint in complaints]

    def of(self, method: Method) -> Axes:
        """Return every axis of a method's cells, by key, in the order of the grid."""
        both = {**self.axes, **method.axes}
        return {name: both[name] for name in document.AXES if name in both}

    def __len__(self) -> int:
        methods = sum(math.prod(map(len, self.of(m).values())) for m in self.methods)
        return len(self.problems) * methods


def read_grids(raw: Mapping[str, object], complaints: Complaints) -> list[Grid]:
    """Return the grid of every case; complaints name the path where the user wrote the key."""
    grids = []
    for where, merged, case in document.cases(raw, complaints):
        wrong: Complaints = []
        grid = _grid(merged, wrong, where, case)
        grids.append(grid)
        complaints.extend(grid.blame(wrong))
    size = sum(map(len, grids))
    if size > MAX_CELLS:
        complaints.append(Complaint("", f"the grid has {size:,} cells", f"at most {MAX_CELLS:,}"))
    return grids


def problems_meant(section: object) -> dict[str, list[object]]:
    """Return the values that the keys of a sweep's problems have, defaults filled in; as written if the section is wrong."""
    complaints: Complaints = []
    problems = read_axis(document.AXES["problem"], section, "problem", complaints)
    if complaints:
        return as_written(section)
    values: dict[str, list[object]] = {"name": [problem.name for problem in problems]}
    for problem in problems:
        for key, value in problem.params.items():
            values.setdefault(key, []).append(value)
    return values


def _grid(
    raw: Mapping[str, object], complaints: Complaints, where: str, case: Mapping[str, Any]
) -> Grid:
    keys = document.AXES
    names = document.OVERRIDES
    rest = [name for name in keys if name != "algorithm"]
    common = {name: read_axis(keys[name], raw.get(name), name, complaints) for name in rest}
    problems, methods = common.pop("problem"), []
    for entry in read_axis(keys["algorithm"], raw.get("algorithm"), "algorithm", complaints):
        axes = {
            name: read_axis(keys[name], value, f"{entry.where}.{name}", complaints)
            for name, value in entry.overrides.items()
        }
        method = Method(entry.section, {name: axes.get(name, common[name]) for name in names})
        methods.append(method)
        _lacking(method, entry, complaints)
    shared = {name: axis for name, axis in common.items() if name not in names}
    given, form = raw.get("exclude"), "for example {algorithm: diana, k: 1}"
    none = given is None or given == []
    patterns = [] if none else sections.axis(given, "exclude", complaints, pattern, form)
    return Grid(problems, methods, shared, patterns, where, case)


def read_axis(key: Key, value: object, where: str, complaints: Complaints) -> list[Any]:
    """Return the points of a key's axis; where it is not given its default, none of a key that must be given."""
    if value is None and key.required:
        complaints.append(Complaint(where, "required", sections.choices(key.name)))
        return []
    return [key.kind.absent()] if value is None else key.kind.read(value, where, complaints)


def _lacking(method: Method, entry: SectionEntry, complaints: Complaints) -> None:
    """Complain where a method is given none of a compressor that it cannot do without."""
    for name, axis in method.axes.items():
        needs = document.AXES[name].needs
        role = None if needs is None else needs(method.facts)
        if role is not None and None in axis:
            where = f"{entry.where}.{name}" if name in entry.overrides else name
            what = f"{method.section.name} needs a {name}"
            noun = "a compressor" if role == Role.ANY else f"{sections.a(role)} one"
            form = f"as {name}: {{name: {role.usual}, k: {USUAL_SHARE}}}"
            fix = f"{noun}, {form}; raybench ls compressors lists all"
            complaints.append(Complaint(where, what, fix))


# Axes multiplied out into unique cells ------------------------------------------------------------


def expand(grids: Sequence[Grid]) -> tuple[tuple[Cell, ...], tuple[str, ...], int]:
    """Return (unique cells in grid order, notes, number of excluded cells).

    Raises InputError where nothing remains, and for patterns that cannot match.
    """
    asked: Counter[str] = Counter()
    every: dict[str, Cell] = {}
    out: dict[str, Cell] = {}
    used: dict[str, bool] = {}
    complaints: Complaints = []
    for grid in grids:
        names: dict[str, Names] = {}  # by group: its cells differ in step and seed only
        used |= {str(p): used.get(str(p), False) for p in grid.patterns}
        for cell in _expanded(grid):
            asked[cell.algorithm.name] += 1
            every.setdefault(cell.id, cell)
            hits: list[Pattern] = []
            if grid.patterns:
                if cell.group not in names:
                    names[cell.group] = nameable(cell)
                shared = names[cell.group]
                of_cell = {**shared, "seed": (shared["seed"][0], cell.seed)}
                of_cell |= _numbered(cell.step.kind, cell.step.number)
                hits = [pattern for pattern in grid.patterns if pattern.matches(of_cell)]
                used |= {str(pattern): True for pattern in hits}
            if not hits:
                out.setdefault(cell.id, cell)
        named = {name for group in names.values() for name in group}
        complaints += grid.blame([c for pattern in grid.patterns for c in pattern.wrong(named)])
    if complaints:
        raise InputError(list(dict.fromkeys(complaints)))
    if not out:
        raise InputError.of(
            "exclude", "the grid is empty: every cell is excluded", "loosen a pattern"
        )
    kept = Counter(cell.algorithm.name for cell in every.values())
    notes = [
        f"{name}{_unheard(grids, name)}: {count} cells merged to {kept[name]}"
        for name, count in asked.items()
        if count > kept[name]
    ]
    notes += dict.fromkeys(itertools.chain.from_iterable(map(_ignored, grids)))
    notes += [f"exclude {text} matches no cell" for text, hit in used.items() if not hit]
    return tuple(out.values()), tuple(notes), len(every) - len(out)


def _unheard(grids: Sequence[Grid], name: str) -> str:
    """Return the axes that make no difference to a method, as `` x 3 compressors``."""
    sizes: dict[str, int] = {}
    for grid in grids:
        for method in grid.methods:
            if method.section.name == name:
                for key, axis in grid.of(method).items():
                    if not _heard(document.AXES[key], grid, method):
                        sizes[key] = max(len(axis), sizes.get(key, 1))
    return "".join(f" x {size} {key}s" for key, size in sizes.items() if size > 1)


def _ignored(grid: Grid) -> Iterator[str]:
    """Yield notes on keys that are given and make no difference to a method."""
    for key in document.AXES.values():
        for method in grid.methods if key.ignored else ():
            given = any(value is not None for value in grid.of(method)[key.name])
            if given and not _heard(key, grid, method):
                yield f"{method.section.name} {key.ignored}: {key.name} ignored"


def _implied(raw: Mapping[str, object]) -> Iterator[str]:
    """Yield notes on problems whose lambda is given, but not of which regularizer: many would take it to be l2's."""
    for _, case, _ in document.cases(raw, []):
        given = case.get("problem")
        for problem in given if isinstance(given, list) else [given]:
            if (
                isinstance(problem, Mapping)
                and "lambda" in problem
                and "regularizer" not in problem
            ):
                names = problem.get("name")
                for name in names if isinstance(names, list) else [names]:
                    param = registry.lookup("problem", str(name)).params.get("regularizer")
                    if param is not None and param.default != "l2":
                        yield f"lambda of {name} is that of the regularizer {param.default}, as none is named"


def _heard(key: Key, grid: Grid, method: Method) -> bool:
    """Return whether a key makes a difference to a method on some problem of its grid."""
    facts = (registry.lookup("problem", problem.name).facts for problem in grid.problems)
    return any(key.hears(problem, method.facts) for problem in facts)


# From axes to cells -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Point:
    """A point of an axis: the value of a cell's field, and what of it the ids of cell and group hold.

    content, group: canonical texts of key and value, so that no value is written twice.
    """

    name: str
    value: Any
    content: tuple[str, ...] = ()
    group: tuple[str, ...] = ()


def _point(
    key: Key, value: object, problem: ProblemFacts, method: AlgorithmFacts, memo: dict[Any, Any]
) -> _Point:
    """Return the point of a value as a method on a problem takes it.

    memo: what identifies values, found once for each: data files are read for it.
    """
    usual = key.kind.absent() if key.usual is None else key.usual(problem, method)
    if not key.hears(problem, method):
        return _Point(key.field, None)
    value = usual if value is None else value
    if value is None or (value == usual and not key.in_every_id):
        return _Point(key.field, value)
    at = (key.name, canonical(key.kind.plain(value)))
    if at not in memo:
        grouped = key.kind.in_group(value, key.field) if key.in_group else {}
        memo[at] = _members({key.field: key.kind.identity(value)}), _members(grouped)
    return _Point(key.field, value, *memo[at])


def _members(content: Mapping[str, object]) -> tuple[str, ...]:
    """Return the members of a plain mapping as canonical JSON has them between its braces."""
    return tuple(f"{canonical(key)}:{canonical(value)}" for key, value in content.items())


def _expanded(grid: Grid) -> Iterator[Cell]:
    """Yield the cells of a grid in order, what is ignored set to None.

    All but step and seed, the two fastest axes, is put together once for all of their values.
    """
    keys, memo = document.AXES, dict[Any, Any]()
    for problem, method in itertools.product(grid.problems, grid.methods):
        facts = registry.lookup("problem", problem.name).facts, method.facts
        first = {"problem": [problem], "algorithm": [method.section]}
        axes = {
            name: [_point(keys[name], value, *facts, memo) for value in axis]
            for name, axis in {**first, **grid.of(method)}.items()
        }
        seeds, steps = axes.pop("seed"), axes.pop("step_size")
        for points in itertools.product(*axes.values()):
            content = [text for point in points for text in point.content]
            group = [text for point in points for text in point.group]
            values = {point.name: point.value for point in points}
            for step in steps:
                path, same = [*content, *step.content], digest([*group, *step.group])
                for seed in seeds:
                    at = digest([*path, *seed.content])
                    yield cells.Cell(id=at, group=same, step=step.value, seed=seed.value, **values)


def digest(members: Sequence[str]) -> str:
    """Return 16 hex digits for a plain mapping of such members."""
    return hashlib.sha256(f"{{{','.join(sorted(members))}}}".encode()).hexdigest()[:16]
