"""A cloud on this machine, for Ray's launcher: it starts hosts of cluster_kit when it is asked, and they cost a second each.

Its hosts are as rented ones: the user ubuntu logs in by key through PAM, and a host that shuts down is gone.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import cluster_kit
from cluster_kit import Hosts, ip


@dataclass
class Node:
    """A host that was rented: its number, address and tags; ended: when, by ``how``."""

    k: int
    ip: str
    tags: dict[str, str]
    up: bool = True
    made: float = field(default_factory=time.time)
    ended: float = 0.0
    how: str = ""

    @property
    def cluster(self) -> str:
        """The cluster that it was rented for."""
        return self.tags["ray-cluster-name"]

    @property
    def kind(self) -> str:
        """Head or worker."""
        return self.tags["ray-node-type"]


class Cloud(Hosts):
    """Hosts that are started and ended over HTTP, at ``url``; ``provider`` is the folder of the module that asks."""

    space, net, rented, disk = "rb-rent", "10.213.8", True, "300m"

    def __init__(self, folder: Path) -> None:
        self.provider = folder.parent / "provider"
        self.provider.mkdir(mode=0o755)
        shutil.copy(Path(__file__).with_name("cloud_provider.py"), self.provider)
        super().__init__(folder, cluster_kit.seen(self.provider))
        self.nodes: dict[str, Node] = {}
        self.clients: list[Any] = []  # launches onto it
        self.lock = threading.RLock()
        self.over = threading.Event()

    @property
    def url(self) -> str:
        """Where it is asked."""
        return f"http://{self.net}.1:9000/"

    def open(self) -> None:
        """Make the network, and listen."""
        super().open()
        cloud = self

        class Api(BaseHTTPRequestHandler):
            def log_message(self, *a: object) -> None:
                pass

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with cloud.lock:
                    body = json.dumps(cloud.answer(**asked)).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.server = ThreadingHTTPServer((f"{self.net}.1", 9000), Api)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()

    def answer(self, verb: str, id: str = "", tags: Any = None) -> Any:
        """Do what a request asks."""
        if verb == "list":
            return {name: vars(node) for name, node in self.nodes.items()}
        if verb == "create":
            used = {node.k for node in self.nodes.values() if node.up}
            k = next(k for k in range(1, 240) if k not in used)
            self.start(k)
            id = f"i-{len(self.nodes) + 1}"
            self.nodes[id] = Node(k, self.address(k), dict(tags))
            return id
        if verb == "tags":
            self.nodes[id].tags.update(tags)
        if verb == "terminate":
            self.end(id, "terminated")
        return None

    def end(self, name: str, how: str) -> None:
        """Let a host be gone."""
        node = self.nodes[name]
        with self.lock:
            if node.up:
                self.lose(node.k)
                node.up, node.ended, node.how = False, time.time(), how

    def _watch(self) -> None:
        while not self.over.wait(0.5):
            with self.lock:
                for name, node in self.nodes.items():
                    if node.up and self._inits[node.k].poll() is not None:
                        self.end(name, "by itself")

    def of(self, launch: str, kind: str = "", up: bool = True) -> list[str]:
        """Return the hosts that were rented for a launch of this id, and are up unless ``up`` is false."""
        with self.lock:
            return [
                name
                for name, node in self.nodes.items()
                if node.cluster.endswith(f"-{launch}") and kind in node.kind and (node.up or not up)
            ]

    def on(self, name: str, command: str, **more: Any) -> str:
        """Run a command on a host, as root, who may always log in."""
        return self.run(self.nodes[name].k, command, **more)

    def cut(self, name: str, seconds: float) -> None:
        """Cut the link of a host for so long."""
        ip(f"link set {self.link(self.nodes[name].k)} down")
        time.sleep(seconds)
        ip(f"link set {self.link(self.nodes[name].k)} up")

    def crossed(self, name: str) -> int:
        """Return the bytes that a host has sent."""
        counter = Path(f"/sys/class/net/{self.link(self.nodes[name].k)}/statistics/rx_bytes")
        return int(counter.read_text())

    def stop(self) -> None:
        """End all hosts, and listen no more."""
        self.over.set()
        if hasattr(self, "server"):
            self.server.shutdown()
            self.server.server_close()
        with self.lock:
            super().stop()


@contextmanager
def cloud(folder: Path) -> Iterator[Cloud]:
    """Yield a cloud that listens."""
    made = Cloud(folder)
    try:
        made.open()
        yield made
    finally:
        made.stop()
