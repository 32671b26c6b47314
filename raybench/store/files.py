"""Whole files in a folder, written atomically: a local folder, or an object store through fsspec."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
import uuid
from contextlib import suppress
from pathlib import Path, PurePosixPath

from raybench.core.errors import InputError
from raybench.core.patience import patience, reason
from raybench.store.remote import Folder, Remote, RemoteEntry

REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)  # of what a file system does not do
FIRST_PATIENCE = 5.0  # seconds for which the first request of all is made again
DEADLINE = 20.0  # seconds after which it is given up, whatever the driver still waits for


def open_folder(folder: str | os.PathLike[str] | Files) -> Files:
    """Return the files of a folder: a local path, ``file://`` or any fsspec URL (``s3://...``); files are those already.

    Raises InputError for a URL scheme whose fsspec driver is missing.
    """
    if isinstance(folder, Folder):
        return folder
    text = os.fspath(folder)
    if text.startswith("file://"):
        text = text[len("file://") :]
    return Remote(text) if "://" in text else LocalFolder(Path(text).expanduser())


class Disk:
    """The few things a results folder does to a local disk, where a test can put a disk that fails, or dies."""

    def make(self, folder: Path) -> None:
        """Make a folder, and those above it, and see to it that they outlast a power failure."""
        if folder.is_dir():
            return
        self.make(folder.parent)
        self.mkdir(folder)
        self.sync(folder.parent)

    def mkdir(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)

    def write(self, path: Path, data: bytes) -> None:
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def create(self, path: Path, data: bytes) -> bool:
        try:
            with open(path, "xb") as file:
                file.write(data)
                return True
        except FileExistsError:
            return False

    def rename(self, path: Path, goal: Path) -> None:
        os.replace(path, goal)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def sync(self, folder: Path) -> None:
        """Make what was created, renamed and removed in a folder outlast a power failure, where its file system can."""
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in REFUSALS:
                raise
        finally:
            os.close(handle)


DISK = Disk()


class LocalFolder(Folder):
    """A local (or mounted) folder: temporary file in ``tmp/``, fsync, rename, fsync of the folder.

    Only ``prepare`` makes the folder itself: one that was removed while a sweep runs is not made again
    by whoever writes next. All methods raise InputError where they meet a link or a pipe inside of it: a link
    would lead every reader and writer elsewhere, a pipe would have them wait for ever.
    """

    readers = min(4, os.cpu_count() or 1)

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root, self.name, self.disk = root, str(root), disk or DISK

    def prepare(self) -> None:
        self.disk.make(self.root)

    def check(self) -> None:
        places = [""]
        while places:
            place = places.pop()
            places += [f"{place}/{name}".lstrip("/") for name in self.folders(place)]

    def path(self, rel: str) -> str:
        return str(self._place(rel))

    def entries(self, folder: str) -> list[RemoteEntry]:
        entries: list[RemoteEntry] = []
        absent = suppress(FileNotFoundError, NotADirectoryError)
        with absent, os.scandir(self._place(folder)) as scan:
            for item in scan:
                try:
                    state = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # removed since it was listed
                is_folder = _is_folder(item.path, state)
                entries.append(
                    RemoteEntry(item.name, is_folder, state.st_size, state.st_mtime_ns / 1e9)
                )
        return entries

    def exists(self, rel: str = "") -> bool:
        return self._place(rel).exists()

    def read(self, rel: str) -> bytes | None:
        with suppress(FileNotFoundError, NotADirectoryError):
            return self._place(rel).read_bytes()
        return None

    def write(self, rel: str, data: bytes) -> None:
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
        goal = self._place(rel)
        self._folders(goal.parent)
        return self.disk.create(goal, data)

    def move(self, rel: str, to: str) -> None:
        goal = self._place(to)
        self._folders(goal.parent)
        self.disk.rename(self._place(rel), goal)
        self.disk.sync(goal.parent)

    def remove(self, rel: str) -> None:
        self.disk.unlink(self._place(rel))

    def clear(self, folder: str) -> None:
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


def _is_folder(path: str | Path, state: os.stat_result) -> bool:
    """Return whether it is a folder, False for a file. Raises InputError where it is neither."""
    if stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode):
        return stat.S_ISDIR(state.st_mode)
    kind = "a link" if stat.S_ISLNK(state.st_mode) else "neither a file nor a folder"
    fix = "remove it: a results folder holds files and folders alone"
    raise InputError.of("folder", f"{path} is {kind}", fix)


Files = LocalFolder | Remote
"""A folder of results, wherever it lies: both kinds have the same methods."""


# Whether a folder can be reached at all, told before any work is done for it ------------------------


def check_reachable(folder: str | os.PathLike[str], processes: bool = False) -> None:
    """Raise InputError as ``reached`` does, and for memory if other processes than this one write there."""
    text = os.fspath(folder)
    if processes and text.startswith("memory://"):
        what = f"{text} is memory of this process, and Ray's workers are others"
        raise InputError.of("out", what, "--inline, or a folder on a disk or an object store")
    reached(text)


def reached(folder: str | os.PathLike[str] | Files, key: str = "out") -> tuple[Files, bool]:
    """Return the files of a folder, and whether there are any, after asking an object store for them.

    key: what the user gave the folder as. Raises InputError for a file, and within seconds if a store does
    not answer, refuses, or has no such bucket.
    """
    files = open_folder(folder)
    if not isinstance(files, Remote):
        if Path(files.name).is_file():
            raise InputError.of(key, f"{files.name} is a file", "a folder, new or with results")
        return files, files.exists()
    first = Remote(files.name, min(FIRST_PATIENCE, patience()))
    bucket = files.name.split("://", 1)[1].split("/")[0]
    late = TimeoutError(f"no answer within {DEADLINE:g} s")
    answers: list[tuple[bool, bool] | Exception] = [late]

    def ask() -> None:
        try:
            is_there = bool(first.entries(""))
            answers.append((is_there, is_there or first.has(bucket)))
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(DEADLINE)
    answer = answers[-1]
    if isinstance(answer, Exception):
        what = f"{files.name} does not answer: {reason(answer.__cause__ or answer)}"
        raise InputError.of(key, what, "check address, network and credentials") from answer
    if not answer[1]:
        what = f"{files.name}: there is no bucket {bucket}"
        raise InputError.of(key, what, "make it, or correct it")
    return files, answer[0]
