"""A pod's connection on a real nats-server."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
import stretto.pod.bus
import stretto_bus.bus
from stretto.errors import BusError
from stretto.pod.bus import PodBus
from stretto.pod.tracing import PodTracing
from stretto_installation.server import free_port
from stretto_messages.actuator import GetServers, GetServersReply, ServersChanged
from stretto_messages.pods import PodPing, PodPingReply, WorkerReported
from stretto_messages.values import StepTimes
from stretto_wire.codec import encode

JOB, POD = "asking", "worker-0"


class Line:
    """A proxy before the server. ``cut`` loses every byte of the connections that there are, and closes none."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._cut = 0
        self.connections = 0
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        started = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self.loop)
        self.url = f"nats://127.0.0.1:{started.result(5).sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        self._cut = self.connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        await asyncio.gather(self._pass(number, reader, there_writer), self._pass(number, there_reader, writer))

    async def _pass(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if number > self._cut:
                writer.write(data)


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    binary = shutil.which("nats-server") or str(Path(sys.executable).parent / "nats-server")
    found = free_port()
    command = [binary, "-a", "127.0.0.1", "-p", str(found), "-js", "-sd", str(tmp_path / "streams")]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    yield found
    server.kill()
    server.wait()


@pytest.fixture
async def service(port: int) -> nats.NATS:
    """Answers every request for servers, and keeps what pods report."""
    client = await nats.connect(f"nats://127.0.0.1:{port}", connect_timeout=5, max_reconnect_attempts=60)

    async def answer(message: nats.aio.msg.Msg) -> None:
        reply = GetServersReply(job=JOB, answer="unknown")
        await message.respond(encode(reply))

    await client.subscribe("rpc.v1.actuator.get-servers.*", cb=answer)
    await client.flush()
    return client


def bus_of(url: str, folder: Path) -> PodBus:
    bus = PodBus(url, JOB, POD, PodTracing(JOB, POD, folder, ""))
    bus.connect(10.0)
    return bus


def ask(bus: PodBus, timeout_s: float) -> str:
    request = GetServers(job=JOB, request_id=bus.request_id(GetServers), pod=POD)
    return bus.call(request, GetServersReply, timeout_s).answer


async def test_a_pod_leaves_a_dead_line_and_asks_again_on_another(
    port: int, service: nats.NATS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing on a line that swallows every byte says that it is dead but pings that nobody answers."""
    assert 3 * stretto_bus.bus.PING_S < 10
    monkeypatch.setattr(stretto_bus.bus, "PING_S", 0.2)
    line = Line(port)
    bus = await asyncio.to_thread(bus_of, line.url, tmp_path)
    assert await asyncio.to_thread(ask, bus, 5.0) == "unknown"
    line.cut()
    began_s = time.monotonic()
    assert await asyncio.to_thread(ask, bus, 20.0) == "unknown"
    assert line.connections == 2
    assert time.monotonic() - began_s < 10
    await asyncio.to_thread(bus.close)


async def test_a_report_leaves_its_life_and_its_storing_to_the_stream(
    port: int, service: nats.NATS, tmp_path: Path
) -> None:
    arrived = await service.subscribe("tel.v1.worker.*.*")
    await service.flush()
    bus = await asyncio.to_thread(bus_of, f"nats://127.0.0.1:{port}", tmp_path)
    spent = {"cpu_used_cores": 0.1, "cpu_limit_cores": 1.0, "memory_used_bytes": 1, "memory_limit_bytes": 2}
    times = StepTimes(emb_s=0.1, grad_s=0.1, upd_s=0.1, sync_s=0.1)
    done = {"steps": 1, "steps_total": 1, "samples_total": 1, "step_time_s": 0.1, "longest_gap_s": 0.1}
    report = WorkerReported(
        job=JOB, pod=POD, plan_version=1, ended_at_s=1e9, window_s=1.0, times=times, **spent, **done
    )
    bus.report(report)
    message = await arrived.next_msg(60)
    assert message.headers["ce-datacontenttype"] == "application/json"
    assert not [name for name in message.headers if name.startswith("Nats-")]
    await asyncio.to_thread(bus.close)


async def test_what_a_stream_stores_and_delivers_here_is_neither_a_request_nor_an_event(
    port: int, service: nats.NATS, tmp_path: Path
) -> None:
    """A service may have what it stored delivered to any subject; the server then tells the subject of the storing."""
    bus = await asyncio.to_thread(bus_of, f"nats://127.0.0.1:{port}", tmp_path)
    asked, told = list[Any](), list[Any]()

    def answer(request: PodPing) -> PodPingReply:
        asked.append(request)
        return PodPingReply(job=JOB, ready=True, address="127.0.0.1:1")

    await asyncio.to_thread(bus.serve, PodPing, answer)
    await asyncio.to_thread(bus.follow, ServersChanged, told.append)
    streams = service.jetstream()
    await streams.add_stream(name="FORGED", subjects=["forged.>"])
    ping, event = PodPing(job=JOB), ServersChanged(job=JOB, version=1, servers=())
    request, news = f"pod.v1.ping.{POD}.{JOB}", f"evt.v1.actuator.servers-changed.{JOB}"
    for number, (to, body) in enumerate(((request, encode(ping)), (news, encode(event)))):
        subject = f"forged.{number}.{JOB}"
        await streams.publish(subject, body)
        await streams.pull_subscribe(subject, f"c{number}", "FORGED")
        await service.publish(f"$JS.API.CONSUMER.MSG.NEXT.FORGED.c{number}", b"", reply=to)
    await service.publish(news, encode(event))
    await service.request(request, encode(ping), timeout=60)
    while not told:
        await asyncio.sleep(0.01)
    for number in range(2):
        assert (await streams.consumer_info("FORGED", f"c{number}")).delivered.stream_seq > 0
    assert (len(asked), len(told)) == (1, 1)
    await asyncio.to_thread(bus.close)


def test_a_bus_that_is_not_there_is_named_with_the_reason(tmp_path: Path) -> None:
    bus = PodBus(f"nats://secret:word@127.0.0.1:{free_port()}", JOB, POD, PodTracing(JOB, POD, tmp_path, ""))
    with pytest.raises(BusError, match=r"nats://127\.0\.0\.1.*Connect call failed") as refused:
        bus.connect(1.0)
    assert "secret" not in str(refused.value)
    bus.close()


def test_no_two_requests_of_several_threads_have_one_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: another thread takes an id while the first one's is being made."""
    bus = PodBus("nats://127.0.0.1:1", JOB, POD, PodTracing(JOB, POD, tmp_path, ""))
    channel_of, ids = stretto.pod.bus.registry.channel_of, []

    def slowly(kind: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=lambda: ids.append(bus.request_id(GetServers)))
            other.start()
            other.join()
        return channel_of(kind)

    monkeypatch.setattr(stretto.pod.bus.registry, "channel_of", slowly)
    ids.append(bus.request_id(GetServers))
    assert len({*ids}) == 2


def test_workers_that_seed_alike_have_spans_of_their_own(tmp_path: Path) -> None:
    for pod in ("worker-0", "worker-1"):
        random.seed(7)  # as a training script may do
        tracing = PodTracing("job", pod, tmp_path)
        with tracing.span("train shard"):
            pass
        tracing.close()
    lines = [line for file in (tmp_path / "spans").rglob("*.jsonl") for line in file.read_text().splitlines()]
    assert len({json.loads(line)["span_id"] for line in lines}) == 2
