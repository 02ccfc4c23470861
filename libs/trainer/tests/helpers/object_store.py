"""An S3-compatible server (nanio) for tests, and a proxy before it that is late, throttles, and breaks connections.

``python object_store.py PORT LATENCY_S`` runs the proxy alone and prints its port.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ACCESS_KEY = "stretto-tests"
SECRET_KEY = "no-secret-at-all"
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
INTERNAL_ERROR = b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"

Fault = Callable[[int, str], str | None]
"""(number of the request, its first line) -> None, "503", "500", "break" before the answer, "cut" within it, "hang".

"folder" answers as S3 does for a key that ends with a slash, which pyarrow makes, and which nanio refuses.
"""


def folders(_: int, line: str) -> str | None:
    """Take keys that end with a slash for folders: a fault of a proxy."""
    return "folder" if re.match(r"(PUT|DELETE|HEAD) \S+/ ", line) else None


class Proxy:
    """A proxy of one server that waits ``latency_s`` before each request. ``requests``: their first lines."""

    def __init__(self, upstream: int, latency_s: float = 0.0) -> None:
        self.latency_s = latency_s
        self.fault: Fault = lambda number, line: None
        self.requests: list[str] = []
        self._upstream = upstream
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._upstream)) as server:
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                while self._relay(client, server):
                    pass
            except OSError:
                pass

    def _relay(self, client: socket.socket, server: socket.socket) -> bool:
        """Relay a request and its answer; False at the end of the connection."""
        head, rest = _head(client)
        if not head:
            return False
        line = head.partition(b"\r\n")[0].decode()
        with self._lock:
            number = len(self.requests)
            self.requests.append(line)
        if self.latency_s:
            time.sleep(self.latency_s)
        body = int(_header(head, b"content-length") or 0)
        fault = self.fault(number, line)
        if fault not in (None, "cut"):
            return _fail(client, fault, line, body - len(rest))
        if _header(head, b"expect"):  # the body comes once it is asked for
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = re.sub(rb"\r\nexpect:[^\r]*", b"", head, flags=re.IGNORECASE)
        if b"chunked" in (_header(head, b"transfer-encoding") or b""):
            server.sendall(head + _chunks(client, rest))
        else:
            server.sendall(head + rest)
            _copy(client, server, body - len(rest))
        answer, rest = _head(server)
        if not answer:  # the server closed a connection that had been idle
            return False
        length = int(_header(answer, b"content-length") or 0)
        if line.startswith("HEAD") or b" 204 " in answer[:20] or b" 304 " in answer[:20]:
            length = 0
        client.sendall(answer)
        if fault == "cut":
            client.sendall(rest[: length // 2])
            return False
        if b"chunked" in (_header(answer, b"transfer-encoding") or b""):
            client.sendall(_chunks(server, rest))
            return True
        client.sendall(rest)
        _copy(server, client, length - len(rest))
        return True


def _fail(client: socket.socket, fault: str, line: str, unread: int) -> bool:
    """Answer with an error, or not at all; return whether the connection stays."""
    if fault == "hang":  # until the client gives up
        client.recv(1)
    if fault == "folder":
        while unread > 0:
            unread -= len(client.recv(min(unread, 2**16)))
        answers = {"PUT": b'200 OK\r\nETag: "0"', "DELETE": b"204 No Content", "HEAD": b"404 Not Found"}
        client.sendall(b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % answers[line.partition(" ")[0]])
        return True
    if fault not in ("503", "500"):
        return False
    while unread > 0:
        unread -= len(client.recv(min(unread, 2**16)))
    told = SLOW_DOWN if fault == "503" else INTERNAL_ERROR
    client.sendall(b"HTTP/1.1 %s Bad\r\nContent-Type: application/xml\r\n" % fault.encode())
    client.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(told), b"" if line.startswith("HEAD") else told))
    return True


def _head(source: socket.socket) -> tuple[bytes, bytes]:
    """Return a message's head and what was read behind it."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = source.recv(2**16)
        if not more:
            return b"", b""
        data += more
    end = data.index(b"\r\n\r\n") + 4
    return data[:end], data[end:]


def _header(head: bytes, name: bytes) -> bytes | None:
    found = re.search(rb"\r\n" + name + rb": *([^\r]+)", head, re.IGNORECASE)
    return found[1] if found else None


def _copy(source: socket.socket, target: socket.socket, length: int) -> None:
    buffer = bytearray(min(max(length, 0), 2**18))
    while length > 0:
        count = source.recv_into(buffer, min(length, len(buffer)))
        if not count:
            raise ConnectionResetError
        target.sendall(memoryview(buffer)[:count])
        length -= count


def _chunks(source: socket.socket, data: bytes) -> bytes:
    """Return a chunked body whole, of which some was read already."""
    place = 0
    while True:
        while (end := data.find(b"\r\n", place)) < 0:
            data += source.recv(2**16)
        size = int(data[place:end].partition(b";")[0], 16)
        place = end + 2 + size + 2
        while len(data) < place:
            data += source.recv(2**16)
        if not size:
            return data


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def s3_server(folder: Path) -> Iterator[int]:
    """Run the server over a folder, whose folders are its buckets; yield its port."""
    port = _free_port()
    environment = {**os.environ, "NANIO_ACCESS_KEY": ACCESS_KEY, "NANIO_SECRET_KEY": SECRET_KEY}
    command = [sys.executable, "-m", "nanio", "serve", "--data-dir", str(folder), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--no-access-log", "--log-level", "error"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        deadline_s = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise RuntimeError(f"nanio did not start: {process.stderr.read()[-2000:]!r}") from None
                time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


@contextmanager
def proxy_process(upstream: int, latency_s: float) -> Iterator[int]:
    """Run the proxy as a process of its own, for measurements; yield its port."""
    command = [sys.executable, __file__, str(upstream), str(latency_s)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


def environment_of(port: int) -> dict[str, str]:
    """Return the variables by which any client of S3 finds the server behind a port."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",  # as for many compatible stores: no checksums as trailers
    }


if __name__ == "__main__":
    proxy = Proxy(int(sys.argv[1]), float(sys.argv[2]))
    sys.stdout.write(f"{proxy.port}\n")
    sys.stdout.flush()
    threading.Event().wait()
