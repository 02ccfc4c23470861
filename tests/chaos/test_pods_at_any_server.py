"""A pod at one server of a cluster, and the services at another: their accounts meet wherever they are."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from cluster import Cluster
from stretto_bus import Client
from stretto_bus.bus import Bus, Msg
from stretto_bus.faults import NobodyListens
from stretto_bus.login import RenewableLogin
from stretto_messages.actuator import GetServers, GetServersReply, ServersChanged
from stretto_messages.base import example_of
from stretto_messages.pods import PodPing, PodPingReply
from stretto_runtime.access.identity import Key, mint
from stretto_wire.codec import encode
from stretto_wire.contract.inboxes import inbox_of_pod

JOB, POD = "job-a", "ps-1"


@pytest.mark.parametrize("place", [0, 1])
async def test_requests_events_and_telemetry_find_their_way(place: int, cluster: Cluster, client: Client) -> None:
    key = Key(cluster.keys.signing_file.read_text().strip())
    token = mint(key, cluster.keys.pods_account, JOB, POD, time.time(), 60.0)
    inbox = inbox_of_pod(JOB, POD)
    pod = await Bus.connect(cluster.nodes[0].url, RenewableLogin(token), POD, inbox, within_s=20.0)
    heard: asyncio.Queue[Msg] = asyncio.Queue()
    pong = encode(PodPingReply(job=JOB, ready=True))
    await pod.subscribe(f"pod.v1.ping.{POD}.{JOB}", lambda msg: pod.offer(msg.reply, pong))
    await pod.subscribe(f"evt.v1.actuator.servers-changed.{JOB}", heard.put_nowait)
    await pod.flush()
    actuator = await Client.connect(cluster.nodes[place].url, cluster.login("actuator"))
    unknown = encode(GetServersReply(job=JOB, answer="unknown"))
    await actuator.bus.subscribe("rpc.v1.actuator.>", lambda msg: actuator.bus.offer(msg.reply, unknown))
    await actuator.bus.flush()

    request = encode(GetServers(job=JOB, request_id="lane.1", pod=POD))
    async with asyncio.timeout(60):
        while True:  # until the pod's server knows of the service
            try:
                assert (await pod.request(f"rpc.v1.actuator.get-servers.{JOB}", request)).data == unknown
                break
            except NobodyListens:
                await asyncio.sleep(0.05)
        assert (await actuator.call_pod(POD, PodPing(job=JOB))).ready
        changed = replace(example_of(ServersChanged), job=JOB)
        await actuator.publish(changed)
        assert (await heard.get()).data == encode(changed)
        assert await pod.store(f"tel.v1.ps.{POD}.{JOB}", b"{}") == 1
    await actuator.close()
    await pod.close()
