"""One compressor applied to pieces of a vector: every tensor of a model, or a part for each client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TypeAlias, TypeVar

from torch import Tensor

from raybench.compressors.base import (
    AUTO,
    Composed,
    Compressor,
    Delegated,
    Made,
    build,
    named,
    sizes_of,
)
from raybench.compressors.dense import Identity
from raybench.core.errors import InputError, nearest
from raybench.core.layout import Layout
from raybench.core.registry import Choice, Integer, List, Operator, compressor
from raybench.core.streams import Stream
from raybench.wire import ConcatMessage, Message
from raybench.wire.compound import PartsMessage, cut, widths

T = TypeVar("T")
Groups: TypeAlias = tuple[tuple[str, Made], ...]


@compressor("per_tensor")
class PerTensor(Composed):
    """C(x_1), .., C(x_T), x_l the tensors of x: independent messages, one after the other.

    alpha = min_l alpha(d_l), omega = max_l omega(d_l), B1 and B2 likewise (sum over the tensors). A
    share rho of top_k keeps ceil(rho d_l) entries of tensor l: alpha >= rho as for the whole vector,
    but other coordinates. sizes: d_1, .., d_T in order, with sum d; ``auto`` takes those of the
    problem's layout, one tensor where there is none. bucket: tensors are taken together, in order, up to so
    many coordinates (a larger one stands alone). vectors: biases and the like may be sent dense.
    groups: (pattern, compressor) pairs, the key ``groups`` of a sweep file; a tensor has the compressor of the
    first pattern that its name matches.
    Each tensor draws from its own stream. Raises InputError where the sizes do not sum to d, a compressor does
    not fit one of them, or a pattern names no tensor.
    """

    of: Made = Operator("top_k:k=25%", help="acts on each tensor; shares are of its size")
    sizes: Sequence[int] | str = List(
        AUTO, words=(AUTO,), help="sizes of the tensors, or those of the problem"
    )
    bucket: int | None = Integer(
        None, low=1, help="consecutive tensors together, up to so many coordinates"
    )
    vectors: str = Choice(
        "compressed", "dense", help="dense: tensors of one axis are sent as they are"
    )
    groups: Groups = ()
    fitted: tuple[Compressor, ...] = ()  # for each tensor, where they differ
    made_of = ("of",)
    by_tensor = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "sizes", sizes_of(self.sizes, "sizes"))

    @property
    def additive(self) -> bool:  # type: ignore[override]
        return all(op.additive for op in self.parts)

    def tensors(self, d: int) -> tuple[int, ...]:
        """Return the sizes of the tensors of a vector of length d."""
        if isinstance(self.sizes, str):
            return (d,)
        if sum(self.sizes) != d:
            what = f"they sum to {sum(self.sizes):,} and the message has d = {d:,}"
            raise InputError.of("sizes", what, "give every tensor's size, or auto")
        return tuple(self.sizes)

    def fit(self, d: int, n: int, layout: Layout | None = None) -> Compressor:
        if self.fitted:  # to a layout and a number of clients: they stay
            self.tensors(d)
            return self
        tensors: list[tuple[int, Layout | None]]
        if isinstance(self.sizes, str):
            tensors = [*self._bucketed(_tensors(layout, d))] or [(d, layout)]
        else:
            tensors = [(size, None) for size in self.tensors(d)]
        self._check_groups(layout)
        fitted = []
        for size, inner in tensors:
            given = self._of_group(inner)
            with named("of" if given is None else "groups"):
                dense = self.vectors == "dense" and inner is not None and _only_vectors(inner)
                op = self.part("of") if given is None else given
                op = Identity() if dense and given is None else op.fit(size, n, inner)
                op.omega(size), op.alpha(size)  # where parameters do not fit it, say so here
                fitted.append(op)
        return replace(self, sizes=tuple(size for size, _ in tensors), fitted=tuple(fitted))

    def _groups(self) -> list[tuple[str, Compressor]]:
        """Return pattern and compressor of every group."""
        return [(pattern, build(made, "groups")) for pattern, made in self.groups]

    def _of_group(self, layout: Layout | None) -> Compressor | None:
        """Return the compressor of the group of a tensor, None where it is in none."""
        names = [name for name, _ in layout] if layout is not None else []
        matches = [op for p, op in self._groups() if len(names) == 1 and fnmatchcase(names[0], p)]
        return matches[0] if matches else None

    def _check_groups(self, layout: Layout | None) -> None:
        names = [name for name, _ in layout or ()]
        for pattern, _ in self._groups():
            if layout is not None and not any(fnmatchcase(name, pattern) for name in names):
                what = f"{pattern!r} names no tensor"
                raise InputError.of("groups", what, nearest(pattern, names))
        if self.groups and self.bucket is not None:
            fix = "granularity: tensor"
            raise InputError.of("groups", "they do not go with buckets of tensors", fix)

    @property
    def parts(self) -> list[Compressor]:
        """The compressors it is made of."""
        return [*super().parts, *(op for _, op in self._groups())]

    def _bucketed(self, tensors: list[tuple[int, Layout]]) -> Iterator[tuple[int, Layout]]:
        """Yield size and layout of every bucket; what is sent dense is in buckets of its own."""
        held: list[Layout] = []
        for size, inner in tensors:
            mixed = self.vectors == "dense" and bool(held)
            mixed = mixed and _only_vectors(held[0]) != _only_vectors(inner)
            total = sum(layout.dim for layout in held) + size
            if held and (self.bucket is None or total > self.bucket or mixed):
                yield _joined(held)
                held = []
            held.append(inner)
        if held:
            yield _joined(held)

    def compressors_of(self, d: int) -> list[tuple[Compressor, int]]:
        """Return every tensor's compressor and size."""
        sizes = self.tensors(d)
        ops = self.fitted or (self.part("of"),) * len(sizes)
        return list(zip(ops, sizes, strict=True))

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d = x.shape[-1]
        todo = self.compressors_of(d)
        pieces = x.split([size for _, size in todo], -1)
        parts = [
            op.encode(piece.contiguous(), stream.fold(i))
            for i, ((op, _), piece) in enumerate(zip(todo, pieces, strict=True))
        ]
        return ConcatMessage(d, x.dtype, parts)

    def _every(self, d: int, constant: Callable[[Compressor, int], T | None]) -> list[T] | None:
        """Return a constant of every tensor; None where one has none."""
        different = {(id(op), size): (op, size) for op, size in self.compressors_of(d)}
        constants = [constant(op, size) for op, size in different.values()]
        finite = [value for value in constants if value is not None]
        return finite if len(finite) == len(constants) else None

    def omega(self, d: int) -> float | None:
        return max(self._every(d, lambda op, size: op.omega(size)) or [], default=None)

    def alpha(self, d: int) -> float | None:
        return min(self._every(d, lambda op, size: op.alpha(size)) or [], default=None)

    def b1(self, d: int) -> tuple[float, float] | None:
        return _worst(self._every(d, lambda op, size: op.b1(size)))

    def b2(self, d: int) -> tuple[float, float] | None:
        return _worst(self._every(d, lambda op, size: op.b2(size)))


def _worst(classes: list[tuple[float, float]] | None) -> tuple[float, float] | None:
    if classes is None:
        return None
    return min(low for low, _ in classes), max(beta for _, beta in classes)


def _tensors(layout: Layout | None, d: int) -> list[tuple[int, Layout]]:
    """Return size and own layout of every tensor of a layout, none if it is not one of d coordinates."""
    if layout is None or layout.dim != d:
        return []
    pairs = zip(layout.sizes, layout, strict=True)
    return [(size, Layout((tensor,))) for size, tensor in pairs if size]


def _joined(layouts: list[Layout]) -> tuple[int, Layout]:
    whole = Layout(tuple(tensor for layout in layouts for tensor in layout))
    return whole.dim, whole


def _only_vectors(layout: Layout) -> bool:
    return all(len(shape) < 2 for _, shape in layout)


@dataclass(frozen=True)
class PerPart(Composed, Delegated):
    """C(x_1), .., C(x_n), of which message j goes to client j; ``of`` compresses their means again.

    A part has ceil(d/n) coordinates, padded with zeros; where ``of`` acts on tensors it has so many of each, so that
    all parts have the same tensors. Constants are those of ``of`` for a part, and of the first compression alone. The result of both is, for ``of`` unbiased with
    omega and independent between clients, unbiased, and with a = mean x_i its variance is at most
    omega ||a||^2 + (1 + omega) (omega/n) mean ||x_i||^2. clients: n; sizes: of what is cut, once it is fitted to them.
    """

    of: Made
    clients: int = 1
    sizes: tuple[int, ...] = ()
    made_of = ("of",)

    def fit(self, d: int, n: int, layout: Layout | None = None) -> Compressor:
        op = self.part("of")
        if layout is None or layout.dim != d or not op.by_tensor:
            return replace(self, clients=n, sizes=(d,), of=op.fit(-(-d // n), n))
        pieces = zip(layout, widths(layout.sizes, n), strict=True)
        # a piece of a matrix is a matrix of one row: what is done with vectors is not done with it
        part = Layout(tuple((name, (*[1] * (len(s) - 1), w)) for (name, s), w in pieces))
        return replace(self, clients=n, sizes=layout.sizes, of=op.fit(part.dim, n, part))

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d, n = x.shape[-1], self.clients
        if stream.ids is None:  # a vector of no client: it is the first one's
            x, stream = x[..., None, :], stream.each([0])
        sizes = self.sizes or (d,)
        parts = cut(x, sizes, n).transpose(-3, -2).contiguous()
        # clients come last, so that what they share is shared part by part
        roots = stream.shared().fold("part").each(range(n)).keys
        op = self.part("of")
        inner = op.encode(parts, Stream(roots, (), stream.ids))
        return PartsMessage(d, x.dtype, inner, sizes, stream, op.encode)

    def _other(self, d: int) -> tuple[Compressor, int]:
        return self.part("of"), sum(widths(self.sizes or (d,), self.clients))
