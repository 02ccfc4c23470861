"""Snapshots of a stream in memory, sent in chunks under flow control, and streams that are made of one.

What a chunk holds is the server's own affair: here lines of JSON, the first of them the end of the stream.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import Any

from stretto_testing.jetstream.consumers import Host
from stretto_testing.jetstream.streams import Kept, KeptStream

PREFIX = "$JS.SNAPSHOT."
CHUNK_MESSAGES_MOST = 200
ENDED = b"NATS/1.0 204\r\n\r\n"


class Snapshots:
    """Snapshots on their way out of a server, and into it."""

    def __init__(self, host: Host) -> None:
        self.on_begun: Callable[[KeptStream], None] = lambda stream: None
        self._host = host
        self._numbers = count(1)
        self._leaving: dict[str, tuple[str, Iterator[bytes]]] = {}
        """Subject of acknowledgements -> subject of the chunks, and those that are left"""
        self._arriving: dict[str, tuple[Callable[[list[bytes]], dict[str, Any]], list[bytes]]] = {}
        """Subject of the chunks -> what makes a stream of them, and those that have come"""

    def forget(self) -> None:
        """Give up all that is on its way."""
        self._leaving.clear()
        self._arriving.clear()

    def send(self, stream: KeptStream, to: str) -> None:
        """Send what a stream holds now, each chunk once the one before is acknowledged."""
        acks = f"{PREFIX}ACK.{stream.name}.{next(self._numbers)}"
        head = {"last_seq": stream.last_seq}
        self._leaving[acks] = to, _chunks(head, stream, [*stream.messages], self._host.chance)
        self.on_begun(stream)
        self._host.soon(lambda: self._go_on(acks))

    def receive(self, name: str, make: Callable[[list[bytes]], dict[str, Any]]) -> str:
        """Return the subject at which chunks are awaited; ``make`` gets them all."""
        subject = f"{PREFIX}RESTORE.{name}.{next(self._numbers)}"
        self._arriving[subject] = make, []
        return subject

    def took(self, subject: str, data: bytes) -> bytes | None:
        """Take an acknowledgement or a chunk; return its answer."""
        if subject in self._leaving:
            self._go_on(subject)
            return None
        if subject not in self._arriving:
            return None
        make, chunks = self._arriving[subject]
        if data:
            chunks.append(data)
            return b""
        del self._arriving[subject]
        return json.dumps(make(chunks)).encode()

    def _go_on(self, acks: str) -> None:
        if acks not in self._leaving:  # the server has ended meanwhile
            return
        to, chunks = self._leaving[acks]
        chunk = next(chunks, None)
        if chunk is None:
            del self._leaving[acks]
            self._host.deliver(to, to, "", ENDED, b"")
        else:
            self._host.deliver(to, to, acks, b"", chunk)


def _chunks(head: dict[str, int], stream: KeptStream, seqs: list[int], chance: Random) -> Iterator[bytes]:
    """Yield chunks; what has left the stream since is in none."""
    yield json.dumps(head).encode() + b"\n"
    waiting = deque(seqs)
    while waiting:
        size = min(len(waiting), chance.randrange(1, CHUNK_MESSAGES_MOST))
        left = [stream.messages.get(waiting.popleft()) for _ in range(size)]
        if lines := b"".join(_line(kept) for kept in left if kept is not None):
            yield lines


def _line(kept: Kept) -> bytes:
    texts = [kept.block.decode("latin-1"), kept.data.decode("latin-1")]
    return json.dumps([kept.seq, kept.subject, *texts, kept.time_ns]).encode() + b"\n"


def content_of(chunks: list[bytes]) -> tuple[int, list[Kept]]:
    """Return the last sequence and the messages of a snapshot."""
    head, *lines = [json.loads(line) for line in b"".join(chunks).splitlines()]
    kept = [
        Kept(seq, subject, block.encode("latin-1"), data.encode("latin-1"), at)
        for seq, subject, block, data, at in lines
    ]
    return int(head["last_seq"]), kept
