"""raybench check: the conformance kit on a user's plug-ins."""

from __future__ import annotations

from typing import Annotated

import typer

from raybench.cli.shared import count


def check(
    file: Annotated[str, typer.Argument(metavar="PLUGIN.py", help="A file with plug-ins.")],
) -> None:
    """Check plug-ins as our own are checked, one line per check.

    Exit code 1 if a check fails.
    """
    from importlib import import_module

    from raybench.core import registry
    from raybench.testing import Finding

    failed = total = 0
    for entry in registry.load_plugin(file):
        print(f"{entry.kind} {entry.name}", flush=True)
        kit = import_module(f"raybench.testing.{entry.kind}s")
        try:
            found = kit.check_entry(entry)
        except Exception as error:  # the user's own code raised before a check could begin
            found = [Finding("can be made", entry.name, f"{type(error).__name__}: {error}")]
        for finding in found:
            print(f"  {finding}", flush=True)
            total += 1
            failed += not finding.ok
    checks = count(total, "check")
    print(f"{checks}, {failed} failed" if failed else f"{checks} passed")
    raise typer.Exit(1 if failed else 0)
