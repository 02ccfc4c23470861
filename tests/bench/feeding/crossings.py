"""Batches of many tensors between two processes: the plane beside tf.data service, gRPC and ZeroMQ.

A batch is what crosses in a step of DeepFM: 141 tensors, 0.87 MB. The server gives every batch new values, the client
looks at the first and the last value of every tensor. Each has a core of its own. All ways take turns in each round of
one run; CPU is that of both processes.

- fused: a message of the plane for each batch, authenticated, the schema sent once; two are asked for ahead, as a feed
  does.
- a request per tensor, on the same plane.
- gRPC: a call per tensor, as the paper's baseline has it.
- ZeroMQ: one frame that says by itself what it has: names, types and shapes in JSON, then all tensors packed.
- tf.data service: a data set of these tensors, distributed without compression; it sends ahead by itself.

python -m tests.bench.feeding.crossings serve fused
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent import futures
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import zmq
from numpy.typing import NDArray
from stretto_pipeline.arrays import Reader, Writer
from stretto_pipeline.feeding import CREDITS
from stretto_plane import Connection, Key, Listener, Message, Peer

from tests.bench.claims import Claim, at_least
from tests.bench.places import ROOT
from tests.bench.rows import Row, row

SHAPES = (*[(512, 1)] * 100, *[(512, 4)] * 26, *[(512, 16)] * 14, (512, 13))
"""of 4 bytes each"""
BATCH_BYTES = sum(4 * rows * width for rows, width in SHAPES)
ROUNDS, BATCHES, WARM_UP_BATCHES = 7, 60, 20
BATCH = 1
SIZE_BYTES_MAX = 1 << 24
CLIENT_CORE, SERVER_CORE = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
SERVICE_BAR, GRPC_BAR, REQUESTS_BAR, ZMQ_BAR = 2.0, 10.0, 3.0, 0.8
"""times as fast as tf.data service, as a call and as a request per tensor; of the CPU of ZeroMQ"""
CLAIMS = (
    Claim(
        "GoldMiner §5.4, Fig. 12",
        "fused transfer is faster than a call per tensor by",
        "10 ×",
        "the transfer alone, on one machine; the paper tells it of a call of gRPC for each",
        at_least(GRPC_BAR),
        "batches/s of 141 tensors, fused / gRPC a tensor",
    ),
)

Arrays = list[NDArray[Any]]


class Way(NamedTuple):
    """A client of one way. take: takes the next batch and looks at it; cpu_s: of the server so far."""

    take: Callable[[], None]
    cpu_s: Callable[[], float]


class Figures(NamedTuple):
    """One way in one round."""

    per_s: float
    cpu_ms: float


def run() -> list[Row]:
    """Return a row for each way beside ours, and one for the CPU."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
        os.sched_setaffinity(0, {CLIENT_CORE})
        Path(folder, "plane.pem").write_bytes(Key.random().pem)
        ways = {name: stack.enter_context(_opened(name, folder)) for name in CLIENTS}
        for way in ways.values():
            _measured(way, WARM_UP_BATCHES)
        rounds = [{name: _measured(way, BATCHES) for name, way in ways.items()} for _ in range(ROUNDS)]
    return [
        _faster(rounds, "service", SERVICE_BAR, "tf.data service"),
        _faster(rounds, "grpc", GRPC_BAR, "gRPC a tensor"),
        _faster(rounds, "requests", REQUESTS_BAR, "a request a tensor"),
        _cheaper(rounds),
    ]


def _faster(rounds: Sequence[dict[str, Figures]], other: str, bar: float, told: str) -> Row:
    ratio = statistics.median(each["fused"].per_s / each[other].per_s for each in rounds)
    ours, theirs = (statistics.median(each[name].per_s for each in rounds) for name in ("fused", other))
    cpu = ", ".join(f"{statistics.median(each[name].cpu_ms for each in rounds):.2f}" for name in ("fused", other))
    note = f"{BATCH_BYTES / 1e6:.2f} MB; CPU of both sides {cpu} ms"
    name = f"batches/s of {len(SHAPES)} tensors, fused / {told}"
    return row(name, ours, "1/s", f">= {bar:g} x", ratio >= bar, note, theirs, ratio)


def _cheaper(rounds: Sequence[dict[str, Figures]]) -> Row:
    ratio = statistics.median(each["fused"].cpu_ms / each["zmq"].cpu_ms for each in rounds)
    ours, theirs = (statistics.median(each[name].cpu_ms for each in rounds) for name in ("fused", "zmq"))
    name = f"CPU of a batch of {len(SHAPES)} tensors, both sides, fused / ZeroMQ in one frame"
    return row(name, ours, "ms", f"<= {ZMQ_BAR:g} x", ratio <= ZMQ_BAR, "", theirs, ratio)


def _measured(way: Way, batches: int) -> Figures:
    begun_s, begun_cpu_s = perf_counter(), process_time() + way.cpu_s()
    for _ in range(batches):
        way.take()
    took_s = perf_counter() - begun_s
    return Figures(batches / took_s, 1000 * (process_time() + way.cpu_s() - begun_cpu_s) / batches)


def _looked_at(arrays: Sequence[NDArray[Any]]) -> None:
    """Raise AssertionError unless the batch is whole, and of one step."""
    assert len(arrays) == len(SHAPES)
    step = arrays[0].flat[0]
    for array, shape in zip(arrays, SHAPES, strict=True):
        assert array.shape == shape
        assert array.flat[0] == array.flat[-1] == step


class _Batches:
    """Gives batches of new values."""

    def __init__(self) -> None:
        self._arrays: Arrays = [np.zeros(shape, np.float32) for shape in SHAPES]
        self._step = 0

    def next(self) -> Arrays:
        self._step += 1
        for array in self._arrays:
            array.fill(self._step)
        return self._arrays

    def one(self, number: int) -> NDArray[Any]:
        if not number:
            self._step += 1
        self._arrays[number].fill(self._step)
        return self._arrays[number]


# clients -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(name: str, folder: str) -> Generator[Way]:
    """Start a server, and yield a client of it."""
    command = [sys.executable, "-m", "tests.bench.feeding.crossings", "serve", name, folder]
    command = ["taskset", "--cpu-list", str(SERVER_CORE), *command]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        try:
            with contextlib.ExitStack() as stack:
                yield Way(CLIENTS[name](stack, address, folder), lambda: _cpu_s(server.pid))
        finally:
            server.kill()


def _cpu_s(pid: int) -> float:
    """Return the processor time of the threads of a process, in nanoseconds' resolution (a round has few ticks)."""
    spent_ns = [int(each.read_text().split()[0]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(spent_ns) / 1e9


def _fused(stack: contextlib.ExitStack, address: str, folder: str) -> Callable[[], None]:
    def asking() -> Callable[[], futures.Future[Arrays]]:
        connection = stack.enter_context(Connection(address, Key.load(Path(folder, "plane.pem")), timeout_s=60))
        thread = stack.enter_context(futures.ThreadPoolExecutor(1))
        reader = Reader()
        return lambda: thread.submit(lambda: [*reader.arrays(connection.call(BATCH, []).parts).values()])

    asked = deque((ask, ask()) for ask in [asking() for _ in range(CREDITS)])

    def take() -> None:
        ask, answer = asked.popleft()
        arrays = answer.result()
        asked.append((ask, ask()))
        _looked_at(arrays)

    return take


def _requests(stack: contextlib.ExitStack, address: str, folder: str) -> Callable[[], None]:
    connection = stack.enter_context(Connection(address, Key.load(Path(folder, "plane.pem")), timeout_s=60))
    asked = [number.to_bytes(4, "little") for number in range(len(SHAPES))]

    def take() -> None:
        parts = [connection.call(BATCH, [each]).parts[0] for each in asked]
        _looked_at([np.frombuffer(part, np.float32).reshape(shape) for part, shape in zip(parts, SHAPES, strict=True)])

    return take


def _grpc(stack: contextlib.ExitStack, address: str, _: str) -> Callable[[], None]:
    import grpc

    call: Any = stack.enter_context(grpc.insecure_channel(address)).unary_unary("/bench/Tensor")
    asked = [number.to_bytes(4, "little") for number in range(len(SHAPES))]

    def take() -> None:
        answers = [call(each) for each in asked]
        _looked_at(
            [np.frombuffer(each, np.float32).reshape(shape) for each, shape in zip(answers, SHAPES, strict=True)]
        )

    return take


def _zmq(stack: contextlib.ExitStack, address: str, _: str) -> Callable[[], None]:
    link = stack.enter_context(stack.enter_context(zmq.Context()).socket(zmq.REQ))
    link.connect(address)

    def take() -> None:
        link.send(b"")
        whole = link.recv(copy=False).buffer
        begin = 4 + int.from_bytes(whole[:4], "little")
        arrays: Arrays = []
        for _, dtype, shape in json.loads(bytes(whole[4:begin])):
            size = math.prod(shape)
            arrays.append(np.frombuffer(whole, dtype, size, begin).reshape(shape))
            begin += arrays[-1].nbytes
        _looked_at(arrays)

    return take


def _service(_: contextlib.ExitStack, address: str, __: str) -> Callable[[], None]:
    import tensorflow as tf

    dataset = tf.data.Dataset.range(1 << 40).map(_made_by_tensorflow, deterministic=True)
    dataset = dataset.apply(
        tf.data.experimental.service.distribute("parallel_epochs", f"grpc://{address}", compression=None)
    )
    elements = iter(dataset)
    return lambda: _looked_at([each.numpy() for each in next(elements)])


def _made_by_tensorflow(step: Any) -> tuple[Any, ...]:
    import tensorflow as tf

    return tuple(tf.fill(shape, tf.cast(step, tf.float32)) for shape in SHAPES)


CLIENTS: dict[str, Callable[[contextlib.ExitStack, str, str], Callable[[], None]]] = {
    "fused": _fused,
    "requests": _requests,
    "grpc": _grpc,
    "zmq": _zmq,
    "service": _service,
}


# servers -------------------------------------------------------------------------------------------------------


def serve(way: str, folder: str) -> None:
    """Serve until the process is killed; the first line of output is the address."""
    {
        "fused": _serve_plane,
        "requests": _serve_plane,
        "grpc": _serve_grpc,
        "zmq": _serve_zmq,
        "service": _serve_service,
    }[way](folder)


def _tell(address: str) -> None:
    print(address, flush=True)


def _serve_plane(folder: str) -> None:
    peers: WeakKeyDictionary[Peer, tuple[_Batches, Writer]] = WeakKeyDictionary()

    def handler(message: Message, peer: Peer) -> tuple[int, Sequence[Any]]:
        batches, writer = peers.setdefault(peer, (_Batches(), Writer()))
        if message.parts:
            return BATCH, [batches.one(int.from_bytes(message.parts[0], "little"))]
        named = {f"{number}": array for number, array in enumerate(batches.next())}
        return BATCH, writer.parts(named)

    key = Key.load(Path(folder, "plane.pem"))
    listener = Listener("127.0.0.1:0", handler, key, size_bytes_max=SIZE_BYTES_MAX)
    _tell(listener.address)
    sys.stdin.read()


def _serve_grpc(_: str) -> None:
    import grpc

    batches = _Batches()

    def tensor(asked: bytes, _: Any) -> bytes:
        return batches.one(int.from_bytes(asked, "little")).tobytes()

    server = grpc.server(futures.ThreadPoolExecutor(1))
    handlers = {"Tensor": grpc.unary_unary_rpc_method_handler(tensor)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    _tell(f"127.0.0.1:{port}")
    sys.stdin.read()


def _serve_zmq(_: str) -> None:
    batches = _Batches()
    with zmq.Context() as context, context.socket(zmq.REP) as link:
        link.bind("tcp://127.0.0.1:*")
        _tell(link.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode())
        while True:
            link.recv()
            arrays = batches.next()
            told = json.dumps([[f"{n}", each.dtype.str, each.shape] for n, each in enumerate(arrays)]).encode()
            link.send(b"".join([len(told).to_bytes(4, "little"), told, *(each.data for each in arrays)]), copy=False)


def _serve_service(_: str) -> None:
    import tensorflow as tf

    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    address = dispatcher.target.removeprefix("grpc://")
    worker = service.WorkerServer(service.WorkerConfig(address))
    _tell(address)
    sys.stdin.read()
    del worker


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(*sys.argv[2:])
    else:
        for each in run():
            print(each)
