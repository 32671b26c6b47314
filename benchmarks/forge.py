"""What readers do with bytes that somebody means ill with: forged messages, data files, sweep files.

    python benchmarks/forge.py --messages 100000
    python benchmarks/forge.py --files 10000 --results 10000 --seed 7

Every forged message has a valid checksum: it begins as a message of one of the operators, and its
header, its bytes or both are changed before it is signed again. It must be refused with ValueError, or
decode, add, cost, pack and sum without an error. Every forged file must be refused with InputError, or
be read; of a results folder any file may be changed. Printed are the outcomes, the slowest answer and the most memory that one took; the exit status
is 1 if anything else happened, an answer took longer than 2 s, or memory grew by more than 100 MB and
ten times the input.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from forge_results import forge_results

MOST_SECONDS = 2.0
MOST_GROWTH, MOST_EXTRA = 10, 100 * 10**6  # bytes of memory for each byte of input, and beside
MOST_ADDRESSES = 4 * 2**30  # bytes of address space that a run gets beside what it begins with
SHOWN = 5  # failures that are printed in full


# What happened ------------------------------------------------------------------------------------


class Memory:
    """The process's resident memory, and its highest since ``reset`` (Linux; elsewhere always 0)."""

    def __init__(self) -> None:
        self._clear = Path("/proc/self/clear_refs")
        self.known = self._clear.exists()

    def _field(self, name: str) -> int:
        if not self.known:
            return 0
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
        return 0

    def reset(self) -> int:
        """Forget the highest; return the memory resident now."""
        if self.known:
            self._clear.write_text("5")
        return self._field("VmRSS")

    def highest(self) -> int:
        """Return the highest since ``reset``."""
        return self._field("VmHWM")

    def asked_for(self) -> int:
        """Return the most address space that the process ever had, used or not."""
        return self._field("VmPeak")

    def bound(self) -> None:
        """Let nothing be made that is much larger than what is there: a failure, not a dead machine."""
        if self.known:
            import resource

            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (self._field("VmSize") + MOST_ADDRESSES, hard))


@dataclass
class Tally:
    """Outcomes of many trials."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0
    most_memory: int = 0
    memory: Memory = field(default_factory=Memory)

    def trial(self, what: str, size: int, answer: Callable[[], str]) -> None:
        """Call ``answer``, which names the outcome; note what it took, and any error that it lets out."""
        before, room = self.memory.reset(), self.memory.asked_for()
        begin = time.perf_counter()
        try:
            outcome = answer()
        except Exception:
            outcome = "another error"
            self.failures.append(f"{what}\n{traceback.format_exc(limit=-6)}")
        took, grown = time.perf_counter() - begin, self.memory.highest() - before
        grown = max(grown, self.memory.asked_for() - max(room, before + MOST_EXTRA))
        self.outcomes[outcome] += 1
        self.slowest, self.most_memory = max(self.slowest, took), max(self.most_memory, grown)
        if took > MOST_SECONDS:
            self.failures.append(f"{what}\ntook {took:.1f} s")
        if grown > MOST_GROWTH * size + MOST_EXTRA:
            self.failures.append(f"{what}\ntook {grown / 1e6:.0f} MB for {size:,} bytes")

    def __str__(self) -> str:
        counts = ", ".join(f"{n:,} {name}" for name, n in sorted(self.outcomes.items()))
        took = f"slowest {self.slowest:.2f} s, most memory {self.most_memory / 1e6:.0f} MB"
        return f"{sum(self.outcomes.values()):,}: {counts}; {took}; {len(self.failures)} failures"


# Messages -----------------------------------------------------------------------------------------


def honest_messages(d: int = 24) -> list[Any]:
    """Return messages of every operator, of shapes () and (2, 3), some masked, and of what wraps them."""
    import torch

    import raybench
    from raybench.core.registry import lookup, names
    from raybench.core.streams import stream
    from raybench.testing.compressors import examples
    from raybench.testing.vectors import gaussian
    from raybench.wire import CasesMessage, Dense, choose

    found = []
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
            found += [m, m.row(1, 2), m.masked(there)]
    x = gaussian(2, 3, d)
    choice = choose(there, Dense(x), Dense(-x))
    texts = (
        "top_k:k=3",
        "rand_k:k=3",
        "entropy_coded:of=(dithering:s=2)",
        "terngrad",
        "power_step",
    )
    for text in texts if d >= 3 else ():
        q = raybench.compressor(text).bind(d, 3).operator
        part = q.compress(x, stream(1).spread((2,)).each(range(3)))
        cells = [torch.tensor([1]), torch.tensor([0])]
        parts = [Dense(x).select(torch.tensor([0])), part.select(torch.tensor([1]))]
        found.append(CasesMessage(d, x.dtype, cells, parts))
    return [*found, choice, choice.masked(there)]


NASTY = (
    *(
        0,
        1,
        2,
        3,
        7,
        24,
        25,
        255,
        65537,
        10**7,
        2**31 - 1,
        2**31,
        2**40,
        2**53,
        2**62,
        2**63,
        2**64,
    ),
    *(-1, -2, -(2**31), -(2**63), 10**400, 0.0, -1.0, 0.5, 1e-300, 1e300, 1e400, -1e400, math.nan),
    *(True, False, None, "", "x", "float64", "float16", "sparse", "cases", "power", "pair", "e4m3"),
    *(
        [],
        [0],
        [1, 0],
        [-1],
        [2**62],
        [2**31, 0],
        [0, 2**62],
        [2, 3],
        [3, 2],
        [6],
        ["a", "b"],
        [[1]],
    ),
    *({}, {"kind": "dense"}, [{}], [True] * 6, [False] * 6, [0] * 6, [2**62] * 6, list(range(6))),
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
            found, name = pick.choice(places)
            value = found[name]
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


def forge_messages(count: int, seed: int, tally: Tally) -> Tally:
    """Try that many forged messages, every other one with the shape that its receiver expects."""
    forger = iter(Forger(seed, honest_messages()))
    for j in range(count):
        data, shape = next(forger)
        expected = shape if j % 2 else None
        what = f"message {j} of seed {seed}, shape {expected}: {data[:1500]!r}"
        tally.trial(what, len(data), lambda d=data, s=expected: answer_of(d, s))  # type: ignore[misc]
    return tally


# Files --------------------------------------------------------------------------------------------

LIBSVM = b"".join(b"%d %d:%d.5 %d:1e-3\n" % (j % 2 * 2 - 1, j + 1, j, j + 9) for j in range(20))
SWEEP = b"""name: tiny
problem: {name: logistic, dataset: breast_cancer, clients: [5, 10], split: {dirichlet: 0.5}}
algorithm: [gd, {name: ef21, init: full}]
compressor: {name: top_k, k: [1, 10%]}
step_size: {theory: 2^-2..2^2}
seed: 0..3
rounds: 100
exclude: {algorithm: gd, seed: [1, 2]}
"""
PARTS = (
    *(
        b"",
        b"\0",
        b"\xff",
        b"\n",
        b" ",
        b":",
        b",",
        b"-",
        b"#",
        b"[",
        b"]",
        b"{",
        b"}",
        b"&a ",
        b"*a",
    ),
    *(b"1e999", b"nan", b"inf", b"-1", b"0", b"2147483647", b"2147483648", b"9" * 400, b"0..10"),
    *(b"2^0..2^9", b"1e18", b"1:", b":1", b"0:1", b"1:1", b"!!python/name:os.system", b"? ", b"- "),
    *(b"\xef\xbb\xbf", b"\r", b"<<: *a", b"true", b"~", b"'", b'"', b"10%", b"PK\x03\x04", b"|O"),
)


def honest_files() -> dict[str, bytes]:
    """Return a file of every kind that is read, by its name."""
    import bz2
    import gzip
    import io
    import lzma

    import numpy as np

    found = {"a.libsvm": LIBSVM, "b.gz": gzip.compress(LIBSVM), "c.bz2": bz2.compress(LIBSVM)}
    found |= {"d.xz": lzma.compress(LIBSVM), "s.yaml": SWEEP}
    for j, save in enumerate((np.savez, np.savez_compressed)):
        out = io.BytesIO()
        save(out, features=np.ones((6, 3), ("f4", "i2")[j]), labels=np.array([0, 1, 0, 1, 1, 0]))
        found[f"{j}.npz"] = out.getvalue()
    return found


def changed_file(pick: random.Random, data: bytes) -> bytes:
    """Return a file's bytes with some changed, cut, doubled or replaced by what readers trip over."""
    out = bytearray(data)
    for _ in range(pick.choice((1, 1, 2, 5))):
        at, how = pick.randrange(len(out) + 1), pick.randrange(6)
        end = min(len(out), at + pick.choice((1, 1, 4, 20)))
        if how == 0 and at < len(out):
            out[at] ^= 1 << pick.randrange(8)
        elif how == 1:
            out[at:end] = pick.choice(PARTS)
        elif how == 2:
            out[at:at] = pick.choice(PARTS) * pick.choice((1, 1, 3, 2000))
        elif how == 3:
            del out[at:end]
        elif how == 4:
            out[at:at] = out[: pick.randrange(len(out) + 1)]
        else:
            del out[at:]
    return bytes(out)


def read_file(path: Path) -> str:
    """Return what reading a data file or sweep file gave: refused, or read."""
    from raybench.core.errors import InputError
    from raybench.data import load as load_data
    from raybench.spec import load as load_sweep
    from raybench.store import identity

    try:
        if path.suffix != ".yaml":
            data = load_data(str(path))
            assert len(data.labels) == data.shape[0]
            return "read"
        sweep = load_sweep(path)
        assert sweep.cells
        identity.parse(sweep.text)
        return "read"
    except InputError as error:
        text = str(error)
        if text.count("\n") > 3 * 21 or len(text) > 2**15:
            raise RuntimeError(f"an error of {len(text):,} letters") from error
        return "refused"


def forge_files(count: int, seed: int, tally: Tally) -> Tally:
    """Try that many changed data files and sweep files."""
    pick, honest = random.Random(seed), honest_files()
    with tempfile.TemporaryDirectory() as folder:
        for name, data in honest.items():  # what is imported at first use is no part of an answer
            (Path(folder) / name).write_bytes(data)
            assert read_file(Path(folder) / name) == "read", name
        for j in range(count):
            name = pick.choice(sorted(honest))
            data = changed_file(pick, honest[name])
            path = Path(folder) / f"{j}{Path(name).suffix}"
            path.write_bytes(data)
            tally.trial(
                f"file {j} of seed {seed}, {name}: {data[:1500]!r}",
                len(data),
                lambda p=path: read_file(p),  # type: ignore[misc]
            )
            path.unlink()
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--messages", type=int, default=0, help="forged messages to try")
    parser.add_argument("--files", type=int, default=0, help="forged data and sweep files to try")
    parser.add_argument("--results", type=int, default=0, help="changed results folders to try")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    failed = False
    Memory().bound()
    kinds = (
        ("messages", given.messages, forge_messages),
        ("files", given.files, forge_files),
        ("results", given.results, partial(forge_results, change=changed_file)),
    )
    for name, count, forge in kinds:
        if count:
            begin, tally = time.perf_counter(), forge(count, given.seed, Tally())
            print(f"{name}: {tally} ({time.perf_counter() - begin:.0f} s)", flush=True)
            for text in tally.failures[:SHOWN]:
                print("  " + text.replace("\n", "\n    "))
            failed |= bool(tally.failures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
