"""The rights of every user of the bus, derived from the registry of the wire and nothing else.

The server checks a service's request after its mapping, with the partition before the job (``RPC_MAPPING``). A pod's
request gets its partition later, when it leaves the account PODS.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stretto_bus.reading.servers import SERVERS
from stretto_messages.base import MAX_MESSAGE_BYTES
from stretto_wire.contract.inboxes import IMPORTED, inbox_of, inbox_of_pod
from stretto_wire.contract.registry import (
    AUDIT,
    AUDIT_SUBJECT,
    CHANNELS,
    DEAD_LETTERS,
    FORWARDER,
    OPERATOR,
    PARTITIONS,
    POD_ANSWER_S,
    SERVICES,
    STATE,
    STATE_PREFIX,
    STREAM,
    TELEMETRY,
    Channel,
    Kind,
)

EXTERNAL_STREAM = "EVENTS"
"""Stream of each tool outside, in its account: ``evt.v1.>`` of ``STREAM``, with the same sequences and times."""

AUDITOR = "gateway"
"""The service that writes the audit log, and the only one that reads it."""
POD_ROLES = ("worker", "ps")
POD_LIMITS = {"subs": 32, "payload": MAX_MESSAGE_BYTES + (8 << 10)}
"""Limits of a pod's connection. A parameter server, the pod with the most, has 11 subscriptions.

``payload``, in bytes, has room for any message of the wire, and its headers. The largest measured, the books of 1,000
abandoned shards, has 50 KB.
"""

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
    answer_s: float = 0.0
    """Time for one message to the reply subject of each message received, in seconds; 0: no such right."""


VERBS = ("CREATE", "DELETE", "INFO", "MSG.NEXT")
"""Requests of the API about consumers that a reader of a stream makes."""


def rights_of(user: str) -> Rights:
    """The rights of a service, or of the operator."""
    if user == OPERATOR:
        return Rights((">",), (">",))
    if user == FORWARDER:
        return _forwarder_rights()
    own = [f"evt.v1.{user}.>", f"journal.{user}.*", f"fence.{user}.*", "dlq.>", f"{STATE_PREFIX}*.{user}.>"]
    reads_telemetry = any(c.kind == "tel" and user in c.readers for c in CHANNELS)
    streams = (
        STREAM,
        STATE,
        DEAD_LETTERS,
        *((TELEMETRY,) if reads_telemetry else ()),
        *((AUDIT,) if user == AUDITOR else ()),
    )
    reading = [f"$JS.API.CONSUMER.{verb}.{stream}.>" for verb in VERBS for stream in streams]
    reading += [f"$JS.FC.{stream}.>" for stream in streams]
    measured = (STREAM, TELEMETRY, STATE, *((AUDIT, DEAD_LETTERS) if user == AUDITOR else ()))
    reading += [f"$JS.API.STREAM.INFO.{stream}" for stream in streams if stream in measured]
    if user == AUDITOR:
        own.append(AUDIT_SUBJECT)
    return Rights(
        publish=(*own, *_asked_by(user), *_inboxes_of_callers(user), *reading, SERVERS),
        subscribe=(f"rpc.v1.{user}.>", f"{inbox_of(user)}.>"),
    )


def _forwarder_rights() -> Rights:
    """Durable consumers of events, and dead letters. A consumer's pattern is part of the subject that creates it."""
    cursors = [f"$JS.API.CONSUMER.{verb}.{STREAM}.*" for verb in ("INFO", "MSG.NEXT")]
    cursors += [f"$JS.API.CONSUMER.CREATE.{STREAM}.*.*.evt.v1.>", f"$JS.ACK.{STREAM}.>"]
    return Rights(("dlq.>", *cursors), (f"{inbox_of(FORWARDER)}.>",))


def pod_rights(job: str, pod: str) -> Rights:
    """The rights of one pod: its telemetry, requests about its job, its job's events, and requests to itself.

    A pod answers by the server's own permission to reply once. The reply subject then is a subject of the account
    PODS, so an event's names nothing: its publisher awaits the stream's acknowledgement in another account.
    """
    return Rights(
        publish=(f"tel.v1.*.{pod}.{job}", *(_of_job(c, job) for c in CHANNELS if _is_of_pods(c, "rpc"))),
        subscribe=(
            f"pod.v1.*.{pod}.{job}",
            *(_of_job(c, job) for c in CHANNELS if _is_of_pods(c, "evt")),
            f"{inbox_of_pod(job, pod)}.>",
        ),
        answer_s=POD_ANSWER_S,
    )


def channels_of_pods() -> list[Channel]:
    """The channels that pods may publish to: telemetry, and the requests that pods may make."""
    return [c for c in CHANNELS if c.kind == "tel" or _is_of_pods(c, "rpc")]


def pods_send() -> list[str]:
    """The subjects that lead out of the account PODS."""
    return [channel.pattern for channel in channels_of_pods()]


def pods_read() -> list[str]:
    """The events that lead into the account PODS."""
    return [c.pattern for c in CHANNELS if _is_of_pods(c, "evt")]


def external_rights(name: str) -> Rights:
    """The rights of a tool outside in its account: live events, and consumers of the stream that keeps them."""
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
    """The rights of the user that makes the stream in the account of a tool outside, anew after a restoration."""
    api = tuple(f"$JS.API.STREAM.{verb}.{EXTERNAL_STREAM}" for verb in ("INFO", "CREATE", "UPDATE", "DELETE"))
    return Rights(api, (f"{inbox_of(name)}.>",))


def counter_rights(pods: str, inbox: str) -> Rights:
    """The rights, in the server's own account, of the actuator that counts connections of the account ``pods``: it
    hears of each, lists them, and cuts those beyond a pod's share."""
    return Rights(
        publish=(f"$SYS.REQ.ACCOUNT.{pods}.CONNZ", "$SYS.REQ.SERVER.*.KICK"),
        subscribe=(f"$SYS.ACCOUNT.{pods}.CONNECT", f"$SYS.ACCOUNT.{pods}.DISCONNECT", f"{inbox_of(inbox)}.>"),
    )


def watcher_rights(name: str) -> Rights:
    """The rights, in the server's own account, of who asks whether the server can store."""
    return Rights(("$SYS.REQ.SERVER.PING.HEALTHZ",), (f"{inbox_of(name)}.>",))


def _is_of_pods(channel: Channel, kind: Kind) -> bool:
    return channel.kind == kind and _is_read_by(channel, POD_ROLES)


def _of_job(channel: Channel, job: str) -> str:
    return f"{channel.pattern.removesuffix('*')}{job}"


def _is_read_by(channel: Channel, names: Iterable[str]) -> bool:
    return any(name in channel.readers for name in names)


def _asked_by(service: str) -> list[str]:
    """The requests that ``service`` may make; those to services as the server maps them."""
    asked = [c for c in CHANNELS if service in c.readers]
    to_services = [f"{c.pattern}.*" for c in asked if c.kind == "rpc"]
    return [*to_services, *(c.pattern for c in asked if c.kind == "pod")]


def _inboxes_of_callers(service: str) -> list[str]:
    """The inboxes that the service answers to: of its callers, and of the operator, who may call anybody."""
    readers = {reader for c in CHANNELS if c.kind == "rpc" and c.service == service for reader in c.readers}
    inboxes = {f"{inbox_of(reader)}.>" for reader in readers & set(SERVICES)}
    if readers:
        inboxes.add(f"{inbox_of(OPERATOR)}.>")
    if readers & set(POD_ROLES):
        inboxes.add(IMPORTED)
    return sorted(inboxes)
