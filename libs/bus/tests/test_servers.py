"""Answers of servers about themselves, and what follows: contradictions to settings, the cost of a loss of power."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from runtime_live import connect
from stretto_bus import BusFault, Client
from stretto_bus.bus import Bus
from stretto_bus.reading.servers import (
    SYNCS_RAFT_LOGS,
    BusServer,
    Lag,
    ask_servers,
    contradiction,
    interval_s_of,
    lags_in,
    loss_of_power,
)
from stretto_bus.writer import OLDEST_SERVER
from stretto_installation.server import EmbeddedServer

SYNCED, LATE = BusServer("n0", SYNCS_RAFT_LOGS, 0.0), BusServer("n1", SYNCS_RAFT_LOGS, 120.0)


@pytest.mark.parametrize(
    ("setting", "seconds"), [("", None), ("always", 0.0), ("500ms", 0.5), ("10s", 10.0), ("2m", 120.0)]
)
def test_a_setting_names_an_interval_or_none(setting: str, seconds: float | None) -> None:
    assert interval_s_of(setting) == seconds


@pytest.mark.parametrize(
    ("setting", "servers", "told"),
    [
        ("always", [SYNCED], ""),
        ("2m", [SYNCED, LATE], ""),
        ("", [SYNCED, LATE], ""),
        ("always", [SYNCED, LATE], "but n1 syncs every 120 s: write `sync_interval: always` into"),
        ("10s", [LATE], "made for the sync interval 10s (STRETTO_STREAMS_SYNC_INTERVAL, or what all did), but n1"),
        ("", [SYNCED, BusServer("n2", (2, 14, 5), 0.0)], "n2 is NATS 2.14.5: run NATS 2.14.6 or later on every serv"),
    ],
)
def test_a_server_that_does_less_than_the_setting_says_is_told_with_the_remedy(
    setting: str, servers: list[BusServer], told: str
) -> None:
    found = contradiction(setting, servers)
    assert told in found
    assert bool(found) == bool(told)


@pytest.mark.parametrize(
    ("servers", "replicas", "told"),
    [
        ([SYNCED], 1, "a loss of power costs nothing that was accepted: every write is synced"),
        ([LATE], 1, "a loss of power may cost what was accepted in the last 120 s: the NATS server n1 syncs"),
        ([SYNCED, LATE], 3, "a loss of power of most servers at once may cost what was accepted in the last 120 s"),
        ([SYNCED, SYNCED], 3, "a loss of power of most servers at once costs nothing"),
        ([SYNCED._replace(cluster_size=3)] * 2, 3, "not verified: 1 of 3 servers do not answer"),
        ([BusServer("n0", OLDEST_SERVER, 0.0)], 1, "a loss of power costs nothing that was accepted"),
        ([SYNCED, BusServer("n2", OLDEST_SERVER, 0.0)], 3, "a loss of power of most servers at once may cost accepted"),
    ],
)
def test_what_a_loss_of_power_costs_follows_from_what_every_server_does(
    servers: list[BusServer], replicas: int, told: str
) -> None:
    assert loss_of_power(servers, replicas).startswith(told)


@pytest.mark.parametrize(
    ("cluster", "is_led"),
    [
        ({}, True),
        ({"cluster": {"name": "c", "leader": "n0"}}, True),
        ({"cluster": {"name": "c", "replicas": []}}, False),
    ],
)
async def test_what_a_follower_tells_of_a_stream_without_a_leader_is_no_answer(
    cluster: dict[str, Any], is_led: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def post(*_: Any, **__: Any) -> asyncio.Future[dict[str, Any]]:
        answered = asyncio.get_running_loop().create_future()
        answered.set_result({"state": {"last_seq": 7}, **cluster})
        return answered

    bus = Bus.__new__(Bus)
    monkeypatch.setattr(bus, "post", post)
    with nullcontext() if is_led else pytest.raises(BusFault, match="no leader"):
        assert (await bus.ask("STREAM.INFO.S"))["state"]["last_seq"] == 7


def test_a_replica_that_is_gone_lacks_everything() -> None:
    """The replicas are told as nats-server 2.15.1 does, which leaves zeros out."""
    replicas = [
        {"name": "whole", "current": True, "active": 400_000_000},
        {"name": "behind", "current": False, "active": 900_000_000, "lag": 7},
        {"name": "killed", "current": False, "active": 10_500_000_000, "lag": 3},
        {"name": "killed before the leader was one", "current": False, "active": 0, "lag": 3},
        {"name": "shut down", "current": True, "active": 400_000_000, "offline": True},
    ]
    lags = [lag.entries for lag in lags_in({"cluster": {"leader": "n0", "replicas": replicas}})]
    assert lags == [0, 7, math.inf, math.inf, math.inf]
    assert lags_in({"cluster": {"leader": "n0", "replicas": replicas[1:2]}}) == [Lag("behind", 7)]
    assert lags_in({"config": {}}) == lags_in({"cluster": {"leader": "n0"}}) == []


@pytest.mark.parametrize(("sync_interval", "interval_s"), [("", 120.0), ("10s", 10.0), ("always", 0.0)])
async def test_a_service_learns_from_the_server_itself_how_often_it_syncs(
    tmp_path: Path, sync_interval: str, interval_s: float
) -> None:
    async with serving(EmbeddedServer(tmp_path, sync_interval=sync_interval), "planner") as client:
        (found,) = await ask_servers(client.bus)
        assert (found.name, found.interval_s) == ("stretto", interval_s)
        assert found.version == client.bus.server_version


async def test_where_the_servers_account_is_out_of_reach_nothing_is_known_and_the_remedy_is_told(
    tmp_path: Path,
) -> None:
    async with serving(EmbeddedServer(tmp_path, secured=False)) as client:
        with pytest.raises(BusFault, match=r"no server answered \$SYS.*: repeat `python -m stretto_installation keys"):
            await ask_servers(client.bus, within_s=60)


@asynccontextmanager
async def serving(server: EmbeddedServer, user: str = "operator") -> AsyncGenerator[Client]:
    """Run a server, and connect to it."""
    await server.start()
    try:
        client = await connect(server, user)
        try:
            yield client
        finally:
            await client.close()
    finally:
        server.kill()
