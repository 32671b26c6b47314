"""What several verbs share: options, the console, the look of tables. Light on import."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from raybench.core import terminal
from raybench.core.errors import InputError, Notice, count, nearest
from raybench.core.facts import Role
from raybench.core.process import ending

if TYPE_CHECKING:
    from rich.console import JustifyMethod
    from rich.table import Table

    from raybench.analysis import Frames
    from raybench.execution.checks import Skipped
    from raybench.report.sheet import Sheet
    from raybench.spec import Sweep


Reader = Callable[..., "Frames"]
"""What opens a results folder as the options of a verb say: see ``reading``."""
RESULTS_FOLDER = Path("results")
WIDEST_TEXT, WIDEST_TEXT_IN_A_PIPE = 110, 120
WIDTH_IN_A_PIPE = 160  # of tables of results
MOST_TEXTS = 3  # why cells are skipped, of a kind of reason, the commonest first

File = Annotated[
    str, Argument(metavar="FILE", help="A sweep file, or the name of a shipped sweep.")
]
Folder = Annotated[str, Argument(metavar="DIR", help="A results folder.")]
Out = Annotated[
    str | None, Option("--out", metavar="DIR", help="Results folder. [default: results/NAME]")
]
Sets = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Override a key: problem.clients=50. Repeat."),
]


def load_plugins(context: Context, files: list[str] | None) -> list[str] | None:
    """Register the plug-ins of files as the option is read. Raises InputError for a file that is none."""
    from raybench.core import registry

    for file in () if context.resilient_parsing else files or ():  # completion loads nothing
        registry.load_plugin(file)
    return files


Plugins = Annotated[
    list[str] | None,
    Option(
        "--plugin",
        metavar="FILE",
        help="A Python file with plug-ins. Repeat.",
        callback=load_plugins,
    ),
]
Target = Annotated[
    str | None,
    Option(
        metavar="VALUE",
        help="Count the bits, or seconds, to this value; auto: one from what the folder holds now. "
        "[default: as fixed when the sweep first ended]",
    ),
]
All = Annotated[
    bool,
    Option(
        "--all", help="Show every cell of the folder, not those alone that its sweep.yaml plans."
    ),
]


USUAL_PROBLEM = "logistic:dataset=breast_cancer,scale=columns,clients=10"

ProblemFlag = Annotated[
    str | None,
    Option(metavar="NAME[:KEY=VALUE,...]", help=f"The problem. [default: {USUAL_PROBLEM}]"),
]
DatasetFlag = Annotated[
    str | None, Option(metavar="NAME|PATH", help="Its data set; raybench ls datasets.")
]
ClientsFlag = Annotated[int | None, Option(metavar="N", help="How many clients share it.")]
CompressorFlag = Annotated[
    str | None,
    Option(
        metavar="NAME[:KEY=VALUE,...]",
        help=f"The compressor. [default: {' or '.join(sorted({r.usual_form for r in Role}))}]",
    ),
]
DownlinkFlag = Annotated[
    str | None, Option(metavar="NAME[:KEY=VALUE,...]", help="The server's compressor.")
]


HowFlag = Annotated[
    str | None,
    Option(
        "--accounting",
        metavar="HOW",
        help="Book bits anew: paper:ef21, paper:marina, paper:3pc, or settings such as value_bits=32,"
        "index_bits=none (auto, list_or_bitmask, explicit, bitmask, entropy, none).",
    ),
]


def reading_options(
    accounting: HowFlag = None,
    link: Annotated[
        str | None,
        Option(
            metavar="NETWORK",
            help="Simulate seconds on a network: a link, maybe its latency, and ring, tree, server, gather, two_shot or "
            "hierarchical: 1Gbit,ring or 100Mbit,20ms,server. docs/links.md",
        ),
    ] = None,
    clock: Annotated[
        str | None,
        Option(
            metavar="FILE|{..}",
            help="Time a sweep of synchronous methods on simulated clients: a YAML file, or '{compute: {power: 1}}'. "
            "docs/clock.md",
        ),
    ] = None,
    target: Target = None,
    tuning_seeds: Annotated[
        str | None,
        Option(
            metavar="0,1",
            help="Choose K and steps on these seeds, and report the results of the others.",
        ),
    ] = None,
    cost: Annotated[
        str | None,
        Option(
            metavar="COLUMN", help="What the target is paid in: clock, round, ... [default: bits]"
        ),
    ] = None,
    methods: Annotated[str | None, Option(metavar="A,B", help="Of these methods alone.")] = None,
    every: All = False,
) -> Reader:
    """Return what opens a results folder as these options say. Raises InputError for a wrong one."""
    value = goal(target)
    try:
        seeds = [] if tuning_seeds is None else [int(part) for part in tuning_seeds.split(",")]
    except ValueError:
        what = f"{tuning_seeds!r} is no list of seeds"
        raise InputError.of("--tuning-seeds", what, "such as 0,1") from None

    timed = None if clock is None else typed_clock(clock)

    def open_folder(folder: str) -> Frames:
        from raybench.report.content import open_frames

        some = names_in(methods)
        return open_frames(folder, accounting, link, value, seeds, every, timed, cost, some)

    return open_folder


def names_in(text: str | None) -> list[str]:
    """Return the names that commas part, but for those in brackets: ``GD, EF21 Top-K (init=zero, p=0.1)`` has two."""
    return [name.strip() for name in re.split(r",(?![^()]*\))", text)] if text else []


def typed_clock(text: str) -> dict[str, Any]:
    """Return the typed clock of a YAML file, which may be a sweep's, or of YAML. Raises InputError."""
    from raybench.core import yaml
    from raybench.spec.clocks import typed

    file = Path(text).expanduser()
    if text.lstrip().startswith("{"):
        value = yaml.parse(text, "--clock")
    elif file.is_file():
        value = yaml.parse(file.read_text(encoding="utf-8"), text)
    else:
        raise InputError.of("--clock", f"no file {text}", "'{compute: {power: 1}}', or a YAML file")
    if isinstance(value, dict) and "clock" in value:
        value = value["clock"]
    return typed(value, "--clock")


def reading(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the options of ``reading_options`` in place of its parameter ``read``, which they make.

    An option that the verb declares itself is its own.
    """
    of_verb = inspect.signature(verb, eval_str=True).parameters
    every = inspect.signature(reading_options, eval_str=True).parameters
    options = {name: option for name, option in every.items() if name not in of_verb}

    @functools.wraps(verb)
    def with_options(**values: Any) -> None:
        read = reading_options(**{name: values.pop(name) for name in options})
        verb(read=read, **values)

    parameters = [
        parameter
        for name, declared in of_verb.items()
        for parameter in (options.values() if name == "read" else [declared])
    ]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_options


Format = Annotated[
    str, Option(metavar="terminal|plain|markdown|csv|latex", help="How it is written.")
]
Json = Annotated[bool, Option("--json", help="As JSON, for programs.")]
NoCode = Annotated[bool, Option("--no-code", help="Refuse a file that runs code of its own.")]
Fresh = Annotated[bool, Option("--fresh", help="Forget what the folder holds.")]
Inline = Annotated[bool, Option("--inline", help="In this process, without Ray.")]
Address = Annotated[
    str | None, Option(metavar="A", help="A running Ray cluster. [default: a local Ray]")
]
RetryFailed = Annotated[bool, Option("--retry-failed", help="Run the cells that failed again.")]
FailFast = Annotated[bool, Option("--fail-fast", help="Stop when the first cell fails.")]
Written = Annotated[Path | None, Option("--out", metavar="FILE", help="Write it to a file.")]
Figures = Annotated[
    str | None, Option("--out", metavar="DIR", help="Where to. [default: DIR/figures]")
]


class Screen:
    """Standard output: rich on a terminal, plain and without trailing blanks in a pipe.

    Brackets in texts are brackets, no markup.
    """

    def __init__(self) -> None:
        self.console = terminal.console(highlight=False, markup=False, emoji=False)
        self.text_width = self.console.width
        if self.console.is_terminal:
            self.text_width = min(self.console.width, WIDEST_TEXT)
        elif "COLUMNS" not in os.environ:
            self.console.width, self.text_width = WIDTH_IN_A_PIPE, WIDEST_TEXT_IN_A_PIPE

    def print(self, *things: object, style: str | None = None) -> None:
        """Print texts and tables: a table of results as wide as the screen, all else no wider than is read well."""
        is_wide = any(getattr(thing, "is_wide", False) for thing in things)
        width = None if is_wide else self.text_width
        if self.console.is_terminal:
            self.console.print(*things, style=style, width=width)
            return
        with self.console.capture() as capture:
            self.console.print(*things, style=style, width=width)
        lines = capture.get().splitlines()
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in lines))

    def head(self, text: str, more: str = "", dim: bool = False) -> None:
        """Print a bold line, and more that is not bold behind it."""
        from rich.text import Text

        self.print(Text.assemble((text, "bold"), (more, "dim" if dim else "")))

    def dim(self, text: str) -> None:
        """Print what is read second."""
        self.print(text, style="dim")

    def set_in(self, text: str, style: str = "") -> None:
        """Print a paragraph two columns to the right, without the marks of literals."""
        from rich.padding import Padding

        self.print(Padding(prose(text), (0, 0, 0, 2), style=style))


def show(make: Callable[[], Sheet], form: str, out: Path | None) -> None:
    """Print a sheet in a form, or write it to a file and print its name; a form that is none is told before it is made."""
    from raybench.core.safe_files import replacement
    from raybench.report.formats import FittedSheet, check_form, written

    form, sheet = check_form(form), make()
    if out is not None:
        with replacement(out) as fresh:
            fresh.write_text(written(sheet, form), encoding="utf-8")
        print(out)
    elif form == "terminal":
        Screen().print(FittedSheet(sheet))
    else:
        sys.stdout.write(written(sheet, form))


def show_files(paths: Iterable[Path]) -> None:
    """Print the names of figures, the endings of each together: ``figures/loss_vs_round.{png,pdf,csv}``."""
    endings: dict[Path, list[str]] = {}
    for path in paths:
        endings.setdefault(path.with_suffix(""), []).append(path.suffix.removeprefix("."))
    for stem, ends in endings.items():
        print(f"{stem}.{{{','.join(ends)}}}" if len(ends) > 1 else f"{stem}.{ends[0]}")


def listing(
    heads: Sequence[str], rows: Iterable[Sequence[Any]], right: Iterable[str] = (), fold: str = ""
) -> Table:
    """Return a table of the common look; ``fold`` is the column that takes what is left."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for head in heads:
        justify: JustifyMethod = "right" if head in right else "left"
        table.add_column(head, justify=justify, no_wrap=head != fold, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def grid(rows: Iterable[Sequence[Any]], gap: int = 3, numbers: int = 0) -> Table:
    """Return rows side by side, without heads; the last ``numbers`` columns are set to the right."""
    from rich.table import Table

    table = Table.grid(padding=(0, gap, 0, 0))
    for row in rows:
        table.add_row(*row)
    for column in table.columns:
        column.overflow = "fold"  # a long path is whole, so that it can be copied
    for column in table.columns[len(table.columns) - numbers :]:
        column.justify = "right"
    return table


def pairs(rows: Iterable[tuple[str, object]], indent: int = 2) -> Table:
    """Return names and values side by side, but for those whose value is an empty text."""
    from rich.text import Text

    return grid(
        (Text(" " * indent + name, style="dim"), value if isinstance(value, Text) else str(value))
        for name, value in rows
        if value != "" or not name
    )


def prose(text: str) -> str:
    """Return a docstring for reading on a screen: names without the marks of literals."""
    return text.replace("``", "")


def note(*lines: str) -> None:
    """Print notes on standard error, but for empty ones."""
    for line in filter(None, lines):
        print(f"note: {line}", file=sys.stderr)


def complain(lines: Iterable[str]) -> None:
    """Print complaints on standard error."""
    head = "error: "
    for line in lines:
        if sys.stderr.isatty():
            getattr(sys.stderr, "through", sys.stderr).write(f"\033[31m{head}\033[0m")
        print(line if sys.stderr.isatty() else head + line, file=sys.stderr)


def digits(value: float) -> str:
    """Return a number > 0 in three digits, all before the point where it is large: 0.0123, 1.23, 1,234."""
    return f"{value:#.3g}".rstrip(".") if value < 1000 else f"{value:,.0f}"


def reasons(skipped: Iterable[Skipped]) -> list[tuple[str, object]]:
    """Return lines that say why cells are skipped, by kind of reason, each kind with what would run them."""
    from raybench.execution.checks import counted, grouped

    rows: list[tuple[str, object]] = []
    for kind in grouped(counted(skipped)):
        shown, others = kind.texts[:MOST_TEXTS], kind.texts[MOST_TEXTS:]
        lines = [f"{count(n, 'cell')}: {text}" for text, n in shown]
        if others:
            lines.append(f"{count(sum(n for _, n in others), 'cell')} more of this kind")
        lines += [f"to run: {kind.fix}"] if kind.fix else []
        rows += [("" if i else "skipped", line) for i, line in enumerate(lines)]
    return rows


def span(numbers: Sequence[float], most: int = 6) -> str:
    """Return sorted numbers in short: ``1, 5, 11``, or ``1 .. 500 (48)`` where there are more than ``most``."""
    if len(numbers) <= most:
        return ", ".join(f"{n:g}" for n in numbers)
    return f"{numbers[0]:g} .. {numbers[-1]:g} ({len(numbers)})"


def read_sweep(
    file: str, sets: list[str] | None, plugins: list[str] | None, no_code: bool = False
) -> Sweep:
    """Return the sweep of a file, or the shipped one of that name."""
    from raybench import spec

    return spec.load(file_of(file), sets=sets or (), plugins=plugins or (), no_code=no_code)


def file_of(file: str) -> Path:
    """Return the path of a sweep file, or of the shipped sweep of that name where there is no such file.

    Raises InputError for a path that does not exist and ends in the name of a shipped sweep.
    """
    path = Path(file)
    shipped = sweeps().get(path.stem)
    if path.expanduser().exists() or shipped is None:
        return path
    if file != path.stem:
        name = path.stem
        fix = f"{name} is a shipped sweep: raybench sweep {name}, or raybench cp {name}"
        raise InputError.of(file, "no such file", fix)
    return shipped


def sweeps() -> dict[str, Path]:
    """Return the file of every shipped sweep by name, of a checkout or of an installed wheel."""
    installed = Path(__file__).resolve().parents[1] / "sweeps"
    folder = installed if installed.is_dir() else installed.parents[1] / "sweeps"
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def check_word(key: str, word: str, allowed: Iterable[str], what: str = "") -> None:
    """Raise InputError for a word that is none of those allowed, with the nearest."""
    if word not in allowed:
        said = " ".join(filter(None, ("unknown", what, repr(word))))
        raise InputError.of(key, said, nearest(word, allowed))


def goal(text: str | None) -> float | str | None:
    """Return a target as ``analysis.frames`` takes it. Raises InputError for what is none."""
    if text is None or text == "auto":
        return text
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise InputError.of("--target", f"{text!r} is no target", "a number > 0, or auto")
    return value


def results_of(sweep: Sweep, out: str | None) -> str:
    """Return the folder of a sweep's results."""
    return out or str(RESULTS_FOLDER / sweep.name)


# How a command leaves -----------------------------------------------------------------------


@contextmanager
def leaving() -> Iterator[None]:
    """Tell of what goes wrong within and leave with the exit code of a command.

    0: all went well; 1: some cells or checks failed, or the disk is full; 2: the input is wrong;
    130: interrupted by Ctrl-C; 143: by SIGTERM.
    """
    try:
        with _notes():
            yield
    except BaseException as error:
        code_and_text = ending(error)
        if code_and_text is None:
            raise
        code, text = code_and_text
        complain(text)
        sys.exit(code)


@contextmanager
def _notes() -> Iterator[None]:
    """Print notices as notes, and now and then that an object store failed at something that is tried again."""
    from raybench.core.patience import heard

    last, shown = -10.0, warnings.showwarning

    def tell(text: str) -> None:
        nonlocal last
        if time.monotonic() - last > 10.0:
            last = time.monotonic()
            note(text)

    def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
        if issubclass(category, Notice):
            note(str(message))
        else:
            shown(message, category, *where)

    with warnings.catch_warnings(), heard(tell):
        warnings.simplefilter("once", Notice)
        warnings.showwarning = show  # type: ignore[assignment]  # hands on whatever else there is
        yield
