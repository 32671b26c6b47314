"""Names -> plug-ins: compressors, algorithms, problems and metrics, each one file with one decorator.

A decorator's keyword arguments that are parameters (``Count``, ``Number``, ...) declare what a sweep file
may set; parameters may also stand as attributes of the class or in the function's signature
(``raybench.core.params``). All other keyword arguments are facts about the plug-in
(``raybench.core.facts``). Built-in packages are imported on first use, so this module stays light.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, Literal, TypeVar, dataclass_transform, overload

from raybench.core import facts, params
from raybench.core.errors import Complaint, InputError, nearest
from raybench.core.facts import AlgorithmFacts, Facts
from raybench.core.params import (  # noqa: F401 - plug-ins import declarations from here
    REQUIRED,
    Choice,
    Count,
    Flag,
    Integer,
    List,
    Number,
    Operator,
    Param,
    Text,
)

OURS = "raybench"  # the package whose plug-ins come with it
BUILTIN_PACKAGES = {
    "compressor": "raybench.compressors",
    "algorithm": "raybench.algorithms",
    "problem": "raybench.problems",
    "metric": "raybench.execution.recorder",
}

F = TypeVar("F", bound=Facts, covariant=True)
T = TypeVar("T")


@dataclass(frozen=True)
class Entry(Generic[F]):
    """A registered plug-in: what was decorated, its parameters and its facts."""

    kind: str
    name: str
    target: Any
    params: Mapping[str, Param]
    facts: F
    version: str
    source: str = ""  # hash of the user's file that it comes from; empty for built-in ones

    @property
    def ours(self) -> bool:
        """Whether it comes with raybench."""
        return _ours(self.target)

    @property
    def summary(self) -> str:
        """Return the first line of the plug-in's docstring."""
        return (self.target.__doc__ or "").strip().split("\n")[0]


_entries: dict[tuple[str, str], Entry[Facts]] = {}
_loaded: set[str] = set()
# counts registrations: what is derived from the entries is stale when it has changed
_generation = 0
_source = ""  # hash of the user's file that is being imported at the moment


def _ours(target: object) -> bool:
    return str(getattr(target, "__module__", "")).partition(".")[0] == OURS


def _register(kind: str, name: str, version: str, given: dict[str, object]) -> Callable[[T], T]:
    where = f"{kind} {name}"

    def decorate(target: T) -> T:
        global _generation
        if not _ours(target):
            _ensure(kind)
            if (kind, name) in _entries and _entries[kind, name].ours:
                fix = "give it another name"
                raise InputError.of(where, f"raybench has a {kind} of this name", fix)
            # metrics have no parameters: in their signatures a number is a number
            slips = params.numbers(target, given, OURS).items() if kind != "metric" else ()
            if slips:
                raise InputError([params.undeclared(where, *slip) for slip in slips])
        _generation += 1
        declarations = params.declared(target, as_record=kind == "compressor")
        declarations |= {key: value for key, value in given.items() if isinstance(value, Param)}
        facts.check_names(kind, name, target, declarations)
        statements = {key: value for key, value in given.items() if not isinstance(value, Param)}
        record = facts.facts_of(kind, name, statements, declarations)
        target.__params__ = declarations  # type: ignore[attr-defined]  # what is built on this one inherits them
        _entries[kind, name] = Entry(kind, name, target, declarations, record, version, _source)
        return target

    return decorate


@dataclass_transform(frozen_default=True)
def compressor(name: str, *, version: str = "1", **given: object) -> Callable[[T], T]:
    """Register a compressor (a class with ``encode``, ``omega``, ``alpha``).

    A class whose attributes are parameters becomes a frozen dataclass. Raises InputError, as the decorators
    below do, for a fact that is unknown or wrong, for a plain number where a parameter is declared, and for the
    name of one that comes with raybench.
    """
    return _register("compressor", name, version, given)


def algorithm(name: str, *, version: str = "1", **given: object) -> Callable[[T], T]:
    """Register an algorithm (a class with ``start`` and ``round``)."""
    return _register("algorithm", name, version, given)


def problem(name: str, *, version: str = "1", **given: object) -> Callable[[T], T]:
    """Register a problem (a class or function that builds one from its parameters)."""
    return _register("problem", name, version, given)


def metric(name: str, *, version: str = "1", **given: object) -> Callable[[T], T]:
    """Register a metric, a function (problem, x) -> one number per cell, stored in ``extra``."""
    return _register("metric", name, version, given)


def state() -> tuple[int, int]:
    """Return what changes whenever the entries do: a key for what was computed from them."""
    return id(_entries), _generation


def _ensure(kind: str) -> None:
    if kind in _loaded:
        return
    _loaded.add(kind)
    try:
        package = importlib.import_module(BUILTIN_PACKAGES[kind])
        # so a new plug-in is one file with one decorator
        for module in pkgutil.iter_modules(getattr(package, "__path__", ())):
            importlib.import_module(f"{package.__name__}.{module.name}")
        for point in importlib.metadata.entry_points(group=f"raybench.{kind}s"):
            point.load()
    except BaseException:
        _loaded.discard(kind)  # said again when it is asked for again, rather than half of it used
        raise


def names(kind: str) -> list[str]:
    """Return the registered names of a kind, sorted."""
    _ensure(kind)
    return sorted(n for k, n in _entries if k == kind)


@overload
def lookup(kind: Literal["algorithm"], name: str, where: str = "") -> Entry[AlgorithmFacts]: ...


@overload
def lookup(kind: str, name: str, where: str = "") -> Entry[Any]: ...


def lookup(kind: str, name: str, where: str = "") -> Entry[Any]:
    """Return the entry of that kind and name.

    Raises InputError with the nearest name where there is none.
    """
    _ensure(kind)
    entry = _entries.get((kind, name))
    if entry is None:
        fix = nearest(str(name), names(kind))
        raise InputError.of(where or kind, f"unknown {kind} {name!r}", fix)
    return entry


def title(kind: Literal["algorithm", "compressor"], name: str) -> str | None:
    """Return how tables and figures write a plug-in's name, None where it does not say.

    Results are read where no method runs. As importing those that come with raybench takes seconds, their titles are
    then read from their sources.
    """
    entry: Entry[Any] | None = _entries.get((kind, name))
    return (entry.facts.title if entry is not None else None) or declared(kind).get(name) or None


@cache
def declared(kind: str) -> Mapping[str, str]:
    """Return what comes with raybench and is declared by a decorator: names with titles, empty where there is none."""
    spec = importlib.util.find_spec(BUILTIN_PACKAGES[kind])
    assert spec is not None
    files = (
        f for place in spec.submodule_search_locations or () for f in Path(place).rglob("*.py")
    )
    call = re.compile(r'^@\w+\(\s*"(\w+)"(.*?)(?=^(?:class|def|@))', re.MULTILINE | re.DOTALL)
    title = re.compile(r'\btitle="([^"]+)"')
    every = {
        name: title.search(facts)
        for file in files
        for name, facts in call.findall(file.read_text("utf-8"))
    }
    return {name: "" if match is None else match[1] for name, match in every.items()}


def check_name(kind: Literal["compressor"], name: str, where: str) -> None:
    """Refuse a name as ``lookup`` does, before what comes with raybench is imported, which takes seconds.

    It says nothing where plug-ins are installed: one of them may have the name.
    """
    if kind in _loaded or importlib.metadata.entry_points(group=f"raybench.{kind}s"):
        return
    if name not in declared(kind):
        raise InputError.of(where, f"unknown {kind} {name!r}", nearest(name, declared(kind)))


def load_plugin(path: str | Path) -> list[Entry[Facts]]:
    """Import a plug-in file and return what it registered; its content hash goes into cell ids.

    Raises InputError if the file is missing, raises on import, or registers nothing.
    """
    global _source
    where = f"plug-in {path}"
    try:
        file = Path(path).expanduser().resolve()
        digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except (OSError, TypeError, ValueError, RuntimeError) as error:  # or the path can be none
        raise InputError.of(where, "no such file", "give the path of a Python file") from error
    # first: what is imported together with the file would count as the file's
    for kind in BUILTIN_PACKAGES:
        _ensure(kind)
    module_name = f"raybench_plugin_{digest}"
    if module_name not in sys.modules:
        if file.suffix != ".py":
            raise InputError.of(where, "not a Python file", "give the path of a file NAME.py")
        _source = digest
        try:
            sys.modules[module_name] = module_of(file, module_name)
        except InputError as error:  # a decorator refused the plug-in
            at = f"{where}, line {line_in(error, str(file))}"
            complaints = [Complaint(f"{at}: {c.where}", c.what, c.fix) for c in error.complaints]
            raise InputError(complaints) from error
        except Exception as error:
            line = error.lineno if isinstance(error, SyntaxError) else line_in(error, str(file))
            what = f"line {line}: {type(error).__name__}: {error}"
            raise InputError.of(where, what, "the file must import cleanly") from error
        finally:
            _source = ""
    entries = [e for e in _entries.values() if e.source == digest]
    if not entries:
        fix = "decorate with compressor, algorithm, problem or metric of raybench.plugins"
        raise InputError.of(where, "registers nothing", fix)
    return entries


def module_of(file: Path, name: str) -> ModuleType:
    """Return the module that a user's Python file is, executed anew; nothing is written beside the file.

    It is known by its name only while it is read, as dataclasses want it. Raises what the file raises.
    """
    module = ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module
    try:
        # without the future imports of this file: annotations of a plug-in stay what it wrote
        code = compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
        exec(code, vars(module))
    finally:
        del sys.modules[name]
    return module


def is_function(text: str) -> bool:
    """Tell whether a text names a function of a file, ``my.py:name``, or of a module, ``my_module:name``."""
    where, _, name = text.rpartition(":")
    return bool(where) and name.isidentifier() and (where.endswith(".py") or "/" not in where)


def line_in(error: BaseException, file: str) -> int:
    """Return the line of a file at which an error was raised, or was passed through last; 0 for none."""
    steps = traceback.extract_tb(error.__traceback__)
    return next((step.lineno or 0 for step in reversed(steps) if step.filename == file), 0)
