"""What a plug-in says about itself: one frozen record per kind, checked when the plug-in registers.

A fact is a keyword argument of the decorator: ``@algorithm("x", up=Contractive, stochastic=True)``. The
records below are the only list of facts there is, and docs/plugins.md shows what they say of each.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from raybench.core.errors import Complaint, InputError, nearest
from raybench.core.params import Param, bare, undeclared


class Role(StrEnum):
    """What a method needs of a compressor."""

    CONTRACTIVE = "contractive"
    UNBIASED = "unbiased"
    ANY = "any"

    @property
    def usual(self) -> str:
        """The name of the compressor that is taken for this role where none is asked for."""
        return "top_k" if self == Role.CONTRACTIVE else "rand_k"

    @property
    def usual_form(self) -> str:
        """The short form of that compressor, with the usual share of coordinates."""
        return f"{self.usual}:k={USUAL_SHARE}"


USUAL_SHARE = "10%"
TITLE = "how tables and figures write its name; None for its name in capitals, or a compressor's in words"
# a function of a ``raybench.theory.Setting``, which lies above this layer
Rule = Callable[[Any], float]
Contradiction = tuple[str, str, str]  # a fact, what is wrong with it, and how to mend it


# What a fact of each type may be, in the words of complaints
EXPECTED: Mapping[object, str] = {
    bool: "True or False",
    str | None: "a name",
    Literal["zeros", "problem"]: "'zeros' or 'problem'",
    Role | None: "Contractive, Unbiased, Any_ or None",
    Mapping[str, Role]: "roles by parameter, such as {'shift': Unbiased}",
    Mapping[str, Rule]: "functions of a Setting by parameter, such as {'p': sync_probability}",
    Any: "anything",
}


def _fits(kind: Any, value: Any) -> bool:
    """Return whether a value is of a fact's type."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is Mapping:
        of = get_origin(get_args(kind)[1]) or get_args(kind)[1]
        return isinstance(value, Mapping) and all(isinstance(v, of) for v in value.values())
    return kind is Any or isinstance(value, kind)


# The records ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Base of the records; the text beside a type says what the fact means."""

    def contradictions(self, params: Mapping[str, Param]) -> Iterator[Contradiction]:
        """Yield what cannot be true together, among the facts and with the parameters."""
        yield from ()


@dataclass(frozen=True, kw_only=True)
class AlgorithmFacts(Facts):
    """What a method says about itself."""

    up: Annotated[
        Role | None,
        "the compressor it needs for messages to the server: `Contractive`, `Unbiased`, `Any_`, or None where they are dense",
    ] = None
    down: Annotated[
        Role | None, "the compressor it cannot do without for messages from the server"
    ] = None
    broadcast: Annotated[
        Role | None,
        "it tells its model by `a.broadcast_model`, so that it takes a `downlink` of this role",
    ] = None
    relay: Annotated[
        bool, "`downlink: aggregate` makes sense for it: its step is the mean of its messages"
    ] = True
    averaged: Annotated[
        bool,
        "it takes nothing of its messages but their mean or sum, so that another `collective` than `gather` makes sense for it",
    ] = True
    robust: Annotated[
        bool,
        "its server makes sums and multiples of `.mean()` of messages only, in `wire.server_zeros()`, and steps along `a.pooled(net, g)`: it may keep clients apart and put a `robust` rule in place of the mean",
    ] = False
    own: Annotated[str | None, "the one compressor it is bound to, by name"] = None
    operators: Annotated[
        Mapping[str, Role], "the roles of its parameters that are compressors, by parameter"
    ] = field(default_factory=dict)
    theory: Annotated[
        Any, "its theoretical step size, a function of a `Setting`; None where it has none"
    ] = None
    auto: Annotated[
        Mapping[str, Rule], "what the word `auto` means, a function of a `Setting` by parameter"
    ] = field(default_factory=dict)
    stochastic: Annotated[
        bool, "it may draw minibatches, so that about 400 points of a curve are recorded"
    ] = False
    proximal: Annotated[bool, "it takes proximal steps where f has a nonsmooth part"] = False
    dense: Annotated[
        bool, "it works without its uplink compressor as well: messages are then dense"
    ] = False
    baseline: Annotated[
        bool,
        "its step is along the mean of the clients' gradients, so that without a compressor it is what others are compared with",
    ] = False
    clock: Annotated[
        bool, "it depends on how fast clients are: a sweep needs a `clock`, and its seeds run apart"
    ] = False
    decentralised: Annotated[
        bool, "clients talk to their neighbours on a `graph`, without a server"
    ] = False
    vertical: Annotated[bool, "it is for features that are split over the clients"] = False
    predicts: Annotated[bool, "it needs a problem that gives predictions"] = False
    minimizer: Annotated[bool, "it needs the minimiser x*"] = False
    participation: Annotated[
        str | None, "the parameter that `participation` of a sweep file sets"
    ] = None
    title: Annotated[str | None, TITLE] = None

    def role(self, way: str) -> Role | None:
        """Return what it needs of the compressor ``up`` or ``down``, None where it needs none."""
        return self.up if way == "up" else self.down

    def compresses(self, way: str) -> bool:
        """Tell whether a compressor for messages ``up`` or ``down`` makes a difference to it."""
        return self.role(way) is not None or (way == "down" and self.broadcast is not None)

    def contradictions(self, params: Mapping[str, Param]) -> Iterator[Contradiction]:
        if self.decentralised and self.vertical:
            yield "vertical", "contradicts decentralised", "vertical methods have a server"
        if self.decentralised and self.compresses("down"):
            fact = "broadcast" if self.broadcast is not None else "down"
            yield fact, "contradicts decentralised", "without a server nothing is sent down"
        if self.own is not None and self.up is not None:
            yield "own", "contradicts up", "say up=None: the sweep's compressor is not used"
        names = [name for name, param in params.items() if param.kind == "operator"]
        for name in self.operators:
            if name not in names:
                fix = nearest(name, names) or f"declare {name}=Operator('rand_k:k=10%')"
                yield "operators", f"{name!r} is no parameter that is a compressor", fix
        automatic = [name for name, param in params.items() if "auto" in param.words]
        for name in self.auto:
            if name not in automatic:
                fix = nearest(name, automatic) or f"declare {name}=Number('auto', words=('auto',))"
                yield "auto", f"{name!r} is no parameter that takes the word auto", fix
        for name in automatic:
            if name not in self.auto:
                fix = f"say what it means: auto={{{name!r}: function}}"
                yield "auto", f"parameter {name!r} takes the word auto, which has no rule", fix
        part = self.participation
        if part is not None and (part not in params or params[part].kind != "number"):
            numbers = [name for name, param in params.items() if param.kind == "number"]
            fix = nearest(part, numbers) or f"declare {part}=Number(1.0, low=0, high=1)"
            yield "participation", f"{part!r} is no parameter that is a number", fix


@dataclass(frozen=True, kw_only=True)
class CompressorFacts(Facts):
    """What a compressor says about itself: attributes of its class say the rest."""

    title: Annotated[str | None, TITLE] = None


@dataclass(frozen=True, kw_only=True)
class ProblemFacts(Facts):
    """What a problem says about itself."""

    x0: Annotated[
        Literal["zeros", "problem"], "where `x0` starts unless the sweep file says so"
    ] = "zeros"
    trained: Annotated[
        bool, "its gradients are those of a network: it takes the settings `train`"
    ] = False


KINDS: Mapping[str, type[Facts]] = {
    "compressor": CompressorFacts,
    "algorithm": AlgorithmFacts,
    "problem": ProblemFacts,
    "metric": Facts,
}


# Checking a registration ---------------------------------------------------------------------------


@lru_cache
def meanings(kind: str) -> Mapping[str, tuple[object, str]]:
    """Return the type and the meaning of every fact that plug-ins of a kind may state, by name."""
    hints = get_type_hints(KINDS[kind], include_extras=True)
    return {f.name: get_args(hints[f.name]) for f in fields(KINDS[kind])}


def facts_of(
    kind: str, name: str, given: Mapping[str, object], params: Mapping[str, Param]
) -> Facts:
    """Return the record of a plug-in from the keyword arguments of its decorator.

    Raises InputError with every fact that is unknown, of the wrong type, or contradicts another one or
    the parameters.
    """
    meaning_of, where = meanings(kind), f"{kind} {name}"
    wrong: list[Complaint] = []
    for fact, value in given.items():
        if fact in meaning_of:
            if not _fits(meaning_of[fact][0], value):
                fix = f"expected {EXPECTED[meaning_of[fact][0]]}"
                wrong.append(Complaint(where, f"{fact} is {value!r}"[:80], fix))
        elif bare(value) and not nearest(fact, meaning_of).startswith("did you mean"):
            wrong.append(undeclared(where, fact, value))
        else:
            fix = nearest(fact, meaning_of) or f"a {kind} states no facts"
            fix += "; a parameter is declared by Number(...), Choice(...) and the like"
            wrong.append(Complaint(where, f"unknown fact {fact!r}", fix))
    fix = "give the parameter another name"
    wrong += [
        Complaint(where, f"{param!r} is a fact", fix) for param in params if param in meaning_of
    ]
    if not wrong:
        facts = KINDS[kind](**given)
        every = facts.contradictions(params)
        wrong = [Complaint(where, f"{fact}: {what}", fix) for fact, what, fix in every]
        if not wrong:
            return facts
    raise InputError(wrong)


# By kind: the base class, and its attributes that a parameter may replace
_bases: dict[str, tuple[type, tuple[str, ...]]] = {}
C = TypeVar("C", bound=type)


def base(kind: str, *, leaves: tuple[str, ...] = ()) -> Callable[[C], C]:
    """Say that a class is the base of all plug-ins of a kind whose parameters become its attributes.

    No parameter of such a plug-in may then bear the name of an attribute or method of that class, but
    for those it ``leaves`` to parameters.
    """

    def decorate(target: C) -> C:
        _bases[kind] = (target, leaves)
        return target

    return decorate


def check_names(kind: str, name: str, target: object, params: Mapping[str, Param]) -> None:
    """Raise InputError where a parameter would hide an attribute or method of the plug-in's class."""
    root, leaves = _bases.get(kind, (None, ()))
    if root is None or not isinstance(target, type):
        return
    hidden: dict[str, str] = {}
    for part in target.__mro__[:-1]:
        fields = {*vars(part).get("__params__", {}), *getattr(part, "__dataclass_fields__", {})}
        typed = inspect.get_annotations(part) if part is root else {}
        names = {*vars(part), *typed} - fields - {*leaves}
        hidden |= {param: part.__name__ for param in params if param in names - hidden.keys()}
    if hidden:
        what = [f"parameter {param!r} hides {part}.{param}" for param, part in hidden.items()]
        raise InputError([Complaint(f"{kind} {name}", w, "give it another name") for w in what])
