"""Requests and answers on real sockets: content, limits, failures, and lost, slow and frozen peers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace as Way

import numpy as np
import pytest
from stretto_plane import (
    Buffer,
    Connection,
    FrameRefused,
    Key,
    Listener,
    Message,
    Peer,
    PeerFailed,
    PeerLost,
    PeerSlow,
    PlaneError,
)

Listen = Callable[..., Listener]


def echo(message: Message, _: Peer) -> tuple[int, Sequence[Buffer]]:
    return message.kind + 1, message.parts


def test_parts_of_any_sizes_come_back_the_same(way: Way, key: Key, listen: Listen) -> None:
    """Empty ones, arrays of several types and shapes, and more than the header has room for."""
    listener = listen(echo, way.address, encrypted=way.encrypted)
    parts: list[Buffer] = [
        b"abc",
        np.arange(200_001, dtype=np.float64),
        np.zeros((0, 16), np.float32),
        memoryview(bytearray(b"x" * 65)),
        np.arange(6, dtype=np.int64).reshape(2, 3),
        np.array(True),
        *(bytes([number]) * number for number in range(100)),
    ]
    with Connection(listener.address, key, timeout_s=60, encrypted=way.encrypted) as connection:
        for sent in (parts, [], parts[:14], parts[:15], [b""]):
            answer = connection.call(41, sent)
            assert answer.kind == 42
            assert [bytes(part) for part in answer.parts] == [memoryview(part).tobytes() for part in sent]


def test_a_connection_has_one_request_at_a_time(key: Key, listen: Listen) -> None:
    """An answer does not say which request it belongs to."""
    with Connection(listen(echo).address, key, timeout_s=60) as connection:
        with pytest.raises(AssertionError, match="nothing was asked"):
            connection.receive()
        connection.send(1, [])
        with pytest.raises(AssertionError, match="another is awaited"):
            connection.send(2, [])
        assert connection.receive().kind == 2
        assert connection.call(4, []).kind == 5


def test_parts_are_aligned_in_their_buffer(key: Key, listen: Listen) -> None:
    """NumPy takes them without a copy, at multiples of 64 bytes from the first."""
    listener = listen(echo)
    with Connection(listener.address, key, timeout_s=60) as connection:
        answer = connection.call(0, [b"a" * size for size in (1, 63, 64, 65, 100_000, 1)])
    places = [np.frombuffer(part, np.uint8).__array_interface__["data"][0] for part in answer.parts]
    assert all((place - places[0]) % 64 == 0 for place in places)


def test_kept_parts_never_change(way: Way, key: Key, listen: Listen) -> None:
    """Each round keeps a part, as array or view, of a message that would fit into the buffer of the last one."""
    listener = listen(echo, way.address, encrypted=way.encrypted)
    kept: list[tuple[int, np.ndarray | memoryview]] = []
    with Connection(listener.address, key, timeout_s=60, encrypted=way.encrypted) as connection:
        for number in range(40):
            answer = connection.call(0, [bytes([number]) * 100_000, bytes([number]) * 50])
            if number % 3 == 0:
                kept.append((number, np.frombuffer(answer.parts[0], np.uint8)[5:]))
            elif number % 3 == 1:
                kept.append((number, answer.parts[1]))
            del answer
    for number, part in kept:
        assert set(bytes(part)) == {number}


def test_a_failing_handler_is_told_and_the_connection_goes_on(way: Way, key: Key, listen: Listen) -> None:
    def fails(message: Message, _: Peer) -> tuple[int, Sequence[Buffer]]:
        if message.kind == 1:
            raise ValueError("keys=-1 is refused")
        if message.kind == 2:
            return -1, []
        if message.kind == 3:
            return 0, [np.zeros((4, 4))[:, 0]]
        return 0, [b"well"]

    listener = listen(fails, way.address, encrypted=way.encrypted)
    with Connection(listener.address, key, timeout_s=60, encrypted=way.encrypted) as connection:
        with pytest.raises(PeerFailed, match="ValueError: keys=-1 is refused"):
            connection.call(1, [])
        with pytest.raises(PeerFailed, match="kind=-1"):
            connection.call(2, [])
        with pytest.raises(PeerFailed, match="part 0"):
            connection.call(3, [])
        assert bytes(connection.call(4, []).parts[0]) == b"well"
    assert listener.counts.failures == 3
    assert listener.counts.requests == 4


@pytest.mark.parametrize("size_bytes", [3 << 20, 64 << 20])
def test_a_request_beyond_the_limit_ends_its_connection_only(
    way: Way, key: Key, listen: Listen, size_bytes: int
) -> None:
    """Goal: the sender learns the reason, also while it still sends; another connection goes on."""
    listener = listen(echo, way.address, encrypted=way.encrypted, size_bytes_max=2 << 20)
    other = Connection(listener.address, key, timeout_s=60, encrypted=way.encrypted)
    connection = Connection(listener.address, key, timeout_s=60, encrypted=way.encrypted)
    with pytest.raises(FrameRefused, match="size_bytes_max=2097152"):
        connection.call(0, [bytes(size_bytes)])
    with pytest.raises(PeerLost, match="closed"):
        connection.call(0, [])
    assert other.call(0, [b"x"]).kind == 1
    assert listener.counts.refused_frames == 1
    listener.size_bytes_max = 4 << 20
    if size_bytes <= listener.size_bytes_max:
        assert other.call(0, [bytes(size_bytes)]).kind == 1
    other.close()


def test_an_answer_beyond_the_limit_is_refused(key: Key, listen: Listen) -> None:
    listener = listen(lambda *_: (0, [bytes(2000)]))
    connection = Connection(listener.address, key, timeout_s=60, size_bytes_max=1000)
    with pytest.raises(FrameRefused, match="size_bytes_max=1000"):
        connection.call(0, [])


@pytest.mark.parametrize(
    ("kind", "parts", "named"),
    [
        (-1, [], "kind=-1"),
        (2**31, [], "kind=2147483648"),
        (0, [np.zeros((3, 3))[:, 1]], "part 0"),
        (0, [b"", "text"], "part 1"),
        (0, [b""] * 70_000, "70000 parts"),
    ],
)
def test_unusable_requests_are_refused_before_they_are_sent(
    key: Key, listen: Listen, kind: int, parts: list[Buffer], named: str
) -> None:
    listener = listen(echo)
    with Connection(listener.address, key, timeout_s=60) as connection:
        with pytest.raises(FrameRefused, match=named):
            connection.send(kind, parts)
        assert connection.call(5, []).kind == 6


def test_nobody_there_is_told_at_once(tmp_path: object, key: Key) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"unix:{tmp_path}/none"):
        begun_s = time.monotonic()
        with pytest.raises(PeerLost) as raised:
            Connection(address, key, timeout_s=30)
        assert time.monotonic() - begun_s < 15
        assert raised.value.address == address
        assert not isinstance(raised.value, PeerSlow)


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:70000", "host:-1", "unix:relative", "a:b:c"])
def test_malformed_addresses_are_named(key: Key, address: str) -> None:
    with pytest.raises(PlaneError, match="address="):
        Connection(address, key, timeout_s=1)


def test_a_slow_answer_closes_the_connection(way: Way, key: Key, listen: Listen) -> None:
    """Goal: the late answer is never taken for that of a later request."""
    go = threading.Event()

    def waits(message: Message, _: Peer) -> tuple[int, Sequence[Buffer]]:
        if message.kind == 1:
            go.wait(60)
        return message.kind, []

    listener = listen(waits, way.address, encrypted=way.encrypted)
    connection = Connection(listener.address, key, timeout_s=20, encrypted=way.encrypted)
    with pytest.raises(PeerSlow, match=r"within 0\.1 s"):
        connection.call(1, [], timeout_s=0.1)
    go.set()
    with pytest.raises(PeerLost):
        connection.call(2, [])
    with Connection(listener.address, key, timeout_s=20, encrypted=way.encrypted) as fresh:
        assert fresh.call(3, []).kind == 3


def test_closing_a_listener_ends_its_connections(way: Way, key: Key, listen: Listen) -> None:
    listener = listen(echo, way.address, encrypted=way.encrypted)
    connection = Connection(listener.address, key, timeout_s=20, encrypted=way.encrypted)
    assert connection.call(1, []).kind == 2
    listener.close()
    listener.close()
    begun_s = time.monotonic()
    with pytest.raises(PeerLost):
        connection.call(1, [])
    assert time.monotonic() - begun_s < 15
    if way.address.startswith("unix:"):
        assert not os.path.exists(way.address.removeprefix("unix:"))


SERVER = """
import sys, time
from stretto_plane import Key, Listener
def handler(message, peer):
    if message.kind == 1:
        time.sleep(60)
    return message.kind, message.parts
listener = Listener(sys.argv[1], handler, Key.load(sys.argv[2]), size_bytes_max=1 << 28, encrypted=sys.argv[3] == "1")
print(listener.address, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def served(way: Way, key: Key, tmp_path: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A listener in another process, and its address."""
    path = f"{tmp_path}/key.pem"
    with open(path, "wb") as file:
        file.write(key.pem)
    command = [sys.executable, "-c", SERVER, way.address, path, str(int(way.encrypted))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process, process.stdout.readline().strip()
        process.kill()


def freeze(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


def test_a_killed_server_is_noticed_at_once(way: Way, key: Key, served: tuple[subprocess.Popen[str], str]) -> None:
    process, address = served
    connection = Connection(address, key, timeout_s=60, encrypted=way.encrypted)
    connection.send(1, [b"never answered"])
    timer = threading.Timer(0.3, process.kill)
    timer.start()
    begun_s = time.monotonic()
    with pytest.raises(PeerLost) as raised:
        connection.receive()
    assert time.monotonic() - begun_s < 10
    assert not isinstance(raised.value, PeerSlow)
    timer.join()


def test_a_server_killed_in_mid_frame_is_noticed_at_once(
    way: Way, key: Key, served: tuple[subprocess.Popen[str], str]
) -> None:
    """Method: it is frozen, so that the request fills the buffers of the kernel, and killed while we send."""
    process, address = served
    connection = Connection(address, key, timeout_s=60, encrypted=way.encrypted)
    freeze(process)
    timer = threading.Timer(0.3, process.kill)
    timer.start()
    begun_s = time.monotonic()
    with pytest.raises(PeerLost) as raised:
        connection.send(0, [bytes(200 << 20)])
    assert time.monotonic() - begun_s < 10
    assert not isinstance(raised.value, PeerSlow)
    timer.join()


def test_a_host_that_answers_no_probe_is_lost_not_slow(
    way: Way, key: Key, served: tuple[subprocess.Popen[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: as long as a frozen process has no room for bytes, its kernel acknowledges none, as a dead host does."""
    if way.address.startswith("unix:"):
        pytest.skip("the process is on this machine")
    process, address = served
    monkeypatch.setattr("stretto_plane.addresses.UNACKNOWLEDGED_MS_MAX", 500)
    connection = Connection(address, key, timeout_s=60, encrypted=way.encrypted)
    freeze(process)
    begun_s = time.monotonic()
    with pytest.raises(PeerLost, match="EOF" if way.encrypted else "timed out") as raised:
        connection.send(0, [bytes(200 << 20)])
    assert time.monotonic() - begun_s < 20
    assert not isinstance(raised.value, PeerSlow)


def test_both_sides_probe_a_silent_peer(key: Key, listen: Listen) -> None:
    """Goal: a host that is gone is noticed within about 10 s, whichever side waits."""
    listener = listen(echo)
    connection = Connection(listener.address, key, timeout_s=60)
    assert connection._link is not None
    [session] = listener._served
    for link in (connection._link._link, session._socket):
        assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle_s, interval_s, count = (
            link.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle_s + interval_s * count <= 10
        assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
        assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    connection.close()


def test_a_frozen_server_is_slow_for_sending_and_receiving(
    way: Way, key: Key, served: tuple[subprocess.Popen[str], str]
) -> None:
    process, address = served
    first, second = (Connection(address, key, timeout_s=20, encrypted=way.encrypted) for _ in range(2))
    first._timeout_s = second._timeout_s = 0.5  # a busy machine may take longer for the handshake
    freeze(process)
    with pytest.raises(PeerSlow):
        first.call(0, [b"x"])
    with pytest.raises(PeerSlow):
        second.send(0, [bytes(200 << 20)])
    process.send_signal(signal.SIGCONT)
    with Connection(address, key, timeout_s=20, encrypted=way.encrypted) as fresh:
        assert fresh.call(0, [b"y"]).kind == 0
