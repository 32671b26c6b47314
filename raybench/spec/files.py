"""The files that a sweep names: where they are, and what they hold."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

from raybench.core.errors import InputError
from raybench.core.limits import decompressed

FILES = ("dataset", "test_set", "init_from", "model")
"""Parameters of a problem that may name a file, whose content then takes its name's place in ids."""


def parted(text: str) -> tuple[str, str]:
    """Return the file that a text names and what follows: ``own.py`` and ``:function``."""
    file, colon, rest = text.rpartition(".py:")
    return (f"{file}.py", f":{rest}") if colon else (text, "")


def is_path(text: str) -> bool:
    """Tell whether a data set is given by its path: a separator in it, or an existing file."""
    if "/" in text or os.sep in text:
        return True
    file = locate(text)
    return file is not None and file.is_file()


def locate(text: str, *folders: Path) -> Path | None:
    """Return the file or folder ``text`` names in the first of ``folders`` that has it, else None.

    Without folders the working directory is meant.
    """
    for folder in folders or (Path(),):
        try:
            path = folder / Path(text).expanduser()
            if path.exists():
                return path
        except (OSError, ValueError, RuntimeError):  # the text cannot be the name of a file
            continue
    return None


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
                whole.update(f"{name}\0{_hash(part, where)}\n".encode(errors="surrogateescape"))
            return whole.hexdigest()
        return _hash(file, where)
    except OSError as error:
        raise InputError.of(where, f"cannot read {path}: {error}", "is the file whole?") from error


def _hash(file: Path, where: str) -> str:
    stat = file.stat()
    return _hashed(file, where, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=256)
def _hashed(file: Path, where: str, mtime: int, size: int) -> str:
    del mtime, size  # arguments only so that a changed file is read anew
    whole = hashlib.sha256()
    for chunk in decompressed(file, where):
        whole.update(chunk)
    return whole.hexdigest()
