"""The tables of step sizes, put into ``docs/theory.md`` from the methods themselves as mkdocs builds the site.

``mkdocs.yml`` names this file as a hook.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

from raybench import theory
from raybench.core import registry
from raybench.theory import Convention, StepSizes, Theorem

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

MARK = re.compile(r"<!-- generated steps: (\w+), .*?-->")


def methods() -> dict[str, StepSizes | None]:
    """Return the step sizes of all methods by name, None for those that have none."""
    names = registry.names("algorithm")
    return {n: theory.of(registry.lookup("algorithm", n).facts.theory) for n in names}


def kind(found: Theorem | Convention | None) -> str:
    """Return what a step rests on, in a word."""
    if found is None:
        return "–"
    if isinstance(found, Theorem):
        return "recalled theorem" if found.recalled else "theorem"
    return found.kind


def what_there_is() -> str:
    """Return the table of what each method's step rests on under each rule."""
    rows = [f"| method | {' | '.join(f'`{rule}`' for rule in theory.RULES)} |"]
    rows.append("|---" * (1 + len(theory.RULES)) + "|")
    none = []
    for name, steps in methods().items():
        if steps is None:
            none.append(f"`{name}`")
            continue
        kinds = [kind(steps.under(rule)) for rule in theory.RULES]
        rows.append(f"| `{name}` | {' | '.join(kinds)} |")
    return "\n".join([*rows, "", f"No step under any rule: {', '.join(none)}."])


def formulas() -> str:
    """Return the table of the formulas, each once, with the methods that use it."""
    users: dict[tuple[str, str], list[str]] = {}
    for name, steps in methods().items():
        for rule in theory.RULES if steps is not None else ():
            found = steps.under(rule)  # type: ignore[union-attr]
            if found is not None:
                said = first_paragraph(found)
                users.setdefault((name_of_code(found), said), []).append(f"`{name}` {rule}")
    rows = ["| method and rule | step size, or recursion that gives it |", "|---|---|"]
    for (_, said), who in users.items():
        rows.append(f"| {grouped(who)} | {said} |")
    return "\n".join(rows)


def name_of_code(found: Theorem | Convention) -> str:
    """Return where the formula's code is, which tells formulas with the same text apart."""
    return f"{found.formula.__module__}.{getattr(found.formula, '__qualname__', '')}"


def first_paragraph(found: Theorem | Convention) -> str:
    """Return the first paragraph of the text beside a formula, as one table cell."""
    text = (inspect.getdoc(found.formula) or "").split("\n\n")[0]
    plain = " ".join(text.split()).replace("``", "`").removesuffix(".")
    return plain.replace("|", r"\|").replace("*", r"\*")


def grouped(who: list[str]) -> str:
    """Return ``ef21`` nonconvex, pl; ``clag`` nonconvex: the rules of each method together."""
    rules: dict[str, list[str]] = {}
    for one in who:
        name, rule = one.split(" ")
        rules.setdefault(name, []).append(rule)
    return "; ".join(f"{name} {', '.join(own)}" for name, own in rules.items())


TABLES = {"what_there_is": what_there_is, "formulas": formulas}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the tables in place of their marks."""
    return filled(markdown)


def filled(markdown: str) -> str:
    """Return a page with its marks replaced by the tables they name. Raises KeyError for a table that there is not."""
    return MARK.sub(lambda match: TABLES[match[1]](), markdown)
