"""The streams and the bucket of an installation. Services only use what this makes."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from stretto_bus.bus import Bus
from stretto_bus.faults import BusFault, Fault
from stretto_bus.login import Login
from stretto_bus.reading.servers import ALWAYS, ask_servers, contradiction, loss_of_power, silent
from stretto_bus.writer import SECOND_NS, SYNC_METADATA
from stretto_messages.base import MAX_MESSAGE_BYTES
from stretto_runtime.process.faults import SettingsFault
from stretto_wire.contract.registry import (
    AUDIT,
    AUDIT_SUBJECT,
    DEAD_LETTERS,
    EVENTS_KEPT_S,
    PATTERN_OF_STREAM,
    STATE,
    STATE_PREFIX,
    STORED_AS,
    STREAM,
    SUBJECTS_OF_STREAM,
    SUBJECTS_OF_TELEMETRY,
    TELEMETRY,
    TELEMETRY_KEPT_PER_POD,
)

from .access.permissions import EXTERNAL_STREAM
from .access.tool_accounts import EXTERNAL_API, delivery_of
from .known_streams import NOT_FOUND, KnownStreams
from .settings import StreamsSettings

DEFAULTS = StreamsSettings.read({})
NO_STORAGE = 10047
"""The server's error code of streams whose bounds are together more than it may store."""
_PARTITIONED = {"src": PATTERN_OF_STREAM, "dest": STORED_AS}
DUPLICATE_WINDOW_S = 120
SHORTEST_DUPLICATE_WINDOW_S = 0.1
"""The least that the server takes: it remembers every id for so long, and pods choose theirs."""
LETTERS_KEPT_PER_SUBJECT = 1000
"""Dead letters of one subject: one pod's bad reports do not push out the letters of others."""
REPORT_BYTES_MAX = 16 << 10
"""Bound of one report with its headers; the largest of ours has 1 KB."""


def streams(settings: StreamsSettings = DEFAULTS) -> list[dict[str, Any]]:
    """The configurations of every stream. A full stream of facts refuses: nothing is dropped silently."""
    common: dict[str, Any] = {"storage": "file", "num_replicas": settings.replicas, "allow_direct": True}
    if settings.sync_interval:
        common["metadata"] = {SYNC_METADATA: settings.sync_interval}
    return [
        common | each
        for each in (
            _facts(settings.max_bytes, settings.events_kept_s),
            _telemetry(settings.telemetry_max_bytes, settings.telemetry_kept_s),
            _dead_letters(settings.dead_letters_kept_s),
            _audit(settings.audit_kept_s),
            _state(settings.state_max_bytes),
        )
    ]


def _facts(max_bytes: int, kept_s: int) -> dict[str, Any]:
    return {
        "name": STREAM,
        "description": "events, journals and fences in one order",
        "subjects": list(SUBJECTS_OF_STREAM),
        "subject_transform": _PARTITIONED,
        "retention": "limits",
        "discard": "new",
        "max_bytes": max_bytes,
        "max_age": kept_s * SECOND_NS,
        "max_msg_size": 4 * MAX_MESSAGE_BYTES,
        "duplicate_window": DUPLICATE_WINDOW_S * SECOND_NS,
        "allow_msg_ttl": True,
        "allow_atomic": True,
        "deny_delete": True,
        "deny_purge": True,
    }


def _telemetry(max_bytes: int, kept_s: int) -> dict[str, Any]:
    """All that pods can write. No lifetime, rollup or batch of their choosing is taken; what is full drops the oldest,
    first of the same pod.
    """
    return {
        "name": TELEMETRY,
        "description": "reports of pods; the oldest go first when it is full",
        "subjects": list(SUBJECTS_OF_TELEMETRY),
        "subject_transform": _PARTITIONED,
        "retention": "limits",
        "discard": "old",
        "max_bytes": max_bytes,
        "max_age": kept_s * SECOND_NS,
        "max_msgs_per_subject": TELEMETRY_KEPT_PER_POD,
        "max_msg_size": REPORT_BYTES_MAX,
        "duplicate_window": int(SHORTEST_DUPLICATE_WINDOW_S * SECOND_NS),
        "deny_delete": True,
        "deny_purge": True,
    }


def _dead_letters(kept_s: int) -> dict[str, Any]:
    return {
        "name": DEAD_LETTERS,
        "description": "messages that could not be handled, with the reason; the oldest go first when it is full",
        "subjects": ["dlq.>"],
        "max_msgs_per_subject": LETTERS_KEPT_PER_SUBJECT,
        "discard": "old",
        "max_bytes": 1 << 30,
        "max_age": kept_s * SECOND_NS,
        "duplicate_window": DUPLICATE_WINDOW_S * SECOND_NS,
    }


def _audit(kept_s: int) -> dict[str, Any]:
    """The audit log. When it is full it refuses, and changes go to the gateway's own log."""
    return {
        "name": AUDIT,
        "description": "the audit log, for the gateway only; each entry has the hash of the one before",
        "subjects": [AUDIT_SUBJECT],
        "discard": "new",
        "max_bytes": 1 << 30,
        "max_age": kept_s * SECOND_NS,
        "deny_delete": True,
        "deny_purge": True,
    }


def _state(max_bytes: int) -> dict[str, Any]:
    """The bucket. When it is full it refuses new keys and larger values; leases and others of their size go on."""
    return {
        "name": STATE,
        "description": "members, owners, snapshots",
        "subjects": [f"{STATE_PREFIX}>"],
        "max_msgs_per_subject": 1,
        "discard": "new",
        "max_bytes": max_bytes,
        "allow_rollup_hdrs": True,
        "allow_msg_ttl": True,
        "allow_atomic": True,
        "subject_delete_marker_ttl": 60 * SECOND_NS,
    }


def external_stream(tool: str, replicas: int, max_bytes: int, kept_s: int = EVENTS_KEPT_S) -> dict[str, Any]:
    """The stream of events for one tool outside: a read-only mirror, without partitions in its subjects."""
    transform = {
        "src": "*.evt.v1.*.*.*",
        "dest": "evt.v1.{{wildcard(2)}}.{{wildcard(3)}}.{{wildcard(4)}}",
    }
    return {
        "name": EXTERNAL_STREAM,
        "description": "events, in the order and under the sequences of the stream " + STREAM,
        "storage": "file",
        "num_replicas": replicas,
        "mirror": {
            "name": STREAM,
            "external": {"api": EXTERNAL_API, "deliver": delivery_of(tool)},
            "subject_transforms": [transform],
        },
        "discard": "old",
        "max_bytes": max_bytes,
        "max_age": kept_s * SECOND_NS,
        "allow_msg_ttl": True,
        "deny_delete": True,
        "deny_purge": True,
    }


async def provision(bus: Bus, settings: StreamsSettings = DEFAULTS) -> None:
    """Create missing streams and update the others to this configuration; harmless to repeat.

    Raises:
        BusFault: the server refused, for instance a change that would need a new stream.
    """
    for config in streams(settings):
        await make_stream(bus, config)


class Made(NamedTuple):
    """The outcome of making the streams: the jobs that are forgotten, and what a loss of power costs."""

    forgotten: list[str]
    power: str


async def verified(bus: Bus, settings: StreamsSettings) -> tuple[StreamsSettings, str]:
    """Compare the settings with what the servers do; return what holds, and what a loss of power costs.

    Where no server answers, the settings are believed. Where none names an interval, and every write is synced, the
    streams are made for that: writes are batched then.

    Raises:
        BusFault: a server is too old, or syncs less often than the settings say.
    """
    try:
        servers = await ask_servers(bus)
    except BusFault as fault:
        return settings, f"not verified: {fault}"
    if found := contradiction(settings.sync_interval, servers):
        raise BusFault(found)
    if not (settings.sync_interval or silent(servers) or any(server.interval_s for server in servers)):
        settings = settings.model_copy(update={"sync_interval": ALWAYS})
    return settings, loss_of_power(servers, settings.replicas)


async def make(url: str, operator: Login, settings: StreamsSettings, known: KnownStreams | None = None) -> Made:
    """Make all streams of ``settings``; harmless to repeat. Jobs are forgotten if ``known`` is to.

    Raises:
        BusFault: the server refused, or does not do what the settings say.
        ForeignStore: the server has not the streams that are ``known``; nothing was made.
        IdentityFault: a file of credentials cannot be used.
        SettingsFault: no credentials are where the settings say.
    """
    files = [] if settings.external_credentials is None else keeper_files(settings.external_credentials)
    names, forgotten = [config["name"] for config in streams(settings)], list[str]()
    bus = await Bus.connect(url, operator, "provision")
    try:
        if known is not None:
            await known.check(bus, names)
        settings, power = await verified(bus, settings)
        await provision(bus, settings)
        if known is not None:
            forgotten = await known.settle(bus, names, settings.rest_s, time.time())
    finally:
        await bus.close()
    faults: list[Fault] = []
    for file in files:
        config = external_stream(file.stem, settings.replicas, settings.external_max_bytes, settings.events_kept_s)
        try:
            await _make_external(url, replace(operator, credentials=file), config)
        except Fault as fault:  # for instance, this tool has taken all of its connections; the others get theirs
            faults.append(fault)
    if faults:
        raise faults[0]
    return Made(forgotten, power)


async def _make_external(url: str, keeper: Login, config: dict[str, Any]) -> None:
    bus = await Bus.connect(url, keeper, "provision")
    try:
        await make_stream(bus, config)
    finally:
        await bus.close()


def keeper_files(folder: Path) -> list[Path]:
    """Return the credentials that make the streams of tools outside, one file for each. Raises SettingsFault."""
    if found := sorted(folder.glob("*.creds")):
        return found
    raise SettingsFault(
        f"STRETTO_STREAMS_EXTERNAL_CREDENTIALS={folder} has no files NAME.creds: give the folder external-keeper that "
        "`python -m stretto_installation keys` makes, with a file for each tool outside"
    )


async def make_stream(bus: Bus, config: dict[str, Any]) -> None:
    """Create the stream, or bring it to this configuration. Raises BusFault: the server refused."""
    name, how = config["name"], "UPDATE"
    try:
        await bus.ask(f"STREAM.INFO.{name}")
    except BusFault as fault:
        if fault.code != NOT_FOUND:
            raise
        how = "CREATE"
    try:
        await bus.ask(f"STREAM.{how}.{name}", config, timeout_s=20)
    except BusFault as fault:
        if fault.code != NO_STORAGE:
            raise
        raise BusFault(
            f"stream {name} with max_bytes {config['max_bytes']}: {fault}; raise max_file_store of nats-server, or "
            "lower STRETTO_STREAMS_MAX_BYTES and the like",
            fault.code,
        ) from fault
