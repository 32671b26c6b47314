"""Is the link model right? Predictions beside measured times on emulated links; needs root and TUN devices.

    python benchmarks/links.py                                   # all of it: some ten minutes
    python benchmarks/links.py --links 100Mbit,1ms --machines 4  # one link

Between two, three and four machines it times over gloo: ``pair``, a
message from one to another; ``gather``, what raybench's train mode does with compressed messages; ``all_reduce``,
gloo's ring; ``server``, all to the first machine and as much back; and rounds of the engine (``dcgd`` by identity,
``ef21`` by Top-k of 1 %) on a network of 51,385 parameters.

A prediction is the model's time at the latency and the bandwidth that were set, plus what software takes: first of all
each exchange, of 4 kB, and each round is timed on a link of 20 Gbit/s without latency. What a round takes there
besides gradients and compressors counts for that method; its gradients and compressors are those measured with it.
Printed: predicted and measured milliseconds, and predicted / measured - 1.

A machine is a network namespace whose only device, ``net0``, is a TUN device. The kernel's token bucket (``tc ... tbf``)
lets it send B bytes a second; what it sends comes here as packets. A packet arrives ``latency`` later, and is delivered
s/B seconds after the packet before it, at the earliest, s its bytes: so a machine receives at B as well. Nothing
is lost. TCP's window is 2.5 times what a link holds, its congestion control is reno, which without losses soon fills
the window, also after a pause: what remains is latency and bandwidth.

The machines share this one's cores. They run with real-time priority where that is allowed, so that what else runs
here is not measured.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import heapq
import json
import os
import select
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
DEVICE = "net0"
SUBNET = "10.83.0"
PACKET_SECONDS = 0.5e-3  # a packet is no longer than the link sends in this time
PACKETS = 1500, 62500  # bytes of the shortest and the longest packet
WINDOW_PACKETS = 8
QUEUED_PACKETS = 4  # of a connection, between TCP and the device
BURST_PACKETS = 2
READ_AT_ONCE = 8
PRIORITY = 20
SIZES = {
    "pair": (4096, 2**20),
    "gather": (4096, 2**18),
    "all_reduce": (4096, 2**18, 12 * 2**20),
    "server": (4096, 2**18),
}
LATENCIES = ("0.1ms", "1ms", "10ms", "50ms")
LINKS = [f"{rate},{wait}" for rate in ("100Mbit", "1Gbit") for wait in LATENCIES] + ["10Gbit,0.1ms"]
METHODS = {
    "dcgd": ("dcgd", {"name": "identity"}),
    "ef21": ("ef21", {"name": "top_k", "k": "1%"}),
}
SHORT = 4096
HIDDEN = 685  # 64 x 685 + 685 + 685 x 10 + 10 parameters
BOUND = 0.25
FASTEST = 125e6  # bytes a second up to which the bound is to hold
FREE = 0.0, 2.5e9  # the link on which software is timed: none to speak of


# Emulated links --------------------------------------------------------------------------------------


def link(text: str) -> tuple[float, float]:
    """Return latency and the line's bandwidth of ``100Mbit,1ms``: here the bandwidth is all of the line's."""
    rate, _, delay = text.partition(",")
    bits = {"kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9}[rate[-4:]]
    return float(delay.removesuffix("ms")) / 1e3, float(rate[:-4]) * bits / 8


def unavailable() -> str:
    """Return why links cannot be emulated here, empty where they can."""
    if os.name != "posix" or not Path("/proc/self/ns/net").exists():
        return "network namespaces are a matter of Linux"
    if os.geteuid() != 0:
        return "emulating links takes root"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "emulating links takes the commands ip and tc (package iproute2)"
    if not Path("/dev/net/tun").exists():
        return "emulating links takes TUN devices: there is no /dev/net/tun"
    name = f"rbl{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        return f"no network namespace can be made: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    try:
        with machines(1) as there:
            there.set(1e-3, 12.5e6)
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        return f"no link can be made: {error}"
    return ""


def _tun(name: str) -> int:
    """Return the file of a new TUN device."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    except OSError:
        os.close(file)
        raise
    return file


class Machines:
    """So many machines on equal links: ``namespaces`` to run processes in, ``set`` to change the links."""

    def __init__(self, count: int) -> None:
        self.namespaces = [f"rbl{os.getpid()}-{k}" for k in range(count)]
        self.latency, self.bandwidth = 0.0, 1e9
        self.moved = 0  # bytes delivered so far
        self._files: list[int] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._switch, name="links", daemon=True)

    def open(self) -> None:
        """Make the namespaces and their devices, and begin to carry packets."""
        for k, space in enumerate(self.namespaces):
            _ip("netns", "add", space)
            name = f"rbl{os.getpid() % 10**6}t{k}"
            self._files.append(_tun(name))
            _ip("link", "set", name, "netns", space, "name", DEVICE)
            inside = ("-n", space)
            _ip(*inside, "link", "set", "lo", "up")
            _ip(*inside, "addr", "add", f"{SUBNET}.{k + 1}/24", "dev", DEVICE)
            _ip(*inside, "link", "set", DEVICE, "txqueuelen", "10000", "up")
            _sysctl(space, "net.ipv4.tcp_congestion_control", "reno")
            _sysctl(space, "net.ipv4.tcp_slow_start_after_idle", "0")
            _sysctl(space, "net.ipv4.tcp_no_metrics_save", "1")
        self._thread.start()

    def close(self) -> None:
        """Stop carrying packets and remove what ``open`` made."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()
        for file in self._files:
            os.close(file)
        for space in self.namespaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)

    def set(self, latency: float, bandwidth: float) -> None:
        """Give all links a latency (seconds) and a bandwidth (bytes per second), before connections are made."""
        least, most = PACKETS
        packet = int(min(most, max(least, bandwidth * PACKET_SECONDS)))
        window = int(max(WINDOW_PACKETS * packet, 2.5 * 2 * latency * bandwidth, 2**17))
        for space in self.namespaces:
            _ip("-n", space, "link", "set", DEVICE, "mtu", str(packet))
            shape = f"root tbf rate {int(8 * bandwidth)}bit burst {BURST_PACKETS * packet}"
            shape += f" limit {64 * window + 2**24}"
            _run("tc", "-n", space, "qdisc", "replace", "dev", DEVICE, *shape.split())
            _sysctl(space, "net.ipv4.tcp_limit_output_bytes", str(QUEUED_PACKETS * packet))
            for kind in ("rmem", "wmem"):
                _sysctl(space, f"net.ipv4.tcp_{kind}", f"4096 {2 * window} {4 * window}")
        self.latency, self.bandwidth = latency, bandwidth

    def command(self, machine: int, *command: str) -> list[str]:
        """Return the command that runs another one on a machine."""
        return ["ip", "netns", "exec", self.namespaces[machine], *command]

    def _switch(self) -> None:
        """Carry packets until the end: an event is a packet at the receiver's link, or one to be delivered."""
        with contextlib.suppress(OSError):  # the clock of the links should not wait for other work
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
        files, clock = self._files, time.perf_counter
        delivers = [0.0] * len(files)
        events: list[tuple[float, int, int, bool, bytes]] = []
        order = 0
        while not self._end.is_set():
            wait = min(max(events[0][0] - clock(), 0.0), 0.1) if events else 0.1
            ready = select.select(files, [], [], wait)[0]
            now = clock()
            for file in ready:
                for packet in _packets(file):
                    target = _target(packet, len(files))
                    if target is None:
                        continue
                    order += 1
                    heapq.heappush(events, (now + self.latency, order, target, False, packet))
            while events and events[0][0] <= now:
                at, _, target, last, packet = heapq.heappop(events)
                if not last:
                    took = len(packet) / self.bandwidth
                    delivers[target] = max(at, delivers[target] + took)
                    if delivers[target] > now:
                        order += 1
                        heapq.heappush(events, (delivers[target], order, target, True, packet))
                        continue
                with contextlib.suppress(OSError):  # the receiver's device is full: TCP sends again
                    os.write(files[target], packet)
                self.moved += len(packet)


def _packets(file: int) -> Iterator[bytes]:
    for _ in range(READ_AT_ONCE):
        try:
            yield os.read(file, 65536)
        except BlockingIOError:
            return


def _target(packet: bytes, machines: int) -> int | None:
    """Return which machine an IPv4 packet is for."""
    if len(packet) < 20 or packet[0] >> 4 != 4:
        return None
    machine = packet[19] - 1
    return machine if machine < machines else None


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


def _sysctl(space: str, key: str, value: str) -> None:
    """Set a kernel parameter of a namespace."""
    path = "/proc/sys/" + key.replace(".", "/")
    inside = ["ip", "netns", "exec", space, "sh", "-c", f'echo "$1" > {path}', "sh", value]
    subprocess.run(inside, check=True, capture_output=True)


@contextlib.contextmanager
def machines(count: int) -> Iterator[Machines]:
    """Have so many machines for a while."""
    made = Machines(count)
    try:
        made.open()
        yield made
    finally:
        made.close()


# The machines' side ---------------------------------------------------------------------------------


def rank(which: int) -> None:
    """Be a machine: for each line on standard input join the others, measure, answer with a line of JSON."""
    import torch

    from raybench.core.process import tune_process

    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    tune_process()
    torch.set_num_threads(1)
    for line in sys.stdin:
        ask = json.loads(line)
        if which < ask["machines"]:
            print(json.dumps(_measured(which, ask)), flush=True)


def _measured(which: int, ask: dict[str, Any]) -> list[dict[str, Any]]:
    import torch.distributed as dist
    from processes import join

    from raybench.measure.link import timed
    from raybench.wire.transport import Distributed

    join(ask["folder"], which, ask["machines"])
    transport = Distributed()
    result = [
        _served(size, transport, ask["repeats"])
        if what == "server"
        else dataclasses.asdict(timed(what, size, transport, ask["repeats"]))
        for what, sizes in ask["sizes"].items()
        for size in sizes
    ]
    result += [_rounds(name, transport, ask["rounds"]) for name in ask["methods"]]
    dist.barrier()
    dist.destroy_process_group()
    return result


def _served(size: int, transport: Any, repeats: int) -> dict[str, Any]:
    """Return the seconds in which all ranks send ``size`` bytes to the first one and get as much back.

    The rounds begin together: a barrier ends each, and its own time is taken off.
    """
    import torch
    import torch.distributed as dist

    from raybench.measure.link import SHORT_BURST, in_a_row

    n = transport.size
    rows = torch.zeros(n, size, dtype=torch.uint8)

    def serve() -> None:
        if transport.rank:
            dist.send(rows[0], 0)
            dist.recv(rows[0], 0)
        for post in (dist.irecv, dist.isend) if transport.rank == 0 else ():
            for work in [post(rows[r], r) for r in range(1, n)]:
                work.wait()
        dist.barrier()

    spent = [
        in_a_row(serve, SHORT_BURST) - in_a_row(dist.barrier, SHORT_BURST) for _ in range(repeats)
    ]
    return {"what": "server", "n": n, "size": size, "seconds": [max(s, 1e-9) for s in spent]}


def _rounds(name: str, transport: Any, rounds: int) -> dict[str, Any]:
    """Return the median seconds of a round of the engine, of its gradients and compressors, and its bytes."""
    import numpy as np
    from processes import timed_together, training_run

    model = f"mlp:hidden=[{HIDDEN}]"
    run = training_run(transport, *METHODS[name], model=model, dataset="digits", batch=32)
    clock, ledger = run.net.clock, run.net.ledger
    rows = []
    for _ in range(rounds + 2):
        before = np.array([*clock.parts[:2], float(ledger.bytes_up_max[0])])
        # two in a row, as one that waits for a late start is no round
        spent = timed_together(lambda: [run.advance(1) for _ in range(2)])
        after = np.array([*clock.parts[:2], float(ledger.bytes_up_max[0])])
        rows.append([spent / 2, *(after - before) / 2])
    seconds, gradient, codec, size = np.median(rows[2:], axis=0)
    result = {"what": name, "n": transport.size, "size": int(size), "seconds": [seconds]}
    return {**result, "computed": gradient + codec}


# The driver's side ----------------------------------------------------------------------------------


class Ranks:
    """A process on each machine, which waits for what to measure."""

    def __init__(self, on: Machines) -> None:
        env = {**os.environ, "GLOO_SOCKET_IFNAME": DEVICE, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__).resolve()), "--rank"]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.running = [
            subprocess.Popen(on.command(k, *command, str(k)), env=env, text=True, **pipes)
            for k in range(len(on.namespaces))
        ]

    def measure(self, machines: int, **ask: Any) -> list[dict[str, Any]]:
        """Return what the first so many machines measure."""
        with tempfile.TemporaryDirectory() as folder:
            text = json.dumps({"machines": machines, "folder": folder, **ask})
            for process in self.running[:machines]:
                assert process.stdin is not None
                print(text, file=process.stdin, flush=True)
            answers = [p.stdout.readline() for p in self.running[:machines] if p.stdout is not None]
        if not all(answers):
            raise RuntimeError("a machine has failed")
        return json.loads(answers[0])

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()


def predicted(one: dict[str, Any], latency: float, bandwidth: float) -> float:
    """Return the model's seconds of what was measured, without what software takes."""
    from raybench.clock.links import Link, LinkNetwork, travel
    from raybench.measure.link import expected

    link = Link(latency, bandwidth)
    if one["what"] == "server":  # the first machine is the server, the others are its clients
        return 2 * latency + 2 * (one["n"] - 1) * one["size"] / bandwidth
    if "computed" not in one:
        return float(expected(one["what"], link, one["n"], one["size"]))
    net = LinkNetwork(link, "gather")
    return one["computed"] + float(travel(net, one["n"], up=one["size"], down=0))


def compare(
    texts: list[str],
    counts: list[int],
    sizes: dict[str, tuple[int, ...]] = SIZES,
    methods: tuple[str, ...] = tuple(METHODS),
    repeats: int = 3,
    rounds: int = 6,
) -> list[dict[str, Any]]:
    """Return measured and predicted seconds on emulated links. Raises RuntimeError if a machine fails."""
    result = []
    with machines(max(counts)) as there:
        ranks = Ranks(there)
        try:
            there.set(*FREE)
            software = {}
            for _, count in product(range(2), counts):  # the first time is for warming up
                ask = {"sizes": dict.fromkeys(sizes, (SHORT,)), "methods": methods}
                for one in ranks.measure(count, **ask, repeats=3 * repeats, rounds=3 * rounds):
                    spent = statistics.median(one["seconds"]) - predicted(one, *FREE)
                    software[one["what"], count] = max(0.0, spent)
            for text in texts:
                latency, bandwidth = link(text)
                there.set(latency, bandwidth)
                for count in counts:
                    ask = {"sizes": sizes, "methods": methods}
                    for one in ranks.measure(count, **ask, repeats=repeats, rounds=rounds):
                        one["link"], one["bandwidth"] = text, bandwidth
                        one["software"] = software[one["what"], count]
                        one["measured"] = statistics.median(one["seconds"])
                        one["predicted"] = predicted(one, latency, bandwidth) + one["software"]
                        one["error"] = one["predicted"] / one["measured"] - 1
                        result.append(one)
                        print(row(one), flush=True)
        finally:
            ranks.close()
    return result


def row(one: dict[str, Any]) -> str:
    """Return a line of the table."""
    size = f"{one['size'] / 1e3:,.0f} kB"
    return (
        f"{one['link']:14} {one['n']}  {one['what']:10} {size:>9}"
        f" {1e3 * one['predicted']:9.2f} {1e3 * one['measured']:9.2f} {one['error']:+8.1%}"
    )


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Return per link the rows of the documentation: errors of exchanges and rounds."""
    import numpy as np

    lines = ["| link | exchanges | within 25 % | median error | largest | rounds | largest |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|")
    for text in dict.fromkeys(one["link"] for one in rows):
        there = [one for one in rows if one["link"] == text]
        plain = np.array([one["error"] for one in there if "computed" not in one])
        whole = np.array([one["error"] for one in there if "computed" in one])
        inside = f"{(np.abs(plain) <= BOUND).sum()} | {np.median(np.abs(plain)):.0%}"
        most = plain[np.abs(plain).argmax()]
        last = f"{whole[np.abs(whole).argmax()]:+.0%}" if len(whole) else "–"
        lines.append(f"| {text} | {len(plain)} | {inside} | {most:+.0%} | {len(whole)} | {last} |")
    return lines


def main() -> int:
    """Measure, print, and leave with 1 if a prediction up to 1 Gbit/s is off by more than a quarter."""
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--links", nargs="+", default=LINKS, metavar="RATE,LATENCY")
    ask.add_argument("--machines", nargs="+", type=int, default=[2, 3, 4])
    ask.add_argument("--repeats", type=int, default=3)
    ask.add_argument("--rounds", type=int, default=6)
    ask.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    args = ask.parse_args()
    if args.rank is not None:
        rank(args.rank)
        return 0
    if why := unavailable():
        print(f"links cannot be emulated here: {why}", file=sys.stderr)
        return 2
    print("link           n  exchange        size predicted  measured    error  (times in ms)")
    result = compare(args.links, args.machines, repeats=args.repeats, rounds=args.rounds)
    print("\n".join(["", *summary(result)]))
    within = [one for one in result if one["bandwidth"] <= FASTEST]
    wrong = [one for one in within if abs(one["error"]) > BOUND]
    print(f"\nup to 1 Gbit/s {len(wrong)} of {len(within)} predictions are off by more than 25 %")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
