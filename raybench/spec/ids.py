"""Content ids: the same requested cell has the same id on every machine, however it is written.

The id is a SHA-256 of canonical JSON: typed values, defaults left out, the ``version`` of every
plug-in, the source hash of a user's plug-in file, and the content of data files in place of their
paths. Names, resources, recording and accounting are no part of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from raybench.core import registry
from raybench.spec import settings, short
from raybench.spec.files import content_hash, is_path
from raybench.spec.parts import Section, Step, canonical
from raybench.spec.sections import default


def digest(content: Mapping[str, Any]) -> str:
    """Return 16 hex digits for a plain mapping."""
    return hashlib.sha256(canonical(content).encode()).hexdigest()[:16]


def ids(content: Mapping[str, Any]) -> tuple[str, str]:
    """Return (id, group) of a cell's content; the group leaves seed and step out."""
    group = {key: value for key, value in content.items() if key not in ("seed", "step")}
    return digest(content), digest(group)


def plugin(kind: str, section: Section | None) -> dict[str, Any] | None:
    """Return what identifies a plug-in section: name, version, source, and what is no default."""
    if section is None:
        return None
    entry = registry.lookup(kind, section.name)
    params = {
        key: value
        for key, value in section.params.items()
        if entry.params[key].default is registry.REQUIRED
        or canonical(value) != canonical(default(entry.params[key]))
    }
    dataset = params.get("dataset")
    if kind == "problem" and isinstance(dataset, str) and is_path(dataset):
        params["dataset"] = f"sha256:{content_hash(dataset, 'problem.dataset')}"
    out = {"name": section.name, "version": entry.version, "params": params}
    held = short.inside(section, kind)
    if held:
        out["operators"] = held
    return {**out, "source": entry.source} if entry.source else out


def step(section: Step) -> dict[str, Any]:
    """Return what identifies a step, defaults left out."""
    base = Step(section.kind, section.number)
    config = section.config()
    fixed = ("kind", "number")
    return {k: v for k, v in config.items() if k in fixed or v != getattr(base, k)}


def graph(section: Section | None) -> dict[str, Any] | None:
    """Return what identifies a graph, defaults left out."""
    if section is None:
        return None
    known = settings.GRAPHS[section.name]
    params = {k: v for k, v in section.params.items() if v != default(known[k])}
    return {"name": section.name, "params": params}


def start(x0: Any) -> Any:
    """Return what identifies a starting point: a file by its content."""
    if isinstance(x0, str) and x0.endswith(".npy"):
        return f"sha256:{content_hash(x0, 'x0')}"
    return x0
