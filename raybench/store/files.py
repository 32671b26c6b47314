"""Whole files in a folder, written atomically: a local folder, or an object store through fsspec."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import Protocol

import fsspec

from raybench.core.errors import InputError
from raybench.store.disk import DISK, Disk


class Files(Protocol):
    """Whole-file access to one folder; ``rel`` is a path inside it with forward slashes."""

    name: str

    def prepare(self) -> None: ...
    def path(self, rel: str) -> str: ...
    def sizes(self, folder: str) -> dict[str, int]: ...
    def names(self, folder: str) -> list[str]: ...
    def folders(self, folder: str) -> list[str]: ...
    def exists(self, rel: str = "") -> bool: ...
    def read(self, rel: str) -> bytes | None: ...
    def write(self, rel: str, data: bytes) -> None: ...
    def create(self, rel: str, data: bytes) -> bool: ...
    def move(self, rel: str, to: str) -> None: ...
    def remove(self, rel: str) -> None: ...
    def clear(self, folder: str) -> None: ...


def open_folder(folder: str | os.PathLike[str]) -> Files:
    """Return the files of a folder: a local path, ``file://`` or any fsspec URL (``s3://...``).

    Raises InputError for a URL scheme whose fsspec driver is missing.
    """
    text = os.fspath(folder)
    if text.startswith("file://"):
        text = text[len("file://") :]
    return Remote(text) if "://" in text else Local(Path(text).expanduser())


class Local:
    """A local (or mounted) folder: temporary file in ``tmp/``, fsync, rename, fsync of the folder.

    Only ``prepare`` makes the folder itself: one that was removed while a sweep runs is not made again
    by whoever writes next.
    """

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root, self.name, self.disk = root, str(root), disk or DISK

    def prepare(self) -> None:
        """Make the folder where there is none."""
        self.disk.make(self.root)

    def path(self, rel: str) -> str:
        """Return the file's path."""
        return str(self.root / rel)

    def sizes(self, folder: str) -> dict[str, int]:
        """Return {name: bytes} of the files in a folder of this folder, by name."""
        found = {}
        try:
            with os.scandir(self.root / folder) as entries:
                for entry in entries:
                    try:
                        if entry.is_file():
                            found[entry.name] = entry.stat().st_size
                    except FileNotFoundError:
                        continue  # removed since it was listed
        except (FileNotFoundError, NotADirectoryError):
            pass
        return dict(sorted(found.items()))

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted."""
        return list(self.sizes(folder))

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder, sorted."""
        try:
            with os.scandir(self.root / folder) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, rel: str = "") -> bool:
        """Return whether there is such a file or folder."""
        return (self.root / rel).exists()

    def read(self, rel: str) -> bytes | None:
        """Return a file's content, None where there is no such file."""
        try:
            return (self.root / rel).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, rel: str, data: bytes) -> None:
        """Write a file, which replaces one of the same name at once and whole."""
        goal = self.root / rel
        temporary = self.root / "tmp" / f"{goal.name}.{uuid.uuid4().hex}"
        self._folders(temporary.parent, goal.parent)
        try:
            self.disk.write(temporary, data)
            self.disk.rename(temporary, goal)
        except OSError as error:
            self.disk.unlink(temporary)
            error.filename = error.filename or str(goal)  # the message says where, not only what
            raise
        self.disk.sync(goal.parent)

    def create(self, rel: str, data: bytes) -> bool:
        """Write a file unless there is one of this name; return whether it was written."""
        self._folders((self.root / rel).parent)
        return self.disk.create(self.root / rel, data)

    def move(self, rel: str, to: str) -> None:
        """Give a file another name."""
        goal = self.root / to
        self._folders(goal.parent)
        self.disk.rename(self.root / rel, goal)
        self.disk.sync(goal.parent)

    def remove(self, rel: str) -> None:
        """Remove a file if it is there."""
        self.disk.unlink(self.root / rel)

    def clear(self, folder: str) -> None:
        """Remove a folder and all that is in it, as far as that can be done."""
        shutil.rmtree(self.root / folder, ignore_errors=True)

    def _folders(self, *folders: Path) -> None:
        for folder in folders:
            if folder != self.root and not folder.is_dir():
                self._folders(folder.parent)
                self.disk.mkdir(folder)  # fails where the results folder itself is gone
                self.disk.sync(folder.parent)


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

    def prepare(self) -> None:
        """Do nothing: an object store has no folders."""

    def path(self, rel: str) -> str:
        """Return the object's name, without the scheme."""
        return f"{self.root}/{rel}" if rel else self.root

    def sizes(self, folder: str) -> dict[str, int]:
        """Return {name: bytes} of the files in a folder of this folder, by name."""
        self.filesystem.invalidate_cache()
        try:
            found = self.filesystem.ls(self.path(folder), detail=True)
        except FileNotFoundError:
            return {}
        files = {e["name"].rsplit("/", 1)[-1]: e["size"] or 0 for e in found if e["type"] == "file"}
        return dict(sorted(files.items()))

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted."""
        return list(self.sizes(folder))

    def folders(self, folder: str) -> list[str]:
        """Return the first parts of what names go on with after that of a folder, sorted."""
        self.filesystem.invalidate_cache()
        try:
            found = self.filesystem.ls(self.path(folder), detail=True)
        except FileNotFoundError:
            return []
        names = {e["name"].rstrip("/").rsplit("/", 1)[-1] for e in found if e["type"] != "file"}
        return sorted(names)

    def exists(self, rel: str = "") -> bool:
        """Return whether there is such an object, or any below that name."""
        self.filesystem.invalidate_cache()
        return bool(self.filesystem.exists(self.path(rel)))

    def read(self, rel: str) -> bytes | None:
        """Return an object's content, None where there is none."""
        try:
            found: bytes = self.filesystem.cat_file(self.path(rel))
        except FileNotFoundError:
            return None
        return found

    def write(self, rel: str, data: bytes) -> None:
        """Write an object, in place of one of the same name."""
        self.filesystem.pipe_file(self.path(rel), data)

    def create(self, rel: str, data: bytes) -> bool:
        """Write an object unless there is one of this name; return whether it was written.

        On S3 that is a PUT with ``If-None-Match: *``, of which only one of several at once succeeds.
        """
        try:
            self.filesystem.pipe_file(self.path(rel), data, mode="create")
        except FileExistsError:
            return False
        return True

    def move(self, rel: str, to: str) -> None:
        """Give an object another name: a copy and a removal."""
        self.filesystem.mv(self.path(rel), self.path(to))

    def remove(self, rel: str) -> None:
        """Remove an object if it is there."""
        if self.exists(rel):
            self.filesystem.rm_file(self.path(rel))

    def clear(self, folder: str) -> None:
        """Remove all objects whose names begin with that of a folder."""
        if self.exists(folder):
            self.filesystem.rm(self.path(folder), recursive=True)
