"""Sweep files: YAML to requested cells with content ids. Reads no data and needs no torch.

What is named here is loaded when it is first asked for, so that a module which only reads short forms
(``raybench.spec.sections``) does not load what reading a whole file takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raybench.core import fetching

if TYPE_CHECKING:
    from raybench.spec.cells import Cell, Sweep
    from raybench.spec.document import json_schema
    from raybench.spec.grid import load
    from raybench.spec.model import Section, StepSize

_WHERE = {
    "Cell": "cells",
    "Section": "model",
    "StepSize": "model",
    "Sweep": "cells",
    "json_schema": "document",
    "load": "grid",
}

__all__ = ["Cell", "Section", "StepSize", "Sweep", "json_schema", "load"]

__getattr__ = fetching(__name__, _WHERE)
