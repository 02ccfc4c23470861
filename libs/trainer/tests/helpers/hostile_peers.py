"""A process that means harm to lanes: strangers, a peer with the key that damages frames, a lane that answers nonsense.

``python hostile_peers.py LANE…`` reads the job's key (PEM, JSON) from a line, and prints the address of its own lane.
For each further line, frames and frames a second, it attacks the lanes in turns, and prints how often each way was
tried, what was accepted, and if an honest request is still answered.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from stretto.batches.preparation import REQUEST_BYTES_MAX, Kind, request_of
from stretto_pipeline.arrays import SCHEMA_BYTES_MAX
from stretto_pipeline.feeding import SampleRange
from stretto_plane import AccessRefused, Buffer, Connection, Key, Listener, Message, Peer
from stretto_plane.addresses import connected, parsed
from stretto_plane.exchange import FrameReader
from stretto_plane.frames import HEADER_BYTES, Bytes, Flag, encoded
from stretto_plane.handshake import greet
from stretto_plane.session import HANDSHAKE_S
from stretto_plane.transports import PlainLink

TIMEOUT_S = 10.0
OTHERS_EVERY = 20
"""Frames after which each other way is tried once."""
SLOW_PEERS = 80
"""Silent or slow strangers at a time: more than a listener keeps."""
REQUEST = b"".join(encoded(Kind.PREPARE, request_of(SampleRange("", 0, 256))))


class Recorded(PlainLink):
    """A link that keeps what was sent by it."""

    def __init__(self, link: socket.socket) -> None:
        super().__init__(link)
        self.sent: list[bytes] = []

    def send(self, buffers: Sequence[Bytes], deadline_s: float | None) -> None:
        self.sent.append(b"".join(buffers))
        super().send(buffers, deadline_s)


def is_admitted(address: str, key: Key) -> bool:
    try:
        Connection(address, key, timeout_s=TIMEOUT_S).close()
    except AccessRefused:
        return False
    return True


def is_replay_admitted(address: str, key: Key) -> bool:
    """Send again what a peer with the key has sent, its nonce and proof; return True if it is admitted for that."""
    with connected(parsed(address), TIMEOUT_S) as honest:
        recorded = Recorded(honest)
        greet(recorded, key, time.monotonic() + TIMEOUT_S)
    with connected(parsed(address), TIMEOUT_S) as link, contextlib.suppress(OSError):
        hello, proof = recorded.sent
        link.sendall(hello)
        link.recv(1 << 16)
        link.sendall(proof)
        return bool(link.recv(1))
    return False


def is_answered(address: str, key: Key, frame: bytes) -> bool:
    """Send a frame with the key; return True if the lane prepares a batch for it."""
    link = connected(parsed(address), TIMEOUT_S)
    with socket.socket(fileno=link.detach()) as raw, contextlib.suppress(OSError, EOFError):
        plain = PlainLink(raw)
        greet(plain, key, time.monotonic() + TIMEOUT_S)
        raw.sendall(frame)
        raw.shutdown(socket.SHUT_WR)
        answers = FrameReader(plain)
        answers.wait(time.monotonic() + TIMEOUT_S)
        flag, message = answers.take(1 << 24, lambda _: time.monotonic() + TIMEOUT_S)
        return flag is Flag.MESSAGE and message.kind == Kind.PREPARE
    return False


def damaged(chance: random.Random) -> bytes:
    """Return a request whose header is changed, or that is cut off; or noise.

    The body stays: with other numbers in it, it would be a request for another batch.
    """
    kind = chance.randrange(3)
    if kind == 0:
        return chance.randbytes(chance.randrange(1, 2 * HEADER_BYTES))
    if kind == 1:
        return REQUEST[: chance.randrange(1, len(REQUEST))]
    frame = bytearray(REQUEST)
    for place in chance.sample(range(HEADER_BYTES), chance.randint(1, 4)):
        frame[place] ^= chance.randint(1, 255)
    return bytes(frame)


class SlowPeers:
    """Strangers that send a byte now and then, and hold their connections as long as they may."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = itertools.cycle(addresses)
        self._links: list[tuple[float, socket.socket]] = []

    def breathe(self, tried: Counter[str], accepted: Counter[str]) -> None:
        """Send a byte from each, and begin anew what was ended; one that lives on counts as accepted."""
        kept: list[tuple[float, socket.socket]] = []
        for begun_s, link in self._links:
            try:
                link.send(b"S", socket.MSG_DONTWAIT)
                kept.append((begun_s, link))
                if time.monotonic() - begun_s > 2 * HANDSHAKE_S:
                    accepted["slow"] += 1
            except OSError:
                link.close()
        while len(kept) < SLOW_PEERS:
            kept.append((time.monotonic(), connected(parsed(next(self._addresses)), TIMEOUT_S)))
            tried["slow"] += 1
        self._links = kept


def attack(addresses: Sequence[str], key: Key, frames: int, per_s: float, chance: random.Random) -> dict[str, Any]:
    """Send so many damaged frames, and try the other ways between them; return how often each was tried, accepted."""
    too_large = b"".join(encoded(Kind.PREPARE, [bytes(REQUEST_BYTES_MAX + 1)]))
    ways: dict[str, Callable[[str], bool]] = {
        "another key": lambda address: is_admitted(address, Key.random()),
        "another job's key": lambda address: is_admitted(address, Key.derive(bytes(32), "another")),
        "replayed": lambda address: is_replay_admitted(address, key),
        "too large": lambda address: is_answered(address, key, too_large),
    }
    tried, accepted = Counter[str](), Counter[str]()
    slow = SlowPeers(addresses)
    targets = itertools.cycle(addresses)
    begun_s = time.monotonic()
    for number in range(frames):
        tried["damaged"] += 1
        accepted["damaged"] += is_answered(next(targets), key, damaged(chance))
        if number % OTHERS_EVERY == 0:
            slow.breathe(tried, accepted)
            for name, way in ways.items():
                tried[name] += 1
                accepted[name] += way(next(targets))
        time.sleep(max(0.0, begun_s + number / per_s - time.monotonic()))
    return {"tried": tried, "accepted": accepted.total(), "took_s": time.monotonic() - begun_s}


NONSENSE: Sequence[Sequence[bytes]] = (
    [b'[["batch label", "|O", 1]]', np.array([1], np.int64).tobytes(), bytes(64)],
    [b'[["batch label", "<f4", 1]]', np.array([10**6], np.int64).tobytes(), bytes(64)],
    [b'[["batch label", "<f4", 1]]' + b" " * SCHEMA_BYTES_MAX, np.array([1], np.int64).tobytes(), bytes(64)],
    [b"no schema"],
)


def lane_of_nonsense(honest: str, key: Key) -> Listener:
    """Return a lane that shows the fingerprint of an honest one, and answers what is no batch."""
    with Connection(honest, key, timeout_s=TIMEOUT_S) as connection:
        fingerprint = bytes(connection.call(Kind.HELLO, []).parts[0])
    answers = itertools.cycle(NONSENSE)

    def handler(message: Message, _: Peer) -> tuple[int, Sequence[Buffer]]:
        return message.kind, [fingerprint] if message.kind == Kind.HELLO else next(answers)

    return Listener("127.0.0.1:0", handler, key, size_bytes_max=REQUEST_BYTES_MAX)


def answer(message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    key = Key.of(json.loads(sys.stdin.readline()).encode())
    addresses = sys.argv[1:]
    own = lane_of_nonsense(addresses[0], key)
    answer(own.address)
    for line in sys.stdin:
        asked = json.loads(line)
        found = attack(addresses, key, asked["frames"], asked["per_s"], random.Random(asked["seed"]))
        honest = is_admitted(addresses[0], key) and is_answered(addresses[0], key, REQUEST)
        answer({**found, "nonsense": own.counts.requests, "honest": honest})


if __name__ == "__main__":
    main()
