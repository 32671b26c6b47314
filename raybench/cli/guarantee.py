"""What a theoretical step size promises: its recursion, each factor, the inequality with its numbers."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raybench.cli.shared import Screen
    from raybench.spec import Cell
    from raybench.theory.rule import Rate, Setting

NONCONVEX = "(1/T) Σ_{t<T} E‖∇f(xᵗ)‖² ≤ 2 Δ₀/(γT) + G⁰/(ρT),  Δ₀ = f(x⁰) − inf f"
PL = "E Ψᵗ ≤ (1 − γμ)ᵗ Ψ⁰,  Ψ = f − f* + (γ/ρ) G"
EXACT = "(1/T) Σ_{t<T} ‖∇f(xᵗ)‖² ≤ 2 Δ₀/(γT),  Δ₀ = f(x⁰) − inf f"
EXACT_PL = "f(xᵗ) − f* ≤ (1 − γμ)ᵗ (f(x⁰) − f*)"


def operator_numbers(setting: Setting, down: bool) -> list[tuple[str, float]]:
    """Return what the step makes of the operator: theta and beta, or omega of the mean."""
    from raybench.theory.rule import contraction

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


def explain(out: Screen, cell: Cell, steps: Mapping[str, float]) -> None:
    """Print how the steps (by rule) of a one-cell sweep come about, and what they promise."""
    from rich.padding import Padding
    from rich.text import Text

    from raybench.cli.shared import pairs, prose
    from raybench.planning.resolve import Resolver, problem_of
    from raybench.report import words

    theory, setting = Resolver().backing(cell)
    if theory is None or not steps:
        return
    rate = theory(setting)
    said = inspect.getdoc(theory)
    if said:
        out.print(Text("\n  where it comes from", style="bold"))
        for paragraph in said.split("\n\n"):
            out.print(Padding(Text(" ".join(prose(paragraph).split())), (0, 0, 0, 2)))
    if rate.rho is not None and rate.B:
        out.print(Text("\n  E G⁺ ≤ (1 − ρ) G + B ‖x⁺ − x‖², where ‖g − ∇f‖² ≤ G", style="bold"))
        ratio = math.sqrt(rate.B / rate.rho)
        rows = [("ρ", rate.rho), ("B", rate.B), ("√(B/ρ)", ratio)]
        out.print(pairs([(name, words.number(value, 6)) for name, value in rows]))
    start = _start(cell, problem_of(cell.problem))
    for rule, step in steps.items():
        out.print(Text(f"\n  {rule}", style="bold"))
        for line in _lines(rule, step, rate, setting, start):
            out.print(Padding(Text(line), (0, 0, 0, 2)))
    for remark in _remarks(cell):
        out.print(Padding(Text(remark, style="dim"), (0, 0, 0, 2)))


def _remarks(cell: Cell) -> list[str]:
    """Return what the inequalities mean here beyond their letters."""
    from raybench.core.registry import lookup
    from raybench.planning.resolve import problem_of

    remarks = []
    stochastic = lookup("algorithm", cell.algorithm.name).facts.stochastic
    if stochastic and isinstance(cell.algorithm.params.get("batch"), int):
        remarks.append("With minibatches their noise may add a floor: see the text above.")
    if problem_of(cell.problem).has_prox:
        remarks.append("The problem has a nonsmooth part: for ∇f read the gradient mapping.")
    return remarks


def _start(cell: Cell, problem: Any) -> float | None:
    """Return a bound of f(x^0) - inf f at the sweep's starting point, None where there is none."""
    import torch

    c = problem.constants
    least = c.f_star if c.f_star is not None else c.f_inf
    if least is None or cell.x0 not in ("zeros", "problem"):
        return None
    x = problem.start() if cell.x0 == "problem" else torch.zeros(problem.dim, dtype=problem.dtype)
    losses = problem.oracle(x[None])[1]
    return float(losses.mean() + problem.penalty(x[None]).mean()) - float(least)


def _lines(rule: str, step: float, rate: Rate, k: Setting, start: float | None) -> list[str]:
    """Return the step with its factors, the inequality, and the inequality in words."""
    from raybench.report.words import number as n

    exact = rate.rho == 1 and rate.B == 0
    if rule == "paper":
        return [
            f"γ = {n(step, 6)}, as the authors have it; what follows from it is not proved here."
        ]
    if getattr(rate, rule) is not None and not exact:
        return [f"γ = {n(step, 6)}, a step of its own: see where it comes from."]
    assert rate.rho is not None
    assert rate.B is not None
    L = k.need("L")
    if rule == "nonconvex":
        root = math.sqrt(rate.B / rate.rho)
        lines = [f"γ = 1/(L + √(B/ρ)) = 1/({n(L, 4)} + {n(root, 4)}) = {n(step, 6)}", NONCONVEX]
        if exact:
            lines = [f"γ = 1/L = {n(step, 6)}", EXACT]
        if start is not None:
            first = 2 * start / step
            sums = n(first, 4) if exact else f"({n(first, 4)} + {n(1 / rate.rho, 4)} G⁰)"
            lines.append(
                f"Here Δ₀ ≤ {n(start, 4)}: over T rounds the mean of ‖∇f‖² is at most {sums}/T, "
                f"below 1e-6 from T = {n(1e6 * first, 2)} on{'' if exact else ' if G⁰ = 0'}."
            )
        return lines
    mu = k.constants.mu or 0.0
    if exact:
        lines = [f"γ = 1/L = {n(step, 6)}", EXACT_PL]
    else:
        root = math.sqrt(2 * rate.B / rate.rho)
        ends = f"1/({n(L, 4)} + {n(root, 4)}), {n(rate.rho, 4)}/(2 · {n(mu, 4)})"
        lines = [f"γ = min{{1/(L + √(2B/ρ)), ρ/(2μ)}} = min{{{ends}}} = {n(step, 6)}", PL]
    if not mu:
        return [*lines, "Here no μ > 0 is known, so nothing follows."]
    shrink = step * mu
    tenth = (
        f"{math.ceil(math.log(10) / -math.log1p(-shrink)):,} rounds" if shrink < 1 else "a round"
    )
    lines.append(f"Here γμ = {n(shrink, 4)}: the bound falls tenfold every {tenth}.")
    return lines
