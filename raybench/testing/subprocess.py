"""Another process: it has seen nothing of what this one did, and gets by with what it is handed."""

from __future__ import annotations

import io
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache

import torch
from torch import Tensor

from raybench.compressors import Message, unpack
from raybench.core import registry

FROM_FILES = "raybench_plugin_"  # how the modules of plug-in files are called


@cache
def process() -> ProcessPoolExecutor:
    """Return the other process, started when it is first asked for."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(
        1, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
    )


def close() -> None:
    """End the other process, if there is one; it ends by itself when this one does."""
    if process.cache_info().currsize:
        process().shutdown()
        process.cache_clear()


def files_of(message: Message) -> list[str] | None:
    """Return the plug-in files that define a message's kinds; None if another process has no file of one."""
    modules = {kind.__module__ for kind in kinds_of(message)}
    theirs = {name for name in modules if not name.startswith("raybench.")}
    if not all(name.startswith(FROM_FILES) for name in theirs):
        return None
    return sorted(str(sys.modules[name].__file__) for name in theirs)


def kinds_of(message: Message) -> Iterator[type[Message]]:
    """Yield the types of a message and of all its parts."""
    yield type(message)
    for value in vars(message).values():
        for part in value if isinstance(value, list | tuple) else [value]:
            if isinstance(part, Message):
                yield from kinds_of(part)


def decoded(packed: Sequence[bytes], files: Sequence[str]) -> list[Tensor]:
    """Return what the other process, which loads these plug-in files, decodes packed messages to."""
    data = process().submit(_decode, list(packed), list(files)).result()
    return torch.load(io.BytesIO(data), weights_only=True)


def _decode(packed: list[bytes], files: list[str]) -> bytes:
    for file in files:
        registry.load_plugin(file)
    out = io.BytesIO()
    torch.save([unpack(data).decode() for data in packed], out)
    return out.getvalue()
