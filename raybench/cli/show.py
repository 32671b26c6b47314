"""What ``show`` prints: a plug-in's text and parameters, constants and bits, and what step sizes rest on."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from rich.text import Text

from raybench import data, spec, theory
from raybench.cli.run import config, usual_compressor
from raybench.cli.shared import Screen, grid, listing, pairs, prose
from raybench.compressors import Compressor, Message
from raybench.core import registry
from raybench.core.errors import InputError, count, nearest
from raybench.core.facts import AlgorithmFacts
from raybench.core.registry import REQUIRED, Entry
from raybench.core.streams import stream
from raybench.data.files import path_of
from raybench.execution.batch import Resolved
from raybench.execution.checks import Skip
from raybench.execution.plan import facts_of
from raybench.execution.resolve import Resolver, problem_of
from raybench.problems.base import Problem
from raybench.report.words import number
from raybench.spec import Cell, sections
from raybench.spec.sections import default
from raybench.spec.values import allowed
from raybench.spec.values import show as spelled
from raybench.testing import claims

CONSTANTS = {
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
"""The constants of a problem, as ``show`` names them, in their order."""
USUAL_CLIENTS = 10  # of compressors whose messages depend on each other; others ignore it
KINDS = ("algorithm", "compressor", "problem", "metric")


def page(
    name: str,
    d: int | None,
    problem: str | None,
    dataset: str | None,
    clients: int | None,
    compressor: str | None,
    downlink: str | None,
) -> None:
    """Print all plug-ins of a name, as the options of ``show`` say. Raises InputError where there is none."""
    file = None if ":" in name else path_of(name)
    if file is not None:
        out = Screen()
        out.head(file.name)
        out.print(pairs(data.load(file).about()))
        return
    plain = sections.parse_short_form(name, "show")["name"]
    kinds = [kind for kind in KINDS if plain in registry.names(kind)]
    if not kinds:
        names = [n for kind in KINDS for n in registry.names(kind)]
        raise InputError.of("show", f"nothing is named {plain!r}", nearest(plain, names))
    asked = any(value is not None for value in (problem, dataset, clients))
    out = Screen()
    for i, kind in enumerate(kinds):
        if i:
            out.print()
        entry = registry.lookup(kind, plain)
        _describe(out, entry)
        if kind == "compressor" and (d is not None or ":" in name):
            _compressor_facts(out, entry, name, d or 1000, clients or USUAL_CLIENTS)
        if kind == "algorithm" and (asked or compressor is not None or downlink is not None):
            operator = compressor or usual_compressor(plain)
            clock = {"compute": 1.0} if entry.facts.clock else None  # steps do not depend on it
            content = config(name, problem, dataset, clients, operator, downlink, clock=clock)
            _steps(out, content, operator, downlink)
        elif kind == "algorithm":
            out.head("\n  step size")
            steps = theory.of(entry.facts.theory)
            if steps is not None:
                basis(out, steps)
            else:
                how = "give step_size.value, or multiples of another method's with .of"
                out.set_in(f"no theorem: {how}")
        complete = all(param.default is not REQUIRED for param in entry.params.values())
        if kind == "problem" and (asked or ":" in name or complete):
            _constants(out, config("gd", name, dataset, clients, None))


def _describe(out: Screen, entry: Entry) -> None:
    """Print the name, the docstring and the parameters."""
    about = f"  {entry.kind}"
    if isinstance(entry.facts, AlgorithmFacts):
        about += f", {_needs(entry.facts.up, entry.facts.dense)}"
    out.head(entry.name, about + (", from a plug-in file" if entry.source else ""), dim=True)
    text = inspect.getdoc(entry.target) or "no description"
    if max(map(len, prose(text).splitlines())) + 2 > out.text_width:
        text = "\n\n".join(map(_flowing, text.split("\n\n")))
    out.set_in(text)
    if not entry.params:
        out.dim("\n  no parameters\n")
        return
    rows = []
    for name, param in entry.params.items():
        value = "required" if param.default is REQUIRED else spelled(default(param), bare=True)
        ways = "count >= 1 or share" if param.kind == "count" else allowed(param)
        rows.append((f"  {name}", value, ways, param.help))
    table = listing(("  parameter", "default", "allowed", "meaning"), rows, fold="allowed")
    table.columns[-1].no_wrap = False
    out.print(table)


def _flowing(paragraph: str) -> str:
    """Return a paragraph in one line, unless its lines are a list or set in."""
    lines = paragraph.splitlines()
    if any(line[:1] in ("", " ", "*", "-") for line in lines):
        return paragraph
    return " ".join(lines)


def _needs(role: str | None, dense: bool) -> str:
    words = {None: "sends dense messages", "any": "takes any compressor"}
    what = f"{'an' if str(role)[0] in 'aeiou' else 'a'} {role} compressor"
    return f"dense messages, or {what}" if dense else words.get(role, f"needs {what}")


def _constants(out: Screen, content: dict[str, object]) -> None:
    """Print the constants of the problem of a one-cell sweep file."""
    section = spec.load(content).cells[0].problem
    problem = problem_of(section)
    facts = facts_of(problem)
    values = {**facts, **json.loads(facts["constants"])}
    values = {k: v for k, v in values.items() if v is not None and k != "constants"}
    if values.get("message_dim") == values.get("d"):
        values.pop("message_dim", None)
    least, most = values["samples"]
    values["samples"] = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    values["facts"] = ", ".join(values["facts"]).replace("_", " ") or "none"
    rows = [(word, values.pop(key)) for key, word in CONSTANTS.items() if key in values]
    rows += sorted(values.items())
    dataset = section.params.get("dataset")
    out.head(f"  {section.name}{f' on {dataset}' if dataset else ''}")
    out.print(pairs(problem.about()))
    out.print(pairs([(name, _spelled(value)) for name, value in rows]))


def _spelled(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return number(value, 6) if isinstance(value, float) else str(value)


def _steps(
    out: Screen, content: dict[str, object], operator: str | None, downlink: str | None
) -> None:
    """Print the constants and the algorithm's theoretical steps under every rule."""
    _constants(out, content)
    rows: list[tuple[str, object]] = []
    steps: dict[str, float] = {}
    resolver, numbers = Resolver(), {}
    for rule in theory.RULES:
        (cell,) = spec.load({**content, "step_size": {"theory": 1, "rule": rule}}).cells
        try:
            resolved = resolver.resolve(cell)
        except Skip as why:
            rows.append((rule, Text(f"none: {why.__cause__ or why}", style="dim")))
            continue
        steps[rule] = resolved.step_size
        rows.append((rule, number(resolved.step_size, 6)))
        numbers = _numbers(resolved, resolver.backing(cell)[1], operator is not None)
    used = operator or "dense messages"
    used += f", downlink {downlink}" if downlink is not None else ""
    if numbers:
        out.head(f"\n  numbers, with {used}")
        out.print(pairs(numbers.items()))
    with_it = "" if numbers or operator is None else f", with {operator}"
    out.head(f"\n  theoretical step size by rule{with_it}")
    out.print(pairs(rows))
    theorems, setting = resolver.backing(cell)
    if theorems is not None:
        start = _start(cell, problem_of(cell.problem))
        basis(out, theorems, Here(setting, steps, start))
        if setting.nonsmooth and steps:
            out.set_in("The problem has a nonsmooth part: for ∇f read the gradient mapping.", "dim")


def _numbers(resolved: Resolved, k: theory.Setting, up: bool) -> dict[str, object]:
    """Return what the step makes of the compressors: theta and beta, or omega of the mean; and the method's numbers.

    up: whether clients compress; else only what is told of the downlink.
    """
    rows: dict[str, float | None] = {}
    if up or resolved.cell.downlink is None:
        rows |= {"ω": resolved.omega, "α": resolved.alpha}
    if up and k.alpha is not None and k.alpha > 0:
        theta, beta = theory.contraction(k.alpha)
        rows |= {"θ = 1 − √(1−α)": theta, "β = (1−α)/θ": beta}
    if resolved.cell.downlink is not None:
        rows["α of the downlink"] = k.down_alpha
    if up and k.omega is not None:
        name = "ω of the mean, one mask" if k.common_mask else "ω/n"
        rows["A of (A, B)" if k.ab else name] = k.mean_omega
    rows |= {n: v for n, v in resolved.params.items() if isinstance(v, int | float)}
    first: dict[str, object] = {} if resolved.k is None else {"K": resolved.k}
    return first | {n: number(v, 6) for n, v in rows.items() if v is not None}


# Compressors -----------------------------------------------------------------------------------

# values that are shown for a count that is required and was not given
COUNTS_SHOWN = (1, "1%", "10%")
COUNT_CHECKED = "1%"  # the value for which the compressor is drawn and compared with its constants


def _compressor_facts(out: Screen, entry: Entry, name: str, d: int, clients: int) -> None:
    """Print class, constants, bits and a Monte Carlo check of a compressor in dimension d, for several K if none is given.

    name: the compressor with its parameters, ``top_k:k=5``. clients: how many there are of them, for
    compressors that draw together.
    """
    counts = [n for n, p in entry.params.items() if p.kind == "count" and p.default is REQUIRED]
    stated = sections.parse_short_form(name, "show")
    free = [n for n in counts if n not in stated]
    tries = [dict.fromkeys(free, k) for k in COUNTS_SHOWN] if free else [{}]
    x = stream(0).normal(d)
    ops, columns = {}, []
    for more in tries:
        section = sections.section("compressor", name, more)
        op = entry.target(**section.params).bind(d, n=clients).compressor
        label = ", ".join(str(section.params[n]) for n in counts)
        ops[label] = op
        columns.append({"K": label, **_figures(op, op.compress(x), d)})
    if not entry.params:
        out.print("")
    kinds = [f"d = {d:,}, a Gaussian float64 vector"]
    kinds += ["unbiased: E C(x) = x, E‖C(x) − x‖² ≤ ω‖x‖²"] if op.omega(d) is not None else []
    kinds += ["contractive: E‖C(x) − x‖² ≤ (1 − α)‖x‖²"] if op.alpha(d) is not None else []
    out.set_in("; ".join([*kinds, "deterministic" if op.deterministic else "random"]), "dim")
    rows = [[Text(f"  {head}", style="dim"), *(c[head] for c in columns)] for head in columns[0]]
    out.print(grid((row for row in rows if any(row[1:])), numbers=len(columns)))
    drawn = COUNT_CHECKED if COUNT_CHECKED in ops else next(iter(ops))
    _check(out, ops[drawn], d, f"K = {drawn}, " if len(ops) > 1 else "")


def _figures(op: Compressor, message: Message, d: int) -> dict[str, str]:
    """Return constants and bits of a compressor by name."""

    def both(constants: tuple[float, float] | None) -> str:
        return "–" if constants is None else ", ".join(number(c, 5) for c in constants)

    wider = op.b3(d)
    cost, bits = message.cost, int(message.bits)
    return {
        "ω": number(op.omega(d), 6),
        "α": number(op.alpha(d), 6),
        "B1: α, β": both(op.b1(d)),
        "B2: γ, β": both(op.b2(d)),
        "B3: δ": number(wider[0], 6) if wider else "–",
        "  of C times": number(wider[1], 4) if wider else "–",
        "bits": f"{bits:,}",
        "  values": f"{round(float(cost.values * message.dtype.itemsize * 8)):,}",
        "  index": f"{round(float(cost.index_auto)):,}",
        "  raw": f"{round(float(cost.raw)):,}",
        "of dense": f"{bits / (64 * d):.3%}",
        "bytes": f"{int(message.nbytes):,}",
        "  with header": f"{len(message.pack()):,}",
    }


def _check(out: Screen, op: Compressor, d: int, label: str) -> None:
    """Print what draws show about the claims, a line per family of vectors."""
    families = claims.check_claims(op, d)
    bound, factor = claims.claim(op, d)
    what = "C(x)" if factor == 1.0 else f"{number(factor, 4)} C(x)"
    draws = families[0].draws
    text = f"measured, {label}{count(draws, 'draw')} each: ‖{what} − x‖²/‖x‖² beside its bound"
    bias = ["bias", "by chance"] if op.omega(d) is not None and draws > 1 else []
    if bias:
        text += "; bias: ‖mean C(x) − x‖/‖x‖ beside chance"
    out.print("")
    out.set_in(text, "dim")
    rows = []
    for family in families:
        mean, error = family.error
        row = [number(mean, 4), number(error if error > 1e-9 * mean else 0.0, 2), number(bound, 4)]
        if bias and family.bias is not None:
            row += [number(part, 3) for part in family.bias]
        style = "red" if family.faults else ""
        rows.append((f"  {family.family}", *row, Text(family.verdict, style=style)))
    heads = ["error", "± s.e.", "bound", *bias]
    out.print(listing(("  vector", *heads, ""), rows, right=heads, fold=""))


# What a step size rests on ---------------------------------------------------------------------

PROVED = "the largest step proved here under this rule"


class Here(NamedTuple):
    """What a theory is asked about: its setting, the step sizes that there are by rule, a bound of f(x^0) - inf f."""

    setting: theory.Setting
    sizes: Mapping[str, float]
    start: float | None


def basis(out: Screen, steps: theory.StepSizes, here: Here | None = None) -> None:
    """Print what step sizes rest on, rule by rule: theorem, assumptions, source; of a problem what they promise there."""
    told: dict[str, theory.Theorem | theory.Convention] = {}
    for rule in theory.RULES:
        backing = steps.under(rule)
        if backing is None:
            continue
        out.head(f"\n  {rule}")
        if same := [other for other, earlier in told.items() if earlier is backing]:
            out.set_in(f"the same as {same[0]}")
            continue
        for line in _told(backing, rule, here):
            out.set_in(line)
        if not any(other.formula is backing.formula for other in told.values()):
            out.set_in("where it comes from: " + " ".join(theory.explained(backing).split()), "dim")
        told[rule] = backing


def _told(
    backing: theory.Theorem | theory.Convention, rule: str, here: Here | None
) -> Iterator[str]:
    """Yield what is said of a rule's theorem or convention."""
    lines: list[str] = []
    if here is not None and rule in here.sizes:
        lines = theory.in_numbers(backing, here.sizes[rule], here.setting, here.start)
    if not isinstance(backing, theory.Theorem):
        yield f"{backing.kind}, no theorem: {backing.source}"
        yield from lines
        return
    how = "" if rule == "paper" else f" ({PROVED})"
    if backing.recalled:
        how = " (its constants as recalled; neither proved nor checked here)"
    yield f"theorem{how}: {backing.source}"
    yield from lines
    if here is None or not lines or not backing.recursive(here.setting):
        yield theory.pretty(backing.promises)
    for assumption in backing.assumes:
        mark = "assumes that"
        if here is not None:
            mark = "holds:" if assumption.holds(here.setting) else "does not hold here:"
        yield f"{mark} {assumption.text}"


def _start(cell: Cell, problem: Problem) -> float | None:
    """Return a bound of f(x^0) - inf f at the sweep's starting point, None where there is none."""
    c = problem.constants
    least = c.f_star if c.f_star is not None else c.f_inf
    if least is None:
        return None
    x = problem.start() if cell.x0 == "problem" else torch.zeros(problem.dim, dtype=problem.dtype)
    losses = problem.oracle(x[None])[1]
    assert losses is not None, "asked for by default"
    return float(losses.mean() + problem.penalty(x[None]).mean()) - float(least)
