"""Compressors: stateless maps C: R^d -> messages, with the constants of their class.

U(omega), unbiased: E C(x) = x and E||C(x) - x||^2 <= omega ||x||^2. B(alpha), contractive:
E||C(x) - x||^2 <= (1 - alpha) ||x||^2. An unbiased compressor times 1/(omega + 1) is contractive with
alpha = 1/(omega + 1). B1, B2, B3 are the wider classes of biased compressors, B3 being the contractive
ones with delta = 1/alpha (Beznosikov et al., On Biased Compression for Distributed Learning).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, cast

import torch
from torch import Tensor

from raybench.core import facts, registry
from raybench.core.counts import Clock
from raybench.core.errors import Complaint, InputError
from raybench.core.facts import Role
from raybench.core.layout import Layout
from raybench.core.streams import Stream, stream
from raybench.wire import DTYPES, HALVES, Message

AUTO = "auto"
Contractive, Unbiased, Any_ = Role.CONTRACTIVE, Role.UNBIASED, Role.ANY


def count_of(k: int | float | str, d: int, where: str = "k") -> int:
    """Return how many of d coordinates k means: an integer, or a share of d, rounded up.

    A whole number is a count however it is written (5, 5.0, "5"), so 1.0 is one coordinate; all of
    them are ``100%``. A fraction in (0, 1) and a percentage are shares. Exact: 10% of 30 is 3.
    Raises InputError for k < 1, k > d, a share outside (0, 100%], or anything that is no number.
    """
    if type(k) is int and 1 <= k <= d:
        return k
    try:
        return _count("" if isinstance(k, bool) else str(k).strip(), d)
    except InvalidOperation:
        what = f"{k!r} is no count"
        raise InputError.of(where, what, "an integer, or a share like 10%") from None
    except ValueError as error:
        raise InputError.of(where, *error.args) from None


def count_within(k: int | float | str, size: int) -> int:
    """Return ``count_of`` for a part of so many coordinates: of a smaller part a count is all of it."""
    return size if isinstance(k, int) and k > size else count_of(k, size)


@lru_cache(maxsize=1024)
def _count(text: str, d: int) -> int:
    percent, number = text.endswith("%"), Decimal(text.removesuffix("%"))
    if not number.is_finite() or abs(number.adjusted()) > 400:
        raise InvalidOperation
    if not percent and number == number.to_integral_value():
        if not 1 <= number <= d:
            fix = f"an integer from 1 to {d}, or a share like 10%"
            raise ValueError(f"{text} of {d} coordinates", fix)
        return int(number)
    share = Fraction(number) / (100 if percent else 1)
    if not 0 < share <= 1:
        raise ValueError(f"{text} is no share", "a share lies in (0, 100%]")
    return math.ceil(share * d)


def sizes_of(value: object, where: str) -> tuple[int, ...] | str:
    """Return a list of sizes as a tuple of integers >= 1; ``auto`` as it is. Raises InputError."""
    if value == AUTO:
        return AUTO
    listed = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
    if listed and all(type(n) is int and n >= 1 for n in listed):
        return listed
    fix = f"a list of integers >= 1, in a sweep file {where}: [[14, 8]]; or {AUTO}"
    raise InputError.of(where, f"{value!r} are no sizes", fix)


@facts.base("compressor")
class Compressor:
    """Base of all compressors. A subclass defines ``encode`` and the constants of its class.

    deterministic: the message is a function of x alone. correlated: the clients of a cell draw common random numbers,
    so that averaging over them does not reduce the variance by n. selection: the message is some of x's coordinates as
    they are, so that <C(x), x> = ||C(x)||^2; projection: that holds without the first. zero_to_zero: C(0) = 0; false
    for a bare sign, which has no symbol for it. relay: as a downlink compressor the server passes on the sum of what it
    receives, and clients step themselves. additive: the clients' messages add up to one of the same kind and size, so
    that one all-reduce exchanges them. by_tensor: it acts on the tensors of a layout, not on the vector they make.
    """

    deterministic: bool = False
    selection: bool = False
    projection: bool = False
    zero_to_zero: bool = True
    relay: bool = False
    additive: bool = False
    by_tensor: bool = False
    # parameters that are a number of the d coordinates, or a share
    counted: ClassVar[tuple[str, ...]] = ()

    @property
    def correlated(self) -> bool:
        return False

    def encode(self, x: Tensor, stream: Stream) -> Message:
        """Return the message of x (*lead, d), contiguous, float32 or float64; ``stream`` has shape lead."""
        raise NotImplementedError

    def compress(self, x: Tensor, stream: Stream | None = None) -> Message:
        """Return the message of x, shape (*lead, d), with randomness from ``stream``.

        x is float64, float32, float16 or bfloat16, and the message decodes to the same dtype. Of 16
        bits, it is compressed in float32 and its values are rounded to 16 bits. The stream has shape
        lead, or is a single key from which each row's is derived; without one seed 0 is used. Raises
        TypeError where x is no tensor of these dtypes, ValueError for d = 0.
        """
        if not isinstance(x, Tensor) or x.dtype not in DTYPES.values():
            what = f"a {x.dtype} tensor" if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"x must be a tensor of one of {', '.join(DTYPES)}, not {what}")
        if x.ndim == 0 or x.shape[-1] == 0:
            raise ValueError("x needs a last axis of at least one coordinate")
        lead = tuple(x.shape[:-1])
        # a batch without rows: cut from a message that has some, so no kernel meets it
        if 0 in lead:
            some = x.new_zeros(*(max(n, 1) for n in lead), x.shape[-1])
            return self.compress(some).map(lambda t: t[tuple(slice(n) for n in lead)])
        source = stream if stream is not None else _seed_zero(x.device)
        return self._message(x.detach(), source.spread(lead))

    def _message(self, x: Tensor, stream: Stream) -> Message:
        """Return the message of x (*lead, d), of any dtype and strides, by ``encode``."""
        if x.dtype in HALVES:
            return self.encode(x.float().contiguous(), stream).to(x.dtype)
        return self.encode(x.contiguous(), stream)

    def omega(self, d: int) -> float | None:
        """Return omega of U(omega) in dimension d; None where the compressor is biased."""
        return None

    def alpha(self, d: int) -> float | None:
        """Return alpha of B(alpha) in dimension d; None where the compressor is not contractive."""
        return None

    def b1(self, d: int) -> tuple[float, float] | None:
        """Return (alpha, beta) of B1: alpha ||x||^2 <= E||C(x)||^2 <= beta <E C(x), x>; None if none.

        By default what omega or alpha imply: (1, omega + 1), or (alpha^2/4, 2), and (alpha, 1) where
        <C(x), x> = ||C(x)||^2. A subclass may know better, or know it where neither is claimed.
        """
        return self._implied(d, 2)

    def b2(self, d: int) -> tuple[float, float] | None:
        """Return (gamma, beta) of B2: max(gamma ||x||^2, E||C(x)||^2 / beta) <= <E C(x), x>.

        By default what omega or alpha imply: (1, omega + 1), or (alpha/2, 2), and (alpha, 1) as above.
        """
        return self._implied(d, 1)

    def _implied(self, d: int, power: int) -> tuple[float, float] | None:
        omega, alpha = self.omega(d), self.alpha(d)
        if alpha is not None and (self.selection or self.projection):
            return alpha, 1.0
        if omega is not None:
            return 1.0, omega + 1
        return None if alpha is None else ((alpha / 2) ** power, 2.0)

    def b3(self, d: int) -> tuple[float, float] | None:
        """Return (delta, factor): factor C is in B3(delta), E||factor C(x) - x||^2 <= (1 - 1/delta) ||x||^2.

        factor = 1 for a contractive compressor; an unbiased one is scaled by 1/(omega + 1); one of B1
        by 1/beta, with delta = beta^2/alpha; one of B2 by 1/beta, with delta = beta/gamma.
        """
        omega, alpha = self.omega(d), self.alpha(d)
        if alpha is not None:
            return 1 / alpha, 1.0
        if omega is not None:
            return omega + 1, 1 / (omega + 1)
        ways = [(b * b / a, 1 / b) for a, b in filter(None, (self.b1(d),)) if a > 0]
        ways += [(b / c, 1 / b) for c, b in filter(None, (self.b2(d),)) if c > 0]
        return min(ways, default=None)

    def ab(self, d: int, n: int | None = None) -> tuple[float, float] | None:
        """Return (A, B) of E||mean C_i(a_i) - mean a_i||^2 <= A mean||a_i||^2 - B ||mean a_i||^2.

        For n clients (None: those it was fitted to) whose compressors are drawn together; None where
        nothing is known beyond (omega / n, 0) of independent ones.
        """
        return None

    def fit(self, d: int, n: int, layout: Layout | None = None) -> Compressor:
        """Return the compressor for dimension d, n clients and a problem's layout.

        By default itself, with the parameters that ``counted`` names as integers: how many of d they mean.
        """
        counts = {name: count_of(getattr(self, name), d, name) for name in self.counted}
        return replace(self, **counts) if counts else self  # type: ignore[type-var]

    def bind(
        self, d: int, n: int = 1, layout: Layout | None = None, role: Role = Any_
    ) -> FittedCompressor:
        """Return the compressor fixed for dimension d and n clients, rescaled if its role needs it.

        Raises InputError where the parameters do not fit d, or the compressor cannot play the role.
        """
        fitted = self.fit(d, n, layout)
        omega, alpha, factor = fitted.omega(d), fitted.alpha(d), 1.0
        if role == Role.UNBIASED and omega is None:
            raise InputError.of("compressor", "is biased; the method needs an unbiased one")
        if role == Role.CONTRACTIVE and alpha is None:
            constants = fitted.b3(d)
            if constants is None:
                raise InputError.of("compressor", "has no contraction; the method needs one")
            alpha, factor = 1 / constants[0], constants[1]
        return FittedCompressor(fitted, d, role, omega if factor == 1.0 else None, alpha, factor)


# Messages that are made to know their mean length: so many, or fewer for so many coordinates in all
FEWEST_LENGTHS, MOST_LENGTHS, DRAWN_FOR_LENGTHS = 16, 4096, 1 << 20


@dataclass(frozen=True)
class FittedCompressor:
    """A compressor fixed for a dimension and role; calling it compresses.

    omega: of U(omega), or None once rescaled; alpha: of B(alpha), or None; factor: the rescaling.
    """

    compressor: Compressor
    d: int
    role: Role
    omega: float | None
    alpha: float | None
    factor: float = 1.0
    _shares: dict[torch.dtype, float] = field(default_factory=dict, compare=False, repr=False)

    def __call__(self, x: Tensor, source: Stream) -> Message:
        message = self.compressor._message(x, source)
        return message if self.factor == 1.0 else message.scaled(self.factor)

    def dense_share(self, dtype: torch.dtype) -> float:
        """Return modelled bits of a message without its indices over those of a dense one, in the mean.

        A vector is compressed to know it, once; many times where its messages differ in length, as by a coin.
        """
        if dtype not in self._shares:
            x, wide = stream(0).normal(self.d).to(dtype), dtype.itemsize * 8
            costs = [self.compressor.compress(x).cost]
            if costs[0].varies:
                rows = min(MOST_LENGTHS, max(1, DRAWN_FOR_LENGTHS // self.d))
                many, goes = x.expand(rows, -1), range(math.ceil(FEWEST_LENGTHS / rows))
                costs = [self.compressor.compress(many, stream(0).fold(j)).cost for j in goes]
            bits = [float(torch.as_tensor(c.values * wide + c.raw).double().mean()) for c in costs]
            self._shares[dtype] = min(1.0, sum(bits) / len(bits) / (self.d * wide))
        return self._shares[dtype]


def _seed_zero(device: torch.device) -> Stream:
    return stream(0, device)


# Compressors made of compressors ----------------------------------------------------------------------


Made = str | Compressor


def build(of: Made, where: str = "compressor") -> Compressor:
    """Return the compressor of a short form such as ``top_k:k=1%``; a compressor is returned as it is.

    where: what complaints call it. Raises InputError for a wrong name or parameter.
    """
    return of if isinstance(of, Compressor) else _built(of, where, registry.state())


@lru_cache(maxsize=1024)
def _built(text: str, where: str, state: tuple[int, int]) -> Compressor:
    # what reads sweep files is loaded when there is something to read
    from raybench.spec import sections

    section = sections.section("compressor", text, where=where)
    return registry.lookup("compressor", section.name).target(**section.params)


@contextmanager
def named(name: str) -> Iterator[None]:
    """Put the name of a parameter before the key path of every complaint."""
    try:
        yield
    except InputError as error:
        complaints = [Complaint(f"{name}.{c.where}", c.what, c.fix) for c in error.complaints]
        raise InputError(complaints) from error


class Composed(Compressor):
    """What compressors made of others share; ``made_of`` names the fields that hold them.

    Deterministic where all of them are, correlated where one is, 0 at 0 where all are, by tensor where one is.
    """

    made_of: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name in self.made_of:
            object.__setattr__(self, name, build(getattr(self, name), name))

    def part(self, name: str) -> Compressor:
        """Return the compressor that a field holds."""
        return cast(Compressor, getattr(self, name))

    @property
    def parts(self) -> list[Compressor]:
        """The compressors it is made of."""
        return [self.part(name) for name in self.made_of]

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        return all(op.deterministic for op in self.parts)

    @property
    def zero_to_zero(self) -> bool:  # type: ignore[override]
        return all(op.zero_to_zero for op in self.parts)

    @property
    def correlated(self) -> bool:
        return any(op.correlated for op in self.parts)

    @property
    def by_tensor(self) -> bool:  # type: ignore[override]
        return any(op.by_tensor for op in self.parts)

    def fit(self, d: int, n: int, layout: Layout | None = None) -> Compressor:
        return replace(self, **{name: self._fitted(name, d, n, layout) for name in self.made_of})  # type: ignore[type-var]

    def _fitted(self, name: str, d: int, n: int, layout: Layout | None) -> Compressor:
        with named(name):
            op = self.part(name).fit(d, n, layout)
            op.omega(d), op.alpha(d)  # where parameters do not fit d, name their path
            return op


class Delegated(Compressor):
    """Base of compressors whose class and constants are those of another, in a dimension of its own."""

    def _other(self, d: int) -> tuple[Compressor, int]:
        """Return the other compressor and the dimension that it acts in."""
        raise NotImplementedError

    def omega(self, d: int) -> float | None:
        other, length = self._other(d)
        return other.omega(length)

    def alpha(self, d: int) -> float | None:
        other, length = self._other(d)
        return other.alpha(length)

    def b1(self, d: int) -> tuple[float, float] | None:
        other, length = self._other(d)
        return other.b1(length)

    def b2(self, d: int) -> tuple[float, float] | None:
        other, length = self._other(d)
        return other.b2(length)


# How many coordinates are kept --------------------------------------------------------------------


PAPER = ("25%", "6.25%", "1.5625%", "0.4%")  # shares of the first four epochs; 0.1% afterwards
EPOCHS = 5  # of the geometric warm-up


def kept_by(op: Compressor) -> int | float | str | None:
    """Return the ``k`` of a compressor or of the first of its parts that has one; None without any."""
    if hasattr(op, "k"):
        return op.k
    parts = op.parts if isinstance(op, Composed) else []
    return next((k for k in map(kept_by, parts) if k is not None), None)


def keeping(op: Compressor, k: int | float | str) -> Compressor:
    """Return the compressor, not yet bound, with this ``k`` in place of every one that it has.

    Raises InputError where there is none, or k is no count.
    """
    if kept_by(op) is None:
        fix = "one that keeps k coordinates, such as top_k, dgc, or per_tensor of them"
        raise InputError.of("compressor", "keeps no number of coordinates", fix)
    return _kept(op, k)


def _kept(op: Compressor, k: int | float | str) -> Compressor:
    if hasattr(op, "k"):
        return replace(op, k=k)  # type: ignore[type-var]
    if kept_by(op) is None:
        return op
    assert isinstance(op, Composed)
    return replace(op, **{name: _kept(op.part(name), k) for name in op.made_of})  # type: ignore[type-var]


def shares(warmup: str | Sequence[float | str], op: Compressor, d: int) -> list[float | str]:
    """Return the shares kept in the stages of a warm-up, before the ``k`` of the compressor itself.

    warmup: ``off``, ``paper``, ``geometric`` ((k/d)^(j/6), j = 1..5) or the shares. Raises InputError
    where one is no share of d, or the compressor has no ``k``. What keeps all of d is given as ``100%``.
    """
    if warmup == "off":
        return []
    keeping(op, 1)  # raises where it has none
    if warmup == "geometric":
        base = count_of(cast(str, kept_by(op)), d) / d
        return [f"{100 * base ** (j / (EPOCHS + 1)):.6g}%" for j in range(1, EPOCHS + 1)]
    out: list[float | str] = []
    for j, share in enumerate(PAPER if warmup == "paper" else warmup):
        whole = count_of(share, d, f"algorithm.warmup[{j}]") == d
        out.append("100%" if whole else share)
    return out


# At work in a method ------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimedCompressor:
    """What a method calls: a.C(x, stream) is the message of x.

    declared, n: the compressor before it was bound and the number of clients, for ``fitted``.
    """

    bound: FittedCompressor
    clock: Clock
    declared: Compressor
    n: int

    def __call__(self, x: Tensor, source: Stream) -> Message:
        with self.clock.on("compress"):
            return self.bound(x, source)

    def fitted(self, layout: Layout, share: float | str | None = None) -> TimedCompressor:
        """Return the same compressor for vectors of this layout, keeping that share of them.

        share: in place of its ``k``, wherever that is; None leaves it. Raises InputError where the
        compressor has no ``k``.
        """
        op = self.declared if share is None else keeping(self.declared, share)
        bound = op.bind(layout.dim, self.n, layout, self.bound.role)
        return replace(self, bound=bound, declared=op)
