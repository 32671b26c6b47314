"""Plug-ins outside sweep files: ``top_k:k=1%`` on the command line, ``compressor("top_k", k=10)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raybench.core import registry, yaml
from raybench.core.errors import Complaint, InputError
from raybench.core.params import Param
from raybench.spec import sections
from raybench.spec.parts import Operator, Section
from raybench.spec.sections import parse, product
from raybench.spec.values import Complaints, show


def section(
    kind: str, text: str, params: Mapping[str, object] | None = None, where: str = ""
) -> Section:
    """Return the one section that a short form and further parameters describe, typed and checked.

    kind is the registry's; where is what complaints call it, the kind by default. Raises InputError
    with everything that is wrong, also where a value is an axis.
    """
    if isinstance(text, Operator) and not params:
        return text.section
    where = where or kind
    given = parse(text, where)
    # from Python a tuple is one list-valued parameter, while a list is an axis
    lists = {k: [list(v)] if isinstance(v, tuple) else v for k, v in (params or {}).items()}
    more = yaml.plain(lists, where)
    for key in sorted(given.keys() & more.keys()):
        raise InputError.of(f"{where}.{key}", "given twice", "leave one out")
    given |= more
    complaints: Complaints = []
    choices = sections.read(kind, given, where, complaints)
    if complaints:
        raise InputError(list(dict.fromkeys(complaints)))
    first = choices[0].value
    if len(choices) > 1 or first is None:
        what = f"{text} stands for {len(choices)} of them" if first else "none is none"
        raise InputError.of(where, what, "give one name and single values")
    return first


def mapping(params: Mapping[str, Param], given: object, where: str) -> dict[str, Any]:
    """Return the typed settings of a mapping, defaults filled in. Raises InputError with all that is wrong."""
    complaints: Complaints = []
    every: list[dict[str, Any]] = []
    if isinstance(given, Mapping):
        every = product(params, yaml.plain(dict(given), where), where, complaints)
    else:
        keys = ", ".join(params)
        complaints.append(
            Complaint(where, f"expected a mapping, not {show(given)}", f"keys: {keys}")
        )
    if len(every) > 1:
        complaints.append(Complaint(where, "is no axis here", "give single values"))
    if complaints:
        raise InputError(list(dict.fromkeys(complaints)))
    return every[0]


def inside(given: Section, kind: str = "compressor") -> dict[str, list[str]]:
    """Return version and source of every compressor that a section's parameters hold, by name."""
    out: dict[str, list[str]] = {}
    params = registry.lookup(kind, given.name).params
    for key, value in given.params.items():
        if key in params and params[key].kind == "operator" and isinstance(value, str):
            out |= versions(value, key)
    return dict(sorted(out.items()))


def versions(text: str, where: str = "") -> dict[str, list[str]]:
    """Return version and source of a compressor and of every one inside it, by name."""
    held = section("compressor", text, where=where)
    entry = registry.lookup("compressor", held.name)
    return {held.name: [entry.version, entry.source], **inside(held)}
