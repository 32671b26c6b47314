"""Messages are objects; bits are a view.

A message is a struct of arrays with leading axes (B, n): cells and clients (or any others). It knows
its ``cost`` (counts, not bits), its exact size in bytes without packing, how to pack to bytes and
back bit-exactly, and how to add itself to a target in O(what was sent). It never aliases its input.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Self

import torch
import xxhash
from torch import Tensor

from raybench.core.counts import Counts
from raybench.core.streams import Stream
from raybench.wire.fields import (
    HALVES,
    Field,
    Header,
    dtype_of,
    pack_fields,
    read_fields,
    row_cost,
    row_size,
)

MAGIC = b"RBM2"
# magic, XXH3 of the rest (seeded with the header's length), that length
PREFIX = struct.Struct("<4sQI")
KINDS: dict[str, type[Message]] = {}


@dataclass(eq=False)
class Message:
    """Base of all kinds: dense, sparse, seeded, ragged, levels, factors; cases, concat, flagged.

    dtype: of what it decodes to and of the values of full width. A message of float16 or bfloat16 is
    decoded in float32 and rounded at the end, so no factor or sum on the way overflows.
    scale: a factor known to both sides, applied when decoding (d/K of Rand-K, 1/(omega+1)).
    present: bool of shape lead; a message that was not sent decodes to zero and costs nothing.
    """

    d: int
    dtype: torch.dtype
    scale: float = field(default=1.0, kw_only=True)
    present: Tensor | None = field(default=None, kw_only=True)

    kind: ClassVar[str] = ""
    tensors: ClassVar[tuple[str, ...]] = ()  # fields whose first axes are the leading axes
    static: ClassVar[tuple[str, ...]] = ()  # JSON-able fields that both sides know beforehand
    shaped: ClassVar[tuple[str, ...]] = ()  # properties, sizes of the arrays, that they know too

    def __init_subclass__(cls) -> None:
        there = KINDS.get(cls.kind, cls).__module__.startswith("raybench.")
        if there and not cls.__module__.startswith("raybench."):
            raise TypeError(f"kind {cls.kind!r} is raybench's: give {cls.__name__} one of its own")
        if cls.kind:
            KINDS[cls.kind] = cls

    # What a kind defines ---------------------------------------------------------------------

    @classmethod
    def fields(cls, head: Header, width: int) -> Sequence[Field] | None:
        """Return how the arrays lie in a row of ``width`` bytes, by what both sides know.

        Cost, size, packing and reading follow. None: the kind defines ``_cost``, ``_payload`` and ``read``
        itself, and ``demand`` where reading takes more. Raises ValueError (or any other Exception) where
        the header says what cannot be. Asked about a message that is there, width is 0.
        """
        return None

    @property
    def lead(self) -> torch.Size:
        """The leading shape, usually (B, n)."""
        return getattr(self, self.tensors[0]).shape[:-1]

    def _decode(self) -> Tensor:
        """Return what the message stands for, without ``scale``; or define ``_write``."""
        raise NotImplementedError

    def _write(self, out: Tensor) -> None:
        """Write what the message stands for, ``scale`` included, into out (*lead, d).

        out is contiguous, of the message's dtype and device. Kinds with a kernel define this.
        """
        value = self._decode()
        if self.scale == 1.0:
            out.copy_(value)
        else:
            torch.mul(value, self.scale, out=out)

    def _add(self, target: Tensor) -> Tensor:
        """Add the decoded message to target (*lead, d), of its dtype, in place; return the target."""
        return target.add_(self.decode())

    def _sum(self) -> Tensor:
        """Return the sum over the last leading axis."""
        return self.decode().sum(-2)

    def mean_of_senders(self) -> Tensor:
        """Return the mean over the last leading axis of those that sent a coordinate, zero where none did.

        Sent is what a sparse message lists; of other kinds, what is not zero.
        """
        value = self.decode()
        return value.sum(-2) / (value != 0).sum(-2).clamp(min=1)

    def _layout(self) -> tuple[tuple[Field, ...], Counts]:
        """Return the fields of a row, and what they cost."""
        at = len(self.lead)
        shapes = tuple(getattr(self, name).shape[at:] for name in self.tensors)
        values = tuple(getattr(self, name) for name in (*self.static, *self.shaped))
        return _layout(type(self), self.d, self.dtype, values, shapes)  # type: ignore[arg-type]

    def _cost(self) -> Counts:
        """Return values, index and raw bits of each row: numbers if all are alike, else of shape lead."""
        return self._layout()[1]

    def _size(self) -> int | Tensor:
        """Return the bytes of each row's payload, a number if all are alike, else int64 of shape lead.

        What it costs, packed; a kind whose cost takes long to compute may say it faster.
        """
        return packed_bytes(self._cost(), self.dtype)

    def _payload(self) -> Tensor:
        fields, _ = self._layout()
        return pack_fields(fields, [getattr(self, f.name) for f in fields], self.lead)

    @classmethod
    def read(cls, known: Header, payload: Tensor, stream: Stream | None) -> Message:
        """Return the message of a payload (*lead, P); ``known`` is the sender's ``known()``.

        Raises ValueError (or any other Exception) where they do not fit each other.
        """
        return cls._read(known, payload, stream)

    @classmethod
    def _read(cls, known: Header, payload: Tensor, stream: Stream | None, **more: Any) -> Self:
        """Return the message of a payload by its fields, and what a kind gives beside them."""
        made: Header = more | read_fields(cls.fields(known, payload.shape[-1]) or (), payload)
        made |= {name: known[name] for name in cls.static}
        if stream is not None:
            made["source"] = stream
        return cls(d=known["d"], dtype=dtype_of(known), scale=known["scale"], **made)

    # What a kind may define, for messages from anybody (see ``unpacking``) -------------------

    @classmethod
    def demand(cls, known: Header, width: int) -> int:
        """Return the bytes that ``read`` and ``check`` take for a row of ``width`` bytes, at most.

        Ten times the payload for a kind without fields, as where a bit becomes a byte: one that makes more
        of its bytes, or makes numbers without any, says so here. Raises ValueError where the fields take
        another width.
        """
        fields = cls.fields(known, width)
        if fields is None:
            return 10 * width
        if row_size(fields) != width:
            raise ValueError("rows of another size than the message takes")
        return 2 * width + sum(field.coding.memory(field.entries) for field in fields)

    def check(self) -> None:
        """Raise ValueError where the message's parts do not fit each other, so that it cannot decode.

        Asked of what was read from a stranger's bytes, before the message is handed on. That rows
        take the bytes that were sent is checked for every kind.
        """

    # What every kind has ---------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """The device the message's arrays are on."""
        return getattr(self, self.tensors[0]).device

    @property
    def stream(self) -> Stream | None:
        """The stream that a seeded support comes from; None for other kinds."""
        return None

    @property
    def cost(self) -> Counts:
        """What the message costs, per row (numbers where all rows are alike)."""
        cost = self._cost()
        derived = type(self)._size is Message._size
        size = packed_bytes(cost, self.dtype) if derived else self._size()
        cost = cost._replace(bytes=size, messages=1)
        return cost if self.present is None else cost.times(self.present.double())

    @property
    def nbytes(self) -> int | Tensor:
        """Exact bytes of a packed row: a number, or int64 of shape lead where rows differ."""
        size = self._size()
        return size if self.present is None else self.present.long() * size

    @property
    def bits(self) -> Tensor:
        """Modelled bits per row, int64 of shape lead: full-width values, indices as packed, raw bits."""
        cost = self.cost
        bits = cost.values * (self.dtype.itemsize * 8) + cost.index_auto + cost.raw
        return torch.as_tensor(bits, device=self.device).round().long().expand(self.lead).clone()

    def decode(self, out: Tensor | None = None) -> Tensor:
        """Return what the receiver reconstructs, shape (*lead, d); in place if ``out`` is given.

        out may be float32 for a message of 16 bits: what its dtype cannot hold is kept there. Raises
        ValueError where ``out`` has another shape or dtype.
        """
        shape, half = (*self.lead, self.d), self.dtype in HALVES
        allowed = (self.dtype, torch.float32) if half else (self.dtype,)
        if out is not None and (out.shape != shape or out.dtype not in allowed):
            want = f"{shape} {self.dtype}"
            raise ValueError(
                f"out is {tuple(out.shape)} {out.dtype}, the message decodes to {want}"
            )
        if half:
            wide = self.to(torch.float32)
            if out is not None and out.dtype == torch.float32:
                return wide.decode(out)
            return wide.decode().to(self.dtype) if out is None else out.copy_(wide.decode())
        fresh = out is None or not out.is_contiguous() or out.device != self.device
        value = torch.empty(shape, dtype=self.dtype, device=self.device) if fresh else out
        assert value is not None
        if value.numel():
            self._write(value)
        if self.present is not None:
            zero_rows(value, ~self.present)
        return value if out is None or out is value else out.copy_(value)

    def add_to(self, target: Tensor) -> Tensor:
        """Add the decoded message to target (*lead, d) in place and return the target.

        Sparse kinds do it in O(k). The target of a message of 16 bits may be of any floating dtype.
        """
        if self.dtype not in HALVES:
            return self._add(target)
        wide = self.to(torch.float32)
        return wide._add(target) if target.dtype == wide.dtype else target.add_(wide.decode())

    def sum_clients(self) -> Tensor:
        """Return the sum over the last leading axis (the clients), in client order: (B, d).

        In the message's dtype, for one of 16 bits in float32.
        """
        return self.to(torch.float32)._sum() if self.dtype in HALVES else self._sum()

    def union(self) -> Counts:
        """Return the cost of broadcasting the sum over clients, per cell: d values by default."""
        return Counts(values=self.d, bytes=self.d * self.dtype.itemsize, messages=1)

    def to(self, dtype: torch.dtype) -> Message:
        """Return the same message with values of full width in, and decoding to, another dtype."""
        held = {name: getattr(self, name) for name in self.tensors}
        full = {name: x.to(dtype) for name, x in held.items() if x.dtype == self.dtype}
        return dataclasses.replace(self, dtype=dtype, **full)

    def scaled(self, factor: float) -> Message:
        """Return the message with another factor that both sides know."""
        return dataclasses.replace(self, scale=self.scale * factor)

    def masked(self, present: Tensor) -> Message:
        """Return the message sent only where ``present`` (bool, shape lead) holds too."""
        both = present if self.present is None else self.present & present
        return dataclasses.replace(self, present=both)

    def map(self, of_tensor: Callable[[Tensor], Tensor]) -> Message:
        """Return the message with a function of the leading axes applied to every array."""
        changed: dict[str, Any] = {n: of_tensor(getattr(self, n)) for n in self.tensors}
        if self.present is not None:
            changed["present"] = of_tensor(self.present)
        return dataclasses.replace(self, **changed)

    def select(self, cells: Tensor) -> Message:
        """Return the messages of some cells (indices into the first axis)."""
        return self.map(lambda x: x[cells])

    def row(self, *at: int) -> Message:
        """Return one row's message, with no leading axes."""
        return self.map(lambda x: x[at])

    def leaves(self) -> list[Message]:
        """Return the messages of simple kind it is made of (itself, or a compound's parts)."""
        return [self]

    def rebuild(self, leaves: Iterator[Message]) -> Message:
        """Return the same compound made of other leaves (taken from the iterator in order)."""
        return next(leaves)

    def known(self) -> Header:
        """Return what both sides know beforehand, JSON-able."""
        statics = {name: getattr(self, name) for name in self.static}
        sizes = {name: getattr(self, name) for name in self.shaped}
        dtype = str(self.dtype).removeprefix("torch.")
        return {**statics, "d": self.d, "dtype": dtype, "scale": self.scale, **sizes}

    def payload(self) -> Tensor:
        """Return the packed rows, uint8 of shape (*lead, P), shorter rows padded with zeros."""
        data = self._payload()
        return data if self.present is None else data * self.present[..., None].to(torch.uint8)

    def joined(self, size: Tensor) -> Tensor:
        """Return the rows of ``payload`` without padding, one after the other: uint8 (sum of size,).

        size: int64 of shape lead, the message's ``nbytes``.
        """
        data = self.payload()
        # one long row is sent from where it lies
        if size.numel() == 1:
            return data[..., : int(size)].reshape(-1)
        return data[within(size, data.shape[-1])]

    # Bytes that stand alone ------------------------------------------------------------------

    def describe(self) -> Header:
        """Return the header of ``pack``: kind, what is known, shapes and keys."""
        head: Header = {"kind": self.kind, "lead": list(self.lead), **self.known()}
        if self.stream is not None:
            head["keys"] = self.stream.keys.flatten().tolist()
        if self.present is not None:
            head["present"] = self.present.flatten().tolist()
        rows, width = math.prod(self.lead), self._size()
        size = width if self.present is None else self.nbytes
        head["width"] = width if isinstance(width, int) else int(width.max()) if rows else 0
        head["size"] = size if isinstance(size, int) else size.flatten().tolist()
        return head

    @classmethod
    def assemble(cls, head: Header, leaves: Iterator[Message]) -> Message:
        """Return the message of a header and its leaves (a compound takes several).

        Raises ValueError where the header is another message's.
        """
        leaf = next(leaves)
        if type(leaf) is not cls:
            raise ValueError(f"a {leaf.kind} message, not {cls.kind}")
        return leaf

    def pack(self) -> bytes:
        """Return self-describing bytes; ``unpack`` gives the message back bit-exactly.

        The header (kind, shape, compressor's constants, keys) is what both ends of a bound compressor
        know beforehand; each row's payload is ``nbytes`` long.
        """
        rows: list[memoryview] = []
        texts: list[str] = []
        for leaf in self.leaves():
            size = leaf.nbytes
            data = leaf.payload() if isinstance(size, int) else leaf.joined(size)
            rows.append(data.cpu().contiguous().view(-1).numpy().data)
            texts.append(_json(leaf.describe()))
        # a message of one leaf is its own tree: the sizes of many rows are written once
        tree = texts[0] if type(self).leaves is Message.leaves else _json(self.describe())
        text = f'{{"tree":{tree},"leaves":[{",".join(texts)}]}}'.encode()
        return b"".join((PREFIX.pack(MAGIC, checksum(text, rows), len(text)), text, *rows))


@lru_cache(maxsize=4096)
def _layout(
    kind: type[Message],
    d: int,
    dtype: torch.dtype,
    values: tuple[Any, ...],
    shapes: tuple[torch.Size, ...],
) -> tuple[tuple[Field, ...], Counts]:
    head = {"d": d, "dtype": str(dtype).removeprefix("torch.")}
    head |= zip((*kind.static, *kind.shaped), values, strict=True)
    by_name = dict(zip(kind.tensors, shapes, strict=True))
    fields = tuple(
        field._replace(shape=by_name[field.name]) for field in kind.fields(head, 0) or ()
    )
    return fields, row_cost(fields)


def _json(head: Header) -> str:
    return json.dumps(head, separators=(",", ":"))


def checksum(text: bytes | memoryview, rows: list[memoryview]) -> int:
    """Return the XXH3 of a message's header and rows, seeded with the header's length."""
    state = xxhash.xxh3_64(text, seed=len(text))
    for row in rows:
        state.update(row)
    return state.intdigest()


def packed_bytes(cost: Counts, dtype: torch.dtype) -> int | Tensor:
    """Return the bytes in which a row of this cost is packed: those of its three fields.

    They are the values of full width, the indices and the raw bits, each padded to whole bytes. So
    8 times the bytes of a message of simple kind are its modelled bits and at most 7 for each of the
    last two.
    """
    indices, raw = (-(-bits // 8) for bits in (cost.index_auto, cost.raw))
    size = cost.values * dtype.itemsize + (indices + raw)
    return size.long() if isinstance(size, Tensor) else size


def within(sizes: Tensor, width: int) -> Tensor:
    """Return which bytes of rows of a width are their own, bool (*lead, width); sizes int64 (*lead)."""
    return torch.arange(width, device=sizes.device) < sizes[..., None]


def zero_absent(value: Tensor, present: Tensor) -> Tensor:
    """Return value (*lead, m) with zeros in rows that are absent, even where value is not finite."""
    return zero_rows(value.clone(), ~present)


def zero_rows(value: Tensor, which: Tensor) -> Tensor:
    """Set the rows of value (*lead, m), contiguous, that are meant (bool, *lead) to zero; return it.

    By the numbers of the rows: a fill by a mask looks at every entry, and takes three times as long.
    """
    rows = which.flatten().nonzero()[:, 0]
    value.view(which.numel(), value.shape[-1]).index_fill_(0, rows, 0)
    return value


class Additive(Message):
    """Base of kinds whose messages add up, all of them or those for which ``additive`` holds.

    values: the numbers (*lead, m) that are added, in the format in which they are sent.
    """

    values: Tensor

    @property
    def additive(self) -> bool:
        """Whether these messages add up: their sum over clients is one of the kind and size."""
        return True

    def of_summands(self, values: Tensor) -> Message:
        """Return the message with these numbers (.., m), whose leading axes are without the clients."""
        raise NotImplementedError
