"""The plane beside ZeroMQ: the frames of a training step, over what each has for one machine and for a network.

A step is a pull (105 KB of keys up; 850 KB of rows and 580 KB of slices down) and a push (all of these up). One client
and one server, each a process, do nothing else: the server answers from arrays that it has, the client looks at the
sizes, each on a core of its own. The six ways take turns in each round of one run. CPU is that of both processes,
threads of ZeroMQ included.
ZeroMQ is used as fast as it goes: ROUTER and DEALER, no copy in Python on either side. CURVE and TLS encrypt; ours
authenticates everywhere, ZeroMQ with CURVE only. The note has the times of steps, and beside the CPU that of two plain
copies of as many bytes: into the kernel and out of it.

python -m tests.bench.training.plane serve tcp 127.0.0.1:0 key.pem
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

import numpy as np
import zmq
from stretto_plane import Buffer, Connection, Key, Listener, Message, Peer

from tests.bench.places import ROOT
from tests.bench.rows import Row, row

PULL, PUSH, CPU = 1, 2, 3
HEAD = np.zeros(200, np.int64)
KEYS = np.zeros(13_125, np.int64)
ROWS = np.zeros((13_280, 16), np.float32)
SLICES = np.zeros(145_000, np.float32)
STEP_BYTES = 2 * (KEYS.nbytes + ROWS.nbytes + SLICES.nbytes) + 4 * HEAD.nbytes
ROUNDS, STEPS, WARM_UP_STEPS = 15, 70, 20
SIZE_BYTES_MAX = 1 << 24
CLIENT_CORE, SERVER_CORE = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
UNIX_BAR, TCP_BAR, TLS_BAR = 0.9, 1.1, 0.85
"""of the CPU of ZeroMQ over ipc, over tcp, and over tcp with CURVE"""

Ask = Callable[[int, Sequence[Any]], int]
"""Sends a request, takes the answer and returns its bytes."""


class Way(NamedTuple):
    """One way from a client to a server. ``server``: its arguments as a command."""

    name: str
    server: str
    address: str


WAYS = (
    Way("unix socket", "unix", "unix:{folder}/plane"),
    Way("ZeroMQ ipc", "zmq", "ipc://{folder}/zmq"),
    Way("TCP", "tcp", "127.0.0.1:0"),
    Way("ZeroMQ tcp", "zmq", "tcp://127.0.0.1:*"),
    Way("TLS", "tls", "127.0.0.1:0"),
    Way("ZeroMQ tcp with CURVE", "curve", "tcp://127.0.0.1:*"),
)


class Figures(NamedTuple):
    """One way in one round."""

    cpu_ms: float
    step_ms: list[float]


def run() -> list[Row]:
    """Return a row for each of our ways, beside ZeroMQ's."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
        os.sched_setaffinity(0, {CLIENT_CORE})
        key = Path(folder, "plane.pem")
        key.write_bytes(Key.random().pem)
        asks = {way: stack.enter_context(opened(way, folder, key)) for way in WAYS}
        for ask in asks.values():
            measured(ask, WARM_UP_STEPS)
        rounds = [{way: measured(ask, STEPS) for way, ask in asks.items()} for _ in range(ROUNDS)]
    copies_ms = copying_ms()
    bars = UNIX_BAR, TCP_BAR, TLS_BAR
    return [
        compared(ours, theirs, bar, rounds, copies_ms)
        for ours, theirs, bar in zip(WAYS[::2], WAYS[1::2], bars, strict=True)
    ]


def compared(ours: Way, theirs: Way, bar: float, rounds: list[dict[Way, Figures]], copies_ms: float) -> Row:
    """Return the row of one of our ways, whose ratio is the median of the rounds' own."""
    ratio = statistics.median(each[ours].cpu_ms / each[theirs].cpu_ms for each in rounds)
    cpu_ms, beside_ms = (statistics.median(each[way].cpu_ms for each in rounds) for way in (ours, theirs))
    times = "; ".join(
        f"{way.name} {told([ms for each in rounds for ms in each[way].step_ms])}" for way in (ours, theirs)
    )
    note = (
        f"of {STEP_BYTES / 1e6:.1f} MB; beside it {theirs.name}. Step p50 / p99: {times}. Two copies {copies_ms:.2f} ms"
    )
    name = f"plane: CPU of a pull and a push, both sides, {ours.name}"
    return row(name, cpu_ms, "ms", f"<= {bar:g} x", ratio <= bar, note, beside_ms, ratio)


def told(times_ms: list[float]) -> str:
    return f"{np.percentile(times_ms, 50):.2f} / {np.percentile(times_ms, 99):.2f} ms"


def copying_ms() -> float:
    """Return the CPU time of copying the bytes of a step twice, between memory that is there."""
    source, middle, sink = (np.ones(STEP_BYTES // 4, np.uint8) for _ in range(3))
    times: list[float] = []
    for _ in range(50):
        begun = process_time()
        for _ in range(4):  # in portions of about the sizes of the messages
            np.copyto(middle, source)
            np.copyto(sink, middle)
        times.append(process_time() - begun)
    return 1000 * statistics.median(times)


def measured(ask: Ask, steps: int) -> Figures:
    """Return the CPU of a step on both sides, and the time of each."""
    times_ms: list[float] = []
    begun_cpu_s = process_time() + served_cpu_s(ask)
    for _ in range(steps):
        begun_s = perf_counter()
        down = ask(PULL, [HEAD, KEYS])
        ask(PUSH, [HEAD, KEYS, ROWS, SLICES])
        times_ms.append(1000 * (perf_counter() - begun_s))
        assert down == HEAD.nbytes + ROWS.nbytes + SLICES.nbytes
    return Figures(1000 * (process_time() + served_cpu_s(ask) - begun_cpu_s) / steps, times_ms)


def served_cpu_s(ask: Ask) -> float:
    """Return the CPU time of the server's process, which it answers in microseconds as a number of bytes."""
    return ask(CPU, []) / 1e6


@contextlib.contextmanager
def opened(way: Way, folder: str, key: Path) -> Generator[Ask]:
    """Start a server, and yield a client of it."""
    command = [
        sys.executable,
        "-m",
        "tests.bench.training.plane",
        "serve",
        way.server,
        way.address.format(folder=folder),
        key,
    ]
    command = ["taskset", "--cpu-list", str(SERVER_CORE), *command]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        try:
            with contextlib.ExitStack() as stack:
                yield (asking_zmq if way.server in ("zmq", "curve") else asking_ours)(stack, way.server, address, key)
        finally:
            server.kill()


def asking_ours(stack: contextlib.ExitStack, server: str, address: str, key: Path) -> Ask:
    encrypted = server == "tls"
    connection = stack.enter_context(Connection(address, Key.load(key), timeout_s=60, encrypted=encrypted))

    def ask(kind: int, parts: Sequence[Any]) -> int:
        answer = connection.call(kind, parts)
        return answer.kind if kind == CPU else sum(part.nbytes for part in answer.parts)

    return ask


def asking_zmq(stack: contextlib.ExitStack, server: str, address: str, _: Path) -> Ask:
    address, _, public = address.partition(" ")
    link = stack.enter_context(stack.enter_context(zmq.Context()).socket(zmq.DEALER))
    if server == "curve":
        link.curve_publickey, link.curve_secretkey = zmq.curve_keypair()
        link.curve_serverkey = public.encode()
    link.connect(address)

    def ask(kind: int, parts: Sequence[Any]) -> int:
        link.send_multipart([kind.to_bytes(4, "little"), *parts], copy=False)
        answer = link.recv_multipart(copy=False)
        if kind == CPU:
            return int.from_bytes(answer[0].buffer, "little")
        return sum(part.buffer.nbytes for part in answer[1:])

    return ask


def answered(kind: int) -> tuple[int, list[Buffer]]:
    """Return the answer to a request: its kind, and parts."""
    if kind == CPU:
        return int(process_time() * 1e6), []
    return kind, [HEAD, ROWS, SLICES] if kind == PULL else [HEAD]


def serve(way: str, address: str, key: str) -> None:
    """Serve until the process is killed; the first line of output is the address."""
    if way in ("zmq", "curve"):
        serve_zmq(address, encrypted=way == "curve")
        return

    def handler(message: Message, _: Peer) -> tuple[int, list[Buffer]]:
        return answered(message.kind)

    listener = Listener(address, handler, Key.load(key), size_bytes_max=SIZE_BYTES_MAX, encrypted=way == "tls")
    print(listener.address, flush=True)
    sys.stdin.read()


def serve_zmq(address: str, encrypted: bool) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as link:
        public = b""
        if encrypted:
            public, link.curve_secretkey = zmq.curve_keypair()
            link.curve_server = True
        link.bind(address)
        print(link.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode(), public.decode(), flush=True)
        while True:
            client, head, *_ = link.recv_multipart(copy=False)
            kind, parts = answered(int.from_bytes(head.buffer, "little"))
            link.send_multipart([client, kind.to_bytes(4, "little"), *parts], copy=False)


if __name__ == "__main__":
    serve(*sys.argv[2:])
