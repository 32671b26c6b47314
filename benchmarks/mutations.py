"""Small faults for source files: what can be changed where, and the text with one change made.

A change replaces one piece of the source text: an operator by its opposite, a number by another one, a
condition by its negation, the two arguments of a call by each other, a statement by ``pass``. ``changes``
lists all of them in the order in which they stand in the file, so that a seeded sample of them is the same
on every machine.

Left out, because no result depends on them: docstrings, type annotations, imports, ``TYPE_CHECKING``
blocks, ``__all__``, decorators (the defaults and limits of parameters are choices, not computations), the
wording of errors and warnings, f-strings (texts for people), assertions, the ``NotImplementedError`` of
methods that subclasses define, and the keyword arguments of ``NOT_RESULTS``.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Pow: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


def _both(*pairs: tuple[str, str]) -> dict[str, str]:
    return {old: new for pair in pairs for old, new in (pair, pair[::-1])}


FUNCTIONS = {
    **_both(("min", "max"), ("any", "all"), ("floor", "ceil"), ("idxmin", "idxmax")),
    **_both(("notna", "isna"), ("zeros", "ones")),
    **{"sum": "max", "mean": "sum", "median": "mean", "square": "abs"},
}
"""What a function or method is replaced by."""

TRANSPARENT = {"sqrt", "abs", "sorted", "reversed", "float", "int", "invert"}
"""Functions of one argument that are left away."""

COPIES = {"copy", "clone"}
"""Methods without arguments that are left away."""

WORDS = {
    **_both(("L", "L_tilde"), ("omega", "alpha"), ("up", "down"), ("first", "last")),
    **_both(("ok", "diverged"), ("left", "right"), ("low", "high"), ("failed", "skipped")),
    **_both(("bits_up", "bits_down"), ("loss", "grad_norm_sq"), ("auto", "explicit")),
    **_both(("curves", "cells"), ("index_auto", "index_list_or_bitmask"), ("float32", "float16")),
    **{"L_plus": "L_tilde", "L_pm": "L_plus", "L_max": "L", "L_samples": "L", "mu": "L"},
    **{"L_sample_max": "L_max", "down_alpha": "alpha", "pruned": "ok"},
}
"""Names given as texts, and another one of the same small set for each."""

ERRORS = {"InputError", "NoTheory", "Complaint", "ValueError", "TypeError", "warn", "Assumption"}
NOT_RESULTS = {"help", "strict", "stacklevel", "maxsize", "repr", "default_factory"}
SYMMETRIC = {"min", "max", "isinstance", "hasattr", "getattr", "setattr", "equal", "zip", "maximum"}
"""Functions whose arguments are not exchanged: it would change nothing, or always raise."""

CHOICES = {"where", "cases", "choose"}
"""Functions that pick one of their last two arguments."""


@dataclass(frozen=True)
class Change:
    """One fault: ``old`` at the bytes start..end of a file becomes ``new``.

    scope: the names of the class and functions around it. kind: a word for the sort of fault.
    """

    path: str
    line: int
    scope: tuple[str, ...]
    kind: str
    start: int
    end: int
    old: str
    new: str

    def applied(self, source: str) -> str:
        """Return the source with the fault in it."""
        data = source.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.path}:{self.line}: {old}  ->  {new}"


def changes(source: str, path: str) -> list[Change]:
    """Return every fault that can be put into a source text, in the order of the text."""
    found = list(_Finder(source, path).within(ast.parse(source), ()))
    return sorted(found, key=lambda c: (c.start, c.end, c.kind, c.new))


class _Finder:
    def __init__(self, source: str, path: str) -> None:
        self.data, self.path = source.encode(), path
        self.starts = [0]  # the byte at which each line begins
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line.encode()))

    def _span(self, node: ast.AST) -> tuple[int, int]:
        line, column = node.lineno, node.col_offset  # type: ignore[attr-defined]
        last, end = node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
        return self.starts[line - 1] + column, self.starts[last - 1] + end

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self.data[start:end].decode()

    def _change(self, node: ast.AST, scope: tuple[str, ...], kind: str, new: str) -> Change:
        start, end = self._span(node)
        line = node.lineno  # type: ignore[attr-defined]
        return Change(self.path, line, scope, kind, start, end, self._text(node), new)

    def within(self, node: ast.AST, scope: tuple[str, ...]) -> Iterator[Change]:
        """Yield the changes to a node and to all below it that matter."""
        for kind, new in self._of(node):
            yield self._change(node, scope, kind, new)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope = (*scope, node.name)
        inner: list[Change] = []
        for child in _children(node):
            inner += self.within(child, scope)
        yield from inner
        if isinstance(node, ast.Return) and not inner and not _is_none(node.value):
            yield self._change(node, scope, "return", "return None")

    def _of(self, node: ast.AST) -> Iterator[tuple[str, str]]:
        """Yield (kind, new text) of the changes to a node itself."""
        if isinstance(node, ast.BinOp | ast.AugAssign):
            if type(node.op) in ARITHMETIC and not _of_text(node):
                yield "operator", self._with(node, op=ARITHMETIC[type(node.op)]())
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
            for j, op in enumerate(node.ops):
                ops = [*node.ops[:j], COMPARISONS[type(op)](), *node.ops[j + 1 :]]
                yield "comparison", self._with(node, ops=ops)
        elif isinstance(node, ast.BoolOp):
            other = ast.Or if isinstance(node.op, ast.And) else ast.And
            yield "logic", self._with(node, op=other())
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
            yield "logic", f"({self._text(node.operand)})"
        elif isinstance(node, ast.Constant):
            yield from _constants(node.value)
        elif isinstance(node, ast.Call):
            yield from self._calls(node)
        if isinstance(node, _Test) and not _negated_otherwise(node):
            yield "condition", f"(not ({self._text(node)}))"
        if _droppable(node):
            yield "dropped", "pass"

    def _with(self, node: ast.AST, **changed: object) -> str:
        other = copy.copy(node)
        for name, value in changed.items():
            setattr(other, name, value)
        text = ast.unparse(other)
        return f"({text})" if isinstance(node, ast.expr) else text

    def _calls(self, node: ast.Call) -> Iterator[tuple[str, str]]:
        name, whole = _name(node.func), self._text(node)
        if name in FUNCTIONS:
            function = self._text(node.func)
            new = function.removesuffix(name) + FUNCTIONS[name]
            yield "function", new + whole[len(function) :]
        if name in TRANSPARENT and len(node.args) == 1 and not node.keywords:
            yield "function", f"({self._text(node.args[0])})"
        if name in COPIES and isinstance(node.func, ast.Attribute) and not node.args:
            yield "copy", self._text(node.func.value)
        if len(node.args) >= 2 and name not in SYMMETRIC | ERRORS:
            *others, one, last = node.args
            alike = name in CHOICES or all(
                isinstance(a, ast.Name | ast.Attribute | ast.Subscript) for a in (one, last)
            )
            if alike and self._text(one) != self._text(last):
                yield "arguments", self._with(node, args=[*others, last, one])


class _Test:
    """Marks a node as the test of a branch, a loop or a comprehension."""


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may be changed below a node."""
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert | ast.Raise):
        return
    if isinstance(node, ast.Assign) and any(_name(t) == "__all__" for t in node.targets):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.Assign) and _is_type(node.value):
        return
    if isinstance(node, ast.Call) and _name(node.func) == "isinstance":
        yield node.args[0]
        return
    if isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING":
        yield from node.orelse
        return
    if isinstance(node, ast.Call) and _name(node.func) in ERRORS:
        yield from (a for a in node.args if isinstance(a, ast.Lambda))
        return
    if isinstance(node, ast.Call) and _name(node.func) == "of" and _owner(node.func) in ERRORS:
        return
    skipped: list[ast.AST] = []
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        skipped += node.decorator_list
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or child in skipped:
                continue
            if isinstance(child, ast.keyword) and child.arg in NOT_RESULTS:
                continue
            tested = name == "ifs" or (name == "test" and isinstance(node, ast.If | ast.IfExp))
            yield _tested(child) if tested else child


def _tested(node: ast.AST) -> ast.AST:
    """Return the same node, marked as a test."""
    kind = type(node)
    marked = copy.copy(node)
    marked.__class__ = type(kind.__name__, (kind, _Test), {})
    return marked


def _constants(value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, bool):
        yield "constant", str(not value)
    elif isinstance(value, int):
        yield "constant", str(value + 1)
    elif isinstance(value, float):
        yield "constant", repr(1.0 if value == 0 else 1.5 * value)
    elif isinstance(value, str) and value in WORDS:
        yield "word", f'"{WORDS[value]}"'


def _droppable(node: ast.AST) -> bool:
    """Return whether a statement can go without the syntax or a name being missed."""
    if isinstance(node, ast.Assign):
        return all(isinstance(t, ast.Attribute | ast.Subscript) for t in node.targets)
    if isinstance(node, ast.Raise) and _name(node.exc or node) == "NotImplementedError":
        return False
    call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return call or isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break)


def _negated_otherwise(node: ast.AST) -> bool:
    """Return whether another change to this test is its negation already."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.Is | ast.IsNot | ast.In | ast.NotIn)
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _is_none(node: ast.AST | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value is None)


def _is_type(node: ast.AST) -> bool:
    """Return whether an expression is an alias of types: a union of names, or a ``Callable``."""
    if isinstance(node, ast.Subscript):
        return _name(node.value) == "Callable"
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)):
        return False
    plain = ast.Name | ast.Attribute | ast.Subscript | ast.Constant
    return all(isinstance(side, plain) or _is_type(side) for side in (node.left, node.right))


def _of_text(node: ast.BinOp | ast.AugAssign) -> bool:
    sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
    return any(
        isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in sides
    )


def _name(node: ast.AST) -> str:
    return str(getattr(node, "id", None) or getattr(node, "attr", ""))


def _owner(node: ast.AST) -> str:
    return _name(node.value) if isinstance(node, ast.Attribute) else ""
