"""Every forbidden thing, tried as everybody on a real server: what is allowed follows from the registry alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from stretto_bus import Client
from stretto_bus.connection import Connection
from stretto_bus.reading.servers import SERVERS
from stretto_installation.access.keys import KEEPER
from stretto_installation.server import EmbeddedServer
from stretto_messages.pods import PodPing, PodPingReply
from stretto_wire.codec import encode
from stretto_wire.contract.inboxes import inbox_of, inbox_of_pod
from stretto_wire.contract.registry import CHANNELS, SERVICES, USERS, Channel, partition_of

from tests.live_bus import pod_file

JOB, ANOTHER_JOB = "job-a", "job-b"
STREAMS = ("STRETTO", "TELEMETRY", "KV_STATE", "DLQ", "AUDIT", "EVENTS")
OUTSIDE = ("external", KEEPER)
PODS = {"worker": "worker-0", "ps": "ps-1"}
EVERYBODY = (*SERVICES, *OUTSIDE, *PODS)

MANAGING = (
    *("STREAM.CREATE", "STREAM.UPDATE", "STREAM.DELETE", "STREAM.PURGE", "STREAM.MSG.DELETE", "STREAM.MSG.GET"),
    *("STREAM.SNAPSHOT", "STREAM.RESTORE", "STREAM.LEADER.STEPDOWN", "STREAM.PEER.REMOVE", "DIRECT.GET"),
)
CONSUMING = ("CONSUMER.CREATE", "CONSUMER.DURABLE.CREATE", "CONSUMER.MSG.NEXT", "CONSUMER.DELETE", "CONSUMER.INFO")
ALLOWED_MANAGING = {KEEPER: {(f"STREAM.{verb}", "EVENTS") for verb in ("CREATE", "UPDATE", "DELETE")}}
WHOLE = (">", "*.>", "evt.>", "tel.>", "rpc.>", "pod.>", "journal.>", "fence.>", "dlq.>", "$KV.>", "$JS.>", "_INBOX.>",
         "deliver.>", "$SYS.>")  # fmt: skip


class Tried:
    """One identity, and whether the server refuses what it does."""

    def __init__(self, connection: Connection, errors: list[str]) -> None:
        self.connection, self.errors = connection, errors

    async def _refused(self) -> bool:
        await self.connection.flush()
        refused = [error for error in self.errors if "permissions violation" in error.lower()]
        assert len(refused) == len(self.errors), self.errors
        self.errors.clear()
        return bool(refused)

    async def may_publish(self, subject: str) -> bool:
        await self.connection.publish(subject, b"{}")
        return not await self._refused()

    async def may_subscribe(self, subject: str) -> bool:
        subscription = await self.connection.subscribe(subject)
        refused = await self._refused()
        await subscription.unsubscribe()
        return not refused


@asynccontextmanager
async def presented(server: EmbeddedServer, who: str, folder: Path) -> AsyncIterator[Tried]:
    """A service, the operator, a tool outside, or a pod of ``JOB``."""
    assert server.keys is not None
    credentials = server.keys.credentials(who)
    if who == KEEPER:
        credentials = server.keys.keeper_folder / "external.creds"
    if who in PODS:
        credentials = pod_file(server.keys, folder / f"{who}.creds", JOB, PODS[who])
    errors: list[str] = []

    async def failed(error: Exception) -> None:
        errors.append(str(error))

    connection = Connection()
    await connection.connect(server.url, user_credentials=str(credentials), error_cb=failed)
    yield Tried(connection, errors)
    await connection.close()


def subject_of(channel: Channel, job: str, pod: str) -> str:
    *before, last = channel.pattern.split(".")
    assert last == "*"
    return ".".join([*(pod if token == "*" else token for token in before), job])


def may_send(who: str, channel: Channel, job: str, pod: str) -> bool:
    """Return True if the registry lets the user send on the subject."""
    if who in OUTSIDE:
        return False
    if who in PODS:
        own = job == JOB and (channel.kind == "rpc" or pod == PODS[who])
        return own and (channel.kind == "tel" or (channel.kind == "rpc" and bool({*PODS} & {*channel.readers})))
    return channel.service == who if channel.kind == "evt" else channel.kind != "tel" and who in channel.readers


@pytest.mark.parametrize("who", EVERYBODY)
async def test_messages_come_only_from_whom_the_registry_names(
    who: str, server: EmbeddedServer, tmp_path: Path
) -> None:
    async with presented(server, who, tmp_path) as tried:
        for channel in CHANNELS:
            for job in (JOB, ANOTHER_JOB):
                for pod in ("worker-0", "ps-1", "ps-7"):
                    subject = subject_of(channel, job, pod)
                    assert await tried.may_publish(subject) == may_send(who, channel, job, pod), subject


@pytest.mark.parametrize("who", EVERYBODY)
async def test_only_services_ask_the_servers_about_themselves_and_nothing_else_of_their_account(
    who: str, server: EmbeddedServer, tmp_path: Path
) -> None:
    async with presented(server, who, tmp_path) as tried:
        assert await tried.may_publish(SERVERS) == (who in SERVICES)
        for subject in ("$SYS.REQ.SERVER.PING.CONNZ", "$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.PING.JSZ"):
            assert not await tried.may_publish(subject), subject


@pytest.mark.parametrize("who", PODS)
async def test_a_pods_request_cannot_be_sent_past_the_owner_of_its_job(
    who: str, server: EmbeddedServer, tmp_path: Path
) -> None:
    async with presented(server, who, tmp_path) as tried:
        for partition in (partition_of(JOB), (partition_of(JOB) + 1) % 16):
            assert not await tried.may_publish(f"rpc.v1.dispatcher.next-shard.{partition}.{JOB}")


@pytest.mark.parametrize("who", EVERYBODY)
async def test_state_and_streams_are_nobodys_but_their_owners(who: str, server: EmbeddedServer, tmp_path: Path) -> None:
    async with presented(server, who, tmp_path) as tried:
        for service in SERVICES:
            for subject in (f"journal.{service}.0", f"fence.{service}.0", f"$KV.STATE.owner.{service}.0"):
                assert await tried.may_publish(subject) == (who == service), subject
        assert await tried.may_publish("audit.gateway") == (who == "gateway")
        assert not await tried.may_subscribe("audit.>")
        for stream in STREAMS:
            for verb in MANAGING:
                expected = (verb, stream) in ALLOWED_MANAGING.get(who, ())
                assert await tried.may_publish(f"$JS.API.{verb}.{stream}") == expected, (verb, stream)
            for verb in CONSUMING:
                assert await tried.may_publish(f"$JS.API.{verb}.{stream}.c") == may_consume(who, verb, stream), (
                    verb,
                    stream,
                )
        assert await tried.may_publish("$JS.API.STREAM.NAMES") == (who == "external")
        for subject in ("$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.PING.CONNZ", "deliver.external.x", "nonsense"):
            assert not await tried.may_publish(subject), subject


def may_consume(who: str, verb: str, stream: str) -> bool:
    if who == "external":
        return stream == "EVENTS"
    readers = {"EVENTS": (), "AUDIT": ("gateway",), "TELEMETRY": ("profiler", "gateway")}.get(stream, SERVICES)
    return who in readers and verb != "CONSUMER.DURABLE.CREATE"


@pytest.mark.parametrize("who", EVERYBODY)
async def test_everybody_hears_only_what_is_for_them(who: str, server: EmbeddedServer, tmp_path: Path) -> None:
    inboxes = {name: inbox_of(name) for name in (*USERS, *OUTSIDE)}
    inboxes |= {name: inbox_of_pod(JOB, pod) for name, pod in PODS.items()}
    async with presented(server, who, tmp_path) as tried:
        for subject in WHOLE:
            assert not await tried.may_subscribe(subject), subject
        for name, inbox in inboxes.items():
            assert await tried.may_subscribe(f"{inbox}.>") == (name == who), inbox
        assert not await tried.may_subscribe(f"{inbox_of_pod(ANOTHER_JOB, PODS.get(who, 'ps-1'))}.>")
        for channel in CHANNELS:
            for job in (JOB, ANOTHER_JOB):
                for pod in ("worker-0", "ps-7"):
                    subject = subject_of(channel, job, pod)
                    subject = f"{subject.rpartition('.')[0]}.3.{job}" if channel.kind == "rpc" else subject
                    assert await tried.may_subscribe(subject) == receiver(who, channel, job, pod), subject


def receiver(who: str, channel: Channel, job: str, pod: str) -> bool:
    """Return True if the user receives the subject directly: own requests; external tools also events."""
    if who in PODS:
        told = channel.kind == "evt" and bool({*PODS} & {*channel.readers})
        return job == JOB and (told or (channel.kind == "pod" and pod == PODS[who]))
    if channel.kind == "evt":
        return who == "external"
    return channel.kind == "rpc" and channel.service == who


@pytest.mark.parametrize("who", EVERYBODY)
async def test_answers_go_to_who_asked_and_into_nobody_elses_inbox(
    who: str, server: EmbeddedServer, tmp_path: Path
) -> None:
    callers = {reader for c in CHANNELS if c.kind == "rpc" and c.service == who for reader in c.readers}
    callers |= {"operator"} if callers else set()
    async with presented(server, who, tmp_path) as tried:
        for name in USERS:
            assert await tried.may_publish(f"{inbox_of(name)}.x") == (name in callers), name
        assert await tried.may_publish("_R_.abcdef.123456") == bool(callers & {*PODS})
        assert not await tried.may_publish(f"{inbox_of_pod(JOB, 'ps-9')}.x")


async def test_a_pod_answers_what_it_is_asked_and_nothing_else(server: EmbeddedServer, tmp_path: Path) -> None:
    asking = await Client.connect(server.url, server.login("actuator"))
    try:
        async with presented(server, "ps", tmp_path) as pod:
            asked: list[Any] = []

            async def answer(msg: Any) -> None:
                asked.append(msg)
                await pod.connection.publish("_R_.abcdef.123456", b"{}")
                await msg.respond(encode(PodPingReply(job=JOB, ready=True)))

            await pod.connection.subscribe(f"pod.v1.ping.ps-1.{JOB}", cb=answer)
            await pod.connection.flush()
            assert (await asking.call_pod("ps-1", PodPing(job=JOB))).ready
            await pod.connection.flush()
            assert pod.errors == ['nats: permissions violation for publish to "_r_.abcdef.123456"']
            pod.errors.clear()
            assert asked[0].reply.startswith("_R_.")
            assert not await pod.may_publish(asked[0].reply), "it has answered"
    finally:
        await asking.close()


async def test_a_pod_cannot_acknowledge_an_event_in_the_place_of_the_stream(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """Events that a pod receives carry the reply subject on which their publisher waits for the acknowledgement.

    In the pod's account that subject leads to nobody, so the server may let the pod publish to it.
    """
    async with presented(server, "worker", tmp_path) as pod, presented(server, "actuator", tmp_path) as actuator:
        inbox = await actuator.connection.subscribe(f"{inbox_of('actuator')}.>")
        subject = f"evt.v1.actuator.servers-changed.{JOB}"
        heard = await pod.connection.subscribe(subject)
        await pod.connection.flush()
        await actuator.connection.publish(subject, b"{}", reply=f"{inbox_of('actuator')}.x.to.1")
        event = await heard.next_msg(60)
        assert event.subject == subject
        assert event.reply == f"{inbox_of('actuator')}.x.to.1"
        await pod.connection.publish(event.reply, b"forged")
        await pod.connection.flush()
        await actuator.connection.publish("rpc.v1.actuator.get-servers.none", b"", reply=f"{inbox_of('actuator')}.x")
        first = await inbox.next_msg(60)
        assert (first.data, (first.headers or {})["Status"]) == (b"", "503"), "nothing came before it"


async def test_nobody_comes_in_without_credentials_or_with_ended_ones(server: EmbeddedServer, tmp_path: Path) -> None:
    another = EmbeddedServer(tmp_path / "another")
    assert another.keys is not None
    ended = pod_file(server.keys, tmp_path / "ended.creds", JOB, "ps-0", ago_s=100.0)
    foreign = another.keys.credentials("actuator")
    for credentials in (None, ended, foreign):
        with pytest.raises(nats.errors.Error, match="Authorization Violation"):
            await nats.connect(
                server.url, user_credentials=str(credentials) if credentials else None, allow_reconnect=False
            )
