"""How a message's arrays lie in its packed rows, and what may stand in a header that anybody has written.

A kind of message lists its fields. What a row costs, its size, packing, reading, and the memory that
reading takes follow from them: a header's claims are compared with the bytes in one place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from raybench.core.counts import Counts
from raybench.wire import bitpack
from raybench.wire.indices import code_of, decode, encode, index_cost

Header = dict[str, Any]  # what the sender and the receiver know beforehand, in JSON
HALVES = (torch.float16, torch.bfloat16)
DTYPES = {str(t).removeprefix("torch."): t for t in (torch.float64, torch.float32, *HALVES)}
MOST_NATURAL = 2**53  # of a header's integers: what is computed from them stays within 64 bits


class Coding(Protocol):
    """How the entries of an array are packed: each row of them in whole bytes.

    cost, size, memory: what a row of ``count`` entries costs, its bytes as sent, and once read. write packs
    values (*lead, count) into bytes out (*lead, P) from column ``at``, and read returns what was packed there.
    """

    def cost(self, count: int) -> Counts: ...
    def size(self, count: int) -> int: ...
    def memory(self, count: int) -> int: ...
    def write(self, values: Tensor, out: Tensor, at: int) -> None: ...
    def read(self, data: Tensor, at: int, count: int) -> Tensor: ...


class Numbers(NamedTuple):
    """Numbers as they lie in memory: values of full width, or ``raw`` bits that no accounting changes."""

    dtype: torch.dtype
    raw: bool = False

    def cost(self, count: int) -> Counts:
        return Counts(raw=8 * self.size(count)) if self.raw else Counts(values=count)

    def size(self, count: int) -> int:
        return count * self.dtype.itemsize

    def memory(self, count: int) -> int:
        return self.size(count)

    def write(self, values: Tensor, out: Tensor, at: int) -> None:
        out[..., at : at + self.size(values.shape[-1])] = bitpack.to_bytes(values)

    def read(self, data: Tensor, at: int, count: int) -> Tensor:
        return bitpack.from_bytes(data[..., at : at + self.size(count)], self.dtype)


class Symbols(NamedTuple):
    """Symbols of a width of ``bitpack`` as integers of ``dtype``."""

    width: int
    dtype: torch.dtype

    def cost(self, count: int) -> Counts:
        trits = self.width == bitpack.TRIT
        return Counts(raw=8 * self.size(count) if trits else count * self.width)

    def size(self, count: int) -> int:
        return bitpack.packed_size(count, self.width)

    def memory(self, count: int) -> int:
        return count * self.dtype.itemsize

    def write(self, values: Tensor, out: Tensor, at: int) -> None:
        bitpack.pack_into(values, self.width, out, at)

    def read(self, data: Tensor, at: int, count: int) -> Tensor:
        return bitpack.unpack(data, self.width, count, self.dtype, at)


class Indices(NamedTuple):
    """Ascending places among ``d``, in the code of (d, count)."""

    d: int

    def cost(self, count: int) -> Counts:
        return index_cost(self.d, count)

    def size(self, count: int) -> int:
        return bitpack.bytes_of(code_of(self.d, count).bits)

    def memory(self, count: int) -> int:
        return 8 * count

    def write(self, values: Tensor, out: Tensor, at: int) -> None:
        packed = encode(values, self.d)
        out[..., at : at + packed.shape[-1]] = packed

    def read(self, data: Tensor, at: int, count: int) -> Tensor:
        return decode(data[..., at : at + self.size(count)], self.d, count)


class Field(NamedTuple):
    """An array of a message: its name, how it is packed, and its axes behind the leading ones."""

    name: str
    coding: Coding
    shape: tuple[int, ...]

    @property
    def entries(self) -> int:
        """Entries of a row."""
        return math.prod(self.shape)


def row_cost(fields: Sequence[Field]) -> Counts:
    """Return what a row of these fields costs."""
    return Counts.total(field.coding.cost(field.entries) for field in fields)


def row_size(fields: Sequence[Field]) -> int:
    """Return the bytes of a row of these fields, one after the other."""
    return sum(field.coding.size(field.entries) for field in fields)


def pack_fields(fields: Sequence[Field], arrays: Sequence[Tensor], lead: torch.Size) -> Tensor:
    """Return the packed rows, uint8 (*lead, P), of arrays (*lead, *shape)."""
    flat = [x.reshape(*lead, f.entries) for x, f in zip(arrays, fields, strict=True)]
    if len(flat) == 1 and isinstance(fields[0].coding, Numbers):
        return bitpack.to_bytes(flat[0])  # a long row is sent from where it lies
    out = torch.empty(*lead, row_size(fields), dtype=torch.uint8, device=flat[0].device)
    at = 0
    for field, values in zip(fields, flat, strict=True):
        if field.entries:
            field.coding.write(values, out, at)
        at += field.coding.size(field.entries)
    return out


def read_fields(fields: Sequence[Field], data: Tensor) -> dict[str, Tensor]:
    """Return the arrays (*lead, *shape) of packed rows data (*lead, P), by name."""
    arrays, at = {}, 0
    for name, coding, shape in fields:
        count = math.prod(shape)
        arrays[name] = coding.read(data, at, count).reshape(*data.shape[:-1], *shape)
        at += coding.size(count)
    return arrays


# What is read from a header -----------------------------------------------------------------------


def dtype_of(head: Header) -> torch.dtype:
    """Return the dtype that a message decodes to. Raises KeyError where there is no such one."""
    return DTYPES[head["dtype"]]


def natural(head: Header, name: str, least: int = 0, most: int = MOST_NATURAL) -> int:
    """Return an integer of a header. Raises ValueError unless it is one in [least, most]."""
    value = head[name]
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is no integer from {least} to {most}")
    return value


def naturals(head: Header, name: str, most: int = MOST_NATURAL) -> Sequence[int]:
    """Return a list of integers of a header. Raises ValueError unless all are in [0, most]."""
    values = head[name]
    if not is_list_of(values, int) or not all(0 <= value <= most for value in values):
        raise ValueError(f"{name} is no list of integers from 0 to {most}")
    return values


def is_list_of(values: object, kind: type) -> bool:
    """Return whether this is a list of nothing but that type (True is no int)."""
    return isinstance(values, list | tuple) and set(map(type, values)) <= {kind}


def finite(head: Header, name: str) -> float:
    """Return a number of a header as a float. Raises ValueError unless it is finite."""
    value = head[name]
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{name} is no finite number")
    return float(value)


def yes_or_no(head: Header, name: str) -> bool:
    """Return a truth value of a header. Raises ValueError unless it is one."""
    if type(head[name]) is not bool:
        raise ValueError(f"{name} is neither true nor false")
    return head[name]
