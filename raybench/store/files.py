"""Whole files in a folder, written atomically: a local folder, or an object store through fsspec."""

from __future__ import annotations

import os
import shutil
import stat
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Protocol

from raybench.core.errors import InputError
from raybench.store.disk import DISK, Disk
from raybench.store.remote import Mark, Remote


class Files(Protocol):
    """Whole-file access to one folder; ``rel`` is a path inside it with forward slashes."""

    name: str
    readers: int  # how many files are best read at once

    def prepare(self) -> None: ...
    def check(self) -> None: ...
    def path(self, rel: str) -> str: ...
    def marks(self, folder: str) -> dict[str, Mark]: ...
    def sizes(self, folder: str) -> dict[str, int]: ...
    def changed(self, folder: str) -> dict[str, float]: ...
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
    by whoever writes next. The folder may be reached through links, but in it there are files and folders
    alone: a link would lead every reader and writer elsewhere, a pipe would have them wait for ever. All
    methods raise InputError where they meet anything else.
    """

    readers = min(4, os.cpu_count() or 1)

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root, self.name, self.disk = root, str(root), disk or DISK

    def prepare(self) -> None:
        """Make the folder where there is none."""
        self.disk.make(self.root)

    def check(self) -> None:
        """Look at all that lies in the folder, so that nothing is half done when a method meets a link."""
        places = [self.root]
        while places:
            with suppress(FileNotFoundError, NotADirectoryError):
                places += [Path(path) for _, path, _, folder in _entries(places.pop()) if folder]

    def path(self, rel: str) -> str:
        """Return the path of a file or folder, which need not be there."""
        return str(self._place(rel))

    def marks(self, folder: str) -> dict[str, Mark]:
        """Return {name: mark} of the files in a folder of this folder, by name."""
        found: dict[str, Mark] = {}
        with suppress(FileNotFoundError, NotADirectoryError):
            for name, _, held, is_folder in _entries(self._place(folder)):
                if not is_folder:
                    found[name] = held.st_size, held.st_mtime_ns, held.st_ino
        return dict(sorted(found.items()))

    def sizes(self, folder: str) -> dict[str, int]:
        """Return {name: bytes} of the files in a folder of this folder, by name."""
        return sizes_of(self.marks(folder))

    def changed(self, folder: str) -> dict[str, float]:
        """Return {name: when it was written, in seconds since 1970} of the files in a folder."""
        return {name: float(str(mark[1])) / 1e9 for name, mark in self.marks(folder).items()}

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted."""
        return list(self.sizes(folder))

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder, sorted."""
        try:
            return sorted(
                name for name, _, _, is_folder in _entries(self._place(folder)) if is_folder
            )
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, rel: str = "") -> bool:
        """Return whether there is such a file or folder."""
        return self._place(rel).exists()

    def read(self, rel: str) -> bytes | None:
        """Return a file's content, None where there is no such file."""
        try:
            return self._place(rel).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, rel: str, data: bytes) -> None:
        """Write a file, which replaces one of the same name at once and whole."""
        goal = self._place(rel)
        temporary = self._place("tmp") / f"{goal.name}.{uuid.uuid4().hex}"
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
        goal = self._place(rel)
        self._folders(goal.parent)
        return self.disk.create(goal, data)

    def move(self, rel: str, to: str) -> None:
        """Give a file another name."""
        goal = self._place(to)
        self._folders(goal.parent)
        self.disk.rename(self._place(rel), goal)
        self.disk.sync(goal.parent)

    def remove(self, rel: str) -> None:
        """Remove a file if it is there."""
        self.disk.unlink(self._place(rel))

    def clear(self, folder: str) -> None:
        """Remove a folder and all that is in it, as far as that can be done."""
        shutil.rmtree(self._place(folder), ignore_errors=True)

    def _place(self, rel: str) -> Path:
        place = self.root
        for name in PurePosixPath(rel).parts:
            place /= name
            try:
                _is_folder(place, place.lstat())
            except (FileNotFoundError, NotADirectoryError):
                return self.root / rel
        return place

    def _folders(self, *folders: Path) -> None:
        for folder in folders:
            if folder != self.root and not folder.is_dir():
                self._folders(folder.parent)
                self.disk.mkdir(folder)  # fails where the results folder itself is gone
                self.disk.sync(folder.parent)


def _entries(place: Path) -> Iterator[tuple[str, str, os.stat_result, bool]]:
    """Yield name, path and state of what lies in a folder, and whether it is a folder."""
    with os.scandir(place) as entries:
        for entry in entries:
            try:
                held = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # removed since it was listed
            yield entry.name, entry.path, held, _is_folder(entry.path, held)


def _is_folder(path: str | Path, held: os.stat_result) -> bool:
    """Return whether it is a folder, False for a file. Raises InputError where it is neither."""
    if stat.S_ISREG(held.st_mode) or stat.S_ISDIR(held.st_mode):
        return stat.S_ISDIR(held.st_mode)
    kind = "a link" if stat.S_ISLNK(held.st_mode) else "neither a file nor a folder"
    fix = "remove it: a results folder holds files and folders alone"
    raise InputError.of("folder", f"{path} is {kind}", fix)


def sizes_of(marks: Mapping[str, Mark]) -> dict[str, int]:
    """Return the bytes of files by their marks."""
    return {name: int(str(mark[0])) for name, mark in marks.items()}
