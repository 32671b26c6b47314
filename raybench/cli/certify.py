"""The verb ``certify``: the worst case of a method, and whether its theorem holds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from raybench.cli import shared
from raybench.cli.shared import Screen, pairs
from raybench.core.errors import InputError, count

if TYPE_CHECKING:
    from raybench.certificates.certify import Certificate

MEANS = {
    "mean_grad": "mean ‖∇f(xᵗ)‖², t < {T}",
    "last_grad": "‖∇f(xᵗ)‖², t = {T}",
    "gap": "f(xᵗ) − inf f, t = {T}",
    "distance": "‖xᵗ − x*‖², t = {T}",
    "lyapunov": "V(xᵗ), t = {T}",
}


def certify(
    method: Annotated[
        str, Argument(metavar="METHOD[:KEY=VALUE,...]", help="raybench ls algorithms.")
    ],
    alpha: Annotated[
        float | None, Option(metavar="A", help="Contraction of the compressor. [default: 0.5]")
    ] = None,
    down_alpha: Annotated[
        float | None, Option(metavar="A", help="That of a downlink compressor.")
    ] = None,
    clients: Annotated[
        int | None, Option(metavar="N", help="How many. [default: 1, 3 on a graph]")
    ] = None,
    rounds: Annotated[int, Option(metavar="T", help="How many.")] = 5,
    L: Annotated[
        str, Option("--L", metavar="L", help="Smoothness; L1,L2,.. of the clients.")
    ] = "1",
    mu: Annotated[
        str | None,
        Option(metavar="M", help="Strong convexity; 0: convex. [default: not convex]"),
    ] = None,
    same: Annotated[bool, Option("--same", help="All clients have one function.")] = False,
    rule: Annotated[
        str, Option(metavar="RULE", help="Of the step: nonconvex, pl, tight, ..")
    ] = "nonconvex",
    step_multiple: Annotated[
        float, Option(metavar="C", help="Times the step that the rule gives.")
    ] = 1.0,
    step_size: Annotated[float | None, Option(metavar="S", help="The step itself.")] = None,
    sets: Annotated[
        list[str] | None, Option("--set", metavar="KEY=VALUE", help="A parameter. Repeat.")
    ] = None,
    measure: Annotated[
        str,
        Option(metavar="M", help=f"{', '.join(MEANS)}. [default: the theorem's]"),
    ] = "",
    start: Annotated[
        str,
        Option(
            metavar="S", help="At most 1 at x⁰: gap, distance, lyapunov. [default: the theorem's]"
        ),
    ] = "",
    projection: Annotated[
        bool, Option("--projection", help="Compressors with <C(v), v> = ‖C(v)‖², as Top-K.")
    ] = False,
    graph: Annotated[str, Option(metavar="NAME", help="Of methods without a server.")] = "ring",
    best: Annotated[bool, Option("--best", help="At the step with the least worst case.")] = False,
    curve: Annotated[
        str | None,
        Option(metavar="FILE.png", help="Draw worst case and theorem against the step."),
    ] = None,
    beside: Annotated[
        str | None, Option(metavar="DIR", help="With measured points of a results folder.")
    ] = None,
    save: Annotated[
        str | None,
        Option(metavar="FILE.npz", help="Save the worst case. [default: if it refutes a theorem]"),
    ] = None,
    json: shared.Json = False,
    plugin: shared.Plugins = None,
) -> None:
    """Find a method's worst case, and prove or refute its theorem.

    Over all functions of a class and all contractive compressors, by semidefinite programming, with the method's own
    file. Exit code 1 if a theorem is refuted. Needs pip install 'raybench[certify]'. docs/certify.md
    """
    from raybench.certificates import certify as verbs

    if beside is not None and curve is None:
        raise InputError.of("--beside", "points stand in a figure", "--curve FILE.png, too")
    if best and (step_size is not None or step_multiple != 1):
        raise InputError.of("--best", "it looks for the step", "leave the step out")
    if curve is not None:
        from raybench.certificates import curve as figures

        figures.ending(curve)  # before minutes of work
    head, _, params = method.partition(":")
    name = f"{head}:{','.join([*filter(None, [params]), *(sets or ())])}".removesuffix(":")
    asked: dict[str, Any] = {
        **{"alpha": alpha, "down_alpha": down_alpha, "clients": clients, "rounds": rounds},
        **{"L": _numbers("--L", L), "mu": None if mu is None else _numbers("--mu", mu)},
        **{"rule": rule, "measure": measure, "start": start, "same": same},
        **{"projection": projection, "graph": graph},
    }
    steps: dict[str, Any] = {"step_multiple": step_multiple, "step_size": step_size}
    result = (
        verbs.best(name, save, **asked)
        if best
        else verbs.certify(name, save=save, **steps, **asked)
    )
    if save is None and result.refuted:
        save = f"refuted_{result.method}.npz"
        verbs.certify(name, step_size=result.step_size, save=save, **asked)
    paths = []
    if curve is not None:
        runs = None if beside is None else figures.measured(beside, result)
        paths = figures.save(curve, verbs.curve(name, **asked), runs)
    if json:
        import json as text

        print(text.dumps({**result.json(), "file": save}, indent=2))
    else:
        _print(result, save)
        shared.show_files(paths)
    raise typer.Exit(1 if result.refuted else 0)


def _numbers(key: str, text: str) -> list[float]:
    """Return the numbers of a text, one or one per client. Raises InputError."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        what = f"{text!r} is no number"
        raise InputError.of(key, what, "a number, or one per client: 1,3") from None


def _print(c: Certificate, save: str | None) -> None:
    """Print a certificate."""
    out = Screen()
    title = f"{c.method}, {count(c.clients, 'client')}"
    title += "" if c.alpha is None else f", alpha = {c.alpha:g}"
    title += "" if c.down_alpha is None else f", alpha of the downlink = {c.down_alpha:g}"
    kind, size = "smooth", f"L = {_each(c.L)}"
    if c.mu is not None:
        kind = "strongly convex" if max(c.mu) > 0 else "convex"
        size += f", mu = {_each(c.mu)}"
    step = f"{c.step_size:.6g}"
    if c.theory_step is not None:
        step += f", {c.step_size / c.theory_step:.4g} times that of the rule {c.rule}"
    solver = f"(solver: {c.status}, gap {c.gap:.1e})"
    replay = "not to the solver's accuracy"
    if c.replay is not None:
        replay = f"{c.replay:.6g}, by the method itself in float64"
    rows = [
        ("functions", f"{kind}, {size}; {'; '.join(c.conditions)}"),
        ("step", step),
        ("worst case", f"{c.worst:.6g} = {MEANS[c.measure].format(T=c.rounds)} {solver}"),
        ("replay", replay if math.isfinite(c.worst) else ""),
        ("theorem", f"none: {c.why}" if c.bound is None else f"{c.bound:.6g}: {c.verdict}"),
        ("saved", save or ""),
    ]
    out.head(f"{title}, {count(c.rounds, 'round')}")
    out.print(pairs(rows))
    if c.refuted:
        out.print(f"REFUTED: a function on which the theorem fails is in {save}", style="red")


def _each(values: tuple[float, ...]) -> str:
    return ", ".join(f"{v:g}" for v in (values if len({*values}) > 1 else values[:1]))
