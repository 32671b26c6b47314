"""Requested cell -> resolved cell: what K, gamma and every ``auto`` amount to; or why it is skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any

from raybench import problems, theory
from raybench.algorithms.build import Dims, parameter_compressors
from raybench.algorithms.robust import kappa
from raybench.compressors import FittedCompressor, Role, count_of
from raybench.core import registry
from raybench.core.counts import ALL_TO_ALL
from raybench.core.errors import InputError
from raybench.core.facts import AlgorithmFacts
from raybench.core.parts import PARTS, Local, Train
from raybench.execution import checks
from raybench.execution.batch import Resolved, ResolvedFamily, batch_keys
from raybench.execution.build import (
    collective_of,
    dims_of,
    fitted,
    graph_of,
    relays,
    unbound,
    uplink,
)
from raybench.execution.checks import Skip, SkipCode
from raybench.problems.abilities import Trained
from raybench.problems.base import Problem
from raybench.spec import Cell, Section, document
from raybench.spec.sections import default

Method = registry.Entry[AlgorithmFacts]
_PARTS = {name: vars(kind)["__params__"] for name, kind in {**PARTS, "train": Train}.items()}


_adopted: dict[Section, Callable[[], Problem]] = {}


@lru_cache(maxsize=8)
def problem_of(section: Section) -> Problem:
    """Return the problem of a section with all its clients, built once per process.

    Raises InputError for bad data or settings.
    """
    if section in _adopted:
        return _adopted[section]()
    return problems.build(section.name, section.params)


def problem_of_cell(cell: Cell) -> Problem:
    """Return the problem of a cell, with its settings of training.

    Raises InputError as ``problem_of`` does, and where those do not fit.
    """
    problem = problem_of(cell.problem)
    if cell.train is not None:
        assert isinstance(problem, Trained)
        problem = problem.trained(Train(**cell.train))
    return problem


def use_shared_problem(section: Section, fetch: Callable[[], Problem]) -> None:
    """Let ``problem_of`` fetch a problem that another process has built."""
    _adopted[section] = fetch


def describe(section: Section, entry: registry.Entry[Any]) -> str:
    """Return ``name(param=value, ..)`` with the parameters that differ from their defaults."""
    shown = [
        f"{name}={value}"
        for name, value in section.params.items()
        if name not in entry.params or value != entry.params[name].default
    ]
    return f"{section.name}({', '.join(shown)})" if shown else section.name


def _more_than_a_step(cell: Cell) -> str:
    """Return the part by which a round is more than one gradient and a step at once, or nothing."""
    work = Local(**(cell.local or {}))
    # a step size of its own makes what is sent a multiple of the gradient
    plain = work.optimizer == "sgd" and not work.weight_decay and work.step_size is None
    if work.steps != 1 or not plain:
        return "local work (local)"
    if cell.outer is not None and cell.outer["optimizer"] != "sgd":
        return f"an outer optimizer (outer: {cell.outer['optimizer']})"
    if cell.outer is not None and cell.outer["weight_decay"]:
        return "weight decay (outer.weight_decay)"
    if cell.delay is not None and cell.delay["rounds"]:
        return f"a delay (delay: {cell.delay['rounds']})"
    return ""


def label_of(cell: Cell) -> str:
    """Return how tables and figures name a method: algorithm, compressors, parameters that matter."""
    parts = [describe(cell.algorithm, registry.lookup("algorithm", cell.algorithm.name))]
    if cell.compressor is not None:
        parts.append(describe(cell.compressor, registry.lookup("compressor", cell.compressor.name)))
    parts += [f"{group['match']} {group['compressor']}" for group in cell.groups or ()]
    if cell.downlink is not None:
        entry = registry.lookup("compressor", cell.downlink.name)
        parts.append(f"down {describe(cell.downlink, entry)}")
    for name, params in _PARTS.items():
        section = getattr(cell, name)
        if section is not None:
            changed = {k: v for k, v in section.items() if v != default(params[k])}
            changes = " ".join(f"{k}={v}" for k, v in changed.items())
            parts.append(f"{name} {changes}".strip())
    step = cell.step
    parts += [f"{step.schedule} step"] if step.schedule != "constant" else []
    parts += [f"warm-up {step.warmup}"] if step.warmup else []
    parts += [f"{cell.iterate} iterate"] if cell.iterate != "last" else []
    return " ".join(parts)


def _given(cell: Cell, entry: Method, problem: Problem) -> dict[str, object]:
    """Return a method's parameters with what other keys of the cell and the problem say of them."""
    params = dict(cell.algorithm.params)
    silent = "batch" in params and params["batch"] == entry.params["batch"].default
    if problem.batch is not None and silent:
        params["batch"] = problem.batch
    if cell.participation != 1 and entry.facts.participation is not None:
        params[entry.facts.participation] = cell.participation
    return params


@dataclass(frozen=True)
class _Case:
    """A cell's method with what its compressors are bound to and serve as, and what its steps depend on."""

    entry: Method
    dims: Dims
    k: int | None
    role_up: Role
    role_down: Role
    setting: theory.Setting


# what the cells of one form have in common: every key but seed and step
_COMMON = attrgetter(
    *(key.field for key in document.AXES.values() if key.name not in ("seed", "step_size"))
)


@dataclass(frozen=True)
class Resolver:
    """Resolves the cells of a sweep. allow_unproven: run pairs that no theory covers."""

    allow_unproven: bool = False
    # of each form: the cells it was found for hold the very objects that its key names
    _forms: dict[tuple[object, ...], tuple[Cell, ResolvedFamily | Skip | InputError]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def resolve(self, cell: Cell) -> Resolved:
        """Return the resolved cell.

        Raises Skip where the pair makes no sense, InputError where a number does not fit the data.
        """
        step = cell.step
        key = (*map(id, _COMMON(cell)), step.kind, step.rule, step.of, step.schedule, step.warmup)
        if key not in self._forms:
            try:
                self._forms[key] = cell, self._form(cell)
            except (Skip, InputError) as why:
                self._forms[key] = cell, why
        form = self._forms[key][1]
        if not isinstance(form, ResolvedFamily):
            raise form.with_traceback(None)  # raised for each cell: its traceback would grow
        size = step.number * (form.theory_step or 1.0) if step.kind == "theory" else step.number
        return Resolved(cell, size, form)

    def _form(self, cell: Cell) -> ResolvedFamily:
        """Return what a cell shares with those that differ in step number and seed; raises as ``resolve``."""
        case = self._case(cell, checks.CHECKS)
        entry, params, setting = case.entry, case.setting.numbers, case.setting
        d, n, _ = case.dims
        entry.target.check(params, unbound(uplink(cell, entry)), d)
        if entry.facts.decentralised:
            graph_of(cell.graph, n)
        steps, lack = self._steps(cell, entry, n)
        step, basis = None, None
        try:
            if steps is None:
                raise theory.NoTheory(lack)
            step, basis = _unit(steps, setting, cell, _borrows(cell, entry, n))
        except theory.NoTheory as why:
            if cell.step.kind == "theory":
                fix = _other_steps(steps, setting)
                text = f"no theoretical step size ({why})"
                raise Skip(SkipCode.NO_STEP, text, f"give {fix}") from why
        numbers = tuple(name for name, p in entry.params.items() if p.per_cell)
        shape, run = batch_keys(cell, case.k, params, numbers)
        return ResolvedFamily(
            theory_step=step,
            basis=basis,
            k=case.k,
            params=params,
            numbers=numbers,
            omega=setting.omega,
            alpha=setting.alpha,
            label=label_of(cell),
            roles=(case.role_up, case.role_down),
            shape=shape,
            alone=cell.train is not None and cell.train["save"] != "none",
            by_seed=entry.facts.clock,
            run=run,
        )

    def backing(self, cell: Cell) -> tuple[theory.StepSizes | None, theory.Setting]:
        """Return the step sizes that a cell may take, None where there are none, and what they see.

        Raises as ``resolve`` does, but not for a step that theory does not give.
        """
        case = self._case(cell, [checks.about_problem])
        steps, _ = self._steps(cell, case.entry, case.dims[1])
        return steps, case.setting

    def _case(self, cell: Cell, asked: Sequence[checks.Check]) -> _Case:
        """Return the method, compressors and numbers of a cell. Raises what the checks say, and what does not fit."""
        entry = registry.lookup("algorithm", cell.algorithm.name)
        problem = problem_of_cell(cell)
        checks.check_cell(cell, entry, problem, asked)
        params = _given(cell, entry, problem)
        dims = dims_of(problem, params)
        counts = {}
        for where, section in (("compressor", cell.compressor), ("downlink", cell.downlink)):
            if section is not None and "k" in section.params:
                counts[where] = count_of(section.params["k"], dims[0], f"{where}.k")
        up, role_up = self._bound(uplink(cell, entry), entry, "up", dims)
        down, role_down = self._bound(cell.downlink, entry, "down", dims)
        setting = _setting(cell, entry, problem, params, up, down)
        return _Case(entry, dims, counts.get("compressor"), role_up, role_down, setting)

    def _steps(self, cell: Cell, entry: Method, n: int) -> tuple[theory.StepSizes | None, str]:
        """Return the step sizes that a cell may take, and why there are none where there are none."""
        if _borrows(cell, entry, n):
            assert cell.step.of is not None
            lender = registry.lookup("algorithm", cell.step.of, "step_size.of")
            return theory.of(lender.facts.theory), f"{lender.name} has none"
        return _own_steps(cell, entry, n)

    def _bound(
        self, section: Section | None, entry: Method, way: str, dims: Dims
    ) -> tuple[FittedCompressor, Role]:
        role = entry.facts.role(way) or Role.ANY
        if way == "down" and entry.facts.down is None and not relays(section):
            role = Role.ANY if section is None else Role.CONTRACTIVE
        name = "none" if section is None else section.name
        proof = fitted(section, *dims, Role.ANY)
        unfit = (role == Role.UNBIASED and proof.omega is None) or (
            role == Role.CONTRACTIVE and proof.compressor.b3(dims[0]) is None
        )
        if unfit and not self.allow_unproven:
            have = "a biased one" if role == Role.UNBIASED else "neither contractive nor unbiased"
            what = f"{entry.name} needs {_an(role)} compressor and {name} is {have}"
            key = "compressor" if way == "up" else "downlink"
            fix = f"{_an(role)} {key}, such as {role.usual}, or allow_unproven: true"
            raise Skip(SkipCode.OPERATOR, what, fix)
        role = Role.ANY if unfit else role
        return fitted(section, *dims, role), role


def _own_steps(cell: Cell, entry: Method, n: int) -> tuple[theory.StepSizes | None, str]:
    """Return the step sizes that a cell's own method has for it, and why there are none where there are none."""
    if entry.facts.theory is None:
        return None, "the method has none"
    if collective_of(cell.compressor) == ALL_TO_ALL:
        return None, f"no theorem covers the second compression of collective: {ALL_TO_ALL}"
    part = _more_than_a_step(cell)
    if part:
        what = "theorems are about a step along an estimate of the gradient, and here is"
        return None, f"{what} {part}"
    is_robust = getattr(entry.target, "robust", None) is not None
    if not is_robust and not checks.robust_of(cell).idle(n):
        what = "the method's theorems are about the mean over the clients, not a robust rule"
        return None, what
    if cell.downlink is not None and entry.facts.down is None and not relays(cell.downlink):
        return None, "no theorem covers the method with this downlink"
    return theory.of(entry.facts.theory), ""


def _borrows(cell: Cell, entry: Method, n: int) -> bool:
    """Return whether a cell's step is another method's, or its own method's where no theorem covers the cell."""
    if cell.step.of is None:
        return False
    return cell.step.of != entry.name or _own_steps(cell, entry, n)[0] is None


def _setting(
    cell: Cell,
    entry: Method,
    problem: Problem,
    params: dict[str, object],
    up: FittedCompressor,
    down: FittedCompressor,
) -> theory.Setting:
    """Return what step sizes depend on; its ``numbers`` are ``params`` with every ``auto`` filled in."""
    dims = dims_of(problem, params)
    auto = {n: rule for n, rule in entry.facts.auto.items() if params.get(n) == "auto"}
    try:
        compressors = parameter_compressors(entry, params, dims)
    except InputError as why:
        what = "; ".join(f"{c.where}: {c.what}" for c in why.complaints)
        needs = [
            f"{_an(role)} algorithm.{name}, such as {role.usual_form}"
            for name, role in entry.facts.operators.items()
        ]
        raise Skip(SkipCode.OWN_OPERATOR, what, " and ".join(needs)) from None
    robust = checks.robust_of(cell)
    honest = problem.n - robust.attackers(problem.n)
    # shares are asked for only where they are needed, as each compresses a vector
    setting = theory.Setting(
        constants=checks.of_honest(problem.constants, problem.n, honest),
        n=honest,
        d=dims[0],
        m=sum(problem.samples) / len(problem.samples),
        omega=up.omega,
        alpha=up.alpha,
        down_alpha=down.alpha,
        down_omega=down.omega,
        down_share=down.dense_share(problem.dtype) if auto and entry.facts.down else 1.0,
        down_common=down.compressor.correlated,
        down_ab=down.compressor.ab(dims[0], problem.n),
        dense_share=up.dense_share(problem.dtype) if auto else 1.0,
        common_mask=up.compressor.correlated,
        ab=up.compressor.ab(dims[0], problem.n) if honest == problem.n else None,
        kappa=kappa(robust, problem.n),
        numbers=params,
        compressors=compressors,
        nonsmooth=problem.has_prox,
        rounds=cell.rounds,
        constant_step=cell.step.schedule == "constant" and not cell.step.warmup,
    )
    for name, rule in auto.items():  # a rule sees the numbers that rules before it gave
        try:
            params[name] = rule(setting)
        except theory.NoTheory as why:
            what = f"{name}: auto has no value here: {why}"
            raise Skip(SkipCode.NO_VALUE, what, f"give algorithm.{name} a number") from None
    return setting


def _unit(
    steps: theory.StepSizes, setting: theory.Setting, cell: Cell, borrowed: bool
) -> tuple[float, str]:
    """Return one times the step size that a cell may take, and what it rests on. Raises NoTheory."""
    if borrowed:
        # a mere number here: what the lender's theorem assumes is not asked for
        return steps.lent(setting, cell.step.rule), "borrowed"
    return steps.step(setting, cell.step.rule), steps.kind(cell.step.rule)


def _other_steps(steps: theory.StepSizes | None, setting: theory.Setting) -> str:
    """Return what a user may write instead of a step that there is not."""
    working = [] if steps is None else steps.working(setting)
    rules = " or ".join(f"step_size.rule: {rule}" for rule in working)
    return f"step_size.value or .of{f', or {rules}, which there is here' if rules else ''}"


def _an(role: Role) -> str:
    return f"an {role}" if role[0] in "aeiou" else f"a {role}"
