"""Compressors made of compressors: one after another, one on what another left, multiples; and their messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from raybench.compressors.base import Composed, Compressor, Delegated, Made
from raybench.compressors.dithering import Dithering, ExponentialDithering, NaturalDithering
from raybench.compressors.rounding import Natural
from raybench.compressors.selection import TopK
from raybench.core.counts import Counts
from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.core.registry import Count, Flag, Integer, Number, Operator, compressor
from raybench.core.streams import Stream
from raybench.wire.base import Message
from raybench.wire.compound import ConcatMessage
from raybench.wire.dense import DenseMessage
from raybench.wire.fields import Field, Header, Indices, natural
from raybench.wire.sparse import SeededMessage, SparseMessage

# Messages -----------------------------------------------------------------------------------------


Scattered = SparseMessage | SeededMessage


@dataclass(eq=False)
class SupportMessage(Message):
    """The coordinates of a sparse message without its values: ``indices`` (*lead, k), ascending."""

    indices: Tensor
    kind = "support"
    tensors = ("indices",)
    shaped = ("k",)

    @classmethod
    def fields(cls, head: Header, width: int) -> Sequence[Field]:
        return [Field("indices", Indices(natural(head, "d")), (natural(head, "k"),))]

    @property
    def k(self) -> int:
        """How many coordinates a row has."""
        return self.indices.shape[-1]

    def holding(self, values: Tensor, scale: float) -> Scattered:
        """Return the sparse message of values (*lead, k) at these coordinates."""
        return SparseMessage(self.d, self.dtype, self.indices, values, scale=scale)

    def _decode(self) -> Tensor:
        ones = torch.ones_like(self.indices, dtype=self.dtype)
        return self.holding(ones, 1.0).decode()


def Support(message: Message) -> SupportMessage:
    """Return the message of the coordinates that a sparse message lists, part by part if it has parts.

    A dense part lists all of its own. Raises TypeError for other kinds: of ragged rows, seeded, quantised.
    """
    at, listed = 0, []
    for part in message.leaves():
        if type(part) is SparseMessage:
            listed.append(part.indices + at)
        elif type(part) is DenseMessage:
            every = torch.arange(at, at + part.d, device=part.device)
            listed.append(every.expand(*part.lead, -1))
        else:
            raise TypeError(f"a {part.kind} message lists no fixed number of coordinates")
        at += part.d
    return SupportMessage(message.d, message.dtype, torch.cat(listed, -1), present=message.present)


@dataclass(eq=False)
class SeededSupportMessage(SeededMessage):
    """The coordinates of a seeded message without its values: nothing is sent.

    ``values`` holds no memory; its shape (*lead, k) says how many coordinates there are.
    """

    kind = "seeded_support"
    shaped = ("k",)

    @classmethod
    def fields(cls, head: Header, width: int) -> Sequence[Field]:
        if natural(head, "k") > natural(head, "d"):
            raise ValueError(f"{head['k']} of {head['d']} coordinates")
        return []

    @property
    def k(self) -> int:
        """How many coordinates a row has."""
        return self.values.shape[-1]

    @classmethod
    def of(cls, message: SeededMessage) -> SeededSupportMessage:
        """Return the support of a message."""
        shape, absent = message.values.shape, message.values.new_ones((), dtype=torch.uint8)
        source, common = message.source, message.common
        return cls(message.d, message.dtype, absent.expand(shape), source, common)

    def holding(self, values: Tensor, scale: float) -> Scattered:
        """Return the seeded message of values (*lead, k) at these coordinates."""
        return SeededMessage(self.d, self.dtype, values, self.source, self.common, scale=scale)

    def _write(self, out: Tensor) -> None:
        self.holding(self.values.to(self.dtype), self.scale)._write(out)

    def _payload(self) -> Tensor:
        return self.values.new_empty(*self.lead, 0)

    @classmethod
    def read(cls, known: Header, payload: Tensor, stream: Stream | None) -> SeededSupportMessage:
        absent = payload.new_ones(()).expand(*payload.shape[:-1], natural(known, "k"))
        return cls._read(known, payload, stream, values=absent)


class _StandIn(ConcatMessage):
    """Base of compounds that stand for the vector of a message of another kind."""

    kind = ""

    def plain(self) -> Message:
        """Return that message, at full width."""
        raise NotImplementedError

    def _write(self, out: Tensor) -> None:
        self.plain().decode(out=out)

    def _add(self, target: Tensor) -> Tensor:
        return self.plain().add_to(target)

    def _sum(self) -> Tensor:
        return self.plain().sum_clients()

    def mean_of_senders(self) -> Tensor:
        return self.plain().mean_of_senders()

    def union(self) -> Counts:
        return self.plain().union()


@dataclass(eq=False)
class NestedMessage(_StandIn):
    """Values at a support, themselves sent by a message of dimension k: [support, message]."""

    kind = "nested"

    def check(self) -> None:
        where, message = self.parts
        if not isinstance(where, SupportMessage | SeededSupportMessage) or where.d != self.d:
            raise ValueError("not a support and a message")
        if message.d != where.k:
            raise ValueError(f"{message.d} values at {where.k} coordinates")

    def plain(self) -> Scattered:
        where = cast(SupportMessage | SeededSupportMessage, self.parts[0])
        inner = where.holding(self.parts[1].decode(), self.scale)
        return inner if where.present is None else cast(Scattered, inner.masked(where.present))


def nest(message: Message, then: Callable[[Tensor], Message]) -> Message:
    """Return the message that sends the values of ``message`` by ``then(values)``.

    Of a sparse or seeded message of k < d values, also within a nested or scaled one, only those
    (*lead, k) are handed on, before their factors; of all others the decoded vector (*lead, d).
    """
    if length_kept(message) == message.d:
        return then(message.decode())
    if isinstance(message, NestedMessage | ScaledMessage):
        outer, inner = message.parts
        return replace(message, parts=[outer, nest(inner, then)])
    support: Message
    if isinstance(message, SparseMessage):
        support = SupportMessage(message.d, message.dtype, message.indices)
    else:
        support = SeededSupportMessage.of(cast(SeededMessage, message))
    values = cast(Scattered, message).values.contiguous()
    return NestedMessage(message.d, message.dtype, [support, then(values)], scale=message.scale)


def scattered(message: Message) -> Scattered | None:
    """Return the sparse or seeded message that stands for the same vector; None if it is not of k values."""
    if type(message) is NestedMessage:
        return message.plain()
    if type(message) is ScaledMessage:
        sparse = scattered(message.parts[1]) is not None
        return cast(Scattered, message.plain()) if sparse else None
    whole = isinstance(message, Scattered) and not isinstance(message, SeededSupportMessage)
    return cast(Scattered, message) if whole else None


def length_kept(message: Message) -> int:
    """Return the length of the vector that ``nest`` hands on."""
    if type(message) is NestedMessage:
        return length_kept(message.parts[1])
    sparse = scattered(message)
    return (
        message.d
        if sparse is None or sparse.present is not None
        else sparse.values.shape[-1] or message.d
    )


@dataclass(eq=False)
class SumMessage(ConcatMessage):
    """The sum of several messages of one dimension, added in order."""

    kind = "sum"

    def check(self) -> None:
        if any(part.d != self.d for part in self.parts):
            raise ValueError("terms of several dimensions")

    def _write(self, out: Tensor) -> None:
        first, *others = self._weighted()
        first.decode(out=out)
        for part in others:
            if scattered(part) is None:
                # not add_to, whose fused rounding would make a masked message differ in its last bit
                out.add_(part.decode())
            else:
                part.add_to(out)

    def _add(self, target: Tensor) -> Tensor:
        for part in self._weighted():
            part.add_to(target)
        return target

    def _sum(self) -> Tensor:
        first, *others = self._weighted()
        total = first.sum_clients()
        for part in others:
            total = total + part.sum_clients()
        return total

    def mean_of_senders(self) -> Tensor:
        return Message.mean_of_senders(self)

    def union(self) -> Counts:
        parts = [scattered(part) for part in self.parts]
        sparse = [part for part in parts if part is not None]
        if len(sparse) < len(parts):
            return Message.union(self)
        where, values = (
            torch.cat(arrays, -1)
            for arrays in zip(*((part.support(), part.values) for part in sparse), strict=True)
        )
        return SparseMessage(self.d, self.dtype, where, values, present=sparse[0].present).union()


@dataclass(eq=False)
class ScaledMessage(_StandIn):
    """A message times a number that is sent with it: [number, message]; the number is a value."""

    kind = "scaled"

    def check(self) -> None:
        factor, message = self.parts
        if not isinstance(factor, DenseMessage) or (factor.d, message.d) != (1, self.d):
            raise ValueError("not a number and a message")

    @classmethod
    def of(cls, factor: Tensor, message: Message) -> ScaledMessage:
        """Return factor (*lead, 1), of the message's dtype, times the message."""
        return cls(message.d, message.dtype, [DenseMessage(1, message.dtype, factor), message])

    def plain(self) -> Message:
        sparse, factor = scattered(self.parts[1]), self.parts[0].decode()
        if sparse is not None:
            return replace(sparse, values=sparse.values * factor, scale=sparse.scale * self.scale)
        values = self.parts[1].decode().mul_(factor).mul_(self.scale)
        return DenseMessage(self.d, self.dtype, values)


# One after another --------------------------------------------------------------------------------


@compressor("chain")
class Chain(Composed):
    """Q(C(x)), C = ``first`` and Q = ``then``, independent: the composition of two compressors.

    Of a sparse message C(x) only the k values kept are handed to Q (before a known factor such as
    d/K), so shares and constants of Q are those of dimension k, and the indices are sent once; of
    any other message the decoded vector is.

    * C unbiased, Q unbiased: omega = (omega_C + 1)(omega_Q + 1) - 1.
    * C in B1(a, b) or B2(c, b), Q unbiased with zeta = omega_Q + 1: E||Q(C(x))||^2 <= zeta E||C(x)||^2
      and E<Q(C(x)), x> = E<C(x), x>, so B1(a, zeta b), B2(c, zeta b). A selection with alpha has
      a = c = alpha, b = 1: alpha/zeta in the contractive role, which multiplies by 1/zeta. Unscaled
      it would be (2 - zeta) alpha, never better, so ``alpha`` is None there.
    * C a selection, Q contractive on the values kept: Q(y) - y and y - x are orthogonal, y = C(x), so
      ||Q(y) - x||^2 <= ||x||^2 - alpha_Q ||y||^2 in mean: alpha = alpha_C alpha_Q.
    * Otherwise nothing is known. Source: Beznosikov et al. 2020, On Biased Compression, section 2.
    """

    first: Made = Operator("top_k:k=25%", help="acts on x")
    then: Made = Operator("natural", help="acts on what the first sends")
    made_of = ("first", "then")

    @property
    def selection(self) -> bool:  # type: ignore[override]
        return all(part.selection for part in self.parts)

    def encode(self, x: Tensor, stream: Stream) -> Message:
        first, then = self.parts
        after = stream.fold("then")
        return nest(first.encode(x, stream.fold("first")), lambda y: then.encode(y, after))

    def length(self, d: int) -> int:
        """Return the dimension that ``then`` acts in: k of a sparse message, or d."""
        lengths: dict[int, int] = self.__dict__.setdefault("_lengths", {})
        if d not in lengths:
            lengths[d] = length_kept(
                self.part("first").compress(torch.arange(d, dtype=torch.float32))
            )
        return lengths[d]

    def fit(self, d: int, n: int, layout: Layout | None = None) -> Compressor:
        half = replace(self, first=self._fitted("first", d, n, layout))
        k = half.length(d)
        return replace(half, then=half._fitted("then", k, n, layout if k == d else None))

    def omega(self, d: int) -> float | None:
        first, then = self.parts
        of_first, of_second = first.omega(d), then.omega(self.length(d))
        return (
            None if of_first is None or of_second is None else (of_first + 1) * (of_second + 1) - 1
        )

    def alpha(self, d: int) -> float | None:
        first, then = self.parts
        k, alpha = self.length(d), first.alpha(d)
        if alpha is None or then.omega(k) == 0:  # the second leaves all as it is
            return alpha
        alone = k < d or alpha == 1 or then.selection  # the second stays on the coordinates kept
        after = then.alpha(k)
        projects = first.selection or alpha == 1
        return alpha * after if projects and alone and after is not None else None

    def b1(self, d: int) -> tuple[float, float] | None:
        first = self.part("first")
        return self._through(d, self._selected(d) or first.b1(d)) or super().b1(d)

    def b2(self, d: int) -> tuple[float, float] | None:
        first = self.part("first")
        return self._through(d, self._selected(d) or first.b2(d)) or super().b2(d)

    def _selected(self, d: int) -> tuple[float, float] | None:
        first = self.part("first")
        alpha = first.alpha(d) if first.selection else None
        return None if alpha is None else (alpha, 1.0)

    def _through(self, d: int, constants: tuple[float, float] | None) -> tuple[float, float] | None:
        """Return B1 or B2 of the first compressor after an unbiased second one."""
        if self.selection:
            alpha = self.alpha(d)
            return None if alpha is None else (alpha, 1.0)
        omega = self.part("then").omega(self.length(d))
        return (
            None
            if constants is None or omega is None
            else (constants[0], (omega + 1) * constants[1])
        )


def _error(op: Compressor, d: int) -> float | None:
    """Return the least e known with E||C(x) - x||^2 <= e ||x||^2."""
    alpha, omega = op.alpha(d), op.omega(d)
    errors = [e for e in (None if alpha is None else 1 - alpha, omega) if e is not None]
    return min(errors, default=None)


@compressor("two_shot")
class TwoShot(Composed):
    """C_1(x) + C_2(x - C_1(x)), both messages sent: alpha = 1 - (1 - alpha_1)(1 - alpha_2).

    In general 1 - alpha = e_1 (1 - alpha_2), e_1 the error of the first (1 - alpha_1, or omega_1). With
    an unbiased second compressor the sum is unbiased: omega = omega_2 e_1. Source: Richtarik et al. 2022
    (3PC), variant 4.
    """

    first: Made = Operator("top_k:k=25%", help="acts on x")
    then: Made = Operator("top_k:k=25%", help="acts on what the first leaves of x")
    made_of = ("first", "then")

    def encode(self, x: Tensor, stream: Stream) -> Message:
        first, then = self.parts
        first_message = first.encode(x, stream.fold("first"))
        residual = first_message.scaled(-1.0).add_to(x.clone())
        two = then.encode(residual, stream.fold("then"))
        return SumMessage(x.shape[-1], x.dtype, [first_message, two])

    def omega(self, d: int) -> float | None:
        first, then = self.parts
        left, omega = _error(first, d), then.omega(d)
        return None if left is None or omega is None else omega * left

    def alpha(self, d: int) -> float | None:
        first, then = self.parts
        left, after = _error(first, d), then.alpha(d)
        if left is None or after is None:
            return None
        alpha = 1 - left * (1 - after)
        return alpha if alpha > 0 else None


@compressor("induced")
class Induced(TwoShot):
    """C(x) + Q(x - C(x)), C contractive and Q unbiased: unbiased, omega = omega_Q (1 - alpha_C).

    Costs both messages. Raises InputError where ``then`` is biased. Source: Horvath and Richtarik
    2021, A Better Alternative to Error Feedback.
    """

    first: Made = Operator("top_k:k=25%", help="contractive")
    then: Made = Operator("rand_k:k=25%", help="unbiased; acts on what the first leaves of x")

    def fit(self, d: int, n: int, layout: Layout | None = None) -> Compressor:
        fitted = super().fit(d, n, layout)
        assert isinstance(fitted, Induced)
        if fitted.part("then").omega(d) is None:
            raise InputError.of("then", "is biased", "induced needs an unbiased second compressor")
        return fitted


# Top-k with quantised values ----------------------------------------------------------------------


class _TopKThen(Delegated):
    """Top-k, then the quantiser of a subclass."""

    k: int | float | str
    counted = ("k",)

    def quantiser(self) -> Compressor:
        """Return what acts on the kept values."""
        raise NotImplementedError

    @cached_property
    def chain(self) -> Chain:
        """The composition."""
        return Chain(TopK(self.k), self.quantiser())

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        return self.chain.deterministic

    def encode(self, x: Tensor, stream: Stream) -> Message:
        return self.chain.encode(x, stream)

    def _other(self, d: int) -> tuple[Compressor, int]:
        return self.chain, d


def _count() -> Any:
    return Count(help="coordinates kept, or a share such as 10%")


def _norm() -> Any:
    return Number(2.0, low=1, words=("inf",), help="norm of the kept values: 2 or inf")


@compressor("top_k_natural")
class TopKNatural(_TopKThen):
    """The k largest |x_j|, each rounded at random to a power of two: zeta = 9/8 in B1 and B2.

    Bits: k times (index and 9, or 12 in float64). Source: Beznosikov et al. 2020.
    """

    k: int | float | str = _count()

    def quantiser(self) -> Compressor:
        return Natural()


@compressor("top_k_dithering")
class TopKDithering(_TopKThen):
    """The k largest |x_j|, dithered to s levels: 1/s, .., 1, or base^(1-s), .., 1/base, 1.

    zeta is that of ``dithering``, or with a base of ``exponential_dithering``, in dimension k:
    (b + 1/b + 2)/4 + u min(1, u), u = k^(1/r) b^(1-s), r = min(p, 2). Bits: one norm, k times (index
    and ceil(log2(2s+1))). Source: Beznosikov et al. 2020.
    """

    k: int | float | str = _count()
    s: int = Integer(3, low=1, high=1000, help="levels above zero")
    p: float | str = _norm()
    base: float | None = Number(
        None, low=1, open_low=True, help="levels base^-i; null for i/s, equally spaced"
    )

    def quantiser(self) -> Compressor:
        if self.base is None:
            return Dithering(self.s, self.p)
        return ExponentialDithering(self.s, self.p, self.base)


@compressor("top_k_natural_dithering")
class TopKNaturalDithering(_TopKThen):
    """The k largest |x_j|, dithered to the levels 2^(1-s), .., 1/2, 1.

    As ``top_k_dithering`` with base 2: zeta = 9/8 + u min(1, u), u = k^(1/r) 2^(1-s), r = min(p, 2).
    """

    k: int | float | str = _count()
    s: int = Integer(3, low=1, high=1000, help="levels above zero: 2^(1-s), .., 1/2, 1")
    p: float | str = _norm()

    def quantiser(self) -> Compressor:
        return NaturalDithering(self.s, self.p)


# Multiples ----------------------------------------------------------------------------------------


SAFE_SQUARES = {torch.float32: (1e-25, 1e35), torch.float64: (1e-200, 1e200)}
"""Between these a sum of squares has neither lost numbers that are too small nor overflown."""


@compressor("optimal_rescale")
class OptimalRescale(Composed):
    """s C(x), s = <C(x), x>/||C(x)||^2 sent as one value: ||s C(x) - x||^2 = (1 - cos^2) ||x||^2 <= ||x||^2.

    No multiple of C(x) is nearer to x, so it is contractive wherever a fixed multiple of C is: alpha
    is that of C in the contractive role (C in B3, B2, B1 or unbiased); without a class of C none is
    claimed (C(x) may be orthogonal to x). s = 0 where C(x) = 0. With ``correct`` the entry of the error
    x - s C(x) that is largest is added, one value and its index:
    alpha = 1 - (1 - alpha_C)(1 - 1/d) >= 1/d for every C.
    """

    of: Made = Operator("scaled_sign", help="the compressor whose best multiple is sent")
    correct: bool = Flag(help="send the largest entry of the error too")
    made_of = ("of",)
    zero_to_zero = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        inner = self.part("of").encode(x, stream)
        message = ScaledMessage.of(best_factor(x, inner), inner)
        if not self.correct:
            return message
        residual = message.scaled(-1.0).add_to(x.clone())
        return SumMessage(x.shape[-1], x.dtype, [message, TopK(1).encode(residual, stream)])

    def alpha(self, d: int) -> float | None:
        constants = self.part("of").b3(d)
        if self.correct:
            return 1 - (1 - (1 / constants[0] if constants else 0.0)) * (1 - 1 / d)
        return 1 / constants[0] if constants else None


@compressor("as_contractive")
class AsContractive(Composed):
    """c C(x) with the factor c that makes C contractive; both sides know c, so it costs no bits.

    C unbiased: c = 1/(omega + 1), alpha = 1/(omega + 1); in B1(a, b): c = 1/b, alpha = a/b^2; in
    B2(g, b): c = 1/b, alpha = g/b. Raises InputError where C is of no such class. Source: Beznosikov et
    al. 2020, theorem on B1, B2, B3.
    """

    of: Made = Operator("natural", help="unbiased, or of the class B1 or B2")
    made_of = ("of",)

    @property
    def additive(self) -> bool:  # type: ignore[override]
        return self.part("of").additive

    def encode(self, x: Tensor, stream: Stream) -> Message:
        constants = self._known(x.shape[-1])
        return self.part("of").encode(x, stream).scaled(constants[1])

    def alpha(self, d: int) -> float:
        return 1 / self._known(d)[0]

    def _known(self, d: int) -> tuple[float, float]:
        constants = self.part("of").b3(d)
        if constants is None:
            fix = "as_contractive takes unbiased compressors and those of B1 or B2"
            raise InputError.of("of", "has no constants that a factor makes contractive", fix)
        return constants


def best_factor(x: Tensor, message: Message) -> Tensor:
    """Return s = <C(x), x>/||C(x)||^2, shape (*lead, 1) in x's dtype; 0 where C(x) = 0.

    x: (*lead, d); message: of C(x). Sums are in float64. NaN where an entry of C(x) is not finite.
    """
    plain = scattered(message)
    if plain is None:
        value = message.decode()
    else:
        x = x.gather(-1, plain.support())
        value = plain.values if plain.scale == 1.0 else plain.values * plain.scale
    along, size = _products(x, value)
    factor = along / size.where(size > 0, 1.0)
    least, most = SAFE_SQUARES[x.dtype]
    odd = ~((size > least) & (size < most))
    if bool(odd.any()):
        a, b = x[odd].double(), value[odd].double()
        if a.shape[-1]:
            p, q = (v.abs().amax(-1, keepdim=True) for v in (a, b))
            numerator, denominator = _products(a / p.where(p > 0, 1.0), b / q.where(q > 0, 1.0))
            ratio = (p / q.where(q > 0, 1.0))[..., 0]
            factor[odd] = torch.where(denominator == 0, 0.0, numerator / denominator * ratio)
    top = torch.finfo(x.dtype).max
    return factor.clamp(-top, top).to(x.dtype)[..., None]


def _products(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return <a, b> and <b, b> over the last axis, summed in float64."""
    wide = b.double()
    return (a * wide).sum(-1), (wide * wide).sum(-1)
