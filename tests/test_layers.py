"""The structure of the package, held by its syntax trees: who may import whom.

The table of layers is that of docs/architecture.md. A module may import from its own layer and from
lower ones, without a circle of files; nothing private of another package; Ray in ``runtime`` and ``cluster`` alone.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import networkx
import pytest
from tiers import ON_RAY

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "raybench"


@dataclass(frozen=True)
class Room:
    """A row of the table in docs/architecture.md: how high it stands, and which parts it holds."""

    level: int
    parts: tuple[str, ...]


def rooms() -> list[Room]:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (`raybench/.*?) \|", page, re.MULTILINE)
    return [
        Room(int(level), tuple(re.findall(r"`(?:raybench/)?(\w+)", parts))) for level, parts in rows
    ]


ROOMS = rooms()
HEIGHT = {part: room.level for room in ROOMS for part in room.parts}
ONLY = {  # layers that may use less than all that lies below them
    "report": {"report", "analysis", "core"},
    "analysis": {"analysis", "store", "clock", "core"},
    "torch": {"torch", "algorithms", "problems", "compressors", "wire", "core"},
    "wire": {"wire", "core"},
    "store": {"store", "core"},
    "spec": {"spec", "store", "clock", "core"},
}
FOREIGN_TO_ALGORITHMS = {
    *("bits", "nbytes", "cost", "pack", "unpack", "ledger", "transport", "charge_bits"),
    *("world_size", "get_rank", "dist", "distributed", "is_initialized", "all_reduce"),
    *("B", "n_cells", "index_cost", "roots"),
}


@dataclass(frozen=True)
class Import:
    """One imported thing: the module it is in, its name there, and where it is imported."""

    file: Path
    line: int
    module: str
    name: str | None

    def __str__(self) -> str:
        what = self.module if self.name is None else f"{self.module}.{self.name}"
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {what}"


def part_of(module: str) -> str:
    """Return the part of the package a module belongs to: ``raybench.store.files`` is in ``store``."""
    names = module.split(".")
    return names[1] if len(names) > 1 else "__init__"


def own_part(file: Path) -> str:
    relative = file.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


@cache
def nodes(file: Path) -> list[ast.AST]:
    """Return the nodes of a file's syntax tree; each file is parsed once for all rules."""
    return list(ast.walk(ast.parse(file.read_text())))


def imports(file: Path) -> list[Import]:
    """Return every import of a file, those inside functions and under TYPE_CHECKING included."""
    result: list[Import] = []
    for node in nodes(file):
        if isinstance(node, ast.Import):
            result += [Import(file, node.lineno, alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                package = ["raybench", *file.relative_to(PACKAGE).parts[:-1]]
                module = ".".join([*package[: len(package) - node.level + 1], module]).strip(".")
            result += [Import(file, node.lineno, module, alias.name) for alias in node.names]
    return result


def target(found: Import) -> str | None:
    """Return the part of raybench that is imported, None for anything else."""
    if found.module == "raybench" and found.name is not None:  # from raybench import x
        return found.name if found.name in HEIGHT else "__init__"
    if found.module == "raybench" or found.module.startswith("raybench."):
        return part_of(found.module)
    return None


FILES = sorted(PACKAGE.rglob("*.py"))
IMPORTS: dict[Path, list[Import]] = {}
SHARED = {"__init__", "base", "events", "protocols", "parts", "robust", "build", "autoencoder"}
ALGORITHMS = [f for f in (PACKAGE / "algorithms").glob("*.py") if f.stem not in SHARED]


@pytest.fixture(autouse=True, scope="module")
def _parsed() -> None:
    """Files are parsed when the first rule is tried, and not by every process that collects tests."""
    IMPORTS.update({file: imports(file) for file in FILES})


def every() -> Iterator[tuple[str, Import, str]]:
    """Yield (own part, import, imported part) for the imports between parts of raybench."""
    for file, result in IMPORTS.items():
        for one in result:
            to = target(one)
            if to is not None and to != own_part(file):
                yield own_part(file), one, to


def names(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def test_every_part_has_a_layer() -> None:
    unknown = {own_part(file) for file in FILES} - set(HEIGHT)
    assert not unknown, f"say in docs/architecture.md where {unknown} belongs"


def test_imports_go_downward_only() -> None:
    wrong = []
    for own, one, to in every():
        allowed = ONLY.get(own)
        if HEIGHT[to] > HEIGHT[own] or (allowed is not None and to not in allowed):
            wrong.append(str(one))
    assert not wrong, "\n".join(wrong)


def module_of(file: Path) -> str:
    """Return the dotted name of a file's module; a package's is that of its ``__init__``."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def graph() -> networkx.DiGraph:
    """Return which file imports which, imports inside functions and for types included."""
    files = {module_of(file) for file in FILES}
    arrows = networkx.DiGraph()
    arrows.add_nodes_from(files)
    for file, result in IMPORTS.items():
        for one in result:
            inner = f"{one.module}.{one.name}"
            to = inner if inner in files else one.module
            if to in files:
                arrows.add_edge(module_of(file), to)
    return arrows


def test_files_form_no_circle() -> None:
    circles = [sorted(c) for c in networkx.strongly_connected_components(graph()) if len(c) > 1]
    assert not circles, "\n".join(" <-> ".join(circle) for circle in circles)
    alone = [a for a, b in graph().edges if a == b]
    assert not alone, f"{alone} import themselves"


def test_private_names_stay_in_their_module() -> None:
    wrong = [
        str(one)
        for result in IMPORTS.values()
        for one in result
        if target(one) is not None
        and any(
            n.startswith("_") and not n.startswith("__")
            for n in (*one.module.split("."), one.name or "")
        )
    ]
    assert not wrong, "\n".join(wrong)


def test_private_attributes_of_other_modules_are_not_used() -> None:
    """``module._name`` of an imported raybench module is as private as ``from module import _name``."""
    uses = []
    for file, result in IMPORTS.items():
        modules = {one.name for one in result if one.module.startswith("raybench") and one.name}
        uses += [
            f"{names(file)}:{node.lineno} uses {ast.unparse(node)}"
            for node in nodes(file)
            if isinstance(node, ast.Attribute)
            and node.attr[:1] == "_" != node.attr[1:2]
            and isinstance(node.value, ast.Name)
            and node.value.id in modules
            and node.value.id.islower()
        ]
    assert not uses, "\n".join(uses)


def test_ray_is_imported_in_runtime_and_cluster_alone() -> None:
    wrong = [
        str(one)
        for file, result in IMPORTS.items()
        for one in result
        if one.module.split(".")[0] == "ray" and own_part(file) not in ("runtime", "cluster")
    ]
    assert not wrong, "\n".join(wrong)


def test_methods_know_no_ranks_no_bits_no_cells() -> None:
    wrong = []
    for file in ALGORITHMS:
        source = file.read_text()
        allowed = {"raybench.algorithms", "raybench.theory", "raybench.core", "torch", "math"}
        allowed |= {"raybench.clock", "numpy"}  # of methods that give clients work by their speed
        wrong += [
            f"{one}: methods speak through net and base alone"
            for one in IMPORTS[file]
            if ".".join(one.module.split(".")[:2]) not in allowed
        ]
        used = {node.id for node in nodes(file) if isinstance(node, ast.Name)}
        used |= {node.attr for node in nodes(file) if isinstance(node, ast.Attribute)}
        words = {word for word in (" ranks", "bits") if word in source.lower()}
        wrong += [
            f"{names(file)} speaks of {word}, which is not its business"
            for word in sorted(used & FOREIGN_TO_ALGORITHMS | words)
        ]
    assert not wrong, "\n".join(wrong)


def test_benchmarks_import_what_is_there() -> None:
    """Nothing else runs most of them."""
    wrong = []
    for file in (ROOT / "benchmarks").glob("*.py"):
        for one in imports(file):
            if target(one) is None:
                continue
            place = ROOT.joinpath(*one.module.split("."))
            place = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
            within = place.parent / f"{one.name}.py", place.parent / f"{one.name}"
            said = place.is_file() and re.search(rf"\b{one.name or ''}\b", place.read_text())
            if not (said or any(path.exists() for path in within)):
                wrong.append(str(one))
    assert not wrong, "\n".join(wrong)


def test_tiers_name_tests_that_exist() -> None:
    every = "".join(f.read_text() for f in (ROOT / "tests").glob("test_*.py"))
    gone = [name for name in ON_RAY if f"def {name}(" not in every]
    assert not gone, f"tests/tiers.py names {gone}, which are not there"


def test_the_checks_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that breaks the rules is found out by each of the checks above."""
    bad = PACKAGE / "store" / "made_up.py"
    source = """
def f():
    from raybench.execution import net
    from ..spec.grid import _raw
from raybench.store import writer
import ray
"""
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda self, *a, **k: source)
        result = imports(bad)
    assert {target(one) for one in result} == {"execution", "spec", "store", None}
    writer = PACKAGE / "store" / "writer.py"
    back = Import(writer, 1, "raybench.store", "made_up")
    monkeypatch.setattr(sys.modules[__name__], "FILES", [*FILES, bad])
    monkeypatch.setitem(IMPORTS, bad, result)
    monkeypatch.setitem(IMPORTS, writer, [*IMPORTS[writer], back])
    for check, said in (
        (test_imports_go_downward_only, "raybench.execution.net"),
        (test_private_names_stay_in_their_module, "raybench.spec.grid._raw"),
        (test_ray_is_imported_in_runtime_and_cluster_alone, "made_up.py:6 imports ray"),
        (test_files_form_no_circle, "raybench.store.made_up <-> raybench.store.writer"),
    ):
        with pytest.raises(AssertionError, match=re.escape(said)):
            check()
