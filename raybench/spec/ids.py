"""Content ids: the same requested cell has the same id on every machine, however it is written.

The id is a SHA-256 of canonical JSON: typed values, defaults left out, the ``version`` of every
plug-in, the source hash of a user's plug-in file, and the content of data files in place of their
paths. Names, resources, recording and accounting are no part of it.
"""

from __future__ import annotations

import bz2
import functools
import gzip
import hashlib
import lzma
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, cast

from raybench.core import registry
from raybench.core.errors import InputError
from raybench.spec import settings, short
from raybench.spec.cells import Section, Step, canonical
from raybench.spec.sections import default, is_path

_CHUNK = 1 << 20
_OPEN: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


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


def content_hash(path: str, where: str) -> str:
    """Return the SHA-256 (hex) of a file's decompressed content, or of all files of a folder.

    Raises InputError, naming the key ``where``, if it cannot be read.
    """
    file = Path(path).expanduser()
    try:
        if file.is_dir():
            whole = hashlib.sha256()
            for part in sorted(p for p in file.rglob("*") if p.is_file()):
                name = part.relative_to(file).as_posix()
                whole.update(f"{name}\0{_hash(part)}\n".encode(errors="surrogateescape"))
            return whole.hexdigest()
        return _hash(file)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError.of(where, f"cannot read {path}: {error}", "is the file whole?") from error


def _hash(file: Path) -> str:
    stat = file.stat()
    return _hashed(file, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=256)
def _hashed(file: Path, mtime: int, size: int) -> str:
    del mtime, size  # only there to notice a changed file
    whole = hashlib.sha256()
    with cast(IO[bytes], _OPEN.get(file.suffix, open)(file, "rb")) as stream:
        while chunk := stream.read(_CHUNK):
            whole.update(chunk)
    return whole.hexdigest()
