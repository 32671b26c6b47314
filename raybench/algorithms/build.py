"""The builder of methods: numbers set and compressors bound, for a sweep or for a training loop of a user's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from raybench import theory
from raybench.algorithms.base import Algorithm, Estimator
from raybench.compressors import Compressor, FittedCompressor
from raybench.compressors.base import TimedCompressor, build, named
from raybench.compressors.dense import Identity
from raybench.core import registry
from raybench.core.cells import PerCell
from raybench.core.counts import Clock
from raybench.core.errors import InputError
from raybench.core.facts import AlgorithmFacts, Role
from raybench.core.layout import Layout
from raybench.core.parts import PARTS
from raybench.problems.base import Constants

Dims = tuple[int, int, Layout]
OWN_LOOP = "run it in a sweep, or take an estimator such as ef21, ef14, diana or power_sgd"


def named_method(
    text: str, params: Mapping[str, object] | None = None
) -> tuple[registry.Entry[AlgorithmFacts], dict[str, Any]]:
    """Return the entry and the typed parameters of a method: ``ef21``, or ``diana:alpha=0.1``.

    Raises InputError for a wrong name or parameter.
    """
    # what reads sweep files is loaded when there is something to read
    from raybench.spec import sections

    section = sections.section("algorithm", text, params)
    return registry.lookup("algorithm", section.name), dict(section.params)


def part(name: str, spec: Mapping[str, object]) -> Any:
    """Return ``local``, ``outer`` or ``delay`` of a mapping. Raises InputError with all that is wrong."""
    from raybench.spec import sections

    kind = PARTS[name]
    return kind(**sections.mapping(vars(kind)["__params__"], spec, name))


def check_loop(
    entry: registry.Entry[AlgorithmFacts], params: Mapping[str, Any], local: bool
) -> None:
    """Raise InputError where a method cannot run in a user's loop; local: the loop takes local steps."""
    for what, fix in _hindrances(entry, params, local):
        raise InputError.of("algorithm", f"{entry.name} {what}", fix)


def _hindrances(
    entry: registry.Entry[AlgorithmFacts], params: Mapping[str, Any], local: bool
) -> Iterator[tuple[str, str]]:
    """Yield what a method does that belongs to the user's loop, and what to do about it."""
    kind = entry.target
    if not issubclass(kind, Estimator) or kind.round is not Estimator.round:
        yield "is no estimator of the gradient: its rounds are its own", OWN_LOOP
    if kind.apply is not Estimator.apply:
        yield "needs gradients at further points in a step", OWN_LOOP
    if kind.start is not Estimator.start:
        yield "needs to know the problem before the first step", OWN_LOOP
    if kind.source is not Estimator.source and "refused_in_loops" not in vars(
        _home(kind, "source")
    ):
        yield (
            "does local work of its own",
            "take gd (or another estimator) with local={'steps': H}: your optimizer does the steps",
        )
    if kind.point is not Estimator.point:
        yield "is recorded at another point than the model that your loop has", OWN_LOOP
    if "outer" in kind.presets and not local:
        yield (
            "has momentum that belongs to your optimizer",
            "take gd or ef21 around torch.optim.SGD(momentum=...)",
        )
    for name, instead in kind.refused_in_loops.items():
        if params[name] != entry.params[name].default:
            yield f"leaves {name} to your loop", instead


def _home(kind: type, name: str) -> type:
    """Return the class in which an attribute is defined."""
    return next(c for c in kind.__mro__ if name in vars(c))


def parameter_compressors(
    entry: registry.Entry[AlgorithmFacts], params: Mapping[str, Any], dims: Dims
) -> dict[str, FittedCompressor]:
    """Return the bound compressors that a method has as parameters, by name.

    ``compressors`` of its decorator gives their roles. Raises InputError where one cannot play its role.
    """
    bound = {}
    for name, param in entry.params.items():
        if param.kind == "operator":
            with named(f"algorithm.{name}"):
                role = entry.facts.operators.get(name, Role.ANY)
                bound[name] = build(params[name], name).bind(*dims, role)
    return bound


def assembled(
    entry: registry.Entry[AlgorithmFacts],
    params: Mapping[str, Any],
    numbers: Mapping[str, PerCell],
    up: tuple[Compressor, FittedCompressor],
    down: tuple[Compressor, FittedCompressor] | None,
    dims: Dims,
    clock: Clock,
) -> Algorithm:
    """Return a method with its parameters and compressors set, for a sweep or a loop; gamma is left to the caller.

    numbers: the parameters that have a value per cell, in place of those in ``params``. up, down: compressors as
    declared and as bound. dims: the length of messages, the number of clients and the layout.
    """
    a: Algorithm = entry.target()
    for name, value in params.items():
        setattr(a, name, numbers.get(name, value))
    n = dims[1]
    for name, bound in parameter_compressors(entry, params, dims).items():
        setattr(a, name, TimedCompressor(bound, clock, build(params[name], name), n))
    a.C = a.Q = TimedCompressor(up[1], clock, up[0], n)
    a.D = None if down is None else TimedCompressor(down[1], clock, down[0], n)
    return a


def method(
    entry: registry.Entry[AlgorithmFacts],
    params: Mapping[str, Any],
    compressors: tuple[Any, Any],
    n: int,
    layout: Layout,
    clock: Clock,
    like: torch.Tensor,
    unproven: bool = False,
) -> Estimator:
    """Return a method with its numbers set and its compressors bound, for one cell; gamma is left to the caller.

    compressors: for messages up and down, as ``compressors.base.build`` takes them, None for none. like:
    a tensor of the type and device of the vectors. unproven: compressors that no theory of the method covers, too.
    Raises InputError where they do not fit.
    """
    facts, d = entry.facts, layout.dim
    dims = d, n, layout
    up, down = compressors
    compressor = _uplink(entry, up)
    bound = _bound(compressor, dims, facts.up or Role.ANY, unproven)
    setting = theory.Setting(
        constants=Constants(),
        n=n,
        d=d,
        omega=bound.omega,
        alpha=bound.alpha,
        dense_share=bound.dense_share(like.dtype) if "auto" in params.values() else 1.0,
        common_mask=bound.compressor.correlated,
        numbers=params,
    )
    settled = {
        name: _automatic(entry, name, setting) if value == "auto" and name in facts.auto else value
        for name, value in params.items()
    }
    numbers = {
        name: PerCell(torch.tensor([float(value)], dtype=like.dtype, device=like.device))
        for name, value in settled.items()
        if entry.params[name].per_cell and isinstance(value, int | float)
    }
    if down is not None and facts.down is None:
        what = "your loop sends no model: only methods whose server compresses its sum take one"
        raise InputError.of("downlink", what, "double_squeeze or ef21_bc, or leave it out")
    server = None
    if facts.down is not None:
        op = build(facts.down.usual_form if down is None else down, "downlink")
        server = op, op.bind(*dims, facts.down)
    a = assembled(entry, settled, numbers, (compressor, bound), server, dims, clock)
    a.check(params, compressor, d)
    assert isinstance(a, Estimator)
    return a


def _uplink(entry: registry.Entry[AlgorithmFacts], spec: Any) -> Any:
    facts = entry.facts
    if facts.own is not None or facts.up is None:
        if spec is not None:
            why = f"it is bound to {facts.own}" if facts.own else "it has no compressor to set"
            raise InputError.of("compressor", f"{entry.name} takes none: {why}", "leave it out")
        return build(facts.own) if facts.own else Identity()
    if spec is None:
        what = f"{entry.name} needs a compressor for its messages"
        raise InputError.of("compressor", what, f"such as {facts.up.usual_form}")
    return build(spec)


def _bound(compressor: Compressor, dims: Dims, role: Role, unproven: bool) -> FittedCompressor:
    try:
        return compressor.bind(*dims, role)
    except InputError as error:
        free = compressor.bind(*dims, Role.ANY)  # raises what is wrong in any role
        if unproven:
            return free
        (why,) = error.complaints
        fix = f"one that is {role}, such as {role.usual_form}, or allow_unproven=True"
        raise InputError.of(why.where, why.what, fix) from None


def _automatic(entry: registry.Entry[AlgorithmFacts], name: str, setting: theory.Setting) -> float:
    try:
        return float(entry.facts.auto[name](setting))
    except theory.NoTheory as why:
        what = f"auto has no value in a loop: {why}"
        raise InputError.of(f"algorithm.{name}", what, "give it a number") from None
