"""How a command leaves: its exit code, and what it says of what went wrong."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from raybench.cli.shared import complain, note
from raybench.core import endings
from raybench.core.errors import InputError, Notice, SweepStopped


@contextmanager
def leaving() -> Iterator[None]:
    """Tell of what goes wrong within and leave with the exit code of a command.

    0: all went well; 1: some cells or checks failed, or the disk is full; 2: the input is wrong;
    130: interrupted by Ctrl-C; 143: by SIGTERM.
    """
    try:
        with _notices_as_notes(), _store_trouble_told():
            yield
    except InputError as error:
        complain(error.shown())
        sys.exit(2)
    except SweepStopped as error:
        complain([str(error)])
        sys.exit(1)
    except OSError as error:  # such as a folder that cannot be written, or a full disk
        trouble = endings.disk_trouble(error)
        if trouble is None and error.filename is None:
            raise
        complain([trouble or f"{os.fspath(error.filename)!s}: {error.strerror}"])
        sys.exit(1 if trouble else 2)
    except MemoryError as error:
        complain([f"out of memory: {str(error).rstrip('.') or 'there is not enough'}"])
        sys.exit(1)
    except KeyboardInterrupt as stop:
        complain(["interrupted"])
        sys.exit(endings.exit_code(stop))


@contextmanager
def _store_trouble_told() -> Iterator[None]:
    """Say that an object store failed at something that is tried again, now and then."""
    from raybench.store.remote import heard

    said = [-10.0]

    def tell(text: str) -> None:
        if time.monotonic() - said[0] > 10.0:
            said[0] = time.monotonic()
            note(text)

    with heard(tell):
        yield


@contextmanager
def _notices_as_notes() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("once", Notice)
        shown = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, Notice):
                note(str(message))
            else:
                shown(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield
