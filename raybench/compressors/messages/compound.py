"""Messages made of messages: by cell (cases), by tensor (concat), by a client's choice (flagged)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from raybench.compressors.messages.base import DTYPES, KINDS, Cost, Message
from raybench.streams import Stream


class _Compound(Message):
    """A message with parts; what is known of it is the list of its parts' headers."""

    parts: list[Message]

    def leaves(self) -> list[Message]:
        return [leaf for part in self.parts for leaf in part.leaves()]

    def rebuild(self, leaves: Iterator[Message]) -> Message:
        return replace(self, parts=[part.rebuild(leaves) for part in self.parts])

    @property
    def device(self) -> torch.device:
        return self.parts[0].device

    def describe(self) -> dict[str, Any]:
        parts = [part.describe() for part in self.parts]
        present = None if self.present is None else self.present.tolist()
        return {"kind": self.kind, **self.known(), "parts": parts, "shown": present}

    @classmethod
    def _parts(cls, head: dict[str, Any], leaves: Iterator[Message]) -> list[Message]:
        return [KINDS[part["kind"]].assemble(part, leaves) for part in head["parts"]]

    def _finish(self, head: dict[str, Any]) -> Message:
        shown = head["shown"]
        return replace(
            self, scale=head["scale"], present=None if shown is None else torch.tensor(shown)
        )


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

    def _joined(
        self, of_part: Callable[[Message], Tensor], trailing: tuple[int, ...] = ()
    ) -> Tensor:
        """Return the parts' tensors with rows put back in the order of the cells."""
        pieces = [of_part(part) for part in self.parts]
        out = pieces[0].new_empty(sum(map(len, self.cells)), *pieces[0].shape[1:])
        for cells, piece in zip(self.cells, pieces, strict=True):
            out[cells] = piece
        return out

    def _decode(self) -> Tensor:
        return self._joined(lambda part: part.decode())

    def sum_clients(self) -> Tensor:
        if self.present is not None or self.scale != 1.0:
            return super().sum_clients()
        return self._joined(lambda part: part.sum_clients())

    def _cost(self) -> Cost:
        def column(j: int) -> Tensor:
            return self._joined(
                lambda part: torch.as_tensor(
                    part.cost[j], dtype=torch.float64, device=self.device
                ).expand(part.lead)
            )

        return Cost(*(column(j) for j in range(len(Cost._fields))))

    def _size(self) -> Tensor:
        return self._joined(
            lambda part: torch.as_tensor(part.nbytes, device=self.device).expand(part.lead)
        )

    def _payload(self) -> Tensor:
        sizes = self._size()
        wide = int(sizes.max()) if sizes.numel() else 0
        pad = torch.nn.functional.pad
        return self._joined(lambda part: pad(part.payload(), (0, wide - part.payload().shape[-1])))

    def known(self) -> dict[str, Any]:
        return {**super().known(), "cells": [c.tolist() for c in self.cells]}

    @classmethod
    def assemble(cls, head: dict[str, Any], leaves: Iterator[Message]) -> Message:
        parts = cls._parts(head, leaves)
        cells = [torch.tensor(c, dtype=torch.int64) for c in head["cells"]]
        return cls(head["d"], parts[0].dtype, cells, parts)._finish(head)

    def map(self, of_tensor: Callable[[Tensor], Tensor]) -> Message:
        raise TypeError("a cases message has rows of several kinds: use select or row")

    def select(self, cells: Tensor) -> Message:
        kept, parts = [], []
        place = torch.full((self.lead[0],), -1, dtype=torch.int64, device=cells.device)
        place[cells] = torch.arange(len(cells), device=cells.device)
        for own, part in zip(self.cells, self.parts, strict=True):
            stay = torch.nonzero(place[own] >= 0).flatten()
            if len(stay):
                kept.append(place[own[stay]])
                parts.append(part.select(stay))
        present = None if self.present is None else self.present[cells]
        return replace(self, cells=kept, parts=parts, present=present)

    def row(self, *at: int) -> Message:
        if self.present is not None:
            raise TypeError("a masked cases message has no rows that stand alone")
        for own, part in zip(self.cells, self.parts, strict=True):
            hit = torch.nonzero(own == at[0]).flatten()
            if len(hit):
                return part.row(int(hit[0]), *at[1:]).scaled(self.scale)
        raise IndexError(at)


@dataclass(eq=False)
class ConcatMessage(_Compound):
    """Parts that lie one after the other along the coordinates (per tensor, chains)."""

    parts: list[Message]
    kind = "concat"

    @property
    def lead(self) -> torch.Size:
        return self.parts[0].lead

    def _decode(self) -> Tensor:
        return torch.cat([part.decode() for part in self.parts], -1)

    def _cost(self) -> Cost:
        total = Cost()
        for part in self.parts:
            total = total.plus(part.cost)
        return total

    def _size(self) -> int | Tensor:
        return sum(part.nbytes for part in self.parts)

    def _payload(self) -> Tensor:
        return torch.cat([part.payload() for part in self.parts], -1)

    @classmethod
    def assemble(cls, head: dict[str, Any], leaves: Iterator[Message]) -> Message:
        parts = cls._parts(head, leaves)
        return cls(head["d"], parts[0].dtype, parts)._finish(head)

    def map(self, of_tensor: Callable[[Tensor], Tensor]) -> Message:
        present = None if self.present is None else of_tensor(self.present)
        return replace(self, parts=[p.map(of_tensor) for p in self.parts], present=present)

    def select(self, cells: Tensor) -> Message:
        present = None if self.present is None else self.present[cells]
        return replace(self, parts=[p.select(cells) for p in self.parts], present=present)


@dataclass(eq=False)
class FlagMessage(Message):
    """One bit per row: ``flags`` uint8 (*lead, 1)."""

    flags: Tensor
    kind = "flag"
    tensors = ("flags",)

    @property
    def lead(self) -> torch.Size:
        return self.flags.shape[:-1]

    def _decode(self) -> Tensor:
        return self.flags.to(self.dtype)

    def _cost(self) -> Cost:
        return Cost(raw=1)

    def _size(self) -> int:
        return 1

    def _payload(self) -> Tensor:
        return self.flags

    @classmethod
    def read(cls, known: dict[str, Any], payload: Tensor, stream: Stream | None) -> FlagMessage:
        return cls(1, DTYPES[known["dtype"]], payload[..., :1].clone())


@dataclass(eq=False)
class FlaggedMessage(ConcatMessage):
    """A message and the bit that says which of two meanings the client chose: [flag, message]."""

    kind = "flagged"

    @property
    def flags(self) -> Tensor:
        """The choices, bool of shape lead."""
        assert isinstance(self.parts[0], FlagMessage)
        return self.parts[0].flags[..., 0].bool()

    def _decode(self) -> Tensor:
        return self.parts[1].decode()


def choose(mask: Tensor, yes: Message, no: Message) -> FlaggedMessage:
    """Return the message in which each row sends ``yes`` or ``no`` (of one kind) and a flag bit.

    mask: bool of shape lead. Raises TypeError where the two are not of the same simple kind.
    """
    if type(yes) is not type(no) or yes.known() != no.known() or yes.leaves() != [yes]:
        raise TypeError("choose needs two messages of the same simple kind")
    changed = {}
    for name in yes.tensors:
        a, b = getattr(yes, name), getattr(no, name)
        changed[name] = torch.where(mask.view(*mask.shape, *[1] * (a.ndim - mask.ndim)), a, b)
    flag = FlagMessage(1, yes.dtype, mask.to(torch.uint8)[..., None])
    return FlaggedMessage(yes.d, yes.dtype, [flag, replace(yes, **changed)])
