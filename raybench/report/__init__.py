"""Reports: the closing table, figures as PNG, PDF and CSV, one self-contained HTML file.

Light on import: matplotlib and plotly are imported by the function that draws with them.
"""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {
    "default_out": "content",
    "figures": "plots",
    "html": "page",
    "render": "tables",
    "table": "tables",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'raybench.report' has no attribute {name!r}")
    return getattr(importlib.import_module(f"raybench.report.{_WHERE[name]}"), name)
