"""A hostile pod names every reply subject there is: nothing of the account STRETTO is written, sent or stored by it.

The server checks nobody's right to a reply subject. The services here answer wherever they are told to, so the account
of pods alone has to keep the answers, and JetStream's acknowledgements, from what is not the pod's.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from stretto_bus import Client
from stretto_bus.bus import Msg
from stretto_bus.connection import Connection
from stretto_drills.chaos.hostile import MALFORMED, RESERVED, replies, subject_for
from stretto_installation.access.claims import user_claims
from stretto_installation.access.permissions import POD_LIMITS, Rights, channels_of_pods
from stretto_installation.server import EmbeddedServer
from stretto_runtime.access.identity import USER_KEY, Key, credentials
from stretto_wire.contract.inboxes import inbox_of, inbox_of_pod
from stretto_wire.contract.registry import partition_of

from tests.live_bus import pod_file
from tests.waits import until

JOB, ANOTHER_JOB = "job-a", "job-b"
PODS = {"worker": "worker-0", "ps": "ps-1"}
NO_JETSTREAM = 10039
STREAMS = ("STRETTO", "TELEMETRY", "KV_STATE", "DLQ", "AUDIT")


def subjects_of(role: str) -> list[str]:
    """The subjects that a pod of ``JOB`` may publish to."""
    return [subject_for(channel, JOB, PODS[role]) for channel in channels_of_pods()]


def named_replies() -> list[str]:
    return ["", *replies(JOB, ANOTHER_JOB)]


@asynccontextmanager
async def hostile(server: EmbeddedServer, role: str, folder: Path) -> AsyncIterator[tuple[Connection, list[str]]]:
    file, errors = pod_file(server.keys, folder / f"{role}.creds", JOB, PODS[role]), list[str]()

    async def failed(error: Exception) -> None:
        errors.append(str(error))

    connection = Connection()
    await connection.connect(server.url, user_credentials=str(file), error_cb=failed, allow_reconnect=False)
    yield connection, errors
    await connection.close()


@asynccontextmanager
async def answering(server: EmbeddedServer) -> AsyncIterator[list[str]]:
    """Services that answer every request at whatever reply subject it has; yields the reply subjects."""
    clients, asked = list[Client](), list[str]()
    for service in sorted({channel.service for channel in channels_of_pods() if channel.kind == "rpc"}):
        client = await Client.connect(server.url, server.login(service))
        clients.append(client)

        def answer(msg: Msg, to: Client = client) -> None:
            asked.append(msg.reply)
            if msg.reply:
                to.bus.offer(msg.reply, b'{"answer":1}')

        await client.bus.subscribe(f"rpc.v1.{service}.>", answer)
        await client.bus.flush()
    yield asked
    for client in clients:
        await client.close()


async def stored(client: Client) -> dict[str, int]:
    """Subject -> number of stored messages, over all streams."""
    found: dict[str, int] = {}
    for stream in STREAMS:
        info = await client.bus.ask(f"STREAM.INFO.{stream}", {"subjects_filter": ">"})
        found |= info["state"].get("subjects") or {}
    return found


async def configured(client: Client) -> list[Any]:
    return [(await client.bus.ask(f"STREAM.INFO.{stream}"))["config"] for stream in STREAMS]


@pytest.mark.parametrize("role", PODS)
async def test_no_reply_subject_of_a_pod_leads_to_anything_of_the_installation(
    role: str, server: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    subjects, named = subjects_of(role), named_replies()
    for subject in ("evt.v1.gateway.job-cancelled.job-b", "fence.arbiter.3", "journal.dispatcher.3", "dlq.x"):
        await client.bus.store(subject, b"{}")
    before, configuration = await stored(client), await configured(client)
    seen: list[str] = []
    async with hostile(server, role, tmp_path) as (pod, errors), answering(server) as asked:
        await client.bus.subscribe(">", lambda msg: seen.append(msg.subject))
        await client.bus.flush()
        for subject in subjects:
            for reply in named:
                pod.put(subject, b"{}", reply)
            await pod.flush()
        taken = len(named) - len(RESERVED)
        requests = [subject for subject in subjects if subject.startswith("rpc.")]
        assert len(errors) == len(RESERVED) * len(subjects), set(errors)
        assert all("permissions violation for publish with reply" in error for error in errors)
        await until(lambda: len(asked) == taken * len(requests))
        await client.bus.flush()
        sent = [*seen]
        after = await stored(client)
    assert len({reply for reply in asked if reply}) == (taken - 1) * len(requests)
    assert all(re.fullmatch(r"_R_\.[0-9A-Za-z]{6}\.[0-9A-Za-z]{6}", reply) for reply in asked if reply)
    own = {f"{partition_of(JOB)}.{subject}": taken for subject in subjects if subject.startswith("tel.")}
    assert after == before | own
    assert await configured(client) == configuration
    mapped = {f"{subject.removesuffix(JOB)}{partition_of(JOB)}.{JOB}" for subject in requests}
    strange = {subject for subject in sent if subject not in mapped and subject not in subjects}
    assert {subject for subject in strange if not subject.startswith(("_R_.", f"{inbox_of('operator')}."))} == set()


async def test_the_account_of_pods_has_no_jetstream_and_no_other_way_out_whatever_rights_its_users_had(
    server: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    assert server.keys is not None
    account = Key((server.keys.folder / "root/pods.seed").read_text().strip())
    key, file = Key.new(USER_KEY), tmp_path / "everything.creds"
    everything = user_claims(Rights((">",), (">",)))
    file.write_text(credentials(account.sign(key.public, "everything", everything, 0.0), key))
    before, configuration, seen = await stored(client), await configured(client), list[str]()
    connection = Connection()
    await connection.connect(server.url, user_credentials=str(file))
    events = await connection.subscribe("evt.>")
    await client.bus.subscribe(">", lambda msg: seen.append(msg.subject))
    await client.bus.flush()
    for subject in named_replies():
        if subject and subject not in (*RESERVED, *MALFORMED) and not subject.startswith(("tel.", "rpc.", "evt.")):
            await connection.publish(subject, b"{}")
    await connection.flush()
    await client.bus.flush()
    assert seen == []
    assert await stored(client) == before
    assert await configured(client) == configuration
    for api in ("INFO", "STREAM.NAMES", "STREAM.PURGE.STRETTO", "CONSUMER.CREATE.STRETTO.c"):
        answer = json.loads((await connection.request(f"$JS.API.{api}", b"{}", timeout=60)).data)
        assert answer["error"]["err_code"] == NO_JETSTREAM, api
    await client.bus.store("evt.v1.planner.plan-proposed.job-a", b"not for pods")
    await client.bus.store("evt.v1.actuator.servers-changed.job-a", b"for pods")
    assert (await events.next_msg(60)).data == b"for pods"
    await connection.close()


async def test_a_pods_connection_is_bounded(server: EmbeddedServer, client: Client, tmp_path: Path) -> None:
    """The server hangs up on a pod that sends or subscribes to more than any pod has to; others stay."""
    before = await stored(client)
    async with hostile(server, "ps", tmp_path) as (pod, _):
        await pod.publish(subjects_of("ps")[0], b"x" * (POD_LIMITS["payload"] + 1))
        await until(lambda: pod.is_closed)
    async with hostile(server, "ps", tmp_path) as (pod, _):
        for number in range(POD_LIMITS["subs"] + 1):
            with contextlib.suppress(nats.errors.Error):
                await pod.subscribe(f"{inbox_of_pod(JOB, PODS['ps'])}.{number}")
        await until(lambda: pod.is_closed)
    assert await stored(client) == before
