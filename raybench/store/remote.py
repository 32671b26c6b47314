"""A folder's files as the store asks for them, and those of an object store, which is asked with patience.

An object store is reached through fsspec: whole objects, each written by one PUT. A request that fails is made
again, less and less often, for a bounded time.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, ClassVar

from raybench.core.errors import InputError, StoreError
from raybench.core.patience import patiently, reason

ANSWER = 30  # seconds after which a connection that gives no byte is given up, and tried again
CONNECT = 5
DRIVERS = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs"), "adlfs"),
}


@dataclass(frozen=True)
class RemoteEntry:
    """A file or folder in a folder.

    size: in bytes. when: it was written, in seconds since 1970, 0 where that is unknown.
    """

    name: str
    folder: bool
    size: int
    when: float


class Folder(ABC):
    """Whole-file access to one folder; ``rel`` is a path inside it with forward slashes."""

    name: str
    readers: ClassVar[int]  # how many files are best read at once

    @abstractmethod
    def entries(self, folder: str) -> list[RemoteEntry]:
        """Return what lies in a folder of this folder, in no order."""

    def files_in(self, folder: str) -> list[RemoteEntry]:
        """Return the files in a folder of this folder, by name."""
        return sorted((e for e in self.entries(folder) if not e.folder), key=lambda e: e.name)

    def sizes(self, folder: str) -> dict[str, int]:
        """Return {name: bytes} of the files in a folder of this folder, by name."""
        return {e.name: e.size for e in self.files_in(folder)}

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted."""
        return list(self.sizes(folder))

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder, sorted."""
        return sorted(e.name for e in self.entries(folder) if e.folder)


class Remote(Folder):
    """A folder of an object store: a write is one PUT, which is atomic there.

    patience: seconds for which a request that fails is made again, ``patience()`` by default.
    Every method raises StoreError when the store does not answer for so long, or refuses.
    """

    readers = 16  # many small reads take long one after the other

    def __init__(self, url: str, patience: float | None = None) -> None:
        import fsspec

        self.name, self.patience = url.rstrip("/"), patience
        protocol = url.split("://", 1)[0]
        try:
            self.filesystem, root = fsspec.core.url_to_fs(self.name, **_options(protocol))
        except (ImportError, ValueError) as error:
            extra = {"s3fs": "s3", "gcsfs": "gcs"}.get(DRIVERS.get(protocol, ""))
            driver = f"'raybench[{extra}]'" if extra else DRIVERS.get(protocol, "its fsspec driver")
            is_missing = isinstance(error, ImportError)
            fix = f"pip install {driver}" if is_missing else "s3://bucket/path or gs://bucket/path"
            raise InputError.of("out", f"cannot open {url}: {reason(error)}", fix) from error
        if hasattr(self.filesystem, "retries"):
            self.filesystem.retries = 1  # it is ours alone, by its options; waiting is told here
        self.root = root.rstrip("/")

    def prepare(self) -> None:
        """Do nothing: an object store has no folders."""

    def check(self) -> None:
        """Do nothing: an object store has no links."""

    def path(self, rel: str) -> str:
        """Return the object's name, without the scheme."""
        return f"{self.root}/{rel}" if rel else self.root

    def entries(self, folder: str) -> list[RemoteEntry]:
        self.filesystem.invalidate_cache()
        try:
            items: list[dict[str, Any]] = self._ask("ls", folder, detail=True)
        except FileNotFoundError:
            return []
        names = [item["name"].rstrip("/").rsplit("/", 1)[-1] for item in items]
        return [
            RemoteEntry(name, item["type"] != "file", item["size"] or 0, _when(item))
            for name, item in zip(names, items, strict=True)
        ]

    def has(self, bucket: str) -> bool:
        """Return whether the store has a bucket, True where it knows none."""
        is_kept = self.name.startswith(("s3://", "s3a://", "gs://", "gcs://"))
        return not is_kept or bool(self._ask("exists", "", path=bucket))

    def exists(self, rel: str = "") -> bool:
        return bool(self._ask("exists", rel))

    def read(self, rel: str) -> bytes | None:
        data: bytes | None = None
        with suppress(FileNotFoundError):
            data = self._ask("cat_file", rel)
        return data

    def write(self, rel: str, data: bytes) -> None:
        self._ask("pipe_file", rel, data)

    def create(self, rel: str, data: bytes) -> bool:
        """Write an object unless there is one of this name; return whether it is there with this content.

        On S3 that is a PUT with ``If-None-Match: *``, on Google's store one with ``ifGenerationMatch=0``, of
        which only one of several at once succeeds. The content must be the caller's alone: where the
        answer to a PUT was lost, it tells whether that PUT was ours. What a store does that knows no
        condition is up to the store; ``lock`` looks whether it does.
        """
        try:
            self._ask("pipe_file", rel, data, mode="create")
        except FileExistsError:
            return self.read(rel) == data
        except StoreError as error:
            if getattr(error.__cause__, "errno", None) != errno.ENOSYS:
                raise
            self.write(rel, data)  # a store that knows no condition, and says so
        return True

    def move(self, rel: str, to: str) -> None:
        """Give an object another name: a copy and a removal."""
        self._ask("cp_file", rel, self.path(to))
        self.remove(rel)

    def remove(self, rel: str) -> None:
        with suppress(FileNotFoundError):
            self._ask("rm_file", rel)

    def clear(self, folder: str) -> None:
        with suppress(FileNotFoundError):
            self._ask("rm", folder, recursive=True)

    def _ask(self, do: str, rel: str, *given: Any, path: str = "", **more: Any) -> Any:
        """Return what the driver's method ``do`` returns of a path, by default that of ``rel``."""
        where = f"{self.name}/{rel}" if rel else self.name
        ask = partial(getattr(self.filesystem, do), path or self.path(rel), *given, **more)
        try:
            return patiently(ask, where, self.patience)
        except (FileNotFoundError, FileExistsError, StoreError):
            raise
        except Exception as error:  # every driver has errors of its own: credentials, network, name
            what = f"the store refuses: {reason(error)}"
            raise StoreError(errno.EREMOTEIO, what, where) from error


def _options(protocol: str) -> dict[str, Any]:
    """Return how a driver is opened: nothing remembered, one request for a read, and no long silences.

    What the user's fsspec configuration says of ``config_kwargs`` holds.
    """
    import fsspec

    if protocol in ("gs", "gcs", "az", "abfs"):
        return {"use_listings_cache": False}
    if protocol not in ("s3", "s3a"):
        return {}
    config = {
        "connect_timeout": CONNECT,
        "read_timeout": ANSWER,
        "retries": {"total_max_attempts": 1},
        "max_pool_connections": 32,
    }
    settings = fsspec.config.conf.get(protocol, {}).get("config_kwargs", {})
    return {
        "use_listings_cache": False,
        "max_concurrency": 1,  # else it asks for the size before each read
        "config_kwargs": {**config, **settings},
    }


def _when(entry: Mapping[str, Any]) -> float:
    """Return when an object was written, which every driver tells in its own words and kinds; 0 where it does not."""
    names = ("LastModified", "mtime", "updated", "last_modified", "created")
    when = next((entry[name] for name in names if entry.get(name) is not None), 0.0)
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    return when.timestamp() if isinstance(when, datetime) else float(when)
