"""The rights of every user of the bus, derived from the registry of the wire and nothing else.

The server checks a request's subject after its mapping, with the partition before the job (``RPC_MAPPING``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stretto_wire.inboxes import inbox_of, inbox_of_pod
from stretto_wire.registry import (
    CHANNELS,
    DEAD_LETTERS,
    FORWARDER,
    OPERATOR,
    PARTITIONS,
    SERVICES,
    STATE,
    STATE_PREFIX,
    STREAM,
    Channel,
)

EXTERNAL_STREAM = "EVENTS"
"""in the account EXTERNAL: a mirror of ``evt.v1.>`` in ``STREAM``, with the same sequences and times"""

POD_ROLES = ("worker", "ps")

RPC_MAPPING = {
    "rpc.v1.*.*.*": (
        f"rpc.v1.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}.{{{{partition({PARTITIONS},3)}}}}.{{{{wildcard(3)}}}}"
    )
}
"""Puts the partition into requests, so that they reach the owner and callers need not know partitions."""


@dataclass(frozen=True, slots=True)
class Rights:
    """Subjects that a user may publish and subscribe to; everything else is refused."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def rights_of(user: str) -> Rights:
    """The rights of a service, or of the operator."""
    if user == OPERATOR:
        return Rights((">",), (">",))
    if user == FORWARDER:
        return _forwarder_rights()
    own = [f"evt.v1.{user}.>", f"journal.{user}.*", f"fence.{user}.*", "dlq.>", f"{STATE_PREFIX}*.{user}.>"]
    reading = [
        f"$JS.API.CONSUMER.{verb}.{stream}.>"
        for verb in ("CREATE", "DELETE", "MSG.NEXT")
        for stream in (STREAM, STATE, DEAD_LETTERS)
    ]
    reading += [f"$JS.FC.{stream}.>" for stream in (STREAM, STATE, DEAD_LETTERS)]
    reading.append(f"$JS.API.STREAM.INFO.{STREAM}")
    return Rights(
        publish=(*own, *_asked_by((user,)), *_inboxes_of_callers(user), *reading),
        subscribe=(f"rpc.v1.{user}.>", f"{inbox_of(user)}.>"),
    )


def _forwarder_rights() -> Rights:
    """Durable consumers of events, and dead letters. A consumer's pattern is part of the subject that creates it."""
    cursors = [f"$JS.API.CONSUMER.{verb}.{STREAM}.*" for verb in ("INFO", "MSG.NEXT")]
    cursors += [f"$JS.API.CONSUMER.CREATE.{STREAM}.*.*.evt.v1.>", f"$JS.ACK.{STREAM}.>"]
    return Rights(("dlq.>", *cursors), (f"{inbox_of(FORWARDER)}.>",))


def pod_rights(job: str, pod: str, partition: str) -> Rights:
    """The rights of one pod: its telemetry, requests about its job, its job's events, and requests to itself.

    It may answer where ``Bus`` awaits answers. The server's own permission to reply once would not do: an event of its
    job carries the reply subject of its publisher's acknowledgement, and the pod could answer in the stream's place.
    """
    events = [c.pattern for c in CHANNELS if c.kind == "evt" and _is_read_by(c, POD_ROLES)]
    return Rights(
        publish=(
            f"tel.v1.*.{pod}.{job}",
            f"{inbox_of('*')}.*.to.{pod}.{job}.*",
            *_asked_by(POD_ROLES, partition, job),
        ),
        subscribe=(
            f"pod.v1.*.{pod}.{job}",
            *(f"{p.removesuffix('*')}{job}" for p in events),
            f"{inbox_of_pod(job, pod)}.>",
        ),
    )


def external_rights(name: str) -> Rights:
    """The rights of a tool in the account EXTERNAL: live events, and consumers of the stream that keeps them."""
    api = [
        f"$JS.API.CONSUMER.{verb}.{EXTERNAL_STREAM}.>"
        for verb in ("CREATE", "DURABLE.CREATE", "INFO", "DELETE", "MSG.NEXT")
    ]
    api += [f"$JS.API.{verb}.{EXTERNAL_STREAM}" for verb in ("STREAM.INFO", "CONSUMER.LIST", "CONSUMER.NAMES")]
    return Rights(
        publish=(
            *api,
            "$JS.API.STREAM.NAMES",
            "$JS.API.INFO",
            f"$JS.ACK.{EXTERNAL_STREAM}.>",
            f"$JS.FC.{EXTERNAL_STREAM}.>",
        ),
        subscribe=("evt.v1.>", f"{inbox_of(name)}.>"),
    )


def keeper_rights(name: str) -> Rights:
    """The rights of the user that makes the stream in the account EXTERNAL."""
    api = tuple(f"$JS.API.STREAM.{verb}.{EXTERNAL_STREAM}" for verb in ("INFO", "CREATE", "UPDATE"))
    return Rights(api, (f"{inbox_of(name)}.>",))


def _is_read_by(channel: Channel, names: Iterable[str]) -> bool:
    return any(name in channel.readers for name in names)


def _asked_by(names: Iterable[str], partition: str = "*", job: str = "*") -> list[str]:
    """The requests that ``names`` may make; those to services as the server maps them."""
    subjects: list[str] = []
    for channel in CHANNELS:
        if channel.kind == "rpc" and _is_read_by(channel, names):
            subjects.append(f"{channel.pattern.removesuffix('*')}{partition}.{job}")
        elif channel.kind == "pod" and _is_read_by(channel, names):
            subjects.append(channel.pattern)
    return subjects


def _inboxes_of_callers(service: str) -> list[str]:
    """The inboxes that the service answers to: of its callers, and of the operator, who may call anybody."""
    readers = {reader for c in CHANNELS if c.kind == "rpc" and c.service == service for reader in c.readers}
    inboxes = {f"{inbox_of(reader)}.>" for reader in readers & set(SERVICES)}
    if readers:
        inboxes.add(f"{inbox_of(OPERATOR)}.>")
    if readers & set(POD_ROLES):
        inboxes.add(f"{inbox_of_pod('*', '*')}.>")
    return sorted(inboxes)
