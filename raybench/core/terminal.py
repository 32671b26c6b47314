"""What reaches a terminal: printable text alone, in whatever encoding it has, and nothing once nobody reads.

Labels, names of sweeps and data sets may come from a folder or a file of somebody else, and a terminal obeys
control characters. Light on import.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

UNREAD = 141  # exit code by the custom of shells: 128 and the number of SIGPIPE
# Those of ASCII and Latin-1 but tab and end of line, and those that turn the direction of writing.
CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return a text with its control characters written out, as ``\\x1b``."""
    return CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


class Printable:
    """A text stream through which printable text alone passes; ``through`` is the stream itself.

    last: what is written matters, so that the process leaves with 141 when nobody reads it any more.
    """

    def __init__(self, through: TextIO, last: bool) -> None:
        self.through, self._last = through, last

    def __getattr__(self, name: str) -> Any:
        return getattr(self.through, name)

    def write(self, text: str) -> int:
        """Write a text, with control characters written out."""
        with self.unread():
            self.through.write(printable(text))
        return len(text)

    def flush(self) -> None:
        """Hand over what was written."""
        with self.unread():
            self.through.flush()

    @contextlib.contextmanager
    def unread(self) -> Iterator[None]:
        """Turn to the null device, and leave if that matters, where nobody reads what is written."""
        try:
            yield
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.through.fileno())
            os.close(nowhere)
            if self._last:
                sys.exit(UNREAD)


@contextlib.contextmanager
def terminal() -> Iterator[None]:
    """Let printable text alone pass standard output and standard error within.

    A stream that was closed becomes the null device, so that no file which is opened takes its number. What a
    stream's encoding lacks is written out.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with contextlib.suppress(OSError):
                os.fstat(number)
                continue
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
    before = sys.stdout, sys.stderr
    for stream in before:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    out, err = Printable(sys.stdout, True), Printable(sys.stderr, False)
    sys.stdout, sys.stderr = out, err
    try:
        yield
    finally:
        try:
            err.flush()
            out.flush()
        finally:
            sys.stdout, sys.stderr = before


def console(*, stderr: bool = False, **settings: Any) -> Console:
    """Return a console of rich that styles printable text; arguments as those of ``rich.console.Console``."""
    from rich import console as plain
    from rich.segment import Segment

    stream = sys.stderr if stderr else sys.stdout

    class Console(plain.Console):
        def render(self, *given: Any, **named: Any) -> Iterator[Segment]:
            for part in super().render(*given, **named):
                yield part if part.control else part._replace(text=printable(part.text))

        def on_broken_pipe(self) -> None:
            if not isinstance(stream, Printable):
                raise BrokenPipeError
            with stream.unread():
                raise BrokenPipeError

    # codes of its own are for the terminal
    return Console(file=getattr(stream, "through", stream), **settings)
