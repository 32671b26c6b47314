"""The structure of the package, held by its syntax trees: who may import whom, and how large files are.

The table of layers is that of docs/architecture.md. A module may import from its own layer and from
lower ones, without a circle of files; nothing private of another package; Ray in ``runtime`` and ``cluster`` alone.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "raybench"

LAYERS = (  # from the top; what shares a line may import each other, but files form no circle
    ("cli", "__main__"),
    ("__init__", "api", "testing", "plugins", "measure", "reproduce"),
    ("report",),
    ("analysis",),
    ("runtime", "cluster"),
    ("torch",),
    ("engine", "planning"),
    ("algorithms",),
    ("theory",),
    ("problems", "data"),
    ("compressors",),
    ("wire",),
    ("spec", "store"),
    ("core",),
)
HEIGHT = {part: -level for level, parts in enumerate(LAYERS) for part in parts}
ONLY = {  # layers that may use less than all that lies below them
    "report": {"report", "analysis", "core"},
    "analysis": {"analysis", "store", "core"},
    "torch": {"torch", "algorithms", "problems", "compressors", "wire", "core"},
    "wire": {"wire", "core"},
    "store": {"store", "core"},
    "spec": {"spec", "store", "core"},
}
LIGHT = ("torch", "ray", "pandas", "pyarrow", "numba", "numpy", "scipy", "matplotlib", "plotly")
LINES_MOST = 700
ALGORITHM_LINES = 130  # with the theory of its steps
FOREIGN_TO_ALGORITHMS = {
    *("bits", "nbytes", "cost", "pack", "unpack", "ledger", "transport", "charge_bits"),
    *("world_size", "get_rank", "dist", "distributed", "is_initialized", "all_reduce"),
    *("B", "n_cells", "index_cost", "roots"),
}


@dataclass(frozen=True)
class Import:
    """One imported thing: the module it is in, its name there, where it is imported, and how."""

    file: Path
    line: int
    module: str
    name: str | None
    at_top: bool
    typing_only: bool

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


def imports(file: Path) -> list[Import]:
    """Return every import of a file, those inside functions and under TYPE_CHECKING included."""
    found: list[Import] = []

    def visit(node: ast.AST, at_top: bool, typing_only: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(
                [Import(file, node.lineno, a.name, None, at_top, typing_only) for a in node.names]
            )
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                package = ["raybench", *file.relative_to(PACKAGE).parts[:-1]]
                module = ".".join([*package[: len(package) - node.level + 1], module]).strip(".")
            found.extend(
                [Import(file, node.lineno, module, a.name, at_top, typing_only) for a in node.names]
            )
        for child in ast.iter_child_nodes(node):
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            visit(child, at_top and not inside, typing_only or (guarded and child in node.body))

    visit(ast.parse(file.read_text()), True, False)
    return found


def target(found: Import) -> str | None:
    """Return the part of raybench that is imported, None for anything else."""
    if found.module == "raybench" and found.name is not None:  # from raybench import x
        return found.name if found.name in HEIGHT else "__init__"
    if found.module == "raybench" or found.module.startswith("raybench."):
        return part_of(found.module)
    return None


FILES = sorted(PACKAGE.rglob("*.py"))
IMPORTS = {file: imports(file) for file in FILES}
ALGORITHMS = [
    f
    for f in (PACKAGE / "algorithms").glob("*.py")
    if f.stem
    not in (
        "__init__",
        "base",
        "protocols",
        "local_work",
        "outer",
        "robust",
        "build",
        "autoencoder",
    )
]


def every() -> Iterator[tuple[str, Import, str]]:
    """Yield (own part, import, imported part) for the imports between parts of raybench."""
    for file, found in IMPORTS.items():
        for one in found:
            to = target(one)
            if to is not None and to != own_part(file):
                yield own_part(file), one, to


def names(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def test_every_part_has_a_layer() -> None:
    unknown = {own_part(file) for file in FILES} - set(HEIGHT)
    assert not unknown, f"say in LAYERS (and docs/architecture.md) where {unknown} belongs"


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
    for file, found in IMPORTS.items():
        for one in found:
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
        for found in IMPORTS.values()
        for one in found
        if target(one) is not None
        and any(
            n.startswith("_") and not n.startswith("__")
            for n in (*one.module.split("."), one.name or "")
        )
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("file", FILES, ids=names)
def test_private_attributes_of_other_modules_are_not_used(file: Path) -> None:
    """``module._name`` of an imported raybench module is as private as ``from module import _name``."""
    modules = {one.name for one in IMPORTS[file] if one.module.startswith("raybench") and one.name}
    uses = [
        f"{names(file)}:{node.lineno} uses {ast.unparse(node)}"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in modules
        and node.value.id.islower()
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
    ]
    assert not uses, "\n".join(uses)


def test_ray_is_imported_in_runtime_and_cluster_alone() -> None:
    wrong = [
        str(one)
        for file, found in IMPORTS.items()
        for one in found
        if one.module.split(".")[0] == "ray" and own_part(file) not in ("runtime", "cluster")
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_heavy_at_the_top_of_the_command_line() -> None:
    light = {"cli", "__init__"}
    heavy = {"engine", "runtime", "report", "analysis", "problems", "data", "compressors", "store"}
    wrong = [
        str(one)
        for file, found in IMPORTS.items()
        for one in found
        if own_part(file) in light
        and one.at_top
        and not one.typing_only
        and (one.module.split(".")[0] in LIGHT or target(one) in heavy)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("file", FILES, ids=names)
def test_files_are_short(file: Path) -> None:
    lines = len(file.read_text().splitlines())
    assert lines <= LINES_MOST, f"{lines} lines; a file is one subject of 150 to 700 lines"


@pytest.mark.parametrize("file", ALGORITHMS, ids=names)
def test_an_algorithm_is_one_short_file(file: Path) -> None:
    lines = len(file.read_text().splitlines())
    assert lines <= ALGORITHM_LINES, f"{lines} lines"
    source = file.read_text()
    # what differs by a line or two shares a file; a base that several files share is one too
    assert source.count("@algorithm(") <= 4, "too many methods for one file"


@pytest.mark.parametrize("file", ALGORITHMS, ids=names)
def test_an_algorithm_knows_no_ranks_no_bits_no_cells(file: Path) -> None:
    allowed = {"raybench.algorithms", "raybench.theory", "raybench.core", "torch", "math"}
    for one in IMPORTS[file]:
        where = ".".join(one.module.split(".")[:2])
        assert where in allowed, f"{one}: methods speak through net and base alone"
    used = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Name):
            used.add(node.id)
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
    assert not used & FOREIGN_TO_ALGORITHMS
    words = file.read_text().lower()
    assert " ranks" not in words
    assert "bits" not in words, "bits are the ledger's business"


def test_the_checks_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that breaks the rules is found out by each of the checks above."""
    bad = PACKAGE / "store" / "made_up.py"
    source = """
def f():
    from raybench.engine import net
    from ..spec.grid import _raw
from raybench.store import writer
import ray
"""
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda self, *a, **k: source)
        found = imports(bad)
    assert [target(one) for one in found] == ["engine", "spec", "store", None]
    assert [one.at_top for one in found] == [False, False, True, True]
    writer = PACKAGE / "store" / "writer.py"
    back = Import(writer, 1, "raybench.store", "made_up", True, False)
    monkeypatch.setattr(sys.modules[__name__], "FILES", [*FILES, bad])
    monkeypatch.setitem(IMPORTS, bad, found)
    monkeypatch.setitem(IMPORTS, writer, [*IMPORTS[writer], back])
    for check, said in (
        (test_imports_go_downward_only, "raybench.engine.net"),
        (test_private_names_stay_in_their_module, "raybench.spec.grid._raw"),
        (test_ray_is_imported_in_runtime_and_cluster_alone, "made_up.py:6 imports ray"),
        (test_files_form_no_circle, "raybench.store.made_up <-> raybench.store.writer"),
    ):
        with pytest.raises(AssertionError, match=re.escape(said)):
            check()
