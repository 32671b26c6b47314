"""From bytes that anybody may have sent to a message: a header is a claim, and is checked as one.

A valid checksum says that bytes arrived as they were sent, not that they were meant well. So nothing is
made before its size has been compared with the bytes that are there, and a message is handed on only if
its parts fit each other: then decoding, adding, packing and asking what it costs do not fail.

What is made may be larger than what was sent, for a row that its client did not send is a row of zeros.
That much (``FREE`` and ``GROWTH``) is allowed to a message that comes out of nowhere; whoever knows what
shape must come says so, and allows in proportion to it (``PER_NUMBER``).
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from raybench.core.streams import Stream
from raybench.wire.base import KINDS, MAGIC, PREFIX, Message, checksum
from raybench.wire.fields import Header, finite, is_list_of, natural, naturals

FREE = 2**26  # bytes that reading any message may take, however short it is
GROWTH = 10  # and for each byte of it
PER_NUMBER = 128  # and for each number of the shape that the receiver expects
MOST_ROWS = 2**16  # rows of a message that has fewer bytes than rows
MOST_HEADER = 2**22  # bytes of a header: as JSON becomes objects it grows some twenty times
HEADER_OF_ROW = 256  # bytes of it more for each row that the receiver expects
MOST_AXES = 8  # leading axes
MOST_NESTED = 16  # messages within messages
MOST_LEAVES = 2**14
# that a message is multiplied by, all factors within each other taken together
MOST_FACTOR = 2.0**100


def unpack(data: bytes, shape: Sequence[int] | None = None) -> Message:
    """Return the message in the bytes that ``pack`` made, bit for bit.

    shape: the (*lead, d) that the message must have. A receiver who takes bytes from clients that it
    does not trust gives it: without it d is what the header claims, and although no more than 64 MiB
    and ten times the bytes are taken here, decoding takes what the claimed d takes.

    Raises ValueError where the bytes are no message, are damaged (a checksum tells) or cut short, do
    not fit their header, are of another shape, or would take more memory than said above; what
    is returned decodes.
    """
    if len(data) < PREFIX.size or data[:4] != MAGIC:
        raise ValueError("these bytes are no raybench message")
    _, claimed, length = PREFIX.unpack_from(data)
    body = memoryview(data)[PREFIX.size :]
    if length > len(body) or checksum(body[:length], [body[length:]]) != claimed:
        raise ValueError("the message is damaged or cut short")
    expected = None if shape is None else tuple(shape)
    rows = 0 if expected is None else math.prod(expected[:-1])
    if length > MOST_HEADER + HEADER_OF_ROW * rows:
        raise ValueError(f"the message's header has {length:,} bytes: give unpack its shape")
    room = FREE + GROWTH * len(data)
    room += 0 if expected is None else PER_NUMBER * math.prod(expected)
    try:
        message = _read(json.loads(bytes(body[:length])), body[length:], room)
    except MemoryError as error:
        raise ValueError(f"the message takes more than {room:,} bytes: give its shape") from error
    except Exception as error:  # whatever a header made by others does to the readers of the kinds
        raise ValueError("the message's header does not fit its bytes") from error
    if expected is not None and (*message.lead, message.d) != expected:
        received = (*message.lead, message.d)
        raise ValueError(f"the message is of shape {received}, not {expected}")
    return message


def _read(head: Header, data: memoryview, room: int) -> Message:
    if not 1 <= len(head["leaves"]) <= MOST_LEAVES:
        raise ValueError("a message of too many parts")
    leaves = []
    for leaf_head in head["leaves"]:
        leaf, data, room = read_leaf(leaf_head, data, room)
        leaves.append(leaf)
    if len(data):
        raise ValueError("the message has bytes left over")
    tree = head["tree"]
    _check_depth(tree, MOST_NESTED)
    rest = iter(leaves)
    message = KINDS[tree["kind"]].assemble(tree, rest)
    if next(rest, None) is not None:
        raise ValueError("the message has parts left over")
    _check_factor(message, 1.0)
    return message


def _check_depth(tree: Header, most: int) -> None:
    """Raise ValueError where messages are nested too deeply: what they cost would take for ever."""
    if most == 0:
        raise ValueError("a message within too many others")
    for part in tree.get("parts", ()):
        _check_depth(part, most - 1)


def _check_factor(message: Message, factor: float) -> None:
    """Raise ValueError where factors within each other make one that float32 may not hold."""
    factor *= max(abs(message.scale), 1.0)
    if factor > MOST_FACTOR:
        raise ValueError("a message times too large a number")
    parts = getattr(message, "parts", None)
    for part in parts if isinstance(parts, list) else ():
        _check_factor(part, factor)


def read_leaf(head: Header, data: memoryview, room: int) -> tuple[Message, memoryview, int]:
    """Return a leaf from its header and the bytes that begin with its rows, the bytes and room left.

    room: the bytes of memory that it may take. Raises ValueError (or another Exception) where the
    header does not fit, MemoryError where the room is not enough.
    """
    kind = KINDS[head["kind"]]
    lead, rows = _lead(head, len(data))
    widest, d = natural(head, "width"), natural(head, "d")
    sizes, total = _sizes(head, rows, widest)
    if total > len(data):
        raise ValueError("the message is cut short")
    head = {**head, "scale": finite(head, "scale")}
    if max(rows, 1) * max(d, 1) >= 2**62:
        raise ValueError("more numbers than can be counted")
    room -= max(rows, 1) * max(kind.demand(head, widest), widest)
    if room < 0:
        raise MemoryError
    payload = _payload(data[:total], sizes, rows, widest)
    stream = None
    if "keys" in head:
        if not is_list_of(head["keys"], int):
            raise ValueError("keys are integers")
        stream = Stream(torch.from_numpy(np.array(head["keys"], np.int64)).view(lead))
    message = kind.read(head, payload.view(*lead, widest), stream)
    if "present" in head:
        if not is_list_of(head["present"], bool):
            raise ValueError("a row is present or not")
        message = message.masked(torch.from_numpy(np.array(head["present"], bool)).view(lead))
    _check_leaf(message, lead, d, sizes, widest)
    return message, data[total:], room


def _lead(head: Header, held: int) -> tuple[torch.Size, int]:
    """Return the leading shape and its rows; axes of size 0 count as 1 in what is allowed."""
    lead = naturals(head, "lead")
    if len(lead) > MOST_AXES or math.prod(max(n, 1) for n in lead) > max(held, MOST_ROWS):
        raise ValueError("more rows than bytes")
    return torch.Size(lead), math.prod(lead)


def _sizes(head: Header, rows: int, widest: int) -> tuple[Tensor, int]:
    """Return the bytes of every row, int64 (rows), and of all; one number stands for all rows."""
    if isinstance(head["size"], int):
        size = natural(head, "size", most=widest)
        return torch.tensor(size).expand(rows), rows * size
    sizes = naturals(head, "size", most=widest)
    if len(sizes) != rows:
        raise ValueError("not a size for every row")
    # as_tensor takes five times as long
    return torch.from_numpy(np.array(sizes, np.int64)), sum(sizes)


def _payload(data: memoryview, sizes: Tensor, rows: int, widest: int) -> Tensor:
    """Return the rows, uint8 (rows, widest), shorter ones padded with zeros."""
    flat = np.frombuffer(data, np.uint8)
    flat.flags.writeable = False
    with warnings.catch_warnings():  # the bytes are only read, but torch knows no such tensors
        warnings.simplefilter("ignore", UserWarning)
        sent = torch.from_numpy(flat)
    if len(sent) == rows * widest:
        return sent.view(rows, widest)
    # row by row: a mask of all rows would be a byte for every byte, and an index for many
    payload, at = np.zeros((rows, widest), np.uint8), 0
    for row, size in zip(payload, sizes.tolist(), strict=True):
        row[:size] = flat[at : at + size]
        at += size
    return torch.from_numpy(payload)


def _check_leaf(message: Message, lead: torch.Size, d: int, sizes: Tensor, width: int) -> None:
    arrays: Iterator[Tensor] = (getattr(message, name) for name in message.tensors)
    if message.lead != lead or message.d != d:
        raise ValueError("the message is of another shape than its header says")
    if any(array.shape[: len(lead)] != lead for array in arrays):
        raise ValueError("the message's arrays are of another shape than its header says")
    message.check()
    size, own = message._size(), torch.as_tensor(message.nbytes).expand(lead)
    if (isinstance(size, int) and size != width) or not torch.equal(own, sizes.view(lead)):
        raise ValueError("rows of another size than the message takes")
