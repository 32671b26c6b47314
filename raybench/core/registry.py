"""Names -> plug-ins: compressors, algorithms, problems and metrics, each one file with one decorator.

A decorator's keyword arguments that are ``Param`` objects declare the plug-in's parameters (what a
sweep file may say, with types and defaults); all others are facts about it (``entry.meta``).
Built-in packages are imported on first use, so this module stays light.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raybench.core.errors import InputError, nearest

REQUIRED: Any = type("Required", (), {"__repr__": lambda self: "required"})()
BUILTIN = {
    "compressor": "raybench.compressors",
    "algorithm": "raybench.algorithms",
    "problem": "raybench.problems",
    "metric": "raybench.engine.metrics",
}


@dataclass(frozen=True)
class Param:
    """One parameter of a plug-in.

    kind: ``count`` (integer >= 1, or a share of the message dimension such as ``10%`` or 0.1),
    ``number``, ``integer``, ``choice``, ``flag``, ``text``, ``list`` (a list-valued parameter),
    ``operator`` (a compression operator, held as its short form).
    ``words`` are strings allowed besides the kind (``auto``); ``tags`` allows one-key mappings
    such as ``{dirichlet: 0.5}``. ``per_cell`` numbers may differ between the cells of one batch.
    """

    kind: str
    default: Any = REQUIRED
    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    tags: Mapping[str, Param] = field(default_factory=dict)
    per_cell: bool = False
    help: str = ""


def Count(default: Any = REQUIRED, help: str = "", words: tuple[str, ...] = ()) -> Param:
    """Return a coordinate count: an integer >= 1, or a share of the message dimension."""
    return Param("count", default, low=1, help=help, words=words)


def Number(
    default: Any = REQUIRED,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    words: tuple[str, ...] = (),
    tags: Mapping[str, Param] | None = None,
    per_cell: bool = False,
    help: str = "",
) -> Param:
    """Return a real-number parameter in [low, high] (or (low, high] with ``open_low``)."""
    return Param(
        "number",
        default,
        low,
        high,
        open_low,
        words=words,
        tags=tags or {},
        per_cell=per_cell,
        help=help,
    )


def Integer(
    default: Any = REQUIRED,
    low: float = -math.inf,
    high: float = math.inf,
    words: tuple[str, ...] = (),
    help: str = "",
) -> Param:
    """Return an integer parameter in [low, high]."""
    return Param("integer", default, low, high, words=words, help=help)


def Choice(
    *names: str, default: Any = None, tags: Mapping[str, Param] | None = None, help: str = ""
) -> Param:
    """Return a choice among ``names``; the first is the default unless ``default`` says otherwise."""
    return Param(
        "choice",
        names[0] if default is None else default,
        choices=names,
        tags=tags or {},
        help=help,
    )


def Flag(default: bool = False, help: str = "") -> Param:
    """Return a true / false parameter."""
    return Param("flag", default, help=help)


def Text(default: Any = REQUIRED, help: str = "") -> Param:
    """Return a free-text parameter (a name or a path)."""
    return Param("text", default, help=help)


def List(default: Any = REQUIRED, help: str = "", words: tuple[str, ...] = ()) -> Param:
    """Return a list-valued parameter: in a sweep file ``[[a, b], [c, d]]`` is an axis of two lists."""
    return Param("list", default, words=words, help=help)


def Operator(default: Any = REQUIRED, help: str = "") -> Param:
    """Return a parameter that is itself a compression operator: ``top_k:k=1%``, or its mapping.

    The plug-in gets a text, the short form with names sorted and defaults left out, for
    ``compressors.compose.build``. Write ``default`` in that form.
    """
    return Param("operator", default, help=help)


@dataclass(frozen=True)
class Entry:
    """A registered plug-in: what was decorated, its parameters and its facts."""

    kind: str
    name: str
    target: Any
    params: Mapping[str, Param]
    meta: Mapping[str, Any]
    version: str
    source: str = ""  # hash of a user's plug-in file; empty for the built-in ones

    @property
    def summary(self) -> str:
        """Return the first line of the plug-in's docstring."""
        return (self.target.__doc__ or "").strip().split("\n")[0]


_entries: dict[tuple[str, str], Entry] = {}
_loaded: set[str] = set()
_generation = 0  # of the entries: changes whenever one is registered
_source = ""  # set while a user's plug-in file is being imported


def _register(kind: str, name: str, version: str, given: dict[str, Any]) -> Callable[[Any], Any]:
    def decorate(target: Any) -> Any:
        global _generation
        _generation += 1
        params = {k: v for k, v in given.items() if isinstance(v, Param)}
        meta = {k: v for k, v in given.items() if not isinstance(v, Param)}
        params = {**getattr(target, "__params__", {}), **params}
        target.__params__ = params  # a method built on this one takes the same parameters
        _entries[kind, name] = Entry(kind, name, target, params, meta, version, _source)
        return target

    return decorate


def compressor(name: str, *, version: str = "1", **given: Any) -> Callable[[Any], Any]:
    """Register a compression operator (a class with ``compress``, ``omega``, ``alpha``)."""
    return _register("compressor", name, version, given)


def algorithm(name: str, *, version: str = "1", **given: Any) -> Callable[[Any], Any]:
    """Register an algorithm (a class with ``start`` and ``round``)."""
    return _register("algorithm", name, version, given)


def problem(name: str, *, version: str = "1", **given: Any) -> Callable[[Any], Any]:
    """Register a problem (a class or function that builds one from its parameters)."""
    return _register("problem", name, version, given)


def metric(name: str, *, version: str = "1", **given: Any) -> Callable[[Any], Any]:
    """Register a metric, a function (problem, x) -> one number per cell, stored in ``extra``."""
    return _register("metric", name, version, given)


def state() -> tuple[int, int]:
    """Return what changes whenever the entries do: a key for what was computed from them."""
    return id(_entries), _generation


def _ensure(kind: str) -> None:
    if kind in _loaded:
        return
    _loaded.add(kind)
    importlib.import_module(BUILTIN[kind])
    for point in importlib.metadata.entry_points(group=f"raybench.{kind}s"):
        point.load()


def names(kind: str) -> list[str]:
    """Return the registered names of a kind, sorted."""
    _ensure(kind)
    return sorted(n for k, n in _entries if k == kind)


def lookup(kind: str, name: str, where: str = "") -> Entry:
    """Return the entry of that kind and name.

    Raises InputError with the nearest name where there is none.
    """
    _ensure(kind)
    entry = _entries.get((kind, name))
    if entry is None:
        raise InputError.of(
            where or kind, f"unknown {kind} {name!r}", nearest(str(name), names(kind))
        )
    return entry


def load_plugin(path: str | Path) -> list[Entry]:
    """Import a plug-in file and return what it registered; its content hash goes into cell ids.

    Raises InputError if the file is missing, raises on import, or registers nothing.
    """
    global _source
    file = Path(path).expanduser().resolve()
    where = f"plug-in {path}"
    if not file.is_file():
        raise InputError.of(where, "no such file", "give the path of a Python file")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    for kind in BUILTIN:  # a user's file may replace a built-in name, never the other way round
        _ensure(kind)
    module_name = f"raybench_plugin_{digest}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, file)
        if spec is None or spec.loader is None:
            raise InputError.of(where, "not a Python file", "give the path of a file NAME.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        _source = digest
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[module_name]
            line = error.lineno if isinstance(error, SyntaxError) else _line_in(error, str(file))
            what = f"line {line}: {type(error).__name__}: {error}"
            raise InputError.of(where, what, "the file must import cleanly") from error
        finally:
            _source = ""
    found = [e for e in _entries.values() if e.source == digest]
    if not found:
        fix = "decorate with compressor, algorithm, problem or metric of raybench.plugins"
        raise InputError.of(where, "registers nothing", fix)
    return found


def _line_in(error: BaseException, file: str) -> int:
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
