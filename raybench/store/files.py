"""Whole files in a folder, written atomically: a local folder, or an object store through fsspec."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Protocol

import fsspec

from raybench.core.errors import InputError


class Files(Protocol):
    """Whole-file access to one folder; ``rel`` is a path inside it with forward slashes."""

    name: str
    filesystem: (
        fsspec.AbstractFileSystem | None
    )  # in the form that pyarrow.dataset takes; None for local paths

    def path(self, rel: str) -> str: ...
    def names(self, folder: str) -> list[str]: ...
    def exists(self, rel: str = "") -> bool: ...
    def read(self, rel: str) -> bytes | None: ...
    def write(self, rel: str, data: bytes) -> None: ...
    def move(self, rel: str, to: str) -> None: ...
    def remove(self, rel: str) -> None: ...


def open_folder(folder: str | os.PathLike[str]) -> Files:
    """Return the files of a folder: a local path, ``file://`` or any fsspec URL (``s3://...``).

    Raises InputError for a URL scheme whose fsspec driver is missing.
    """
    text = os.fspath(folder)
    if text.startswith("file://"):
        text = text[len("file://") :]
    return Remote(text) if "://" in text else Local(Path(text).expanduser())


class Local:
    """A local (or mounted) folder: temporary file in ``tmp/``, fsync, rename, fsync of the folder."""

    filesystem = None

    def __init__(self, root: Path) -> None:
        self.root, self.name = root, str(root)

    def path(self, rel: str) -> str:
        return str(self.root / rel)

    def names(self, folder: str) -> list[str]:
        try:
            with os.scandir(self.root / folder) as entries:
                return sorted(e.name for e in entries if e.is_file())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, rel: str = "") -> bool:
        return (self.root / rel).exists()

    def read(self, rel: str) -> bytes | None:
        try:
            return (self.root / rel).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, rel: str, data: bytes) -> None:
        goal = self.root / rel
        temporary = self.root / "tmp" / f"{goal.name}.{uuid.uuid4().hex}"
        for folder in (temporary.parent, goal.parent):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, goal)
        finally:
            temporary.unlink(missing_ok=True)
        _sync(goal.parent)

    def move(self, rel: str, to: str) -> None:
        (self.root / to).parent.mkdir(parents=True, exist_ok=True)
        os.replace(self.root / rel, self.root / to)

    def remove(self, rel: str) -> None:
        (self.root / rel).unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Remote:
    """A folder of an object store: a write is one PUT, which is atomic there."""

    def __init__(self, url: str) -> None:
        self.name = url.rstrip("/")
        try:
            self.filesystem, root = fsspec.core.url_to_fs(self.name)
        except (ImportError, ValueError) as error:
            raise InputError.of(
                "out", f"cannot open {url}: {error}", "pip install 'raybench[s3]' for s3://"
            ) from error
        self.root = root.rstrip("/")

    def path(self, rel: str) -> str:
        return f"{self.root}/{rel}" if rel else self.root

    def names(self, folder: str) -> list[str]:
        self.filesystem.invalidate_cache()
        try:
            found = self.filesystem.ls(self.path(folder), detail=True)
        except FileNotFoundError:
            return []
        return sorted(e["name"].rsplit("/", 1)[-1] for e in found if e["type"] == "file")

    def exists(self, rel: str = "") -> bool:
        self.filesystem.invalidate_cache()
        return bool(self.filesystem.exists(self.path(rel)))

    def read(self, rel: str) -> bytes | None:
        try:
            return self.filesystem.cat_file(self.path(rel))
        except FileNotFoundError:
            return None

    def write(self, rel: str, data: bytes) -> None:
        self.filesystem.pipe_file(self.path(rel), data)

    def move(self, rel: str, to: str) -> None:
        self.filesystem.mv(self.path(rel), self.path(to))

    def remove(self, rel: str) -> None:
        if self.exists(rel):
            self.filesystem.rm_file(self.path(rel))
