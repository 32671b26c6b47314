"""Whether a results folder can be reached at all, told before any work is done for it."""

from __future__ import annotations

import os

from raybench.core.errors import InputError
from raybench.store.files import Remote, open_folder

WITH_BUCKETS = ("s3://", "s3a://", "gs://", "gcs://")


def check_reachable(folder: str | os.PathLike[str], processes: bool = False) -> None:
    """Ask an object store whether it answers and has the bucket; local folders pass.

    processes: whether other processes than this one write there. Raises InputError with the reason.
    """
    text = os.fspath(folder)
    if "://" not in text or text.startswith("file://"):
        return
    if processes and text.startswith("memory://"):
        what = f"{text} is memory of this process, and Ray's workers are others"
        raise InputError.of("out", what, "--inline, or a folder on a disk or an object store")
    files = open_folder(text)
    assert isinstance(files, Remote)
    filesystem = files.filesystem
    bucket = text.split("://", 1)[1].split("/")[0]
    try:
        there = filesystem.exists(files.path("")) or not text.startswith(WITH_BUCKETS)
        there = there or filesystem.exists(bucket)
    except PermissionError:  # of the bucket as a whole; the folder itself may still be ours
        return
    except Exception as error:  # every driver has errors of its own: credentials, network, name
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        what = f"{text} does not answer: {said}"
        raise InputError.of("out", what, "check address, network and credentials") from error
    if not there:
        raise InputError.of("out", f"{text}: there is no bucket {bucket}", "make it, or correct it")
