"""An S3 server on loopback, moto's, as a process of its own, and a proxy before it that fails as it is told.

All of it is real HTTP over real sockets. ``FaultyProxy.rule`` sees every request and says what becomes of it.
"""

from __future__ import annotations

import http.client
import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from process_kit import python

SERVE = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()  # until whoever started this closes it, or dies
server.stop()
"""
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def moto() -> Iterator[str]:
    """Yield the address of a new S3 server, which ends with the context."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    server = python("-c", SERVE, env={**own, **CREDENTIALS}, stderr=None)
    try:
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
    finally:
        server.stdin.close()
        server.wait(timeout=20)
        server.stdout.close()


def make_bucket(address: str, name: str) -> None:
    """Make a bucket by a plain PUT: the server does not check signatures, only which service is meant."""
    host, port = address.removeprefix("http://").split(":")
    link = http.client.HTTPConnection(host, int(port), timeout=20)
    who = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=, Signature="
    link.request("PUT", f"/{name}", headers={"Authorization": who})
    said = link.getresponse()
    assert said.status == 200, said.read()
    link.close()


Fault = int | str | float | None
"""A status to answer with; ``reset``; ``lost`` (done, but the answer is lost); ``cut`` (half of the answer);
seconds to wait before it is passed on; None to pass it on.
"""


class FaultyProxy:
    """Passes requests on to an S3 server, but for those for which ``rule(method, path)`` names a fault.

    asked: how many requests came, by method and path. faults: how many were failed. forgotten: heads that are
    not passed on, as by stores that do not know them. PUTs are passed on one at a time, so that a condition
    on one is as atomic as it is on S3; the server's threads by themselves do not see to that.
    """

    def __init__(self, target: str) -> None:
        self.host, self.port = target.removeprefix("http://").split(":")
        self.rule: Callable[[str, str], Fault] = lambda method, path: None
        self.asked: Counter[tuple[str, str]] = Counter()
        self.faults = 0
        self.forgotten: tuple[str, ...] = ()
        self._one_put = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except (ConnectionError, TimeoutError):
                    self.close_connection = True

            def any(self) -> None:
                proxy.serve(self)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = any

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self.server.shutdown()
        self.server.server_close()

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        size = int(handler.headers.get("Content-Length") or 0)
        if handler.headers.get("Expect") == "100-continue":
            handler.send_response_only(100)
            handler.end_headers()
        body = handler.rfile.read(size)
        self.asked[handler.command, handler.path] += 1
        fault = self.rule(handler.command, handler.path)
        self.faults += fault is not None
        if isinstance(fault, int):
            code = {503: "SlowDown", 403: "AccessDenied"}.get(fault, "InternalError")
            text = f"<Error><Code>{code}</Code><Message>told to fail</Message></Error>"
            self._answer(handler, fault, {"Content-Type": "application/xml"}, text.encode())
            return
        if fault == "reset":
            self._reset(handler)
            return
        if isinstance(fault, float):
            time.sleep(fault)
        passed = {k: v for k, v in handler.headers.items() if k not in self.forgotten}
        with self._one_put if handler.command == "PUT" else nullcontext():
            link = http.client.HTTPConnection(self.host, int(self.port), timeout=60)
            try:
                link.request(handler.command, handler.path, body, passed)
                said = link.getresponse()
                data, heads = said.read(), dict(said.getheaders())
            finally:
                link.close()
        if fault == "lost":
            self._reset(handler)
        elif fault == "cut":
            self._answer(handler, said.status, heads, data, cut=True)
            self._reset(handler)
        else:
            self._answer(handler, said.status, heads, data)

    @staticmethod
    def _answer(
        handler: BaseHTTPRequestHandler,
        status: int,
        heads: dict[str, str],
        data: bytes,
        cut: bool = False,
    ) -> None:
        handler.send_response_only(status)
        for name, value in heads.items():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                handler.send_header(name, value)
        size = heads.get("Content-Length", "0") if handler.command == "HEAD" else str(len(data))
        handler.send_header("Content-Length", size)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(data[: len(data) // 2] if cut else data)
            handler.wfile.flush()

    @staticmethod
    def _reset(handler: BaseHTTPRequestHandler) -> None:
        """End the connection by a RST: what is closed with nothing left to linger for."""
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.close_connection = True
        handler.connection.close()
