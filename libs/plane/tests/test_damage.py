"""Damaged frames and garbage, sent to a listener by strangers and by peers that have the key."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stretto_plane import Buffer, Connection, Key, Listener, Message, Peer
from stretto_plane.addresses import connected, parsed
from stretto_plane.frames import encoded
from stretto_plane.handshake import greet
from stretto_plane.transports import PlainLink

LIMIT_BYTES = 1 << 16


def echo(message: Message, _: Peer) -> tuple[int, Sequence[Buffer]]:
    return message.kind, message.parts


@pytest.fixture(scope="module")
def open_listener(key: Key) -> Iterator[Listener]:
    with Listener("127.0.0.1:0", echo, key, size_bytes_max=LIMIT_BYTES) as listener:
        yield listener


def admitted(listener: Listener, key: Key) -> socket.socket:
    """A raw socket of a peer that has proved its key."""
    link = connected(parsed(listener.address), 10)
    greet(PlainLink(link), key, time.monotonic() + 10)
    return socket.socket(fileno=link.detach())


def survives(listener: Listener, key: Key) -> bool:
    with Connection(listener.address, key, timeout_s=20) as connection:
        return connection.call(3, [b"still here"]).kind == 3


@settings(max_examples=60)
@given(
    before=st.integers(0, 2),
    parts=st.lists(st.binary(max_size=300), max_size=20),
    places=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4),
    cut=st.none() | st.integers(0, 400),
    after=st.binary(max_size=300),
)
def test_damaged_frames_end_at_most_their_connection(
    open_listener: Listener,
    key: Key,
    before: int,
    parts: list[bytes],
    places: list[tuple[int, int]],
    cut: int | None,
    after: bytes,
) -> None:
    """Valid frames, then one with bytes changed, cut off or followed by anything."""
    good = b"".join(encoded(1, [b"good"]))
    bad = bytearray(b"".join(encoded(1, parts)))
    for place, value in places:
        if place < len(bad):
            bad[place] = value
    answers = bytearray()
    with admitted(open_listener, key) as link:
        try:
            link.sendall(good * before + bytes(bad[:cut]) + after)
            link.shutdown(socket.SHUT_WR)
            while data := link.recv(1 << 16):
                answers += data
        except OSError:
            pass
    assert answers.startswith(good * before) or len(answers) < len(good) * before
    assert survives(open_listener, key)


@settings(max_examples=30)
@given(st.binary(max_size=2000))
def test_garbage_of_strangers_ends_at_most_their_connection(open_listener: Listener, key: Key, sent: bytes) -> None:
    for begin in (b"", b"STPL\1\0", b"\x16\x03\x01", b"STPF"):
        with connected(parsed(open_listener.address), 10) as link:
            try:
                link.sendall(begin + sent)
                link.shutdown(socket.SHUT_WR)
                while link.recv(1 << 16):
                    pass
            except OSError:  # it may have ended the connection already
                pass
    assert survives(open_listener, key)


def test_a_huge_size_takes_no_memory(key: Key, open_listener: Listener) -> None:
    """A header that names 2**63 bytes, and one whose sizes overflow together."""
    for sizes in ([2**63], [2**64 - 1] * 14):
        header = struct.pack("<4sBBHII14Q", b"STPF", 1, 0, len(sizes), 1, 0, *sizes, *[0] * (14 - len(sizes)))
        with admitted(open_listener, key) as link:
            link.sendall(header)
            assert b"size_bytes_max=65536" in link.recv(1 << 16)
    assert survives(open_listener, key)


def test_a_peer_that_dies_in_mid_frame_ends_its_connection(key: Key, open_listener: Listener) -> None:
    """Method: a child process that is killed after half of a frame."""
    frame = b"".join(encoded(1, [bytes(60_000)]))
    link = admitted(open_listener, key)
    child = os.fork()
    if child == 0:
        try:
            link.sendall(frame[:30_000])
            os.kill(os.getpid(), 9)
        finally:
            os._exit(1)
    link.close()
    os.waitpid(child, 0)
    assert survives(open_listener, key)


def test_a_peer_that_stays_in_mid_frame_ends_its_connection(
    key: Key, open_listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stretto_plane.session.FRAME_S", 0.3)
    with admitted(open_listener, key) as link:
        link.sendall(b"".join(encoded(1, [bytes(60_000)]))[:30_000])
        link.settimeout(20)
        with contextlib.suppress(ConnectionError):
            assert link.recv(1) == b""
    monkeypatch.undo()  # on a slow machine, an honest frame may take more
    assert survives(open_listener, key)


def test_a_peer_that_takes_no_answer_ends_its_connection(
    key: Key, listen: Callable[..., Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stretto_plane.session.FRAME_S", 0.3)
    monkeypatch.setattr("stretto_plane.session.FRAME_BYTES_PER_S_MIN", 1 << 40)
    listener = listen(lambda *_: (1, [bytes(100 << 20)]))
    with admitted(listener, key) as link:
        link.sendall(b"".join(encoded(1, [])))
        deadline_s = time.monotonic() + 60
        while listener._served and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert not listener._served
