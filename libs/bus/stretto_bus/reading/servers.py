"""Answers of the servers of the bus about themselves: their versions, and how often they sync what they store.

The metadata of a stream repeats a setting; only a server knows what it does. Each server answers a request in the
server's own account, which ``keys`` of stretto_installation offers to the services.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import nats.errors

from stretto_bus.bus import NOBODY, Bus, Msg
from stretto_bus.faults import BusFault
from stretto_bus.writer import OLDEST_SERVER, SECOND_NS

SERVERS = "$SYS.REQ.SERVER.PING.JSZ"
"""Subject of the request that every server answers."""
ANSWERS_S = 2.0
SYNCS_RAFT_LOGS = (2, 15, 1)
"""The first NATS that syncs the log of a replicated stream when it compacts that log (its pull request 8629)."""
GONE_AFTER_S = 10.0
"""Silence after which a replica counts as gone. It says each second that it lives, and nats-server itself calls it not
current after this time (``lostQuorumInterval``)."""
ALWAYS = "always"
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0}
UNKNOWN = (
    f"no server answered {SERVERS}: repeat `python -m stretto_installation keys FOLDER`, give nats-server the new "
    "trust.conf and reload it; a server without operator mode has to export it from its system account to this one"
)

Version = tuple[int, int, int]


class BusServer(NamedTuple):
    """A server: its name, its version, and the seconds between its syncs of the disk; 0: it syncs every write.

    ``cluster_size``: the servers of its cluster, as it knows them.
    """

    name: str
    version: Version
    interval_s: float
    cluster_size: int = 1


class Lag(NamedTuple):
    """A replica of a stream: its server, and how many entries of the stream's log it lacks; infinite: it is gone."""

    server: str
    entries: float


def interval_s_of(setting: str) -> float | None:
    """Return the seconds between syncs that a setting names, 0 for ``always``; None: the setting names none."""
    if setting == ALWAYS:
        return 0.0
    parts = re.fullmatch(r"([0-9]+)(ms|s|m)", setting)
    return int(parts[1]) * _UNITS_S[parts[2]] if parts else None


def lags_in(info: Mapping[str, Any]) -> list[Lag]:
    """Return the replicas of the stream with this ``STREAM.INFO`` but its leader."""
    replicas = (info.get("cluster") or {}).get("replicas") or []
    return [Lag(each["name"], math.inf if _is_gone(each) else float(each.get("lag", 0))) for each in replicas]


def _is_gone(replica: Mapping[str, Any]) -> bool:
    """Return whether the leader has not heard of a replica for long, or never since it leads.

    The server itself calls a replica offline only minutes after that one was killed.
    """
    heard_s = replica.get("active", 0) / SECOND_NS
    return bool(replica.get("offline")) or (not replica.get("current") and (heard_s == 0 or heard_s > GONE_AFTER_S))


async def ask_servers(bus: Bus, within_s: float = ANSWERS_S) -> list[BusServer]:
    """Return what the servers say that answer in time, by name.

    Raises:
        BusFault: no server has answered, and what to do.
    """
    found: dict[str, BusServer] = {}
    answered = asyncio.Event()

    def take(msg: Msg) -> None:
        if not msg.data and (msg.headers or {}).get("Status") == NOBODY:
            answered.set()
            return
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):  # no server of streams
            server = _server_in(json.loads(msg.data))
            found[server.name] = server
            if not silent([*found.values()]):
                answered.set()

    inbox = f"{bus.inbox}.servers"
    try:
        subscription = await bus.subscribe(inbox, take)
        try:
            await bus.send(SERVERS, b"", reply=inbox)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await answered.wait()
        finally:
            with contextlib.suppress(nats.errors.Error):  # the connection is closed; a cancellation goes on
                await subscription.unsubscribe()
    except nats.errors.Error as error:
        raise BusFault(f"the servers cannot be asked: {error or type(error).__name__}") from error
    if not found:
        raise BusFault(UNKNOWN)
    return [found[name] for name in sorted(found)]


def _server_in(body: Mapping[str, Any]) -> BusServer:
    """Parse the answer of a server. Raises KeyError, ValueError: it keeps no streams, or is no server's."""
    told, config = body["server"], body["data"]["config"]
    major, minor, patch = (int(part) for part in told["ver"].partition("-")[0].split("."))
    interval_s = 0.0 if config.get("sync_always") else config["sync_interval"] / SECOND_NS
    cluster_size = int(body["data"].get("meta_cluster", {}).get("cluster_size", 1))
    return BusServer(told["name"], (major, minor, patch), interval_s, cluster_size)


def silent(servers: Sequence[BusServer]) -> int:
    """Return how many servers of the cluster have not answered beside these."""
    return max(0, max(server.cluster_size for server in servers) - len(servers))


def contradiction(setting: str, servers: Iterable[BusServer]) -> str:
    """Say which servers are too old, or sync less often than the setting of the streams says; empty: none."""
    wanted_s = interval_s_of(setting)
    late = [each for each in servers if wanted_s is not None and each.interval_s > wanted_s]
    old = [each for each in servers if each.version < OLDEST_SERVER]
    found: list[str] = []
    if old:
        found.append(f"{_named(old)}: run NATS {_dotted(OLDEST_SERVER)} or later on every server")
    if late:
        syncs = ", ".join(f"{each.name} syncs every {each.interval_s:g} s" for each in late)
        found.append(
            f"the streams were made for the sync interval {setting} (STRETTO_STREAMS_SYNC_INTERVAL, or what all did), "
            f"but {syncs}: write `sync_interval: {setting}` into the block jetstream of each and restart it, or make "
            "the streams again with the servers' own"
        )
    return "; ".join(found)


def loss_of_power(servers: Sequence[BusServer], replicas: int) -> str:
    """Say what a loss of power costs streams that have this number of replicas, by what their servers do."""
    event = "a loss of power" if replicas == 1 else "a loss of power of most servers at once"
    if replicas > 1 and (missing := silent(servers)):
        return f"not verified: {missing} of {missing + len(servers)} servers do not answer"
    slowest = max(servers, key=lambda each: each.interval_s)
    if slowest.interval_s:
        return (
            f"{event} may cost what was accepted in the last {slowest.interval_s:g} s: the NATS server {slowest.name} "
            "syncs that often; with sync_interval always it costs nothing"
        )
    older = [each for each in servers if replicas > 1 and each.version < SYNCS_RAFT_LOGS]
    if older:
        return (
            f"{event} may cost accepted messages, though every write is synced: {_named(older)}, which compacts the "
            f"logs of replicas without a sync; run {_dotted(SYNCS_RAFT_LOGS)} or later"
        )
    return f"{event} costs nothing that was accepted: every write is synced"


def _named(servers: Iterable[BusServer]) -> str:
    return ", ".join(f"{each.name} is NATS {_dotted(each.version)}" for each in servers)


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
