"""raybench check: the conformance kit on a user's plug-ins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raybench.cli.shared import count

if TYPE_CHECKING:
    from raybench.core.registry import Entry
    from raybench.testing import Finding

ON_A_PROBLEM = ("algorithm", "metric")  # the kinds that are tried on a problem


def check(
    file: Annotated[str, typer.Argument(metavar="PLUGIN.py", help="A file with plug-ins.")],
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A parameter of the plug-in, for all checks. Repeat."
        ),
    ] = None,
    problem: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:KEY=VALUE,...]",
            help="What methods and metrics are tried on. [default: a small one]",
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="A line for every check.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but what fails.")] = False,
) -> None:
    """Check plug-ins as our own are checked, in a line for each set of parameters, with what fails.

    Exit code 1 if a check fails.
    """
    from importlib import import_module
    from itertools import groupby

    from raybench.core import registry
    from raybench.core.errors import InputError
    from raybench.testing import Finding

    if verbose and quiet:
        raise InputError.of("check", "--verbose and --quiet together", "leave one out")
    entries = registry.load_plugin(file)
    options = _options(entries, sets or (), problem)
    failed = made = unclaimed = 0
    for entry, more in zip(entries, options, strict=True):
        if not quiet:
            print(f"{entry.kind} {entry.name}", flush=True)
        kit = import_module(f"raybench.testing.{entry.kind}s")
        told: set[str] = set()
        try:
            for about, group in groupby(kit.check_entry(entry, **more), lambda one: one.about):
                found = list(group)
                for line in map(str, found) if verbose else _summary(about, found, told, quiet):
                    print(f"  {line}", flush=True)
                failed += sum(not one.ok for one in found)
                unclaimed += sum(not one.claimed for one in found)
                made += sum(one.claimed for one in found)
        except InputError:
            raise
        except Exception as error:  # the user's own code raised before a check could begin
            fault = Finding("can be made", entry.name, f"{type(error).__name__}: {error}")
            print(f"  {fault}", flush=True)
            failed, made = failed + 1, made + 1
    checks = count(made, "check")
    beside = f", {unclaimed} of nothing that is claimed" if unclaimed else ""
    if failed or not quiet:
        print(f"{checks}, {failed} failed" if failed else f"{checks} passed{beside}")
    raise typer.Exit(1 if failed else 0)


def _summary(about: str, found: Sequence[Finding], told: set[str], quiet: bool) -> Iterable[str]:
    """Yield what is said of one set of parameters; told: checks whose failure has been printed, each once."""
    wrong = [one for one in found if not one.ok]
    again: list[str] = []
    for one in wrong:
        if one.check in told:
            again.append(one.check)
        else:
            told.add(one.check)
            yield str(one)
    if again:
        yield f"FAIL  {about}, too: {', '.join(dict.fromkeys(again))}"
    if not wrong and not quiet:
        unclaimed = ", ".join(one.check for one in found if not one.claimed)
        made = count(sum(one.claimed for one in found), "check")
        yield f"ok    {about}: {made}{f'; not claimed: {unclaimed}' if unclaimed else ''}"


def _options(
    entries: Sequence[Entry[Any]], sets: Sequence[str], problem: str | None
) -> list[dict[str, Any]]:
    """Return what the kit is told of each plug-in beside its defaults.

    Raises InputError for a key that none of them has, a value that does not fit, and a problem that none needs.
    """
    from raybench.core.errors import InputError, nearest
    from raybench.spec import short

    given = [short.parse(f"set:{text}", "--set") for text in sets]
    values = {key: value for one in given for key, value in one.items() if key != "name"}
    known = sorted({name for entry in entries for name in entry.params})
    for key in values:
        if key not in known:
            fix = nearest(key, known) if known else "the file's plug-ins have no parameters"
            raise InputError.of(f"--set {key}", "no plug-in of the file has it", fix)
    if problem is not None and not any(entry.kind in ON_A_PROBLEM for entry in entries):
        raise InputError.of(
            "--problem", "only methods and metrics are tried on one", "leave it out"
        )
    found: list[dict[str, Any]] = []
    for entry in entries:
        own = {key: value for key, value in values.items() if key in entry.params}
        more: dict[str, Any] = {}
        if own:
            more["given"] = short.mapping({k: entry.params[k] for k in own}, own, "--set")
        if problem is not None and entry.kind in ON_A_PROBLEM:
            section = short.section("problem", problem, where="--problem")
            more["problem"] = {"name": section.name, **section.params}
        found.append(more)
    return found
