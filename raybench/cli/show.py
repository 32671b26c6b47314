"""raybench show: a plug-in's text, parameters, class and constants."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated

import typer

from raybench.cli import cell, guarantee, operators
from raybench.cli.shared import Plugins, console, listing, pairs, prose

if TYPE_CHECKING:
    from raybench.cli.shared import Screen
    from raybench.core.registry import Entry

USUAL_CLIENTS = 10  # operators whose messages depend on each other need a number; others ignore it
KINDS = ("algorithm", "compressor", "problem", "metric")


def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME[:KEY=VALUE,...]", help="A plug-in; raybench ls.")
    ],
    d: Annotated[
        int | None,
        typer.Option("--d", metavar="D", min=1, help="The dimension an operator is shown for."),
    ] = None,
    problem: cell.Problem = None,
    dataset: cell.Dataset = None,
    clients: cell.Clients = None,
    compressor: cell.Compressor = None,
    downlink: cell.Downlink = None,
    plugin: Plugins = None,
) -> None:
    """Show what a plug-in does, its parameters and constants.

    An operator with --d: its constants, its bits, and what some draws show of both. An algorithm with a problem and an operator:
    the problem's constants, the theorems behind its steps, and which of their assumptions hold. A
    problem with --dataset: its constants.
    """
    from raybench.core import registry
    from raybench.core.errors import InputError, nearest
    from raybench.spec import short

    for file in plugin or ():
        registry.load_plugin(file)
    plain = short.parse(name, "show")["name"]
    kinds = [kind for kind in KINDS if plain in registry.names(kind)]
    if not kinds:
        known = [n for kind in KINDS for n in registry.names(kind)]
        raise InputError.of("show", f"nothing is named {plain!r}", nearest(plain, known))
    given = any(value is not None for value in (problem, dataset, clients))
    out = console()
    for i, kind in enumerate(kinds):
        if i:
            out.print()
        entry = registry.lookup(kind, plain)
        _describe(out, entry)
        if kind == "compressor" and (d is not None or ":" in name):
            operators.describe(out, entry, name, d or 1000, clients or USUAL_CLIENTS)
        if kind == "algorithm" and (given or compressor is not None or downlink is not None):
            operator = compressor or cell.usual_operator(plain)
            share = _clients(problem, clients)
            config = cell.config(name, problem, dataset, share, operator, downlink)
            _steps(out, config, operator, downlink)
        elif kind == "algorithm":
            from raybench import theory
            from raybench.core.facts import AlgorithmFacts

            assert isinstance(entry.facts, AlgorithmFacts)
            guarantee.outline(out, theory.of(entry.facts.theory))
        if kind == "problem" and (given or ":" in name or not _required(entry)):
            config = cell.config("gd", name, dataset, _clients(name, clients), None)
            _constants(out, config)


def _clients(problem: str | None, given: int | None) -> int | None:
    """Return how many clients share the problem: those of the default one where none are asked for."""
    from raybench.core import registry
    from raybench.spec import short

    if problem is None or given is not None:
        return given
    section = short.parse(problem, "problem")
    entry = registry.lookup("problem", section["name"])
    asked = "clients" in section or "clients" not in _required(entry)
    return None if asked else int(short.parse(cell.USUAL_PROBLEM, "problem")["clients"])


def _required(entry: Entry) -> list[str]:
    from raybench.core.registry import REQUIRED

    return [name for name, param in entry.params.items() if param.default is REQUIRED]


def _describe(out: Screen, entry: Entry) -> None:
    """Print the name, the docstring and the parameters."""
    from rich.padding import Padding
    from rich.text import Text

    from raybench.core.facts import AlgorithmFacts
    from raybench.core.registry import REQUIRED
    from raybench.spec.sections import default
    from raybench.spec.values import allowed
    from raybench.spec.values import show as spelled

    head = Text(entry.name, style="bold")
    head.append(f"  {entry.kind}", style="not bold dim")
    if isinstance(entry.facts, AlgorithmFacts):
        head.append(f", {_needs(entry.facts.up)}", style="not bold dim")
    if entry.source:
        head.append(", from a plug-in file", style="not bold dim")
    out.print(head)
    text = prose(inspect.getdoc(entry.target) or "no description")
    if max(map(len, text.splitlines())) + 2 > out.console.width:
        text = "\n\n".join(map(_flowing, text.split("\n\n")))
    out.print(Padding(Text(text), (0, 0, 0, 2)))
    if not entry.params:
        out.print(Text("\n  no parameters\n", style="dim"))
        return
    table = listing("  parameter", "default", "allowed", "meaning", fold="allowed")
    for name, param in entry.params.items():
        value = "required" if param.default is REQUIRED else spelled(default(param), bare=True)
        ways = "count >= 1 or share" if param.kind == "count" else allowed(param)
        table.add_row(f"  {name}", value, ways, param.help)
    table.columns[-1].no_wrap = False
    out.print(table)


def _flowing(paragraph: str) -> str:
    """Return a paragraph in one line, unless its lines are a list or set in."""
    lines = paragraph.splitlines()
    if any(line[:1] in ("", " ", "*", "-") for line in lines):
        return paragraph
    return " ".join(lines)


def _needs(role: str | None) -> str:
    words = {None: "sends dense messages", "any": "takes any compressor"}
    return words.get(role, f"needs {'an' if str(role)[0] in 'aeiou' else 'a'} {role} compressor")


def _constants(out: Screen, config: dict[str, object]) -> None:
    """Print the constants of the problem of a one-cell sweep file."""
    import json

    from rich.text import Text

    from raybench import spec
    from raybench.execution.plan import facts_of
    from raybench.execution.resolve import problem_of
    from raybench.report import words

    section = spec.load(config).cells[0].problem
    facts = facts_of(problem_of(section))
    known = {**facts, **json.loads(facts["constants"])}
    names = {
        "clients": "n",
        "d": "d",
        "message_dim": "message length",
        "samples": "samples per client",
        "L": "L",
        "L_max": "L_max = max L_i",
        "L_tilde": "L_tilde = √mean L_i²",
        "L_AM": "mean L_i",
        "L_plus": "L_plus",
        "L_pm": "L_pm, Hessian variance",
        "L_samples": "L of the samples",
        "L_sample_max": "L of one sample, at most",
        "sample_variance": "σ² of a sample, at most",
        "mu": "mu",
        "mu_min": "mu of every f_i, at least",
        "f_inf": "f_inf ≤ f",
        "f_star": "f*",
        "heterogeneity": "D = mean ‖∇fᵢ(x*)‖²",
        "noise_at_minimizer": "C, noise of a sample at x*",
        "facts": "known to hold",
    }
    known = {k: v for k, v in known.items() if v is not None and k != "constants"}
    if known.get("message_dim") == known.get("d"):
        known.pop("message_dim", None)
    least, most = known["samples"]
    known["samples"] = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    known["facts"] = ", ".join(fact.replace("_", " ") for fact in known["facts"]) or "none"
    rows = [(word, known.pop(key)) for key, word in names.items() if key in known]
    rows += sorted(known.items())
    dataset = section.params.get("dataset")
    out.print(Text(f"  {section.name}{f' on {dataset}' if dataset else ''}", style="bold"))
    spelled = [
        (
            k,
            f"{v:,}"
            if isinstance(v, int)
            else words.number(v, 6)
            if isinstance(v, float)
            else str(v),
        )
        for k, v in rows
    ]
    out.print(pairs(spelled, indent=2))


def _steps(
    out: Screen, config: dict[str, object], operator: str | None, downlink: str | None
) -> None:
    """Print the constants and the algorithm's theoretical steps under every rule."""
    from rich.text import Text

    from raybench import spec
    from raybench.execution.checks import Skip
    from raybench.execution.resolve import Resolver
    from raybench.report import words
    from raybench.theory import RULES

    _constants(out, config)
    rows: list[tuple[str, object]] = []
    facts: list[tuple[str, object]] = []
    steps: dict[str, float] = {}
    for rule in RULES:
        step = {"theory": 1, "rule": rule}
        for one in spec.load({**config, "step_size": step}).cells:
            try:
                found = Resolver().resolve(one)
            except Skip as why:
                rows.append((rule, Text(f"none: {why.__cause__ or why}", style="dim")))
                continue
            steps[rule] = found.step_size
            rows.append((rule, words.number(found.step_size, 6)))
            numbers = [(n, v) for n, v in (("ω", found.omega), ("α", found.alpha)) if v is not None]
            down = one.downlink is not None
            if operator is not None or down:
                numbers += guarantee.operator_numbers(Resolver().backing(one)[1], down)
            if operator is None and down:  # the method compresses the downlink only
                numbers = [(n, v) for n, v in numbers if "downlink" in n]
            numbers += [(k, v) for k, v in found.params.items() if isinstance(v, int | float)]
            facts = [("K", found.k)] if found.k is not None else []
            facts += [(n, words.number(v, 6)) for n, v in numbers]
    used = operator or "dense messages"
    used += f", downlink {downlink}" if downlink is not None else ""
    if facts:
        out.print(Text(f"\n  numbers, with {used}", style="bold"))
        out.print(pairs(facts))
    with_it = "" if facts or operator is None else f", with {operator}"
    out.print(Text(f"\n  theoretical step size by rule{with_it}", style="bold"))
    out.print(pairs(rows))
    guarantee.explain(out, one, steps)
