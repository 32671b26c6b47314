"""Messages made of messages: by cell (cases), by tensor (concat), by a client's choice (flagged), by owner (parts)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from raybench.core.counts import Counts
from raybench.core.streams import Stream
from raybench.wire.base import KINDS, Message
from raybench.wire.fields import Field, Header, Symbols, finite, is_list_of, natural


class _Compound(Message):
    """A message with parts; what is known of it is the list of its parts' headers.

    ``present`` is None: being absent is each part's own affair, so that every leaf knows its bytes. What
    is packed and sent are the leaves.
    """

    parts: list[Message]

    def leaves(self) -> list[Message]:
        return [leaf for part in self.parts for leaf in part.leaves()]

    def rebuild(self, leaves: Iterator[Message]) -> Message:
        return self._with([part.rebuild(leaves) for part in self.parts])

    def masked(self, present: Tensor) -> Message:
        return self._with([part.masked(present) for part in self.parts])

    def to(self, dtype: torch.dtype) -> Message:
        parts = [part.to(dtype) for part in self.parts]
        return replace(cast(Any, self), dtype=dtype, parts=parts)

    def _with(self, parts: list[Message]) -> Message:
        return replace(cast(Any, self), parts=parts)

    @property
    def device(self) -> torch.device:
        return self.parts[0].device

    @property
    def cost(self) -> Counts:
        cost = self._cost()  # of all parts; they travel as one message, if any of them is sent
        sent = cost.messages
        messages = sent.clamp(max=1) if isinstance(sent, Tensor) else min(sent, 1)
        return cost._replace(messages=messages)

    @property
    def nbytes(self) -> int | Tensor:
        size = self._cost().bytes
        return size.long() if isinstance(size, Tensor) else size

    def describe(self) -> Header:
        parts = [part.describe() for part in self.parts]
        return {"kind": self.kind, **self.known(), "parts": parts}

    @classmethod
    def _parts(cls, head: Header, leaves: Iterator[Message]) -> list[Message]:
        """Return the parts of a header. Raises ValueError where it is not of parts that go together."""
        parts = [KINDS[part["kind"]].assemble(part, leaves) for part in head["parts"]]
        if not parts or len({part.dtype for part in parts}) > 1:
            raise ValueError("parts of several types, or none")
        natural(head, "d")
        head["scale"] = finite(head, "scale")
        return parts


@dataclass(eq=False)
class CasesMessage(_Compound):
    """Some cells send one kind, the others another; the coin that decides is shared by all.

    ``cells[j]`` are the indices into axis 0 of ``parts[j]``; together they cover 0..B-1 once.
    """

    cells: list[Tensor]
    parts: list[Message]
    kind = "cases"

    @property
    def lead(self) -> torch.Size:
        return torch.Size((sum(len(c) for c in self.cells), *self.parts[0].lead[1:]))

    def in_order(self, pieces: list[Tensor]) -> Tensor:
        """Return tensors, one for each part, with rows put back in the order of the cells."""
        out = pieces[0].new_empty(sum(map(len, self.cells)), *pieces[0].shape[1:])
        for cells, piece in zip(self.cells, pieces, strict=True):
            out[cells] = piece
        return out

    def masked(self, present: Tensor) -> Message:
        pairs = zip(self.cells, self.parts, strict=True)
        return replace(self, parts=[part.masked(present[cells]) for cells, part in pairs])

    def _write(self, out: Tensor) -> None:
        # the factor goes into the parts, as it does for a row alone: the same rounding
        out.copy_(self.in_order([part.scaled(self.scale).decode() for part in self.parts]))

    def _sum(self) -> Tensor:
        return self.in_order([part.sum_clients() for part in self.parts]) * self.scale

    def _cost(self) -> Counts:
        stacks = [part.cost.stacked(part.lead, self.device) for part in self.parts]
        return Counts(*self.in_order(stacks).unbind(-1))

    def union(self) -> Counts:
        stacks = [part.union().stacked(part.lead[:1], self.device) for part in self.parts]
        return Counts(*self.in_order(stacks).unbind(-1))

    def known(self) -> Header:
        return {**super().known(), "cells": [c.tolist() for c in self.cells]}

    @classmethod
    def assemble(cls, head: Header, leaves: Iterator[Message]) -> Message:
        parts = cls._parts(head, leaves)
        given, inner = head["cells"], parts[0].lead[1:]
        if not isinstance(given, list) or not all(is_list_of(c, int) for c in given):
            raise ValueError("cells are lists of integers")
        every = [cell for at in given for cell in at]
        if sorted(every) != list(range(len(every))):
            raise ValueError("cells that are there twice, or missing")
        for at, part in zip(given, parts, strict=True):
            if (*part.lead, part.d) != (len(at), *inner, head["d"]):
                raise ValueError("parts that are not of the shape of their cells")
        cells = [torch.tensor(c, dtype=torch.int64) for c in given]
        return cls(head["d"], parts[0].dtype, cells, parts, scale=head["scale"])

    def map(self, of_tensor: Callable[[Tensor], Tensor]) -> Message:
        raise TypeError("a cases message has rows of several kinds: use select or row")

    def select(self, cells: Tensor) -> Message:
        every = torch.arange(self.lead[0], device=self.device)
        cells, kept, parts = every[cells], [], []
        place = every.clone()  # where a cell's row lies within its part
        for at, part in zip(self.cells, self.parts, strict=True):
            place[at] = every[: len(at)]
            rows = torch.nonzero(torch.isin(cells, at)).flatten()
            if len(rows) or not len(cells):
                kept.append(rows)
                parts.append(part.select(place[cells[rows]]))
        return replace(self, cells=kept, parts=parts)

    def row(self, *at: int) -> Message:
        for cells, part in zip(self.cells, self.parts, strict=True):
            hit = torch.nonzero(cells == at[0]).flatten()
            if len(hit):
                return part.row(int(hit[0]), *at[1:]).scaled(self.scale)
        raise IndexError(at)


@dataclass(eq=False)
class ConcatMessage(_Compound):
    """Messages whose dimensions add up to d, one behind the other along the coordinates (per tensor, chains)."""

    parts: list[Message]
    kind = "concat"

    @property
    def lead(self) -> torch.Size:
        return self.parts[0].lead

    def _write(self, out: Tensor) -> None:
        for part, piece in zip(self._weighted(), self._pieces(out), strict=True):
            part.decode(out=piece)

    def _pieces(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.split([part.d for part in self.parts], -1)

    def _weighted(self) -> list[Message]:
        """Return the parts with the scale of the whole."""
        if self.scale == 1.0:
            return self.parts
        return [part.scaled(self.scale) for part in self.parts]

    def _add(self, target: Tensor) -> Tensor:
        for part, piece in zip(self._weighted(), self._pieces(target), strict=True):
            part.add_to(piece)
        return target

    def _cost(self) -> Counts:
        return Counts.total(part.cost for part in self.parts)

    def _sum(self) -> Tensor:
        return torch.cat([part.sum_clients() for part in self._weighted()], -1)

    def mean_of_senders(self) -> Tensor:
        return torch.cat([part.mean_of_senders() for part in self._weighted()], -1)

    def union(self) -> Counts:
        return Counts.total(part.union() for part in self.parts)._replace(messages=1)

    @classmethod
    def assemble(cls, head: Header, leaves: Iterator[Message]) -> Message:
        parts = cls._parts(head, leaves)
        if any(part.lead != parts[0].lead for part in parts):
            raise ValueError("parts of several shapes")
        message = cls(head["d"], parts[0].dtype, parts, scale=head["scale"])
        message.check()
        return message

    def check(self) -> None:
        if sum(part.d for part in self.parts) != self.d:
            raise ValueError("parts that do not add up to the whole")

    def map(self, of_tensor: Callable[[Tensor], Tensor]) -> Message:
        return replace(self, parts=[p.map(of_tensor) for p in self.parts])

    def select(self, cells: Tensor) -> Message:
        return replace(self, parts=[p.select(cells) for p in self.parts])

    def row(self, *at: int) -> Message:
        return replace(self, parts=[p.row(*at) for p in self.parts])


@dataclass(eq=False)
class FlagMessage(Message):
    """One bit per row: ``flags`` uint8 (*lead, 1)."""

    flags: Tensor
    kind = "flag"
    tensors = ("flags",)

    @classmethod
    def fields(cls, head: Header, width: int) -> Sequence[Field]:
        return [Field("flags", Symbols(1, torch.uint8), (natural(head, "d", 1, 1),))]

    def _decode(self) -> Tensor:
        return self.flags.to(self.dtype)


@dataclass(eq=False)
class FlaggedMessage(ConcatMessage):
    """A message and the bit that says which of two meanings the client chose: [flag, message]."""

    kind = "flagged"

    @property
    def flags(self) -> Tensor:
        """The choices, bool of shape lead."""
        assert isinstance(self.parts[0], FlagMessage)
        return self.parts[0].flags[..., 0].bool()

    def check(self) -> None:
        flag, message = self.parts
        if not isinstance(flag, FlagMessage) or message.d != self.d:
            raise ValueError("not a flag and a message")

    def _write(self, out: Tensor) -> None:
        self._weighted()[1].decode(out=out)

    def _add(self, target: Tensor) -> Tensor:
        return self._weighted()[1].add_to(target)

    def _sum(self) -> Tensor:
        return self._weighted()[1].sum_clients()

    def mean_of_senders(self) -> Tensor:
        return self._weighted()[1].mean_of_senders()

    def union(self) -> Counts:
        return self.parts[1].union()


def choose(mask: Tensor, yes: Message, no: Message) -> FlaggedMessage:
    """Return the message in which each row sends ``yes`` or ``no`` (made alike) and a flag bit.

    mask: bool of shape lead. Raises TypeError where the two are not made of the same kinds with the
    same parameters, or draw their supports from different streams.
    """
    _check_alike(yes, no)
    leaves = [_chosen(mask, a, b) for a, b in zip(yes.leaves(), no.leaves(), strict=True)]
    flag: Message = FlagMessage(1, yes.dtype, mask.to(torch.uint8)[..., None])
    sent = [leaf.present for leaf in leaves if leaf.present is not None]
    if len(sent) == len(leaves):
        flag = flag.masked(torch.stack(sent).any(0))
    return FlaggedMessage(yes.d, yes.dtype, [flag, yes.rebuild(iter(leaves))])


def _check_alike(yes: Message, no: Message) -> None:
    if type(yes) is not type(no) or yes.known() != no.known() or isinstance(yes, CasesMessage):
        raise TypeError("choose needs two messages of the same simple kind, or compounds of such")
    if yes.stream is not None and not torch.equal(yes.stream.keys, cast(Stream, no.stream).keys):
        raise TypeError("choose needs two messages drawn from the same stream")
    ours, theirs = getattr(yes, "parts", []), getattr(no, "parts", [])
    if len(ours) != len(theirs):
        raise TypeError("choose needs two messages of as many parts")
    for a, b in zip(ours, theirs, strict=True):
        _check_alike(a, b)


def _chosen(mask: Tensor, yes: Message, no: Message) -> Message:
    """Return the leaf whose rows are those of ``yes`` or ``no``."""
    pairs = {name: (getattr(yes, name), getattr(no, name)) for name in yes.tensors}
    if yes.present is not None or no.present is not None:
        everyone = torch.ones_like(mask)
        a, b = (everyone if m.present is None else m.present for m in (yes, no))
        pairs["present"] = (a, b)
    chosen: dict[str, Any] = {name: _where(mask, a, b) for name, (a, b) in pairs.items()}
    return replace(yes, **chosen)


def _where(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return a where mask (of shape lead) holds, else b; a ragged last axis is padded with zeros."""
    if a.shape != b.shape:
        wide = max(a.shape[-1], b.shape[-1])
        a, b = (torch.nn.functional.pad(x, (0, wide - x.shape[-1])) for x in (a, b))
    return torch.where(mask.view((*mask.shape, *[1] * (a.ndim - mask.ndim))), a, b)


# Parts, one for each client -----------------------------------------------------------------------


Compress = Callable[[Tensor, Stream], Message]


def widths(sizes: Iterable[int], n: int) -> list[int]:
    """Return how many coordinates of each tensor an n-th part has: all parts are alike, with zeros at their ends."""
    return [-(-size // n) for size in sizes]


def cut(x: Tensor, sizes: Sequence[int], n: int) -> Tensor:
    """Return the n parts (.., n, w) of x (.., d), part j having the j-th piece of each of its tensors."""
    pieces = []
    for piece, size, width in zip(x.split(list(sizes), -1), sizes, widths(sizes, n), strict=True):
        missing = n * width - size
        padded = torch.nn.functional.pad(piece, (0, missing)) if missing else piece
        pieces.append(padded.unflatten(-1, (n, width)))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)


def joined(parts: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return x (.., d) of the parts that ``cut`` has made of it."""
    pieces = parts.split(widths(sizes, parts.shape[-2]), -1)
    whole = [piece.flatten(-2)[..., :size] for piece, size in zip(pieces, sizes, strict=True)]
    return whole[0] if len(whole) == 1 else torch.cat(whole, -1)


@dataclass(eq=False)
class PartsMessage(Message):
    """The first stage: a client's vector in n parts, of which part j goes to client j, its owner.

    inner: messages (*cells, n, n_here) of the parts that ``cut`` makes of tensors of these ``sizes``. A client keeps
    its own part, so n - 1 messages are sent and booked. source: the clients' streams. again: compresses the mean of a
    part, for the second stage. It never stands alone as bytes: every part is packed for its owner.
    """

    inner: Message
    sizes: tuple[int, ...]
    source: Stream
    again: Compress

    @property
    def lead(self) -> torch.Size:
        return torch.Size((*self.inner.lead[:-2], self.inner.lead[-1]))

    @property
    def device(self) -> torch.device:
        return self.inner.device

    def _write(self, out: Tensor) -> None:
        out.copy_(joined(self.inner.decode().transpose(-3, -2), self.sizes))

    def _sum(self) -> Tensor:
        return joined(self.inner.sum_clients(), self.sizes)

    @property
    def cost(self) -> Counts:
        n, cost = self.inner.lead[-2], self.inner.cost
        if not cost.varies:
            return cost.times(n - 1)
        owners = torch.arange(n, device=self.device)
        sent = owners[:, None].ne(torch.as_tensor(self.source.ids)).double()
        each = cost.stacked(self.inner.lead, self.device) * sent[..., None]
        return Counts(*each.sum(-3).unbind(-1))

    @property
    def nbytes(self) -> int | Tensor:
        size = self.cost.bytes
        return size.long() if isinstance(size, Tensor) else size

    def to(self, dtype: torch.dtype) -> Message:
        return replace(self, dtype=dtype, inner=self.inner.to(dtype))

    def scaled(self, factor: float) -> Message:
        return replace(self, inner=self.inner.scaled(factor))

    def masked(self, present: Tensor) -> Message:
        return replace(self, inner=self.inner.masked(present[..., None, :].expand(self.inner.lead)))

    def select(self, cells: Tensor) -> Message:
        return replace(self, inner=self.inner.select(cells), source=self.source[cells])

    def map(self, of_tensor: Callable[[Tensor], Tensor]) -> Message:
        raise TypeError("the parts of a vector are messages of their own: use inner or select")


@dataclass(eq=False)
class MeansMessage(Message):
    """The second stage: the means of all parts, ``inner`` (*cells, n), as every client gets them.

    The owner of a part has it, so a client is sent n - 1 of the n messages: booked is the mean over clients. sizes: of
    the tensors that were ``cut``.
    """

    inner: Message
    sizes: tuple[int, ...]

    @property
    def lead(self) -> torch.Size:
        return self.inner.lead[:-1]

    @property
    def device(self) -> torch.device:
        return self.inner.device

    def _write(self, out: Tensor) -> None:
        out.copy_(joined(self.inner.decode(), self.sizes))

    @property
    def cost(self) -> Counts:
        n, cost = self.inner.lead[-1], self.inner.cost
        if not cost.varies:
            return cost.times(n - 1)
        each = cost.stacked(self.inner.lead, self.device)
        return Counts(*(each.sum(-2) * ((n - 1) / n)).unbind(-1))
