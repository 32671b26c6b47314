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
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from forge_files import forge_files, forge_results
from forge_messages import forge_messages

MOST_SECONDS = 2.0
MOST_GROWTH, MOST_EXTRA = 10, 100 * 10**6  # bytes of memory for each byte of input, and beside
M_ARENA_MAX = -8  # of glibc's mallopt: how many heaps threads may have
MOST_ADDRESSES = 4 * 2**30  # bytes of address space that a run gets beside what it begins with
SHOWN = 5  # failures that are printed in full


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

    def bound(self, most: int | None = MOST_ADDRESSES) -> None:
        """Let nothing be made that is much larger than what is there: a failure, not a dead machine.

        ``None`` lifts the bound. What a library maps when it is imported (torch and Arrow take several
        GB of addresses, more with more cores) must be there before the bound is set. Threads share one
        heap: each would otherwise map 128 MB for its own, which is not what an answer asked for.
        """
        if self.known:
            import ctypes
            import resource

            libc = ctypes.CDLL(None)
            if hasattr(libc, "mallopt"):
                libc.mallopt(M_ARENA_MAX, 1)
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            soft = hard if most is None else self._field("VmSize") + most
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@dataclass
class Tally:
    """Outcomes of many trials; ``bounded``: from the first on the process gets little more memory."""

    bounded: bool = False
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0
    most_memory: int = 0
    memory: Memory = field(default_factory=Memory)

    def trial(self, what: str, size: int, answer: Callable[[], str]) -> None:
        """Call ``answer``, which names the outcome; note what it took, and any error that it lets out."""
        if self.bounded and not self.outcomes:
            self.memory.bound()
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--messages", type=int, default=0, help="forged messages to try")
    parser.add_argument("--files", type=int, default=0, help="forged data and sweep files to try")
    parser.add_argument("--results", type=int, default=0, help="changed results folders to try")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    failed = False
    kinds = (
        ("messages", given.messages, forge_messages),
        ("files", given.files, forge_files),
        ("results", given.results, forge_results),
    )
    for name, count, forge in kinds:
        if count:
            begin, tally = time.perf_counter(), forge(count, given.seed, Tally(bounded=True))
            tally.memory.bound(None)
            print(f"{name}: {tally} ({time.perf_counter() - begin:.0f} s)", flush=True)
            for text in tally.failures[:SHOWN]:
                print("  " + text.replace("\n", "\n    "))
            failed |= bool(tally.failures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
