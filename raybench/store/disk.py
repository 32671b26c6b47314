"""The few things a results folder does to a local disk, each durable when it returns.

They are gathered here so that a test can put a disk in their place that fails, or dies, at any of them.
"""

from __future__ import annotations

import os
from pathlib import Path


class Disk:
    """A local file system."""

    def make(self, folder: Path) -> None:
        """Make a folder, and those above it, and see to it that they outlast a power failure."""
        if folder.is_dir():
            return
        self.make(folder.parent)
        self.mkdir(folder)
        self.sync(folder.parent)

    def mkdir(self, folder: Path) -> None:
        """Make one folder, in which there may be others by now."""
        folder.mkdir(exist_ok=True)

    def write(self, path: Path, data: bytes) -> None:
        """Write a new file and sync it."""
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def create(self, path: Path, data: bytes) -> bool:
        """Write a new file; return False where there is one of this name already."""
        try:
            with open(path, "xb") as file:
                file.write(data)
                return True
        except FileExistsError:
            return False

    def rename(self, path: Path, goal: Path) -> None:
        """Give a file another name, in place of a file that has it."""
        os.replace(path, goal)

    def unlink(self, path: Path) -> None:
        """Remove a file if it is there."""
        path.unlink(missing_ok=True)

    def sync(self, folder: Path) -> None:
        """Make what was created, renamed and removed in a folder outlast a power failure."""
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


DISK = Disk()
