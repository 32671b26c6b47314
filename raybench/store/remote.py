"""A folder of an object store, through fsspec: whole objects, each written by one PUT, asked for with patience."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

import fsspec

from raybench.core.errors import InputError, StoreError
from raybench.store.patience import patiently, reason

Mark = tuple[object, ...]
"""What tells one content of a file from the next without reading it: its bytes, then what changes with each
write. Of bytes alone nothing can be told."""

T = TypeVar("T")
ANSWER = 30  # seconds after which a connection that gives no byte is given up, and tried again
CONNECT = 5
DRIVERS = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
}


class Remote:
    """A folder of an object store: a write is one PUT, which is atomic there.

    patience: seconds for which a request that fails is made again, ``patience.patience()`` by default.
    Every method raises StoreError when the store does not answer for so long, or refuses.
    """

    readers = 16  # many small reads take long one after the other

    def __init__(self, url: str, patience: float | None = None) -> None:
        self.name, self.patience = url.rstrip("/"), patience
        protocol = url.split("://", 1)[0]
        try:
            self.filesystem, root = fsspec.core.url_to_fs(self.name, **_options(protocol))
        except (ImportError, ValueError) as error:
            extra = {"s3fs": "s3", "gcsfs": "gcs"}.get(DRIVERS.get(protocol, ""))
            driver = f"'raybench[{extra}]'" if extra else DRIVERS.get(protocol, "its fsspec driver")
            known = isinstance(error, ImportError)
            fix = f"pip install {driver}" if known else "s3://bucket/path or gs://bucket/path"
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

    def marks(self, folder: str) -> dict[str, Mark]:
        """Return {name: mark} of the files in a folder of this folder, by name."""
        return {e["name"].rsplit("/", 1)[-1]: _mark(e) for e in self._files(folder)}

    def sizes(self, folder: str) -> dict[str, int]:
        """Return {name: bytes} of the files in a folder of this folder, by name."""
        return {name: int(str(mark[0])) for name, mark in self.marks(folder).items()}

    def changed(self, folder: str) -> dict[str, float]:
        """Return {name: when it was written, in seconds since 1970} of the files in a folder."""
        return {e["name"].rsplit("/", 1)[-1]: _when(e) for e in self._files(folder)}

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted."""
        return list(self.sizes(folder))

    def folders(self, folder: str) -> list[str]:
        """Return the first parts of what names go on with after that of a folder, sorted."""
        found = self._listed(folder)
        names = {e["name"].rstrip("/").rsplit("/", 1)[-1] for e in found if e["type"] != "file"}
        return sorted(names)

    def has(self, bucket: str) -> bool:
        """Return whether the store has a bucket."""
        return bool(self._ask("", lambda: self.filesystem.exists(bucket)))

    def exists(self, rel: str = "") -> bool:
        """Return whether there is such an object, or any below that name."""
        return bool(self._ask(rel, lambda: self.filesystem.exists(self.path(rel))))

    def read(self, rel: str) -> bytes | None:
        """Return an object's content, None where there is none."""
        try:
            found: bytes = self._ask(rel, lambda: self.filesystem.cat_file(self.path(rel)))
        except FileNotFoundError:
            return None
        return found

    def write(self, rel: str, data: bytes) -> None:
        """Write an object, in place of one of the same name."""
        self._ask(rel, lambda: self.filesystem.pipe_file(self.path(rel), data))

    def create(self, rel: str, data: bytes) -> bool:
        """Write an object unless there is one of this name; return whether it is there with this content.

        On S3 that is a PUT with ``If-None-Match: *``, on Google's store one with ``ifGenerationMatch=0``, of
        which only one of several at once succeeds. The content must be the caller's alone: where the
        answer to a PUT was lost, it tells whether that PUT was ours. What a store does that knows no
        condition is up to the store; ``lock`` looks whether it does.
        """
        try:
            self._ask(rel, lambda: self.filesystem.pipe_file(self.path(rel), data, mode="create"))
        except FileExistsError:
            return self.read(rel) == data
        except StoreError as error:
            if getattr(error.__cause__, "errno", None) != errno.ENOSYS:
                raise
            self.write(rel, data)  # a store that knows no condition, and says so
        return True

    def move(self, rel: str, to: str) -> None:
        """Give an object another name: a copy and a removal."""
        self._ask(rel, lambda: self.filesystem.cp_file(self.path(rel), self.path(to)))
        self.remove(rel)

    def remove(self, rel: str) -> None:
        """Remove an object if it is there."""
        try:
            self._ask(rel, lambda: self.filesystem.rm_file(self.path(rel)))
        except FileNotFoundError:
            return

    def clear(self, folder: str) -> None:
        """Remove all objects whose names begin with that of a folder."""
        try:
            self._ask(folder, lambda: self.filesystem.rm(self.path(folder), recursive=True))
        except FileNotFoundError:
            return

    def _files(self, folder: str) -> list[dict[str, Any]]:
        found = [e for e in self._listed(folder) if e["type"] == "file"]
        return sorted(found, key=lambda e: str(e["name"]))

    def _listed(self, folder: str) -> list[dict[str, Any]]:
        self.filesystem.invalidate_cache()
        try:
            found: list[dict[str, Any]] = self._ask(
                folder, lambda: self.filesystem.ls(self.path(folder), detail=True)
            )
        except FileNotFoundError:
            return []
        return found

    def _ask(self, rel: str, ask: Callable[[], T]) -> T:
        where = f"{self.name}/{rel}" if rel else self.name
        try:
            return patiently(ask, where, self.patience)
        except (FileNotFoundError, FileExistsError, StoreError):
            raise
        except Exception as error:  # every driver has errors of its own: credentials, network, name
            raise StoreError(
                errno.EREMOTEIO, f"the store refuses: {reason(error)}", where
            ) from error


def _options(protocol: str) -> dict[str, Any]:
    """Return how a driver is opened: nothing remembered, one request for a read, and no long silences.

    What the user's fsspec configuration says of ``config_kwargs`` holds.
    """
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
    given = fsspec.config.conf.get(protocol, {}).get("config_kwargs", {})
    return {
        "use_listings_cache": False,
        "max_concurrency": 1,  # else it asks for the size before each read
        "config_kwargs": {**config, **given},
    }


def _mark(entry: Mapping[str, object]) -> Mark:
    """Return the mark of an object as a listing tells of it; its bytes alone tell no change."""
    tags = (entry.get("ETag"), entry.get("etag"), entry.get("LastModified"), entry.get("mtime"))
    return entry["size"] or 0, *(str(tag) for tag in tags if tag is not None)


def _when(entry: dict[str, Any]) -> float:
    for name in ("LastModified", "mtime", "updated", "last_modified", "created"):
        found = entry.get(name)
        if isinstance(found, datetime):
            return found.timestamp()
        if isinstance(found, int | float):
            return float(found)
        if isinstance(found, str):
            return datetime.fromisoformat(found.replace("Z", "+00:00")).timestamp()
    return 0.0
