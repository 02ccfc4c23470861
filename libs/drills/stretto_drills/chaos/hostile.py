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
from stretto_wire.codec import document_of
from stretto_wire.inboxes import inbox_of, inbox_of_pod
from stretto_wire.registry import CHANNELS, SERVICES, Channel, partition_of

POD_ROLES = ("worker", "ps")
POD = "worker-0"
BURST = 50
PAUSE_S = 0.02
API = ("STREAM.PURGE", "STREAM.DELETE", "STREAM.UPDATE", "STREAM.INFO", "STREAM.MSG.DELETE", "STREAM.SNAPSHOT")
STREAMS = ("STRETTO", "TELEMETRY", "KV_STATE", "DLQ", "EVENTS")
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
    own = [c for c in CHANNELS if c.kind == "tel" or (c.kind == "rpc" and {*POD_ROLES} & {*c.readers})]
    while True:
        channel = dice.choice(own)
        subject = _subject(channel, job, pod)
        reply = dice.choice(("", _reply(dice, job, victim)))
        head = lines_of(dict(_headers(dice, victim))) if dice.random() < 0.5 else ""
        yield Strike(subject, reply, head, _body(dice, channel, job, pod, victim))


def _subject(channel: Channel, job: str, pod: str) -> str:
    *before, _ = channel.pattern.split(".")
    return ".".join([*(pod if token == "*" else token for token in before), job])


def _reply(dice: random.Random, job: str, victim: str) -> str:
    """A subject of the installation, or of another job's pod."""
    service, number = dice.choice(SERVICES), partition_of(victim)
    channel = dice.choice(CHANNELS)
    stream = dice.choice(STREAMS)
    return dice.choice(
        (
            f"fence.{service}.{number}",
            f"journal.{service}.{number}",
            f"$KV.STATE.owner.{service}.{number}",
            f"$KV.STATE.cursor.{service}.{number}.a",
            f"$KV.STATE.snap.{service}.{number}.{victim}.{dice.choice('ab')}",
            f"$JS.API.{dice.choice(API)}.{stream}",
            f"$JS.API.CONSUMER.CREATE.{stream}.c",
            _subject(channel, victim, dice.choice(("worker-0", "ps-0"))),
            _subject(channel, job, "worker-0"),
            f"{inbox_of(service)}.x.to.1",
            f"{inbox_of_pod(victim, 'worker-0')}.x.to.1",
            "dlq.x",
            ">",
            "a..b",
        )
    )


def _headers(dice: random.Random, victim: str) -> Iterator[tuple[str, str]]:
    service, seq = dice.choice(SERVICES), dice.randrange(1, 5000)
    every = {
        "Nats-Msg-Id": dice.choice((f"{service}:{seq}:0", f"gateway:{victim}:cancelled", f"{service}:{seq}.0:0")),
        "ce-id": f"{service}:{seq}:0",
        "Nats-TTL": dice.choice(("never", "1s", "-1", "9999h")),
        "Nats-Rollup": dice.choice(("sub", "all")),
        "Nats-Expected-Stream": "STRETTO",
        "Nats-Expected-Last-Sequence": str(seq),
        "Nats-Expected-Last-Subject-Sequence": "0",
        "Nats-Expected-Last-Subject-Sequence-Subject": f"fence.{service}.{partition_of(victim)}",
        "Nats-Batch-Id": "b",
        "Nats-Batch-Sequence": str(dice.randrange(1, 3)),
        "Nats-Batch-Commit": "1",
        "Nats-Incr": "1",
        "Nats-Schedule": "@every 1s",
        "Nats-Schedule-Target": f"evt.v1.gateway.job-cancelled.{victim}",
        "Nats-Trace-Dest": dice.choice((f"evt.v1.gateway.job-cancelled.{victim}", f"pod.v1.ping.worker-0.{victim}")),
        "Nats-Request-Info": '{"acc":"STRETTO"}',
        "request-id": dice.choice(("", "x.1", "worker-0.1")),
        "traceparent": "00-" + "f" * 32 + "-" + "f" * 16 + "-01",
        "KV-Operation": "PURGE",
    }
    yield from dice.sample(sorted(every.items()), dice.randrange(1, 5))


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
