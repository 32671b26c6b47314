"""The forms a sheet is written in: plain text, Markdown, CSV, and LaTeX for booktabs and siunitx."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence

import pandas as pd
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from raybench.core.errors import InputError, nearest
from raybench.report.sheet import Field, Sheet

FORMS = ("terminal", "plain", "markdown", "csv", "latex")
PLAIN_WIDTH = 160
GAP = 2  # blanks between columns
FIRM = "\u00a0"  # a blank at which no line is broken
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


def check(form: str) -> str:
    """Return the name of a form, of an older name today's. Raises InputError for an unknown one."""
    if form == "rich":
        return "terminal"
    if form not in FORMS:
        raise InputError.of("format", f"unknown {form!r}", nearest(form, FORMS))
    return form


def written(sheet: Sheet, form: str) -> str:
    """Return a sheet as text in one of ``FORMS``; ``terminal`` is ``plain``. Raises InputError for another."""
    return _WRITERS[check(form)](sheet)


def plain(sheet: Sheet) -> str:
    """Return a sheet as it stands on a wide terminal."""
    out = io.StringIO()
    Console(file=out, width=PLAIN_WIDTH, no_color=True).print(Fitted(sheet))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def markdown(sheet: Sheet) -> str:
    """Return a sheet as a Markdown table with its notes below, the best of each column in bold."""
    columns = []
    for one in sheet.fields:
        texts = [text.replace("|", "\\|") for text in one.texts]
        marked = [f"**{t}**" if best else t for t, best in zip(texts, sheet.best(one), strict=True)]
        columns.append([one.head, "---" if one.left else "---:", *marked])
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

    Columns of numbers are siunitx's S columns, in one unit each, which their head names; an interval is a column of its own.
    Notes follow as comments. Every text is escaped.
    """
    parts = [part for one in sheet.fields for part in _tex(one, sheet.best(one))]
    lines = [
        HEAD + "\\begin{tabular}{@{}" + "".join(spec for spec, _ in parts) + "@{}}",
        "\\toprule",
    ]
    rows = list(zip(*(cells for _, cells in parts), strict=True))
    before = None
    for i, row in enumerate(rows):
        if i == 1 or (i > 1 and sheet.sections[i - 1] != before):
            lines.append("\\midrule" if i == 1 else "\\addlinespace")
        before = sheet.sections[i - 1] if i else None
        lines.append(" & ".join(row) + r" \\")
    lines += ["\\bottomrule", "\\end{tabular}", "\\endgroup"]
    notes = [f"% {line}" for note in sheet.notes for line in note.splitlines()]
    return "\n".join([*lines, *notes]) + "\n"


def escaped(text: str) -> str:
    """Return a text as LaTeX prints it."""
    return "".join(_TEX.get(c, c) for c in text)


def _tex(one: Field, best: Sequence[bool]) -> list[tuple[str, list[str]]]:
    """Return (specification, head and cells) of the LaTeX columns that a column becomes."""
    numbers = [float(v) for v in one.numbers]
    if not any(map(math.isfinite, numbers)):
        bold = [f"\\textbf{{{escaped(t)}}}" if b else escaped(t) for t, b in zip(one.texts, best)]
        return [("l" if one.left else "r", [escaped(one.head), *bold])]
    finite = sorted(v for v in numbers if math.isfinite(v))
    size, name = one.unit(finite[len(finite) // 2]) if one.unit else (1.0, "")
    head = f"{one.head} ({name})" if name else one.head
    cells = _numbers([v / size for v in numbers], one.digits)
    shown = [_marked(cell, text, b) for cell, text, b in zip(cells, one.texts, best, strict=True)]
    found = [(f"S[table-format={_format(cells)}]", [f"{{{escaped(head)}}}", *shown])]
    ends = list(zip(one.low, one.high, strict=True))
    if any(low == low for low, _ in ends):
        said = [
            "" if low != low or math.isinf(low) else f"[{_num(low / size)}, {_num(high / size)}]"
            for low, high in ends
        ]
        found.append(("r", ["Interval", *said]))
    return found


def _marked(cell: str, text: str, best: bool) -> str:
    """Return a cell of an S column: a number, bold if it is the best, or a text in braces."""
    if cell:
        return f"\\bfseries {cell}" if best else cell
    return f"{{{escaped(text.partition(' [')[0])}}}"


def _num(value: float) -> str:
    return r"$\infty$" if math.isinf(value) else f"\\num{{{_number(value, 3)}}}"


def _numbers(values: Sequence[float], digits: int) -> list[str]:
    """Return ``_number`` of each value, all with an exponent if one needs it, so that they stand below each other."""
    cells = [_number(v, digits) for v in values]
    if not any("e" in cell for cell in cells):
        return cells
    powers = [f"{v:.{digits - 1}e}" if cell else "" for v, cell in zip(values, cells, strict=True)]
    split = [power.partition("e") for power in powers]
    return [f"{mantissa}e{int(power)}" if e else "" for mantissa, e, power in split]


def _number(value: float, digits: int) -> str:
    """Return a finite number with so many digits, large ones with all before the point; else nothing."""
    if not math.isfinite(value):
        return ""
    whole = 10**digits <= abs(value) < 10 ** (digits + 3)
    text = f"{value:.0f}" if whole else f"{value:.{digits}g}"
    mantissa, e, power = text.partition("e")
    return f"{mantissa}e{int(power)}" if e else text


def _format(cells: Sequence[str]) -> str:
    """Return siunitx's ``table-format`` that has room for all numbers: ``-3.2e-1`` for 3 digits, 2 more, an exponent."""
    whole = part = power = 0
    sign = less = ""
    for cell in filter(None, cells):
        mantissa, _, exponent = cell.partition("e")
        sign = "-" if mantissa.startswith("-") else sign
        before, _, after = mantissa.removeprefix("-").partition(".")
        whole, part = max(whole, len(before)), max(part, len(after))
        less = "-" if exponent.startswith("-") else less
        power = max(power, len(exponent.removeprefix("-")))
    return f"{sign}{whole}" + f".{part}" * bool(part) + f"e{less}{power}" * bool(power)


# -- on a terminal -------------------------------------------------------------------------------


class Fitted:
    """A sheet on a terminal of any width: words wrap, and where they cannot, each row becomes a block of lines.

    rich would shorten what does not fit with an ellipsis, and drop what has no room at all; a table that has lost
    its units is worse than a long one. head, rows: its texts, for those who print it otherwise.
    """

    def __init__(self, sheet: Sheet) -> None:
        self.sheet = sheet
        self.head = [f.head for f in sheet.fields]
        self.rows = sheet.rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print it as a table if its columns can be made narrow enough, else row by row."""
        fields = self.sheet.fields
        columns = [[f.head, *(f.texts if f.left else map(_firm, f.texts))] for f in fields]
        widths = narrowed(columns, options.max_width - GAP * (len(columns) - 1) - 2)
        if widths is None:
            yield from self._blocks(options.max_width)
        else:
            yield self._table(columns, widths)
        if self.sheet.notes:
            yield Text("\n".join(self.sheet.notes), style="dim italic")

    def _table(self, columns: Sequence[Sequence[str]], widths: Sequence[int]) -> Table:
        out = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        bold = [self.sheet.best(f) for f in self.sheet.fields]
        for one, (head, *_), width in zip(self.sheet.fields, columns, widths, strict=True):
            out.add_column(
                _wrapped(head, width), justify="left" if one.left else "right", no_wrap=True
            )
        sections = self.sheet.sections
        for i, section in enumerate(sections):
            texts = [
                Text(
                    _wrapped(column[i + 1], width).replace(FIRM, " "),
                    style="bold" if best[i] else "",
                )
                for column, width, best in zip(columns, widths, bold, strict=True)
            ]
            ends = i + 1 < len(sections) and sections[i + 1] != section
            out.add_row(*texts, end_section=ends)
        return out

    def _blocks(self, width: int) -> RenderResult:
        """Yield a line of each row's words, and below it its numbers after their heads, as many on a line as fit."""
        fields = self.sheet.fields
        best = [self.sheet.best(f) for f in fields]
        yield Text()
        for i, row in enumerate(self.rows):
            words = [text for f, text in zip(fields, row, strict=True) if f.left and text]
            yield Text("  ".join(words), style="bold")
            line = Text()
            for one, text, marks in zip(fields, row, best, strict=True):
                if one.left or text in ("", "–"):
                    continue
                part = Text(f"  {one.head} ", style="dim")
                part.append(text, style="bold" if marks[i] else "not dim")
                if line and line.cell_len + part.cell_len > width:
                    yield line
                    line = Text()
                line.append_text(part)
            yield line
        yield Text()


def narrowed(columns: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Return widths of columns of texts that add up to no more than ``width``; None where there are none.

    Lines break at blanks only. First are those columns made narrower of which only the head breaks, then the widest.
    """
    widths = [max(_width(text) for text in column) for column in columns]
    least = [
        max(_width(w) for text in column for w in [*text.split(" "), ""]) for column in columns
    ]
    while sum(widths) > width:
        soft = [j for j in range(len(columns)) if widths[j] > least[j]]
        if not soft:
            return None
        heads = [j for j in soft if all(_width(text) < widths[j] for text in columns[j][1:])]
        j = max(heads or soft, key=lambda j: widths[j])
        lines = [_width(_wrapped(text, widths[j] - 1)) for text in columns[j]]
        widths[j] = max(lines)
    return widths


def _firm(text: str) -> str:
    """Return a text that breaks neither between a number and its unit nor inside of an interval."""
    before, bracket, interval = text.partition(" [")
    if bracket:
        return f"{before.replace(' ', FIRM)} [{interval.replace(' ', FIRM)}"
    return text.replace(" ", FIRM)


def _width(text: str) -> int:
    return max((cell_len(line) for line in text.split("\n")), default=0)


def _wrapped(text: str, width: int) -> str:
    """Return a text in lines of this many cells of a terminal, of which a letter may take two; words stay whole."""
    # by blanks alone: str.split and textwrap take a firm one for a blank, and textwrap counts letters
    lines: list[str] = []
    for word in filter(None, text.split(" ")):
        if lines and cell_len(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "\n".join(lines)


_WRITERS: dict[str, Callable[[Sheet], str]] = {
    "terminal": plain,
    "plain": plain,
    "markdown": markdown,
    "csv": csv,
    "latex": latex,
}
