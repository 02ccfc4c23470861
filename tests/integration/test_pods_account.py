"""Pods and services in accounts of their own: requests both ways, events and telemetry between them, no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nats
import pytest
from stretto.errors import PodError
from stretto.pod.bus import PodBus
from stretto.pod.credentials import identity_of
from stretto.pod.tracing import PodTracing
from stretto_bus import CallRefused, CallTimeout, Client
from stretto_bus.bus import Msg
from stretto_bus.reading.ordered_consumer import read
from stretto_installation.server import EmbeddedServer
from stretto_messages.actuator import GetServers, GetServersReply, ServersChanged
from stretto_messages.base import example_of
from stretto_messages.pods import ClaimBuckets, ClaimBucketsReply, GetBooks, PodPing, PodPingReply, PsReported
from stretto_wire.codec import encode

from tests.live_bus import live_bus, pod_file
from tests.waits import until

JOB, ANOTHER_JOB, POD = "honest", "hostile", "ps-0"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Stage:
    """A server with keys, its operator, the actuator's connection, and pods."""

    def __init__(self, server: EmbeddedServer, operator: Client, actuator: Client, folder: Path) -> None:
        self.server, self.operator, self.actuator, self.folder = server, operator, actuator, folder
        self.pods: list[PodBus] = []

    def credentials(self, job: str) -> Path:
        return pod_file(self.server.keys, self.folder / f"{job}.creds", job, POD)

    def bus(self, job: str) -> PodBus:
        identity = identity_of(self.credentials(job))
        bus = PodBus(self.server.url, job, POD, PodTracing(job, POD, self.folder, ""), identity)
        self.pods.append(bus)
        bus.connect(60.0)
        return bus


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with live_bus(tmp_path) as (server, operator):
        actuator = await Client.connect(server.url, server.login("actuator"))
        stage = Stage(server, operator, actuator, tmp_path)
        yield stage
        for pod in stage.pods:
            await asyncio.to_thread(pod.close)
        await actuator.close()


async def test_requests_events_and_telemetry_pass_between_the_accounts(stage: Stage) -> None:
    asked, followed = list[Msg](), list[ServersChanged]()

    def answer(msg: Msg) -> None:
        asked.append(msg)
        stage.actuator.bus.offer(msg.reply, encode(GetServersReply(job=JOB, answer="unknown")))

    def refuse(_: GetBooks) -> Any:
        raise PodError("no books yet; ask again")

    await stage.actuator.bus.subscribe("rpc.v1.actuator.>", answer)
    await stage.actuator.bus.flush()
    pod = await asyncio.to_thread(stage.bus, JOB)
    await asyncio.to_thread(pod.serve, PodPing, lambda _: PodPingReply(job=JOB, ready=True, address="a:1"))
    await asyncio.to_thread(pod.serve, GetBooks, refuse)
    await asyncio.to_thread(pod.follow, ServersChanged, followed.append)

    request = GetServers(job=JOB, request_id="lane.1", pod=POD)
    assert (await asyncio.to_thread(pod.call, request, GetServersReply, 60.0, TRACE)).answer == "unknown"
    assert (asked[0].headers or {})["traceparent"].startswith(TRACE[:35])

    for _ in range(2):
        assert (await stage.actuator.call_pod(POD, PodPing(job=JOB))).address == "a:1"
    with pytest.raises(CallRefused, match="no books yet"):
        await stage.actuator.call_pod(POD, GetBooks(job=JOB))
    with pytest.raises(CallTimeout, match="not connected"):
        await stage.actuator.call_pod("ps-9", PodPing(job=JOB))

    changed = replace(example_of(ServersChanged), job=JOB)
    await stage.actuator.publish(changed, trace=TRACE)
    await until(lambda: followed)
    assert followed == [changed]

    report = replace(example_of(PsReported), job=JOB, pod=POD)
    pod.report(report)
    async with asyncio.timeout(60):
        while not (stored := await read(stage.operator.bus, "TELEMETRY", ["*.tel.v1.>"], 1)):
            await asyncio.sleep(0.01)
    assert stored[0].data == encode(report)
    assert not [name for name in stored[0].headers if name.lower() == "nats-request-info"]
    assert "ce-id" in stored[0].headers
    assert not [name for name in stored[0].headers if name.startswith("Nats-")]
    await asyncio.to_thread(pod.close)


async def test_headers_of_events_and_acknowledgements_arrive_at_a_pod(stage: Stage) -> None:
    inbox = f"_INBOX.pod.{JOB}.{POD}".encode()
    pod = await nats.connect(stage.server.url, user_credentials=str(stage.credentials(JOB)), inbox_prefix=inbox)
    heard = await pod.subscribe(f"evt.v1.actuator.servers-changed.{JOB}")
    await pod.flush()
    changed = replace(example_of(ServersChanged), job=JOB)
    await stage.actuator.publish(changed, "an-id", TRACE)
    event = await heard.next_msg(60)
    assert event.subject == f"evt.v1.actuator.servers-changed.{JOB}"
    assert event.headers is not None
    assert (event.headers["traceparent"], event.headers["Nats-Msg-Id"]) == (TRACE, "an-id")
    assert b'"seq"' in (await pod.request(f"tel.v1.ps.{POD}.{JOB}", b"{}", timeout=60)).data
    await pod.close()


async def test_an_answer_that_a_hostile_pod_directs_to_another_jobs_pod_changes_nothing_there(stage: Stage) -> None:
    """Within the account of pods an answer goes wherever its pod said: the pod of the other job must not believe it."""
    lie = replace(example_of(ServersChanged), job=ANOTHER_JOB)
    truth = replace(lie, job=JOB)
    followed, claimed, lies = list[ServersChanged](), list[ClaimBuckets](), list[str]()

    def answer(msg: Msg) -> None:
        lies.append(msg.subject)
        stage.actuator.bus.offer(msg.reply, encode(lie))

    def claim(request: ClaimBuckets) -> ClaimBucketsReply:
        claimed.append(request)
        return ClaimBucketsReply(job=JOB, accepted=True)

    await stage.actuator.bus.subscribe("rpc.v1.actuator.>", answer)
    await stage.actuator.bus.flush()
    pod = await asyncio.to_thread(stage.bus, JOB)
    await asyncio.to_thread(pod.serve, ClaimBuckets, claim)
    await asyncio.to_thread(pod.follow, ServersChanged, followed.append)
    hostile = await nats.connect(stage.server.url, user_credentials=str(stage.credentials(ANOTHER_JOB)))
    for reply in (f"evt.v1.actuator.servers-changed.{JOB}", f"pod.v1.claim-buckets.{POD}.{JOB}"):
        for subject in (f"tel.v1.ps.{POD}.{ANOTHER_JOB}", f"rpc.v1.actuator.get-servers.{ANOTHER_JOB}"):
            await hostile.publish(subject, b"{}", reply=reply)
    await hostile.flush()
    await until(lambda: len(lies) == 2)
    await stage.actuator.publish(truth)
    honest = ClaimBuckets(job=JOB, buckets=(1,), slices=())
    assert (await stage.actuator.call_pod(POD, honest)).accepted
    await until(lambda: followed)
    assert followed == [truth]
    assert claimed == [honest]
    await hostile.close()
    await asyncio.to_thread(pod.close)


async def test_nothing_of_a_pod_goes_on_after_it_has_closed(stage: Stage) -> None:
    """Case: nobody would answer the renewal of its credentials, which it asked for again and again."""
    pod = await asyncio.to_thread(stage.bus, JOB)
    await asyncio.to_thread(pod.follow, ServersChanged, print)
    assert asyncio.all_tasks(pod._loop)
    await asyncio.to_thread(pod.close)
    await until(lambda: not asyncio.all_tasks(pod._loop))
