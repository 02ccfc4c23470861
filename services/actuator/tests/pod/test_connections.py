"""Connections of pods: no pod has more than its share, and one that is gone has none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client as NatsClient
from stretto_actuator.pod.connections import CUT_MOST, SHARE, ConnectionCounter, OpenConnection, PodName, Shares
from stretto_bus.login import Login
from stretto_installation.server import EmbeddedServer

from tests.live_bus import live_bus, pod_file
from tests.waits import until

GREEDY, HONEST, GONE = PodName("greedy", "worker-1"), PodName("honest", "worker-1"), PodName("gone", "worker-1")
events = st.lists(st.tuples(st.sampled_from([GREEDY, HONEST, GONE]), st.integers(0, 30), st.booleans()), max_size=80)


@given(events)
def test_whatever_opens_and_closes_no_pod_holds_more_than_its_share(script: list[tuple[PodName, int, bool]]) -> None:
    shares, held = Shares(lambda pod: 0 if pod == GONE else SHARE), dict[OpenConnection, PodName]()
    for now, (pod, number, opens) in enumerate(script):
        connection = OpenConnection(pod.job, number)
        if not opens:
            shares.closed(connection)
            held.pop(connection, None)
            continue
        held.setdefault(connection, pod)
        for cut in shares.opened(pod, connection, float(now)):
            assert held.pop(cut) == pod
        of_pod = [each for each in held.values() if each == pod]
        assert len(of_pod) <= (0 if pod == GONE else SHARE)
        assert pod == GONE or connection in held


def test_a_pod_that_has_gone_keeps_no_connection_and_one_that_the_next_owner_knows_does() -> None:
    pods = {HONEST}
    shares = Shares(lambda pod: SHARE if pod in pods else 0)
    assert shares.opened(HONEST, OpenConnection("s", 1), 0.0) == []
    pods.clear()
    assert shares.changed("honest", 1.0) == [OpenConnection("s", 1)]
    assert shares.opened(HONEST, OpenConnection("s", 2), 2.0) == [OpenConnection("s", 2)]
    pods.add(HONEST)
    assert shares.opened(HONEST, OpenConnection("s", 3), 60.0) == []


@pytest.mark.parametrize(("every_s", "ends"), [(0.01, True), (5.0, False)])
def test_who_opens_connections_without_end_is_told_from_who_comes_back_now_and_then(every_s: float, ends: bool) -> None:
    shares = Shares(lambda _: SHARE)
    told = [shares.too_many(GREEDY, number * every_s) for number in range(2 * CUT_MOST)]
    assert any(told) == ends
    assert not any(told[: CUT_MOST - 1])


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with live_bus(tmp_path) as (started, _):
        yield started


async def opened(server: EmbeddedServer, folder: Path, pod: PodName) -> NatsClient:
    file = pod_file(server.keys, folder / f"{pod.job}.creds", pod.job, pod.name)

    async def pass_over(_: Exception) -> None:
        """It is cut."""

    return await nats.connect(server.url, user_credentials=str(file), allow_reconnect=False, error_cb=pass_over)


async def test_the_server_ends_what_is_beyond_a_pods_share_and_all_of_a_pod_that_is_gone(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """Also what was open before anybody counted."""
    assert server.keys is not None
    excess, gone = list[PodName](), {GONE}
    honest, early = (await opened(server, tmp_path, HONEST), await opened(server, tmp_path, GONE))
    login = Login(credentials=server.keys.counter_file)
    counter = ConnectionCounter(server.url, login, lambda pod: 0 if pod in gone else SHARE, excess.append)
    counter.start()
    await until(lambda: early.is_closed)
    greedy = [await opened(server, tmp_path, GREEDY) for _ in range(3 * SHARE)]
    await until(lambda: [each.is_connected for each in greedy] == [False] * 2 * SHARE + [True] * SHARE)
    began = time.monotonic()
    while not excess and time.monotonic() - began < 60:
        await opened(server, tmp_path, GREEDY)
        await asyncio.sleep(0)
    assert excess == [GREEDY]
    gone.add(HONEST)
    assert honest.is_connected
    counter.changed(HONEST.job)
    await until(lambda: honest.is_closed)
    await counter.stop()
