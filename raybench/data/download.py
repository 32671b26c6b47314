"""Fetching a file from the network, with a progress bar."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from raybench.core import terminal

if TYPE_CHECKING:
    from rich.progress import Progress

SECONDS = 30  # without an answer


def download(url: str, target: Path, name: str, checksum: str | None = None) -> Path:
    """Fetch ``url`` to ``target``, which appears by an atomic rename; return ``target``.

    name: what the bar calls it. A file that is there with the right checksum is left alone. Raises
    OSError (requests' errors are) or ValueError where it cannot be fetched or has another checksum.
    """
    import pooch

    bar = Bar(name)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        pooch.get_logger().setLevel("WARNING")
        downloader = pooch.HTTPDownloader(progressbar=bar, timeout=SECONDS)
        pooch.retrieve(url, checksum, fname=target.name, path=target.parent, downloader=downloader)
    finally:
        bar.close()
    return target


class Bar:
    """The progress bar that pooch drives, drawn on standard error by rich."""

    def __init__(self, name: str) -> None:
        self.name, self.total = name, 0
        self._progress: Progress | None = None

    def update(self, done: int) -> None:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

        if self._progress is None:
            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
            self._progress = Progress(*columns, console=terminal.console(stderr=True))
            self._task = self._progress.add_task(
                f"downloading {self.name}", total=self.total or None
            )
            self._progress.start()
        self._progress.update(self._task, advance=done)

    def reset(self) -> None:
        if self._progress is not None:
            self._progress.reset(self._task)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
