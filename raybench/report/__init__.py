"""Reports: the closing table, figures as PNG, PDF and CSV, one self-contained HTML file.

Light on import: matplotlib and plotly are imported by the function that draws with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raybench.core import fetching

if TYPE_CHECKING:
    from raybench.report.page import html
    from raybench.report.plots import figures
    from raybench.report.tables import render, table

_WHERE = {
    "figures": "plots",
    "html": "page",
    "render": "tables",
    "table": "tables",
}
__all__ = ["figures", "html", "render", "table"]

__getattr__ = fetching(__name__, _WHERE)
