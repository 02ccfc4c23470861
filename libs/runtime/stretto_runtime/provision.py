"""Streams, bucket and credentials, from the registry of the wire. Services only bind to what this has made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from stretto_wire.registry import (
    CHANNELS,
    DEAD_LETTERS,
    EVENTS_KEPT_S,
    MAX_MESSAGE_BYTES,
    PARTITIONS,
    STREAM,
    Channel,
)

from stretto_runtime.bus import STATE, STATE_PREFIX, Bus
from stretto_runtime.faults import BusFault
from stretto_runtime.writer import SYNC_METADATA

NOT_FOUND = 10059
DUPLICATE_WINDOW_S = 120
SERVICES = ("profiler", "fitter", "planner", "arbiter", "dispatcher", "checkpoints", "oom", "actuator", "gateway")
USERS = (*SERVICES, "operator", "pod", "reader")
"""``operator``: the command, may do everything. ``pod``: training pods. ``reader``: external, reads ``evt.>`` only."""

RPC_MAPPING = {
    "rpc.v1.*.*.*": (
        f"rpc.v1.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}.{{{{partition({PARTITIONS},3)}}}}.{{{{wildcard(3)}}}}"
    )
}
"""Puts the partition into requests, so that they find the owner and callers know nothing of partitions."""


def streams(replicas: int = 1, max_bytes: int = 8 << 30, sync_interval: str = "") -> list[dict[str, Any]]:
    """The configurations of every stream. A full stream refuses (nothing is dropped silently).

    ``sync_interval``: as in ``server_config``; it stands in the metadata, where writers see what suits the server.
    """
    second = 10**9
    common: dict[str, Any] = {"storage": "file", "num_replicas": replicas, "allow_direct": True}
    if sync_interval:
        common["metadata"] = {SYNC_METADATA: sync_interval}
    transform = {
        "src": "*.v1.*.*.*",
        "dest": f"{{{{partition({PARTITIONS},4)}}}}.{{{{wildcard(1)}}}}.v1."
        "{{wildcard(2)}}.{{wildcard(3)}}.{{wildcard(4)}}",
    }
    return [
        common
        | {
            "name": STREAM,
            "description": "events, telemetry, journals and fences in one order",
            "subjects": ["evt.v1.>", "tel.v1.>", "journal.>", "fence.>"],
            "subject_transform": transform,
            "retention": "limits",
            "discard": "new",
            "max_bytes": max_bytes,
            "max_age": EVENTS_KEPT_S * second,
            "max_msg_size": 4 * MAX_MESSAGE_BYTES,
            "duplicate_window": DUPLICATE_WINDOW_S * second,
            "allow_msg_ttl": True,
            "allow_atomic": True,
            "deny_delete": True,
        },
        common
        | {
            "name": DEAD_LETTERS,
            "description": "messages that could not be handled, with the reason; the oldest go first when it is full",
            "subjects": ["dlq.>"],
            "discard": "old",
            "max_bytes": 1 << 30,
            "max_age": EVENTS_KEPT_S * second,
            "duplicate_window": DUPLICATE_WINDOW_S * second,
        },
        common
        | {
            "name": STATE,
            "description": "members, owners, snapshots",
            "subjects": [f"{STATE_PREFIX}>"],
            "max_msgs_per_subject": 1,
            "discard": "new",
            "allow_rollup_hdrs": True,
            "allow_msg_ttl": True,
            "allow_atomic": True,
            "subject_delete_marker_ttl": 60 * second,
        },
    ]


async def provision(bus: Bus, replicas: int = 1, max_bytes: int = 8 << 30, sync_interval: str = "") -> None:
    """Create what is missing and bring the rest to the present configuration; harmless to repeat.

    ``replicas``: 3 survives the loss of one server of three. ``max_bytes``: of the event stream.

    Raises:
        BusFault: the server refused, for instance a change that would need a new stream.
    """
    for config in streams(replicas, max_bytes, sync_interval):
        name = config["name"]
        try:
            await bus.ask(f"STREAM.INFO.{name}")
        except BusFault as fault:
            if fault.code != NOT_FOUND:
                raise
            await bus.ask(f"STREAM.CREATE.{name}", config, timeout_s=20)
        else:
            await bus.ask(f"STREAM.UPDATE.{name}", config, timeout_s=20)


def permissions(user: str) -> dict[str, Any]:
    """What ``user`` may publish and subscribe to."""
    inbox = f"_INBOX.{user}.>"
    if user == "operator":
        return {"publish": ">", "subscribe": ">"}
    if user == "reader":
        return {"publish": {"deny": ">"}, "subscribe": ["evt.>", inbox]}
    if user == "pod":
        roles = ("worker", "ps")
        heard = [channel.pattern for channel in CHANNELS if channel.kind == "evt" and _read_by(channel, *roles)]
        return {
            "publish": ["tel.v1.>", *_asked_by(*roles), "_INBOX.>"],
            "subscribe": ["pod.v1.>", *heard, inbox],
        }
    own = [f"evt.v1.{user}.>", f"journal.{user}.*", f"fence.{user}.*", "dlq.>", f"{STATE_PREFIX}*.{user}.>"]
    reading = [
        f"$JS.API.CONSUMER.{verb}.{stream}.>"
        for verb in ("CREATE", "DELETE", "MSG.NEXT")
        for stream in (STREAM, STATE, DEAD_LETTERS)
    ]
    reading.append(f"$JS.API.STREAM.INFO.{STREAM}")
    return {
        "publish": [*own, *_asked_by(user), *reading, "$JS.FC.>", "_INBOX.>"],
        "subscribe": [f"rpc.v1.{user}.>", inbox],
    }


def _read_by(channel: Channel, *names: str) -> bool:
    return any(name in channel.readers for name in names)


def _asked_by(*names: str) -> list[str]:
    """Requests that ``names`` may make, as written and as mapped by the server."""
    subjects: list[str] = []
    for channel in CHANNELS:
        if channel.kind in ("rpc", "pod") and _read_by(channel, *names):
            subjects.append(channel.pattern)
            if channel.kind == "rpc":
                subjects.append(f"{channel.pattern}.*")
    return subjects


def server_config(
    store_folder: str,
    port: int,
    passwords: Mapping[str, str] | None = None,
    host: str = "127.0.0.1",
    sync_interval: str = "",
    name: str = "stretto",
    cluster: Sequence[str] = (),
    extra: Sequence[str] = (),
) -> str:
    """The text of a nats-server configuration file.

    ``passwords``: user -> password, with the permissions of each; None: nobody needs credentials (tests).
    ``cluster``: ``host:port`` of every server's cluster port, this one's first; each has a ``name`` of its own.
    ``sync_interval``: ``"always"`` survives power loss on one replica; every write then waits for the disk.
    """
    lines = [
        f"host: {json.dumps(host)}",
        f"port: {port}",
        f"server_name: {json.dumps(name)}",
        f"max_payload: {8 << 20}",  # the arbiter's document of a thousand jobs has 5 MiB; more is discouraged
        "jetstream {",
        f"  store_dir: {json.dumps(store_folder)}",
        # the default, three quarters of what is free, refuses the streams' bounds on a disk with less than 12 GiB left
        f"  max_file_store: {1 << 50}",
        *([f"  sync_interval: {sync_interval}"] if sync_interval else []),
        "}",
        f"mappings: {json.dumps(RPC_MAPPING)}",
        *extra,
    ]
    if cluster:
        routes = [f"nats://{address}" for address in cluster[1:]]
        lines.append(f'cluster {{ name: "stretto", listen: {json.dumps(cluster[0])}, routes: {json.dumps(routes)} }}')
    if passwords is not None:
        users = [
            {"user": user, "password": password, "permissions": permissions(user)}
            for user, password in passwords.items()
        ]
        lines.append(f"authorization: {json.dumps({'users': users})}")
    return "\n".join(lines) + "\n"
