"""What readers do with bytes that somebody means ill with: forged messages, data files, sweep files.

    python benchmarks/forge.py --messages 100000
    python benchmarks/forge.py --files 10000 --results 10000 --seed 7

Every forged message has a valid checksum: it begins as a message of one of the compressors, and its
header, its bytes or both are changed before it is signed again. It must be refused with ValueError, or
decode, add, cost, pack and sum without an error. Every forged file must be refused with InputError, or
be read; of a results folder any file may be changed. Printed are the outcomes, the slowest answer and
the most memory that one took; the exit status is 1 if anything else happened, an answer took longer
than 2 s, or memory grew by more than 100 MB and ten times the input.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from processes import memory, reset_peak

MOST_SECONDS = 2.0
MOST_GROWTH, MOST_EXTRA = 10, 100 * 10**6  # bytes of memory for each byte of input, and beside
M_ARENA_MAX = -8  # of glibc's mallopt: how many heaps threads may have
MOST_ADDRESSES = 4 * 2**30  # bytes of address space that a run gets beside what it begins with
SHOWN = 5  # failures that are printed in full


def bound_addresses(most: int | None = MOST_ADDRESSES) -> None:
    """Let nothing be made that is much larger than what is there: a failure, not a dead machine (Linux).

    ``None`` lifts the bound. What a library maps when it is imported (torch and Arrow take several
    GB of addresses, more with more cores) must be there before the bound is set. Threads share one
    heap: each would otherwise map 128 MB for its own, which is not what an answer asked for.
    """
    if memory("VmSize"):
        import ctypes
        import resource

        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(M_ARENA_MAX, 1)
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        soft = hard if most is None else memory("VmSize") + most
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@dataclass
class Tally:
    """Outcomes of many trials; ``bounded``: from the first on the process gets little more memory."""

    bounded: bool = False
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0
    most_memory: int = 0

    def trial(self, what: str, size: int, answer: Callable[[], str]) -> None:
        """Call ``answer``, which names the outcome; note what it took, and any error that it lets out."""
        if self.bounded and not self.outcomes:
            bound_addresses()
        before, room = reset_peak(), memory("VmPeak")
        begin = time.perf_counter()
        try:
            outcome = answer()
        except Exception:
            outcome = "another error"
            self.failures.append(f"{what}\n{traceback.format_exc(limit=-6)}")
        took, grown = time.perf_counter() - begin, memory("VmHWM") - before
        grown = max(grown, memory("VmPeak") - max(room, before + MOST_EXTRA))
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


PARTS = (
    *(b"", b"\0", b"\xff", b"\n", b" ", b":", b",", b"-", b"#", b"[", b"]", b"{", b"}"),
    *(b"&a ", b"*a", b"1e999", b"nan", b"inf", b"-1", b"0", b"2147483647", b"2147483648"),
    *(b"9" * 400, b"0..10", b"2^0..2^9", b"1e18", b"1:", b":1", b"0:1", b"1:1", b"? ", b"- "),
    *(b"!!python/name:os.system", b"\xef\xbb\xbf", b"\r", b"<<: *a", b"true", b"~", b"'"),
    *(b'"', b"10%", b"PK\x03\x04", b"|O"),
)


def changed(pick: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Return bytes with some flipped, replaced, added, cut, doubled or set alike, or those of another message or file."""
    out = bytearray(data)
    for _ in range(pick.choice((1, 1, 2, 5))):
        at, how = pick.randrange(len(out) + 1), pick.randrange(9)
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
        elif how == 5:
            del out[at:]
        elif how == 6:
            out[at:end] = pick.randbytes(pick.choice((end - at, end - at, 100)))
        elif how == 7:
            out = bytearray((pick.choice((0, 1, 127, 128, 255)),)) * len(out)
        elif others:
            out = bytearray(pick.choice(others))
    return bytes(out)


# Messages -----------------------------------------------------------------------------------------


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
                q = entry.target(**params).bind(d, 3).compressor
            except ValueError:  # such as sizes that do not fit d
                continue
            dtype = (torch.float32, torch.float64, torch.float16, torch.bfloat16)[j % 4]
            x = gaussian(2, 3, d, seed=j).to(dtype)
            m = q.compress(x, stream(j).spread((2,)).each(range(3)))
            result += [m, m.row(1, 2), m.masked(there)]
    x = gaussian(2, 3, d)
    choice = choose(there, Dense(x), Dense(-x))
    texts = ("top_k:k=3", "rand_k:k=3", "dithering:s=2", "terngrad")
    for text in (*texts, "power_step") if d >= 3 else ():
        q = raybench.compressor(text).bind(d, 3).compressor
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
                    rest = changed(self.random, rest, [data for _, data in self.packed])
            body = json.dumps(head).encode()
            prefix = PREFIX.pack(MAGIC, checksum(body, [memoryview(rest)]), len(body))
            yield prefix + body + rest, self.shapes[chosen]

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
        for place, name in list(_places(head)) if same else [(holder, key)]:
            alike = isinstance(place, dict) and place.get(name) == before
            if name == key and (place is holder or alike):
                place[name] = copy.deepcopy(value)
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


# Data files and sweep files -----------------------------------------------------------------------

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


def honest_files() -> dict[str, bytes]:
    """Return a file of every kind that is read, by its name."""
    import bz2
    import gzip
    import io
    import lzma

    import numpy as np

    result = {"a.libsvm": LIBSVM, "b.gz": gzip.compress(LIBSVM), "c.bz2": bz2.compress(LIBSVM)}
    result |= {"d.xz": lzma.compress(LIBSVM), "s.yaml": SWEEP}
    for j, save in enumerate((np.savez, np.savez_compressed)):
        out = io.BytesIO()
        save(out, features=np.ones((6, 3), ("f4", "i2")[j]), labels=np.array([0, 1, 0, 1, 1, 0]))
        result[f"{j}.npz"] = out.getvalue()
    return result


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
        identity.parse_saved_sweep(sweep.text)
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
            data = changed(pick, honest[name], list(honest.values()))
            path = Path(folder) / f"{j}{Path(name).suffix}"
            path.write_bytes(data)
            what = f"file {j} of seed {seed}, {name}: {data[:1500]!r}"
            tally.trial(what, len(data), lambda p=path: read_file(p))  # type: ignore[misc]
            path.unlink()
    return tally


# Results folders ----------------------------------------------------------------------------------

FOLDER_SWEEP = {
    "name": "forged",
    "problem": {"name": "quadratic", "dim": 4, "clients": 2},
    "algorithm": ["gd", "ef21"],
    "compressor": [{"name": "top_k", "k": [1, 2]}],
    "step_size": {"theory": [1, 2]},
    "rounds": 6,
}
WORDS = ("", "weird", "skipped", "failed", "ok", "\0", "9" * 400, "{}", "[1]", "{", None)


def lying_table(pick: random.Random, table: Any) -> Any:
    """Return a table with one thing changed: a column gone, renamed, of another type or with odd values."""
    import pyarrow as pa

    name = pick.choice([*table.column_names, "cell", "status", "round", "config", "extra"])
    if name not in table.column_names:
        return table
    at, how = table.column_names.index(name), pick.randrange(6)
    kind = table.schema.field(name).type
    if how == 0:
        return table.drop_columns([name])
    if how == 1:
        return table.rename_columns([n if n != name else n + "_" for n in table.column_names])
    if how == 2:
        odd: Any = pa.array([pick.choice(WORDS) for _ in range(len(table))], pa.string())
    elif how == 3:
        odd = pa.nulls(len(table), kind)
    elif how == 4 and pa.types.is_floating(kind):
        odd = pa.array([pick.choice((1e308, -1.0, float("nan"), float("inf")))] * len(table))
    else:
        odd = pa.array([pick.choice((-1, 0, 2**62))] * len(table), pa.int64())
    return table.set_column(at, name, odd)


def forged(pick: random.Random, folder: Path) -> str:
    """Change one file of a folder; return which, and how."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from raybench.store.log import sealed

    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "lock")
    file = pick.choice(files)
    if file.suffix == ".parquet" and pick.random() < 0.5:
        data = file.read_bytes()
        table = lying_table(pick, pq.read_table(pa.BufferReader(data)))
        version = pick.choice(("3", "2", "99", "x"))
        table = table.replace_schema_metadata({"raybench_schema": version})
        cells, curves = (folder / part / file.name for part in ("cells", "curves"))
        if file == curves:
            pq.write_table(table, curves)
            table = pq.read_table(cells)
        owner = json.loads((folder / "plan/owner.json").read_text())["folder"]
        held = curves.read_bytes() if curves.exists() else None
        cells.write_bytes(sealed(table, file.stem, owner, held))
        return f"{file.relative_to(folder)}: a table that lies"
    file.write_bytes(changed(pick, file.read_bytes(), []))
    return f"{file.relative_to(folder)}: bytes"


def read_folder(folder: Path) -> str:
    """Return what reading a folder gave: refused, or read; then repair it, after which it is readable."""
    from raybench.core.errors import InputError
    from raybench.store import Store, cells, load
    from raybench.store.files import open_folder
    from raybench.store.log import verified

    answer = "read"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for read in (load, cells, lambda f: Store(f).done(), lambda f: Store(f).repair(), load):
            try:
                read(folder)
            except InputError:
                answer = "refused"
    verified(open_folder(folder))
    return answer


def forge_results(count: int, seed: int, tally: Tally) -> Tally:
    """Try that many changed results folders."""
    import raybench

    pick = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        honest, copy = Path(place) / "honest", Path(place) / "copy"
        raybench.sweep(FOLDER_SWEEP, honest, inline=True)
        size = sum(p.stat().st_size for p in honest.rglob("*") if p.is_file())
        for _ in range(5):  # what is imported and kept at first use is no part of an answer
            assert read_folder(honest) == "read"
        for j in range(count):
            shutil.copytree(honest, copy)
            what = forged(pick, copy)
            tally.trial(f"folder {j} of seed {seed}: {what}", size, lambda: read_folder(copy))
            shutil.rmtree(copy)
    return tally


# All of them --------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--messages", type=int, default=0, help="forged messages to try")
    parser.add_argument("--files", type=int, default=0, help="forged data and sweep files to try")
    parser.add_argument("--results", type=int, default=0, help="changed results folders to try")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    failed = False
    kinds = {"messages": forge_messages, "files": forge_files, "results": forge_results}
    for name, forge in kinds.items():
        if count := getattr(arguments, name):
            begin, tally = time.perf_counter(), forge(count, arguments.seed, Tally(bounded=True))
            bound_addresses(None)
            print(f"{name}: {tally} ({time.perf_counter() - begin:.0f} s)", flush=True)
            for text in tally.failures[:SHOWN]:
                print("  " + text.replace("\n", "\n    "))
            failed |= bool(tally.failures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
