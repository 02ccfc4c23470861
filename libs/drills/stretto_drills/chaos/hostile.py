"""A hostile pod: all that a program can send which has the credentials of one worker of its user's own job.

``strikes`` draws messages: every subject that the registry lets a pod publish to, with reply subjects that name
anything of the installation, headers that the server's streams read, and bodies of any shape and size. ``attack`` sends
them. None of them may change anything of another job.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from stretto_bus import Bus, BusFault
from stretto_bus.connection import lines_of
from stretto_bus.login import RenewableLogin
from stretto_messages.base import example_of
from stretto_runtime.access.permissions import channels_of_pods
from stretto_wire.codec import document_of
from stretto_wire.inboxes import inbox_of, inbox_of_pod
from stretto_wire.registry import CHANNELS, SERVICES, Channel, partition_of

POD = "worker-0"
BURST = 50
PAUSE_S = 0.02
API = ("STREAM.PURGE", "STREAM.DELETE", "STREAM.UPDATE", "STREAM.CREATE", "STREAM.MSG.DELETE", "STREAM.SNAPSHOT")
RESERVED = ("_R_.x", "_R_.abcdef.123456", "_GR_.a.b.c", "$JS.ACK.STRETTO.c.1.1.1.1.1")
"""Reply subjects with which the server takes no message at all."""
MALFORMED = ("a..b", ".a", "a.", "..", ">", "*", "_INBOX", "_INBOX.>", "fence.*.3", "\x00", "x" * 3000)
STREAMS = ("STRETTO", "TELEMETRY", "KV_STATE", "DLQ", "AUDIT", "EVENTS")
OVERSIZED_BYTES = 300_000


@dataclass(frozen=True, slots=True)
class Strike:
    """One message; ``head`` is the text of its headers, empty for none."""

    subject: str
    reply: str
    head: str
    body: bytes


def job_beside(victim: str) -> str:
    """Return the name of a hostile job in the partition of the ``victim``."""
    return next(name for n in range(10_000) if partition_of(name := f"hostile-{n}") == partition_of(victim))


def strikes(dice: random.Random, job: str, pod: str, victim: str) -> Iterator[Strike]:
    """Yield without end what ``pod`` of ``job`` sends against ``victim``."""
    own, named, known = channels_of_pods(), replies(job, victim), headers(victim)
    while True:
        channel = dice.choice(own)
        reply = dice.choice(("", dice.choice(named)))
        chosen = dict(dice.sample(known, dice.randrange(1, 5))) if dice.random() < 0.5 else {}
        yield Strike(subject_for(channel, job, pod), reply, lines_of(chosen), _body(dice, channel, job, pod, victim))


def subject_for(channel: Channel, job: str, pod: str) -> str:
    """The subject of a channel for one job and pod."""
    *before, _ = channel.pattern.split(".")
    return ".".join([*(pod if token == "*" else token for token in before), job])


def replies(job: str, victim: str) -> list[str]:
    """Reply subjects that name anything of the installation or of another job's pods, malformed and reserved ones."""
    number = partition_of(victim)
    named = [*RESERVED, *MALFORMED, "$SYS.REQ.SERVER.PING", "deliver.external.x", "dlq.x"]
    for service in SERVICES:
        named += [f"{kind}.{service}.{number}" for kind in ("fence", "journal", "dlq", f"{number}.fence")]
        named += [f"$KV.STATE.{kind}.{service}.{number}" for kind in ("owner", "cursor", "mark")]
        named += [f"$KV.STATE.cursor.{service}.{number}.a", f"{inbox_of(service)}.x.to.1"]
        named += [f"$KV.STATE.snap.{service}.{number}.{victim}.{side}" for side in "ab"]
    for channel in CHANNELS:
        for owner in (job, victim):
            named += [subject_for(channel, owner, pod) for pod in ("worker-0", "ps-0")]
            if channel.kind == "rpc":  # as the server's mapping makes it
                named.append(f"{subject_for(channel, owner, '').removesuffix(owner)}{partition_of(owner)}.{owner}")
    for stream in STREAMS:
        named += [f"$JS.API.{verb}.{stream}" for verb in API]
        named.append(f"$JS.API.CONSUMER.CREATE.{stream}.c.>")
    named += [f"{inbox_of(name)}.x.to.1" for name in ("operator", "external", "forwarder")]
    named += [f"{inbox_of_pod(owner, pod)}.x.to.1" for owner in (job, victim) for pod in ("worker-0", "ps-0")]
    return list(dict.fromkeys(named))


def headers(victim: str) -> list[tuple[str, str]]:
    """Headers that the server, its streams, services or readers give a meaning, each with some hostile values."""
    fence = f"fence.{SERVICES[0]}.{partition_of(victim)}"
    event = f"evt.v1.gateway.job-cancelled.{victim}"
    every = {
        "Nats-Msg-Id": [
            *(f"{service}:{seq}:0" for service in SERVICES for seq in (9, 99, "9.0")),
            f"gateway:{victim}:x",
        ],
        "ce-id": [f"{service}:9:0" for service in SERVICES],
        "ce-type": ["stretto.gateway.job-cancelled.v1"],
        "Nats-TTL": ["never", "1s", "-1", "9999h"],
        "Nats-Marker-Reason": ["Purge"],
        "Nats-Rollup": ["sub", "all"],
        "Nats-Expected-Stream": ["STRETTO"],
        "Nats-Expected-Last-Sequence": ["0", "7"],
        "Nats-Expected-Last-Msg-Id": ["x"],
        "Nats-Expected-Last-Subject-Sequence": ["0"],
        "Nats-Expected-Last-Subject-Sequence-Subject": [fence],
        "Nats-Batch-Id": ["b"],
        "Nats-Batch-Sequence": ["1", "2"],
        "Nats-Batch-Commit": ["1"],
        "Nats-Incr": ["1"],
        "Nats-Schedule": ["@every 1s"],
        "Nats-Schedule-Target": [event],
        "Nats-Trace-Dest": [event, fence, f"pod.v1.ping.worker-0.{victim}"],
        "Nats-Request-Info": ['{"acc":"STRETTO"}'],
        "Status": ["100", "503"],
        "error": ["refused"],
        "request-id": ["", "x.1", "worker-0.1", "x" * 3000],
        "traceparent": ["00-" + "f" * 32 + "-" + "f" * 16 + "-01", "x"],
        "KV-Operation": ["PURGE", "DEL"],
    }
    return [(name, str(value)) for name, values in every.items() for value in values]


def _body(dice: random.Random, channel: Channel, job: str, pod: str, victim: str) -> bytes:
    """A sound message of our own or of another job, one with a field changed, padding, or bytes."""
    kind = dice.randrange(6)
    fields = document_of(example_of(channel.message)) | {"job": dice.choice((job, job, victim)), "pod": pod}
    if kind == 0:
        return dice.randbytes(dice.randrange(200))
    if kind == 1:
        return b"x" * dice.choice((20_000, 200_000, OVERSIZED_BYTES if dice.random() < 0.05 else 1000))
    if kind == 2:
        fields[dice.choice(sorted(fields))] = dice.choice((None, -1, 1e300, "", [], {}, True, "x" * 5000))
    if kind == 3:
        return b"[" * 5000
    return json.dumps(fields).encode()


async def attack(url: str, credentials: str, dice: random.Random, job: str, victim: str) -> None:
    """Send what ``POD`` of ``job`` may until cancelled; the bus connects again whenever the server hangs up."""
    drawn = strikes(dice, job, POD, victim)
    bus = await Bus.connect(url, RenewableLogin(credentials), POD, inbox_of_pod(job, POD))
    try:
        while True:
            for strike in islice(drawn, BURST):
                with contextlib.suppress(BusFault):
                    await bus.send(strike.subject, strike.body, strike.head, strike.reply)
            await asyncio.sleep(PAUSE_S)
    finally:
        await bus.close()
