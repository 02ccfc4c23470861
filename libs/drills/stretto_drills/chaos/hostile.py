"""A hostile pod: all that a program can do which has the credentials of one pod of its user's own job.

- ``strikes`` draws single messages: every subject that the registry lets a pod publish to, with reply subjects that
  name anything of the installation, headers that the server's streams read, and bodies of any shape and size.
- ``sequences`` draws conversations with the services that keep something about the job: workers that nobody started,
  leases given back for ever, shards reported that were never leased, numbers of any size.
- ``lie`` draws the answer to a request of a service, or none.

``HostilePod`` sends them, and ``attack`` all of them at once. None may change anything of another job.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, cast

from stretto_bus import Bus, BusFault
from stretto_bus.bus import Msg
from stretto_bus.connection import lines_of
from stretto_bus.login import RenewableLogin
from stretto_installation.access.permissions import channels_of_pods
from stretto_messages.base import Message, example_of
from stretto_messages.dispatcher import NextShard, ReleaseShard, ShardHeartbeat
from stretto_messages.pods import WorkerReported
from stretto_messages.refusals import ERROR_HEADER
from stretto_wire.codec import document_of
from stretto_wire.contract.inboxes import inbox_of, inbox_of_pod
from stretto_wire.contract.registry import CHANNELS, SERVICES, Channel, channel_at, channel_of, partition_of

POD = "worker-0"
BURST = 50
PAUSE_S = 0.02
API = ("STREAM.PURGE", "STREAM.DELETE", "STREAM.UPDATE", "STREAM.CREATE", "STREAM.MSG.DELETE", "STREAM.SNAPSHOT")
RESERVED = ("_R_.x", "_R_.abcdef.123456", "_GR_.a.b.c", "$JS.ACK.STRETTO.c.1.1.1.1.1")
"""Reply subjects with which the server takes no message at all."""
MALFORMED = ("a..b", ".a", "a.", "..", ">", "*", "_INBOX", "_INBOX.>", "fence.*.3", "\x00", "x" * 3000)
STREAMS = ("STRETTO", "TELEMETRY", "KV_STATE", "DLQ", "AUDIT", "EVENTS")
OVERSIZED_BYTES = 300_000
HUGE = (0, 1, 10**5, 10**9, 10**15, 2**53 - 1, 2**64, 10**30, 1e300, -1)
"""Numbers at the bounds of fields, beyond, and far beyond."""
CONVINCING: dict[str, dict[str, Any]] = {"get-ownership": {"buckets": [1], "slices": [1], "bucket_rows": [1]}}
"""Fields of sound answers in which the examples say something that ends the conversation: a column without an owner."""
WORKERS_INVENTED_MAX = 500
"""Workers of one sequence. Their names are drawn from a billion, so that each sequence invents others."""
TURNS_MAX = 100
ANSWER_S = 2.0
RECONNECT_TRIES = 500
RECONNECT_S = 0.02


@dataclass(frozen=True, slots=True)
class Strike:
    """One message; ``head`` is the text of its headers, empty for none."""

    subject: str
    reply: str
    head: str
    body: bytes


class HostileMessage(NamedTuple):
    """A message of a sequence, and its fields beside the job, which need not be sound."""

    message: type[Message]
    fields: dict[str, Any]


Answer = dict[str, Any]
"""The document of a reply; empty if there was none."""
Sequence = Generator[list[HostileMessage], list[Answer], None]
"""Yields requests to be made at once, and is sent their answers."""


def job_beside(victim: str, name: str = "hostile") -> str:
    """Return the name of a hostile job in the partition of the ``victim``; it begins with ``name``."""
    return next(job for n in range(10_000) if partition_of(job := f"{name}-{n}") == partition_of(victim))


def strikes(dice: random.Random, job: str, pod: str, victim: str) -> Iterator[Strike]:
    """Yield without end what ``pod`` of ``job`` sends against ``victim``."""
    own, named, known = channels_of_pods(), replies(job, victim), headers(victim)
    while True:
        channel = dice.choice(own)
        reply = dice.choice(("", dice.choice(named)))
        chosen = dict(dice.sample(known, dice.randrange(1, 5))) if dice.random() < 0.5 else {}
        body = _body(dice, channel.message, job, pod, victim)
        yield Strike(subject_for(channel, job, pod), reply, lines_of(chosen), body)


def document_for(job: str) -> dict[str, Any]:
    """Return the job file of a hostile job, which no cluster has room for: services keep its books, no pod starts."""
    wanted = {"workers": 10_000, "ps": 1, "worker_cpu_cores": 1024.0, "ps_cpu_cores": 1.0}
    memory = {"worker_memory_bytes": 2**30, "ps_memory_bytes": 2**30}
    limits = {"count": {"max": 10_000}, "cpu_cores": {"max": 1024.0}}
    return {
        "name": job,
        "model": {"entry": "stretto.examples.wide_deep:WideDeep"},
        "dataset": {"samples": 10**12},
        "resources": {"fixed": True, "workers": limits, "initial": wanted | memory},
    }


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


def sequences(dice: random.Random) -> Iterator[Sequence]:
    """Yield sequences of requests without end."""
    kinds = (workers_invented, leases_released, leases_completed, shards_unleased, lanes_repeated, numbers_huge)
    while True:
        kind = dice.choice(kinds)
        yield kind(dice, dice.randrange(1, WORKERS_INVENTED_MAX if kind is workers_invented else TURNS_MAX))


def workers_invented(dice: random.Random, count: int) -> Sequence:
    """Lease as ``count`` workers that nobody has started, each once."""
    first = dice.randrange(10**9 - count)
    for begin in range(first, first + count, BURST):
        yield [_next_shard(dice, f"worker-{n}") for n in range(begin, min(begin + BURST, first + count))]


def leases_released(dice: random.Random, turns: int) -> Sequence:
    """Lease and give back, again and again, at times as data that fail."""
    pod = _worker(dice)
    for _ in range(turns):
        [leased] = yield [_next_shard(dice, pod)]
        if lease := _lease_in(leased):
            failure = dice.choice((None, None, "x" * 2000))
            yield [HostileMessage(ReleaseShard, {"pod": pod, **lease, "offset": 0, "failure": failure})]


def leases_completed(dice: random.Random, turns: int) -> Sequence:
    """Report each shard as trained the moment that it is leased, then lease the next."""
    pod, done = _worker(dice), None
    for _ in range(turns):
        [leased] = yield [_next_shard(dice, pod, done)]
        lease = _lease_in(leased)
        done = {"id": lease["shard"], "attempt": lease["attempt"]} if lease else None


def shards_unleased(dice: random.Random, turns: int) -> Sequence:
    """Complete, prolong and give back shards of others, and shards that do not exist."""
    for _ in range(turns):
        lease = {"shard": dice.choice((dice.randrange(100), 10**15)), "attempt": dice.choice((1, 2, 10**6))}
        done = {"id": lease["shard"], "attempt": lease["attempt"]}
        pod = _worker(dice)
        yield [
            _next_shard(dice, pod, done),
            HostileMessage(ShardHeartbeat, {"pod": pod, **lease, "offset": 1, "samples_per_s": 1.0}),
            HostileMessage(ReleaseShard, {"pod": pod, **lease, "offset": 1, "failure": "x"}),
        ]


def lanes_repeated(dice: random.Random, turns: int) -> Sequence:
    """Make different requests under one id, at once and one after another."""
    identity = {"request_id": f"again.{dice.getrandbits(16)}"}
    for _ in range(turns):
        yield [
            HostileMessage(NextShard, _next_shard(dice, _worker(dice), {"id": n, "attempt": 1}).fields | identity)
            for n in range(dice.randrange(1, 5))
        ]


def numbers_huge(dice: random.Random, turns: int) -> Sequence:
    """Prolong a lease, and report telemetry, with numbers of any size."""
    pod = POD
    report = document_of(example_of(WorkerReported))
    del report["job"]
    numbers = [name for name, value in report.items() if type(value) in (int, float)]
    for _ in range(turns):
        [leased] = yield [_next_shard(dice, pod)]
        lease = _lease_in(leased) or {"shard": 0, "attempt": 1}
        drawn = {name: dice.choice(HUGE) for name in dice.sample(numbers, dice.randrange(1, 4))}
        yield [
            HostileMessage(ShardHeartbeat, {"pod": pod, **lease, "offset": dice.choice(HUGE), "samples_per_s": 1e12}),
            HostileMessage(WorkerReported, report | {"pod": pod} | drawn),
        ]


def _worker(dice: random.Random) -> str:
    return f"worker-{dice.choice((0, 1, dice.randrange(10**9)))}"


def _next_shard(dice: random.Random, pod: str, done: Answer | None = None) -> HostileMessage:
    """Ask under a random id of almost the largest length: what a service remembers of it cannot be compressed."""
    return HostileMessage(NextShard, {"pod": pod, "request_id": f"x.{dice.getrandbits(384):x}", "complete": done})


def _lease_in(answer: Answer) -> Answer:
    """Name the lease of an answer as heartbeats and releases do; empty without one."""
    shard = answer.get("shard")
    return {"shard": shard["id"], "attempt": shard["attempt"]} if isinstance(shard, dict) else {}


def lie(dice: random.Random, asked: Channel, job: str, victim: str) -> tuple[bytes, dict[str, str]] | None:
    """Draw body and headers of the answer to a request of ``asked``; None: no answer at all.

    Half of them are sound answers, so that services go on to their next question.
    """
    assert asked.reply is not None
    if dice.random() < 0.5:
        fields = document_of(example_of(asked.reply)) | {"job": job} | CONVINCING.get(asked.name, {})
        return json.dumps(fields).encode(), {}
    if dice.random() < 0.4:
        return None
    headers = {ERROR_HEADER: dice.choice(("refused", "busy", "", "x" * 3000))} if dice.random() < 0.3 else {}
    return _body(dice, asked.reply, job, POD, victim), headers


def sound(message: type[Message], job: str, pod: str = "") -> bytes:
    """Return the example of a message as ``pod`` of ``job`` would send it."""
    fields = document_of(example_of(message))
    return json.dumps(fields | {"job": job} | ({"pod": pod} if "pod" in fields else {})).encode()


def _body(dice: random.Random, message: type[Message], job: str, pod: str, victim: str) -> bytes:
    """A sound message of our own or of another job, one with a field changed, padding, or bytes."""
    kind = dice.randrange(6)
    fields = document_of(example_of(message)) | {"job": dice.choice((job, job, victim)), "pod": pod}
    if kind == 0:
        return dice.randbytes(dice.randrange(200))
    if kind == 1:
        return b"x" * dice.choice((20_000, 200_000, OVERSIZED_BYTES if dice.random() < 0.05 else 1000))
    if kind == 2:
        fields[dice.choice(sorted(fields))] = dice.choice((None, -1, 2**53 - 1, 1e300, "", [], {}, True, "x" * 5000))
    if kind == 3:
        return b"[" * 5000
    return json.dumps(fields).encode()


class HostilePod:
    """One connection with a pod's credentials; the bus connects again whenever the server hangs up."""

    def __init__(self, bus: Bus, job: str, pod: str) -> None:
        self._bus, self.job, self.pod = bus, job, pod
        self.questions: dict[str, int] = {}
        """Requests of services so far, by verb."""

    @classmethod
    async def connect(cls, url: str, credentials: str, job: str, pod: str = POD) -> HostilePod:
        """Connect. Raises BusFault."""
        return cls(await Bus.connect(url, RenewableLogin(credentials), pod, inbox_of_pod(job, pod)), job, pod)

    async def close(self) -> None:
        """Close the connection."""
        await self._bus.close()

    async def flush(self) -> None:
        """Wait until the server has seen everything, unless it has hung up because of it."""
        with contextlib.suppress(BusFault):
            await self._bus.flush()

    async def send(self, strike: Strike) -> bool:
        """Send a message; returns False if there was no connection for ten seconds."""
        for _ in range(RECONNECT_TRIES):
            try:
                await self._bus.send(strike.subject, strike.body, strike.head, strike.reply)
            except BusFault:
                await asyncio.sleep(RECONNECT_S)
            else:
                return True
        return False

    async def play(self, sequence: Sequence) -> int:
        """Make the requests of a sequence, and tell it the answers; returns how many were answered."""
        answered = 0
        answers: list[Answer] | None = None
        while True:
            try:
                requests = next(sequence) if answers is None else sequence.send(answers)
            except StopIteration:
                return answered
            answers = await asyncio.gather(*map(self._ask, requests))
            answered += sum(map(bool, answers))

    async def _ask(self, request: HostileMessage) -> Answer:
        subject = subject_for(channel_of(request.message), self.job, self.pod)
        body = json.dumps({"job": self.job, **request.fields}).encode()
        try:
            reply = await self._bus.request(subject, body, None, ANSWER_S)
        except BusFault:
            await asyncio.sleep(RECONNECT_S)
            return {}
        found: Any = json.loads(reply.data or b"{}")
        return cast("Answer", found) if isinstance(found, dict) else {}

    async def answer(self, dice: random.Random, victim: str) -> None:
        """From now on, answer the requests of services to this pod with what ``lie`` draws."""

        def told(msg: Msg) -> None:
            channel = channel_at(msg.subject)
            self.questions[channel.name] = self.questions.get(channel.name, 0) + 1
            drawn = lie(dice, channel, self.job, victim)
            if drawn is not None:
                with contextlib.suppress(BusFault):
                    self._bus.offer(msg.reply, *drawn)

        await self._bus.subscribe(f"pod.v1.*.{self.pod}.{self.job}", told)
        await self._bus.flush()


async def attack(url: str, credentials: str, dice: random.Random, job: str, victim: str) -> None:
    """Do all that ``POD`` of ``job`` can until cancelled: strikes on one connection, the rest on another."""
    striking = await HostilePod.connect(url, credentials, job)
    talking = await HostilePod.connect(url, credentials, job)

    async def strike() -> None:
        drawn = strikes(random.Random(dice.random()), job, POD, victim)
        while True:
            for one in islice(drawn, BURST):
                await striking.send(one)
            await asyncio.sleep(PAUSE_S)

    async def talk() -> None:
        await talking.answer(random.Random(dice.random()), victim)
        for sequence in sequences(random.Random(dice.random())):
            await talking.play(sequence)
            await asyncio.sleep(PAUSE_S)

    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(strike())
            both.create_task(talk())
    finally:
        await striking.close()
        await talking.close()
