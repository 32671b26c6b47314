"""What a step size rests on: its theorem with assumptions and numbers, or the words that it has none."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raybench.cli.shared import Screen
    from raybench.problems.base import Problem
    from raybench.spec import Cell
    from raybench.theory import Convention, Rate, Setting, StepSizes, Theorem

PROVED = "the largest step proved here under this rule"
SIGNS = {
    "grad": "∇",
    "sum": "Σ",
    "gamma": "γ",
    "rho": "ρ",
    "mu": "μ",
    "sigma": "σ",
    "omega": "ω",
    "theta": "θ",
    "beta": "β",
    "delta": "δ",
    "eta": "η",
    "Psi": "Ψ",
    "Phi": "Φ",
    "Delta0": "Δ₀",
}
MARKS = (
    ("||", "‖"),
    ("<=", "≤"),
    ("∇ ", "∇"),
    ("^2", "²"),
    ("^0", "⁰"),
    ("^t", "ᵗ"),
    (" - ", " − "),
)


def pretty(formula: str) -> str:
    """Return a formula in signs: ``E||grad f(x^t)||^2`` is ``E‖∇f(xᵗ)‖²``."""
    words = rf"(?<![A-Za-z])({'|'.join(SIGNS)})(?![A-Za-z])"
    text = re.sub(words, lambda m: SIGNS[m[0]], formula)
    for plain, sign in MARKS:
        text = text.replace(plain, sign)
    return text


def operator_numbers(setting: Setting, down: bool) -> list[tuple[str, float]]:
    """Return what the step makes of the operator: theta and beta, or omega of the mean."""
    from raybench.theory import contraction

    rows: list[tuple[str, float]] = []
    if setting.alpha is not None and setting.alpha > 0:
        theta, beta = contraction(setting.alpha)
        rows += [("θ = 1 − √(1−α)", theta), ("β = (1−α)/θ", beta)]
    if down and setting.down_alpha is not None:
        rows.append(("α of the downlink", setting.down_alpha))
    if setting.omega is not None:
        name = "ω of the mean, one mask" if setting.common_mask else "ω/n"
        rows.append(("A of (A, B)" if setting.ab else name, setting.mean_omega))
    return rows


def outline(out: Screen, steps: StepSizes | None) -> None:
    """Print what a method's step sizes rest on, without a problem: theorem, assumptions, source."""
    from rich.text import Text

    from raybench.theory import RULES

    out.print(Text("\n  step size", style="bold"))
    if steps is None:
        _say(out, "no theorem: give step_size.value, or multiples of another method's with .of")
        return
    seen: dict[str, Theorem | Convention] = {}
    for rule in RULES:
        found = steps.under(rule)
        if found is not None:
            _section(out, rule, found, seen)


def explain(out: Screen, cell: Cell, found: Mapping[str, float]) -> None:
    """Print what the step sizes of a one-cell sweep rest on and promise; ``found``: those there are, by rule."""
    from raybench.execution.resolve import Resolver, problem_of
    from raybench.theory import RULES

    steps, setting = Resolver().backing(cell)
    if steps is None:
        return
    start = _start(cell, problem_of(cell.problem))
    seen: dict[str, Theorem | Convention] = {}
    for rule in RULES:
        one = steps.under(rule)
        if one is not None:
            _section(out, rule, one, seen, setting, found.get(rule), start)
    if setting.nonsmooth and found:
        _say(out, "The problem has a nonsmooth part: for ∇f read the gradient mapping.", "dim")


def _section(
    out: Screen,
    rule: str,
    found: Theorem | Convention,
    seen: dict[str, Theorem | Convention],
    setting: Setting | None = None,
    step: float | None = None,
    start: float | None = None,
) -> None:
    """Print a rule's theorem or convention; ``seen`` are those printed before, by rule, and not repeated."""
    from rich.text import Text

    from raybench.theory import Theorem, explained

    out.print(Text(f"\n  {rule}", style="bold"))
    same = [other for other, known in seen.items() if known is found]
    if same:
        _say(out, f"the same as {same[0]}")
        return
    if isinstance(found, Theorem):
        how = "" if rule == "paper" else f" ({PROVED})"
        if found.recalled:
            how = " (its constants as recalled; neither proved nor checked here)"
        _say(out, f"theorem{how}: {found.source}")
    else:
        _say(out, f"{found.kind}, no theorem: {found.source}")
    if setting is not None and step is not None:
        for line in _lines(found, step, setting, start):
            _say(out, line)
    if isinstance(found, Theorem):
        if setting is None or step is None or not found.recursive(setting):
            _say(out, pretty(found.promises))
        for one in found.assumes:
            if setting is None:
                mark = "assumes that"
            else:
                mark = "holds:" if one.holds(setting) else "does not hold here:"
            _say(out, f"{mark} {one.text}")
    if not any(known.formula is found.formula for known in seen.values()):
        _say(out, "where it comes from: " + " ".join(explained(found).split()), "dim")
    seen[rule] = found


def _say(out: Screen, line: str, style: str = "") -> None:
    from rich.padding import Padding
    from rich.text import Text

    from raybench.cli.shared import prose

    out.print(Padding(Text(prose(line), style=style), (0, 0, 0, 2)))


def _start(cell: Cell, problem: Problem) -> float | None:
    """Return a bound of f(x^0) - inf f at the sweep's starting point, None where there is none."""
    import torch

    c = problem.constants
    least = c.f_star if c.f_star is not None else c.f_inf
    if least is None or cell.x0 not in ("zeros", "problem"):
        return None
    x = problem.start() if cell.x0 == "problem" else torch.zeros(problem.dim, dtype=problem.dtype)
    losses = problem.oracle(x[None])[1]
    assert losses is not None, "asked for by default"
    return float(losses.mean() + problem.penalty(x[None]).mean()) - float(least)


def _lines(found: Theorem | Convention, step: float, k: Setting, start: float | None) -> list[str]:
    """Return the step with its factors and, for the generic rule, the inequality with its numbers."""
    from raybench.report.words import number as n
    from raybench.theory import Rate, Theorem

    rate = found.formula(k)
    if not isinstance(rate, Rate) or not isinstance(found, Theorem):
        return [f"γ = {n(step, 6)}"]
    L = k.need("L")
    times = "" if rate.scale == 1 else f"{n(rate.scale, 4)} · "
    lines = []
    if rate.B:
        ratio = math.sqrt(rate.B / rate.rho)
        lines.append(
            "E G⁺ ≤ (1 − ρ) G + B ‖x⁺ − x‖², where ‖g − ∇f‖² ≤ G: "
            f"ρ = {n(rate.rho, 6)}, B = {n(rate.B, 6)}, √(B/ρ) = {n(ratio, 6)}"
        )
    if found.linear:
        root = math.sqrt(2 * rate.B / rate.rho)
        ends = f"1/({n(L, 4)} + {n(root, 4)}), {n(rate.rho, 4)}/(2 · {n(k.need('mu'), 4)})"
        lines.append(
            f"γ = {times}min{{1/(L + √(2B/ρ)), ρ/(2μ)}} = {times}min{{{ends}}} = {n(step, 6)}"
        )
    elif rate.B:
        root = math.sqrt(rate.B / rate.rho)
        lines.append(
            f"γ = {times}1/(L + √(B/ρ)) = {times}1/({n(L, 4)} + {n(root, 4)}) = {n(step, 6)}"
        )
    else:
        lines.append(f"γ = {times}1/L = {n(step, 6)}")
    lines.append(pretty(found.promises))
    return [*lines, *_in_words(found, rate, step / rate.scale, k, start)]


def _in_words(
    found: Theorem, rate: Rate, step: float, k: Setting, start: float | None
) -> list[str]:
    """Return what the inequality of the generic rule says with this problem's numbers."""
    from raybench.report.words import number as n

    exact = "G^0" not in found.promises
    noisy = "sigma" in found.promises and k.noise != 0
    beside = " beside the floor of the noise" if noisy else ""
    if not found.linear:
        if start is None:
            return []
        first = 2 * start / step
        sums = n(first, 4) if exact else f"({n(first, 4)} + {n(1 / rate.rho, 4)} G⁰)"
        return [
            f"Here Δ₀ ≤ {n(start, 4)}: over T rounds the mean of ‖∇f‖² is at most {sums}/T{beside}, "
            f"below 1e-6 from T = {n(1e6 * first, 2)} on{'' if exact else ' if G⁰ = 0'}."
        ]
    shrink = step * k.need("mu")
    tenth = (
        f"{math.ceil(math.log(10) / -math.log1p(-shrink)):,} rounds" if shrink < 1 else "a round"
    )
    return [f"Here γμ = {n(shrink, 4)}: the bound falls tenfold every {tenth}{beside}."]
