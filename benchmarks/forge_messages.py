"""Forged messages: those of every compressor, changed in header or bytes, and signed again."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Iterator
from typing import Any


def honest_messages(d: int = 24) -> list[Any]:
    """Return messages of every compressor, of shapes () and (2, 3), some masked, and of what wraps them."""
    import torch

    import raybench
    from raybench.core.registry import lookup, names
    from raybench.core.streams import stream
    from raybench.testing.compressors import examples
    from raybench.testing.vectors import gaussian
    from raybench.wire import CasesMessage, Dense, choose

    result = []
    there = torch.tensor([[True, False, True], [False, True, True]])
    for name in names("compressor"):
        entry = lookup("compressor", name)
        for j, params in enumerate(examples(entry).values()):
            try:
                q = entry.target(**params).bind(d, 3).operator
            except ValueError:  # such as sizes that do not fit d
                continue
            dtype = (torch.float32, torch.float64, torch.float16, torch.bfloat16)[j % 4]
            x = gaussian(2, 3, d, seed=j).to(dtype)
            m = q.compress(x, stream(j).spread((2,)).each(range(3)))
            result += [m, m.row(1, 2), m.masked(there)]
    x = gaussian(2, 3, d)
    choice = choose(there, Dense(x), Dense(-x))
    texts = ("top_k:k=3", "rand_k:k=3", "entropy_coded:of=(dithering:s=2)", "terngrad")
    for text in (*texts, "power_step") if d >= 3 else ():
        q = raybench.compressor(text).bind(d, 3).operator
        part = q.compress(x, stream(1).spread((2,)).each(range(3)))
        cells = [torch.tensor([1]), torch.tensor([0])]
        parts = [Dense(x).select(torch.tensor([0])), part.select(torch.tensor([1]))]
        result.append(CasesMessage(d, x.dtype, cells, parts))
    return [*result, choice, choice.masked(there)]


NASTY = (
    *(0, 1, 2, 3, 7, 24, 25, 255, 65537, 10**7, 2**31 - 1, 2**31, 2**40, 2**53, 2**62, 2**63),
    *(2**64, -1, -2, -(2**31), -(2**63), 10**400, 0.0, -1.0, 0.5, 1e-300, 1e300, 1e400, -1e400),
    *(math.nan, True, False, None, "", "x", "float64", "float16", "sparse", "cases", "power"),
    *("pair", "e4m3", [], [0], [1, 0], [-1], [2**62], [2**31, 0], [0, 2**62], [2, 3], [3, 2]),
    *([6], ["a", "b"], [[1]], {}, {"kind": "dense"}, [{}], [True] * 6, [False] * 6, [0] * 6),
    *([2**62] * 6, list(range(6))),
)


class Forger:
    """Makes messages that lie out of honest ones; the same for the same seed."""

    def __init__(self, seed: int, messages: list[Any]) -> None:
        from raybench.wire.base import PREFIX

        self.random = random.Random(seed)
        self.shapes = [(*m.lead, m.d) for m in messages]
        self.packed = []
        for message in messages:
            data = message.pack()
            cut = PREFIX.size + PREFIX.unpack_from(data)[2]
            self.packed.append((data[PREFIX.size : cut], data[cut:]))

    def __iter__(self) -> Iterator[tuple[bytes, tuple[int, ...]]]:
        """Yield forged bytes, and the shape that their receiver expects."""
        from raybench.wire.base import MAGIC, PREFIX, checksum

        while True:
            chosen = self.random.randrange(len(self.packed))
            text, rest = self.packed[chosen]
            head = json.loads(text)
            rounds = self.random.choice((1, 1, 1, 2, 3, 6))
            for _ in range(rounds):
                if self.random.random() < 0.8:
                    head = self.changed_head(head)
                else:
                    rest = self.changed_bytes(rest)
            body = json.dumps(head).encode()
            prefix = PREFIX.pack(MAGIC, checksum(body, [memoryview(rest)]), len(body))
            yield prefix + body + rest, self.shapes[chosen]

    def changed_bytes(self, data: bytes) -> bytes:
        """Return bytes with some changed, cut off, added, or taken from another message."""
        pick, out = self.random, bytearray(data)
        how = pick.randrange(6)
        if how == 0 and out:
            for _ in range(pick.choice((1, 1, 8))):
                out[pick.randrange(len(out))] ^= 1 << pick.randrange(8)
        elif how == 1:
            del out[pick.randrange(len(out) + 1) :]
        elif how == 2:
            out += pick.randbytes(pick.choice((1, 4, 8, 100)))
        elif how == 3:
            out = bytearray((pick.choice((0, 1, 127, 128, 255)),)) * len(out)
        elif how == 4:
            out = bytearray(pick.choice(self.packed)[1])
        elif out:
            start = pick.randrange(len(out))
            out[start : start + 8] = pick.randbytes(len(out[start : start + 8]))
        return bytes(out)

    def changed_head(self, head: Any) -> Any:
        """Return a header with one thing changed, often in its tree and its leaf alike."""
        pick = self.random
        places = list(_places(head)) if isinstance(head, dict | list) else []
        if not places:
            return copy.deepcopy(pick.choice(NASTY))
        holder, key = pick.choice(places)
        how, before = pick.randrange(8), holder[key]
        if how == 0:
            del holder[key]
            return head
        if how == 1 and type(before) is int:
            value: Any = before + pick.choice((-1, 1, before, -before, 8, 2**31))
        elif how == 2:
            other = json.loads(pick.choice(self.packed)[0])
            places = [place for place in _places(other) if place[1] == key] or list(_places(other))
            result, name = pick.choice(places)
            value = result[name]
        elif how == 3 and isinstance(before, list):
            value = copy.deepcopy(before)
            if value and pick.random() < 0.5:
                value.pop(pick.randrange(len(value)))
            else:
                value.insert(pick.randrange(len(value) + 1), pick.choice(value or NASTY))
        elif how == 4 and isinstance(before, dict):
            value = {"kind": pick.choice(("concat", "sum", "nested", "scaled", "flagged"))}
            value |= {"d": before.get("d", 1), "dtype": before.get("dtype"), "scale": 1.0}
            value["parts"] = [before] * pick.choice((1, 1, 2, 30))
        else:
            value = copy.deepcopy(pick.choice(NASTY))
        same = pick.random() < 0.5  # a lie that is told everywhere gets further
        for own, name in list(_places(head)) if same else [(holder, key)]:
            alike = isinstance(own, dict) and own.get(name) == before
            if name == key and (own is holder or alike):
                own[name] = copy.deepcopy(value)
        return head


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place of a JSON value: its holder, and the key or number in it."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def answer_of(data: bytes, shape: tuple[int, ...] | None) -> str:
    """Return what unpacking gave: refused, or decoded, added, packed and summed too."""
    import torch

    import raybench

    try:
        m = raybench.unpack(data, shape)
    except ValueError as error:
        if "alloc" in str(error.__cause__):  # refused too late: only because there was none
            raise RuntimeError(f"memory was asked for: {error.__cause__}") from error
        return "refused"
    if math.prod(m.lead) * m.d > 2**20:  # decoding takes what d takes: the receiver's own affair
        assert shape is None, f"a message of shape {(*m.lead, m.d)} for {shape}"
        return "of another shape"
    value = m.decode()
    assert value.shape == (*m.lead, m.d)
    m.add_to(torch.zeros_like(value))
    assert m.bits.shape == m.lead
    again = raybench.unpack(m.pack(), (*m.lead, m.d))
    assert (again.lead, again.d) == (m.lead, m.d)
    if m.lead and value.numel():
        m.sum_clients()
        m.union()
        m.row(*(0 for _ in m.lead)).decode()
        m.select(torch.tensor([0])).decode()
    return "decoded"


def forge_messages(count: int, seed: int, tally: Any) -> Any:
    """Try that many forged messages, every other one with the shape that its receiver expects."""
    forger = iter(Forger(seed, honest_messages()))
    for j in range(count):
        data, shape = next(forger)
        expected = shape if j % 2 else None
        what = f"message {j} of seed {seed}, shape {expected}: {data[:1500]!r}"
        tally.trial(what, len(data), lambda d=data, s=expected: answer_of(d, s))  # type: ignore[misc]
    return tally
