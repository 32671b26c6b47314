"""What ``raybench advise`` compares: operators, the method that each is used with, and how messages travel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from raybench.compressors import Compressor
from raybench.compressors.base import Role
from raybench.compressors.low_rank import Projection
from raybench.core.errors import InputError
from raybench.execution.build import unbound
from raybench.spec import short
from raybench.spec.parts import Section
from raybench.wire.collectives import ALL_TO_ALL, GATHER, REDUCE

LOCAL_STEPS = 30
RANK = 4
DIMENSIONS = (1000, 2**31)  # at which an operator is asked for its class


@dataclass(frozen=True)
class Candidate:
    """An operator with the method that uses it.

    compressor: its short form. method: the algorithm's entry in a sweep file. collectives: how its messages can
    become a mean. memory: vectors of d float32 numbers that the method keeps on each worker. role: what the method
    needs the operator to be. error: what becomes of what the operator drops: ``kept`` by error feedback
    and sent later, ``lost``, or ``none`` where nothing is dropped. parts, every, overlaps: as in
    ``raybench.analysis.payoff.Exchange``.
    """

    label: str
    compressor: str
    method: Mapping[str, Any]
    collectives: tuple[str, ...]
    memory: int = 0
    role: Role = Role.ANY
    error: str = "lost"
    parts: int = 1
    every: int = 1
    overlaps: bool = False
    section: Section = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "section", short.section("compressor", self.compressor))

    @property
    def operator(self) -> Compressor:
        """The operator, not yet fitted to a vector."""
        return unbound(self.section)

    @property
    def feeds_back(self) -> bool:
        """Whether the method remembers what the operator drops."""
        return self.error == "kept"


def _dense(label: str, compressor: str, error: str = "lost") -> Candidate:
    return Candidate(label, compressor, {"name": "dcgd"}, (REDUCE,), error=error, overlaps=True)


def _feedback(compressor: str, *collectives: str) -> Candidate:
    method = {"name": "ef14"}
    return Candidate(compressor, compressor, method, collectives, 1, Role.CONTRACTIVE, "kept")


BASELINE = _dense("bf16", "bf16")
"""Data-parallel training in 16 bits: what everything is compared with."""

CATALOGUE: tuple[Candidate, ...] = (
    _dense("float32", "identity", "none"),
    _dense("fp16", "fp16"),
    _feedback("top_k:k=10%", GATHER),
    _feedback("top_k:k=1%", GATHER),
    _feedback("top_k:k=0.1%", GATHER),
    Candidate("dgc:k=0.1%", "dgc:k=0.1%", {"name": "dgc"}, (GATHER,), 2, Role.CONTRACTIVE, "kept"),
    _feedback("rand_k:k=1%,mask=common", REDUCE),
    _feedback("scaled_sign", GATHER, ALL_TO_ALL),
    _feedback("int8", GATHER, ALL_TO_ALL),
    _feedback("mxfp8", GATHER, ALL_TO_ALL),
    _feedback("nf4", GATHER, ALL_TO_ALL),
    _feedback("mxfp4", GATHER, ALL_TO_ALL),
    Candidate("qsgd:s=7", "qsgd:s=7", {"name": "dcgd"}, (GATHER, ALL_TO_ALL)),
    Candidate(
        f"power_sgd:rank={RANK}",
        f"per_tensor:of=(power_step:rank={RANK}),vectors=dense",
        {"name": "power_sgd", "rank": RANK},
        (REDUCE,),
        1,
        error="kept",
        parts=2,
    ),
    Candidate(
        f"diloco:steps={LOCAL_STEPS}",
        "identity",
        {"name": "diloco", "steps": LOCAL_STEPS, "inner_step": 0.001},
        (REDUCE,),
        2,
        error="unknown",
        every=LOCAL_STEPS,
    ),
)
"""Usual formats, sparsifiers, signs, quantisers of 8 and 4 bits, block formats, low rank, and local steps.

PowerSGD is stood for by ``power_step``, one step of subspace iteration from a fresh start: the same messages and work,
and an error that its warm start lowers.
"""


def chosen(texts: Iterable[str] | None) -> list[Candidate]:
    """Return the candidates of short forms such as ``top_k:k=5%``; those of the catalogue if none is given.

    A name of the catalogue (``power_sgd:rank=4``) means it. Any other operator is used with error feedback if it
    is contractive or can be scaled to be, else without memory; low-rank ones act on every tensor. Messages that add up
    go through one all-reduce, selections are gathered, and others travel by whichever way is faster. Raises
    InputError for a wrong name or value.
    """
    if not texts:
        return list(CATALOGUE)
    listed = (*CATALOGUE, BASELINE)
    known = {one.compressor: one for one in listed if one.overlaps} | {o.label: o for o in listed}
    return [known.get(text) or _own(text) for text in dict.fromkeys(texts)]


def _own(text: str) -> Candidate:
    section = short.section("compressor", text, where="--compressor")
    operator, form = unbound(section), text
    if isinstance(operator, Projection):
        form = f"per_tensor:of=({text}),vectors=dense"
        operator = unbound(short.section("compressor", form))
    ways: tuple[str, ...] = (GATHER, ALL_TO_ALL)
    if operator.additive:
        ways = (REDUCE,)
    elif operator.selection or section.name == "per_tensor" or form != text:
        ways = (GATHER,)
    if _contracts(operator):
        return Candidate(text, form, {"name": "ef14"}, ways, 1, Role.CONTRACTIVE, "kept")
    return Candidate(text, form, {"name": "dcgd"}, ways)


def _contracts(operator: Compressor) -> bool:
    """Return whether an operator is contractive, or is when scaled; asked for a dimension that it takes, if any."""
    for d in DIMENSIONS:
        try:
            return operator.b3(d) is not None
        except InputError:  # fixed to a dimension of its own, or keeps more entries
            continue
    return True
