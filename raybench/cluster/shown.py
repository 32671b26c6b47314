"""The progress of a sweep that runs elsewhere, in the same block as one that runs here."""

from __future__ import annotations

from typing import Any

from raybench.execution.execute import Progress
from raybench.runtime.progress import View


class Far:
    """A view that opens when the first progress comes."""

    def __init__(self) -> None:
        self.view: View | None = None

    def __enter__(self) -> Far:
        return self

    def __exit__(self, *error: Any) -> None:
        if self.view is not None:
            self.view.__exit__(None, None, None)

    def show(self, said: dict[str, Any], remark: str) -> None:
        """Show what the head told last: ``said`` is empty before it told anything."""
        if self.view is None:
            if not said:
                return
            self.view = View(said["name"], said["cells"], said["rounds"], said["before"])
            self.view.__enter__()
        if said:
            silent = said.get("silent", ())
            self.view.update(Progress(**said["now"]), remark or said["stage"], silent)
