"""What a plug-in, or a section of a sweep file, lets its user set: parameters with types and defaults.

A parameter is declared once, where its default would stand: as an attribute of a class
(``k: int | float | str = Count(help="coordinates kept")``), in the signature of a function or of
``__init__``, or as a keyword argument of the decorator that registers the plug-in. The first two put
the plain default in the declaration's place, so that Python code sees ordinary defaults.
"""

from __future__ import annotations

import inspect
import keyword
import math
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, dataclass_transform

from raybench.core.errors import Complaint, InputError

REQUIRED: Any = type("Required", (), {"__repr__": lambda self: "required"})()
T = TypeVar("T")


@dataclass(frozen=True)
class Param:
    """One parameter.

    kind: ``count`` (an integer, or a share such as ``10%`` or 0.1 ``of`` what is counted),
    ``number``, ``integer``, ``choice``, ``flag``, ``text``, ``list`` (a list-valued parameter),
    ``operator`` (a compressor, held as its short form).
    ``words`` are strings allowed besides the kind (``auto``); ``tags`` allows one-key mappings
    such as ``{dirichlet: 0.5}``. ``per_cell`` numbers may differ between the cells of one batch.
    """

    kind: str
    default: object = REQUIRED
    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    tags: Mapping[str, Param] = field(default_factory=dict)
    per_cell: bool = False
    help: str = ""
    of: str = "the message dimension"
    runs_code: bool = False  # a function of a file or module may be named, which is then imported


# The functions below return Any, so that a declaration may stand where a default of any type would.


def Count(
    default: object = REQUIRED,
    help: str = "",
    words: tuple[str, ...] = (),
    *,
    low: float = 1,
    of: str = "the message dimension",
) -> Any:
    """Return a count, by default of coordinates: an integer >= ``low``, or a share of what is counted."""
    return Param("count", default, low=low, help=help, words=words, of=of)


def Number(
    default: object = REQUIRED,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    words: tuple[str, ...] = (),
    tags: Mapping[str, Param] | None = None,
    per_cell: bool = False,
    help: str = "",
) -> Any:
    """Return a real-number parameter in [low, high] (or (low, high] with ``open_low``)."""
    return Param("number", default, low, high, open_low, (), words, tags or {}, per_cell, help)


def Integer(
    default: object = REQUIRED,
    low: float = -math.inf,
    high: float = math.inf,
    words: tuple[str, ...] = (),
    help: str = "",
) -> Any:
    """Return an integer parameter in [low, high]."""
    return Param("integer", default, low, high, words=words, help=help)


def Choice(
    *names: str, default: object = None, tags: Mapping[str, Param] | None = None, help: str = ""
) -> Any:
    """Return a choice among ``names``; the first is the default unless ``default`` says otherwise."""
    usual = names[0] if default is None else default
    return Param("choice", usual, choices=names, tags=tags or {}, help=help)


def Flag(default: bool | None = False, help: str = "") -> Any:
    """Return a true / false parameter."""
    return Param("flag", default, help=help)


def Text(
    default: object = REQUIRED,
    help: str = "",
    tags: Mapping[str, Param] | None = None,
    runs_code: bool = False,
) -> Any:
    """Return a free-text parameter (a name or a path)."""
    return Param("text", default, tags=tags or {}, help=help, runs_code=runs_code)


def List(
    default: object = REQUIRED,
    help: str = "",
    words: tuple[str, ...] = (),
    runs_code: bool = False,
) -> Any:
    """Return a list-valued parameter: in a sweep file ``[[a, b], [c, d]]`` is an axis of two lists."""
    return Param("list", default, words=words, help=help, runs_code=runs_code)


def Operator(default: object = REQUIRED, help: str = "") -> Any:
    """Return a parameter that is itself a compressor: ``top_k:k=1%``, or its mapping.

    The plug-in gets a text, the short form with names sorted and defaults left out, for
    ``compressors.base.build``. Write ``default`` in that form.
    """
    return Param("operator", default, help=help)


# Declarations in classes and signatures ------------------------------------------------------------


@dataclass_transform(frozen_default=True)
def record(target: type[T]) -> type[T]:
    """Make a class whose attributes are parameters a frozen dataclass with their defaults.

    A parameter without a default is required. ``__params__`` of the class keeps the declarations, those
    of its bases first. Raises InputError for a parameter without a type annotation.
    """
    declarations = _in_body(target)
    untyped = [name for name in declarations if name not in inspect.get_annotations(target)]
    if untyped:
        fix = f"write {untyped[0]}: float = Number(...), so that type checkers know it"
        raise InputError.of(target.__name__, f"parameter {untyped[0]} has no type", fix)
    for name, param in declarations.items():
        if isinstance(param.default, list | dict):
            setattr(target, name, field(default_factory=partial(copy, param.default)))
    return dataclass(frozen=True)(target)


def declared(target: object, *, as_record: bool) -> dict[str, Param]:
    """Return the parameters declared by a class (its bases' first) or function, by name.

    Their plain defaults are put in place. as_record: a class with parameters in its body becomes a
    frozen dataclass; otherwise its attributes become the defaults, and required ones go.
    A parameter ``lambda_`` is called ``lambda``. Raises InputError where a required one stands behind
    one with a default.
    """
    if inspect.isfunction(target):
        return _in_signature(target)
    if not isinstance(target, type):
        return {}
    # bases that are no plug-ins themselves have not been read yet
    for base in reversed(target.__mro__[1:-1]):
        declared(base, as_record=as_record)
    if as_record and any(isinstance(v, Param) for v in vars(target).values()):
        record(target)
    else:
        _in_body(target)
    init = vars(target).get("__init__")
    if inspect.isfunction(init):
        declarations = _in_signature(init)
        _add(target, declarations)
    return dict(getattr(target, "__params__", {}))


def _in_body(target: object) -> dict[str, Param]:
    """Return the parameters among a class's attributes, after putting their defaults there."""
    declarations = {name: value for name, value in vars(target).items() if isinstance(value, Param)}
    for name, param in declarations.items():
        if param.default is REQUIRED:
            delattr(target, name)
        else:
            setattr(target, name, param.default)
    _add(target, declarations)
    return declarations


def _add(target: Any, params: Mapping[str, Param]) -> None:
    if params:
        target.__params__ = {**getattr(target, "__params__", {}), **params}


def _in_signature(function: Any) -> dict[str, Param]:
    """Return the parameters among a function's defaults, after putting their own defaults there."""
    declarations: dict[str, Param] = {}
    by_position: list[tuple[str, Any]] = []
    by_name: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        value = parameter.default
        if isinstance(value, Param):
            declarations[_plain(name)] = value
            value = value.default
        missing = value is REQUIRED or value is inspect.Parameter.empty
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            by_position.append((name, REQUIRED if missing else value))
        elif parameter.kind is parameter.KEYWORD_ONLY and not missing:
            by_name[name] = value
    if not declarations:
        return {}
    while by_position and by_position[0][1] is REQUIRED:
        by_position.pop(0)
    for name, value in by_position:
        if value is REQUIRED:
            what = f"the required parameter {name} stands behind one with a default"
            raise InputError.of(function.__qualname__, what, "required parameters come first")
    function.__defaults__ = tuple(value for _, value in by_position) or None
    function.__kwdefaults__ = by_name or None
    return declarations


def _plain(name: str) -> str:
    """Return a parameter's name in sweep files: ``lambda`` for ``lambda_``."""
    short = name.removesuffix("_")
    return short if keyword.iskeyword(short) else name


def bare(value: object) -> bool:
    """Return whether a value is a plain number where a declaration of a parameter may stand."""
    return type(value) in (int, float)


def undeclared(where: str, name: str, value: object) -> Complaint:
    """Return the complaint about a plain number in place of a declaration."""
    kind = "Integer" if isinstance(value, int) else "Number"
    fix = f"declare it, so that sweep files can set it: {name} = {kind}({value})"
    return Complaint(where, f"parameter {name} is a bare {value}", fix)


def numbers(target: object, given: Mapping[str, object], ours: str) -> dict[str, object]:
    """Return the plain numbers that stand in a class or signature where a parameter would, by name.

    In a class: attributes with a type annotation, but none that a base of the package ``ours`` has. In a signature:
    every default. ``given``: the decorator's keyword arguments, which may declare them. To be asked before
    ``declared``.
    """
    plain: dict[str, object] = {}
    if isinstance(target, type):
        parts = target.__mro__[:-1]
        theirs = [part for part in parts if part.__module__.partition(".")[0] == ours]
        names = {name for part in theirs for name in (*vars(part), *inspect.get_annotations(part))}
        for part in (part for part in parts if part not in theirs):
            kinds = inspect.get_annotations(part).items()
            typed = {
                n for n, kind in kinds if not n.startswith("_") and "ClassVar" not in str(kind)
            }
            plain |= {n: v for n, v in vars(part).items() if n in typed - names and bare(v)}
    function = vars(target).get("__init__") if isinstance(target, type) else target
    if inspect.isfunction(function):
        every = inspect.signature(function).parameters.items()
        defaults = {_plain(name): parameter.default for name, parameter in every}
        plain |= {name: v for name, v in defaults.items() if bare(v)}
    declarations = {*given, *getattr(target, "__params__", {})}
    return {name: value for name, value in plain.items() if name not in declarations}
