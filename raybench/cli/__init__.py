"""The command line: one file a subject, nothing heavy imported before a verb is at work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup

from raybench.cli import advise, bench, certify, launch, lookup, results, run
from raybench.cli.shared import leaving
from raybench.core.process import (
    ending_on_the_second_signal,
    kernel_folder,
    stopping_on_sigterm,
    tune_process,
)
from raybench.core.terminal import terminal

VERBS: dict[str, tuple[Callable[..., None], ...]] = {
    "Most used": (
        *(run.sweep, run.plan, run.run, results.status, results.table, results.plot),
        *(results.report, results.compare, results.reproduce, advise.advise, launch.launch),
        *(lookup.ls, lookup.show),
    ),
    "Sweep files": (lookup.cp, lookup.schema),
    "More about results": (results.rank, results.audit, results.merge, results.verify),
    "After a launch": (launch.attach, launch.logs, launch.down),
    "Measure and check": (bench.bench, bench.study, certify.certify, lookup.check, lookup.doctor),
}
COMPUTING = {
    *["run", "sweep", "reproduce", "launch", "show", "bench", "study", "advise", "check", "certify"]
}


class VerbGroup(TyperGroup):
    """The verbs in the order in which they are used, under headings."""

    def format_commands(self, ctx: object, formatter: Any) -> None:
        """Write the verbs to the help page."""
        limit = formatter.width - 14
        for heading, verbs in VERBS.items():
            with formatter.section(heading):
                rows = [(v.__name__, self.commands[v.__name__]) for v in verbs]
                formatter.write_dl([(n, c.get_short_help_str(limit)) for n, c in rows])


# Help pages are printed without rich: it costs 0.1 s, and its markup takes [brackets] for styles.
app = typer.Typer(
    cls=VerbGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for _verbs in VERBS.values():
    for _verb in _verbs:
        app.command()(_verb)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"raybench {version('raybench')}")
        raise typer.Exit


@app.callback(epilog="raybench VERB --help tells more. First: raybench cp quickstart my.yaml")
def top(
    context: typer.Context,
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Sweep and benchmark communication-compressed distributed optimization."""
    if context.invoked_subcommand in COMPUTING:
        tune_process()  # before the verb loads torch
        kernel_folder()  # one that others can write to is refused now, not in every cell


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code (``raybench.cli.shared.leaving``)."""
    signals = ending_on_the_second_signal() if args is None else nullcontext()
    with terminal(), signals, leaving(), stopping_on_sigterm():
        try:
            typer.main.get_command(app).main(args, prog_name="raybench")
        except SystemExit as end:
            stop = end.__context__ and end.__context__.__cause__
            if isinstance(stop, KeyboardInterrupt):  # SIGTERM too, which typer does not know
                raise stop from None
            raise
