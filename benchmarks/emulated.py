"""Machines joined by emulated links, on one Linux machine: what benchmarks/links.py measures on. Needs root.

A machine is a network namespace whose only device, ``net0``, is a TUN device. The kernel's token bucket (``tc ... tbf``)
lets it send B bytes a second; what it sends comes here as packets. A packet arrives ``latency`` later, and is delivered
s/B seconds after the packet before it, at the earliest, s its bytes: so a machine receives at B as well. Nothing
is lost. TCP's window is 2.5 times what a link holds, its congestion control is reno, which without losses soon fills
the window, also after a pause: what remains is latency and bandwidth.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

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
