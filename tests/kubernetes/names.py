"""DNS server for the names of a cluster's Services, in place of CoreDNS.

A records of ``<service>.<namespace>.svc.cluster.local``: the cluster address, or the pods' where there is none.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType

DOMAIN = ("svc", "cluster", "local")
A, INTERNET, TTL_S = 1, 1, 1
NO_SUCH_NAME = 3
Lookup = Callable[[str, str], list[str] | None]
"""(service, namespace) -> addresses; None: there is no such service"""


class Names:
    """Answers at ``address`` while entered."""

    def __init__(self, address: str, lookup: Lookup) -> None:
        self._lookup = lookup
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 0))
        self.port = int(self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, name="names", daemon=True)

    def __enter__(self) -> Names:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                query, asker = self._socket.recvfrom(4096)
            except OSError:
                return
            with contextlib.suppress(Exception):  # who gets no answer asks again
                self._socket.sendto(answer(query, self._lookup), asker)


def answer(query: bytes, lookup: Lookup) -> bytes:
    """The reply to one question (RFC 1035)."""
    labels, end = _labels(query, 12)
    (kind,) = struct.unpack_from("!H", query, end)
    question = query[12 : end + 4]
    found = lookup(labels[0], labels[1]) if tuple(labels[2:]) == DOMAIN else None
    addresses = found if found and kind == A else []
    flags = 0x8580 | (NO_SUCH_NAME if found is None else 0)
    head = query[:2] + struct.pack("!HHHHH", flags, 1, len(addresses), 0, 0)
    records = [
        struct.pack("!HHHIH", 0xC00C, A, INTERNET, TTL_S, 4) + socket.inet_aton(address) for address in addresses
    ]
    return head + question + b"".join(records)


def _labels(query: bytes, at: int) -> tuple[list[str], int]:
    """The name at ``at``, and where it ends."""
    labels: list[str] = []
    while size := query[at]:
        labels.append(query[at + 1 : at + 1 + size].decode("ascii", "replace").lower())
        at += size + 1
    return labels, at + 1
