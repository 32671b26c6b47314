"""From a sweep file to its cells: read, merge, check, multiply out, and give every cell its id."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raybench.core import registry
from raybench.core.errors import InputError
from raybench.spec import axes, expand, files, merge, model, yaml
from raybench.spec.cells import Sweep
from raybench.spec.values import Found, show
from raybench.store import accounting


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
    grids = axes.read(raw, found)
    if found or document is None:
        raise InputError(list(dict.fromkeys(found)))
    cells, notes, excluded = expand.cells(grids)
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
        except (OSError, ValueError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text file"
            fix = "give the path of a sweep file; `raybench ls` lists the shipped ones"
            raise InputError.of(str(source), str(reason), fix) from error
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
        if not isinstance(value, str):
            return value
        file = files.locate(value, Path.cwd(), base)
        if file is None or not (file.is_file() or (folders and "/" in value)):
            return value
        return str(file.resolve())

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
