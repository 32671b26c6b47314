"""The forms a sheet is written in: plain text, Markdown, CSV, and LaTeX for booktabs and siunitx."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import pandas as pd
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from raybench.core.errors import InputError, nearest
from raybench.report.sheet import Sheet, SheetColumn

PLAIN_WIDTH, NOTES_WIDTH = 160, 120
GAP = 2  # blanks between columns
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a cell that is computed begins with

_TEX = {
    "\\": r"\textbackslash{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "‖": r"$\|$",
    "∇": r"$\nabla$",
    "²": r"$^2$",
    "×": r"$\times$",
    "÷": r"$\div$",
    "∞": r"$\infty$",
    "−": r"$-$",
    "–": "--",
    "·": r"$\cdot$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "≤": r"$\le$",
    "ω": r"$\omega$",
    "µ": r"$\mu$",
    "\u00a0": "~",
    "\n": " ",
}
HEAD = """\
% In the preamble: \\usepackage{booktabs,siunitx}
\\begingroup
\\sisetup{detect-weight}
"""


def check_form(form: str) -> str:
    """Return the name of a form. Raises InputError for an unknown one."""
    if form not in FORMS:
        raise InputError.of("format", f"unknown {form!r}", nearest(form, FORMS))
    return form


def written(sheet: Sheet, form: str) -> str:
    """Return a sheet as text in one of ``FORMS``; ``terminal`` is ``plain``. Raises InputError for another."""
    return FORMS[check_form(form)](sheet)


def plain(sheet: Sheet) -> str:
    """Return a sheet as it stands on a wide terminal."""
    out = io.StringIO()
    Console(file=out, width=PLAIN_WIDTH, no_color=True).print(FittedSheet(sheet))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def markdown(sheet: Sheet) -> str:
    """Return a sheet as a Markdown table with its notes below, the best of each column in bold."""
    columns = []
    for field in sheet.fields:
        texts = [text.replace("|", "\\|") for text in field.texts]
        marked = [
            f"**{t}**" if best else t for t, best in zip(texts, sheet.best(field), strict=True)
        ]
        columns.append([field.head, "---" if field.left else "---:", *marked])
    text = "\n".join(f"| {' | '.join(row)} |" for row in zip(*columns, strict=True))
    return f"{text}\n\n" + "  \n".join(sheet.notes) + "\n"


def csv(sheet: Sheet) -> str:
    """Return the frame behind a sheet: raw numbers, in bits and seconds."""
    return separated(sheet.data)


def separated(frame: pd.DataFrame) -> str:
    """Return a frame as CSV. A text that a spreadsheet would take for a formula gets a quote before it."""
    text: str = frame.map(_unarmed).to_csv(index=False)
    return text


def _unarmed(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def latex(sheet: Sheet) -> str:
    r"""Return a sheet as a ``tabular`` for booktabs and siunitx, the best of each column in bold.

    Columns of numbers are siunitx's S columns, in one unit each, which their head names; an interval is a column of its
    own. Notes follow as comments. Every text is escaped.
    """
    columns = [column for field in sheet.fields for column in _tex(field, sheet.best(field))]
    frame = pd.DataFrame({head: cells for head, _, cells, _ in columns})
    marks = pd.DataFrame({head: best for head, _, _, best in columns})
    style = frame.style.hide(axis="index")
    style = style.apply(lambda _: marks.map(lambda b: "bfseries:;" if b else ""), axis=None)
    formats = "".join(kind for _, kind, _, _ in columns)
    lines = style.to_latex(column_format=f"@{{}}{formats}@{{}}", hrules=True).splitlines()
    for i, (before, after) in reversed([*enumerate(pairwise(sheet.sections), 1)]):
        if before != after:
            lines.insert(4 + i, "\\addlinespace")  # below the rules and the heads
    notes = [f"% {line}" for note in sheet.notes for line in note.splitlines()]
    return HEAD + "\n".join([*lines, "\\endgroup", *notes]) + "\n"


def escaped(text: str) -> str:
    """Return a text as LaTeX prints it."""
    return "".join(_TEX.get(c, c) for c in text)


def _tex(
    field: SheetColumn, best: Sequence[bool]
) -> list[tuple[str, str, list[str], Sequence[bool]]]:
    """Return (head, format, cells, which are bold) of the LaTeX columns that a column becomes."""
    finite = sorted(v for v in map(float, field.numbers) if math.isfinite(v))
    if not finite:
        kind = "l" if field.left else "r"
        return [(escaped(field.head), kind, [*map(escaped, field.texts)], best)]
    size, name = field.unit(finite[len(finite) // 2]) if field.unit else (1.0, "")
    head = f"{{{escaped(f'{field.head} ({name})' if name else field.head)}}}"
    cells = [
        _number(v / size, field.digits) or f"{{{escaped(text.partition(' [')[0])}}}"
        for v, text in zip(field.numbers, field.texts, strict=True)
    ]
    columns = [(head, "S", cells, best)]
    if any(low == low for low in field.low):
        ends = zip(field.low, field.high, strict=True)
        spans = [[_number(v / size, 3) or r"$\infty$" for v in pair] for pair in ends]
        cells = ["" if low != low else f"[{', '.join(s)}]" for low, s in zip(field.low, spans)]
        columns.append(("Interval", "r", cells, [False] * len(cells)))
    return columns


def _number(value: float, digits: int) -> str:
    """Return a finite number with so many digits, large ones with all before the point; else nothing."""
    if not math.isfinite(value):
        return ""
    whole = 10**digits <= abs(value) < 10 ** (digits + 3)
    return f"{value:.0f}" if whole else f"{value:.{digits}g}"


# -- on a terminal -------------------------------------------------------------------------------


class FittedSheet:
    """A sheet on a terminal of any width: one column wraps, and where that is not enough each row becomes a block of lines.

    rich would shorten what does not fit with an ellipsis, and drop what has no room at all; a table that has lost
    its units is worse than a long one.
    """

    is_wide = True

    def __init__(self, sheet: Sheet) -> None:
        self.sheet = sheet

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for stacked in (False, True):
            table, least = self._table(console, stacked)
            if least <= options.max_width:
                yield table
                break
        else:
            yield from self._blocks(options.max_width)
        if self.sheet.notes:
            text = Text("\n".join(self.sheet.notes), style="dim italic")
            yield Constrain(text, min(options.max_width, NOTES_WIDTH))

    def _table(self, console: Console, stacked: bool) -> tuple[Table, int]:
        """Return the table and its least width: the widest column of words wraps.

        stacked: whether heads are no wider than what stands below them.
        """
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        fields, least = self.sheet.fields, 2
        widths = [max(map(cell_len, field.texts), default=0) for field in fields]
        widest = max((w for w, field in zip(widths, fields) if field.left), default=0)
        for field, width in zip(fields, widths, strict=True):
            wraps = field.left and width == widest
            words = (
                [word for text in field.texts for word in text.split()] if wraps else field.texts
            )
            narrow = max(map(cell_len, [*words, *field.head.split()]), default=0)
            lines = Text(field.head).wrap(console, narrow) if stacked else [Text(field.head)]
            head = "\n".join(line.plain.rstrip() for line in lines)
            table.add_column(head, justify="left" if field.left else "right", no_wrap=not wraps)
            least += max(narrow, *(line.cell_len for line in lines)) + GAP
        least -= GAP
        bold = [self.sheet.best(field) for field in self.sheet.fields]
        sections = [*self.sheet.sections, None]
        for i, row in enumerate(self.sheet.rows):
            texts = [Text(text, "bold" if best[i] else "") for text, best in zip(row, bold)]
            table.add_row(*texts, end_section=sections[i + 1] not in (sections[i], None))
        return table, least

    def _blocks(self, width: int) -> RenderResult:
        """Yield a line of each row's words, and below it its numbers after their heads, as many on a line as fit."""
        fields = self.sheet.fields
        best = [self.sheet.best(f) for f in fields]
        yield Text()
        for i, row in enumerate(self.sheet.rows):
            words = [text for f, text in zip(fields, row, strict=True) if f.left and text]
            yield Text("  ".join(words), style="bold")
            line = Text()
            for field, text, marks in zip(fields, row, best, strict=True):
                if field.left or text in ("", "–"):
                    continue
                part = Text(f"  {field.head} ", style="dim")
                part.append(text, style="bold" if marks[i] else "not dim")
                if line and line.cell_len + part.cell_len > width:
                    yield line
                    line = Text()
                line.append_text(part)
            yield line
        yield Text()


FORMS: dict[str, Callable[[Sheet], str]] = {
    "terminal": plain,
    "plain": plain,
    "markdown": markdown,
    "csv": csv,
    "latex": latex,
}
