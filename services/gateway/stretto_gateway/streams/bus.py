"""The gateway's client of the bus: it reads and stores messages, asks services, and turns refusals into problems."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from functools import lru_cache

import stretto_wire as wire
import structlog
from pydantic_core import from_json
from stretto_bus import Bus, BusFault, CallRefused, Client
from stretto_bus.faults import Fenced
from stretto_bus.reading.damage import Damage, find_damage
from stretto_bus.reading.lost_end import LogPlace
from stretto_bus.reading.newest import newest
from stretto_bus.reading.ordered_consumer import OrderedConsumer, Stored, follow, read, scan
from stretto_bus.tasks import end
from stretto_bus.writer import Fence, fullness_in, kept_s_in
from stretto_messages.base import Message
from stretto_runtime.owner.reports import FLOODED_TURN_S, RANGE_MAX, thinned
from stretto_runtime.restorations import Restoration, restorations
from stretto_runtime.spans.tracing import Tracing
from stretto_runtime.spent_names import KEPT, SpentShard, replace_shard, spent_shards
from stretto_runtime.streams import BusStreams
from stretto_wire.contract.registry import AUDIT, AUDIT_SUBJECT, PARTITIONS, SERVICES, STATE, STATE_PREFIX
from stretto_wire.rest.answers import ServiceView

from ..problems import Problem, kind_of
from .continuity import BreakSignal, Continuity, kept_of, while_whole
from .stored_events import NewestEvents, Selection, StoredEvent, trace_id_of

NAME = "gateway"
SEARCHES = 4
"""Searches for the newest events at once: each search makes up to some thirty consumers, one after the other."""
LOOKS = 8
"""Looks at once at what is left of the stream: after a break of the connection, every open stream wants one."""
SHARED = 64
"""Events whose check the readers of open streams share: they read the same ones at about the same time."""
REMOVED = {"Nats-TTL": "60s"}
"""Headers of a marker that removes an entry; the marker itself expires."""
log = structlog.get_logger("stretto.gateway")


class StreamBus:
    """The gateway's client of the bus. Until ``reached`` was called, every request raises BusFault."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._client: Client | None = None
        self._searching = asyncio.Semaphore(SEARCHES)
        self._looking = asyncio.Semaphore(LOOKS)
        self.events_kept_s = math.inf
        """Age at which events leave the stream; known once ``kept`` has been called."""
        self.refuses = ""
        """The reason why every change is refused at once: the bus stores nothing."""
        self.breaks = BreakSignal()
        self._entry = f"{STATE_PREFIX}tried.{NAME}.{secrets.token_hex(8)}"

    def reached(self, bus: Bus) -> None:
        """Use ``bus`` from here on."""
        self._client = Client(bus, NAME, self._tracing)
        bus.on_reconnect.append(self.breaks.note)

    @property
    def there(self) -> bool:
        return self._client is not None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.bus.close()

    @property
    def streams(self) -> BusStreams:
        """Return the streams of the bus, for reading. Raises BusFault."""
        return BusStreams(self._bus)

    @property
    def _reached(self) -> Client:
        if self._client is None:
            raise BusFault("the bus is not reached yet; the gateway's log says why")
        return self._client

    @property
    def _bus(self) -> Bus:
        return self._reached.bus

    async def publish(self, message: Message, msg_id: str, last: int | None = None, trace: str = "") -> int | None:
        """Store an event; returns its sequence.

        last: store it only if the last event of its subject has this sequence (0: the subject has none); else return
        None. A random text follows ``msg_id``, so that nobody can send that id first: the server takes a message whose
        id it knows for stored. Raises BusFault if the event is not stored in time, or nothing is at present.
        """
        if self.refuses:
            raise BusFault(self.refuses)
        msg_id = f"{msg_id}:{secrets.token_hex(8)}"
        if last is not None:
            return await self._reached.publish_after(last, message, msg_id, trace)
        return await self._reached.publish(message, msg_id, trace, tries_s=0)

    async def try_to_store(self) -> None:
        """Store an entry that goes by itself, in place of the one before. Raises BusFault."""
        if self.there:
            await self._bus.store(self._entry, b"", {"Nats-TTL": "60s"})

    async def last_audited(self) -> tuple[int, bytes]:
        """Return sequence and text of the last entry of the audit log; 0 and nothing for an empty log."""
        found = await read(self._bus, AUDIT, [AUDIT_SUBJECT], deliver_policy="last_per_subject")
        return (found[-1].seq, found[-1].data) if found else (0, b"")

    async def append_audited(self, line: bytes, last: int) -> int | None:
        """Store an entry of the audit log; None if the last entry is not ``last``. Raises BusFault."""
        try:
            return await self._bus.store(AUDIT_SUBJECT, line, Fence(AUDIT_SUBJECT, last).headers())
        except Fenced:
            return None

    async def audit_lines(self) -> AsyncIterator[bytes]:
        """Yield the entries of the audit log, in their order. Raises BusFault."""
        async with aclosing(scan(self._bus, AUDIT, [AUDIT_SUBJECT])) as source:
            async for stored in source:
                yield stored.data

    async def newest_audited(self, limit: int, before: int | None) -> tuple[list[bytes], int | None]:
        """Return the newest entries of the audit log below the sequence ``before``, newest first, and the sequence
        below which older entries lie (None: there are none). Raises BusFault."""
        found = await newest(self._bus, AUDIT, [AUDIT_SUBJECT], limit, before)
        return [stored.data for stored in found.messages], found.before

    async def call(self, request: Message, timeout_s: float) -> Message:
        """Ask the owner of a job. Raises CallTimeout, or Problem if the owner refused."""
        try:
            return await self._reached.call(request, timeout_s)
        except CallRefused as refused:
            raise Problem(
                409,
                kind_of(refused.code),
                refused.message,
                field=refused.field,
                value=refused.value,
                remedy=refused.remedy,
            ) from refused

    async def call_pod(self, pod: str, request: Message, timeout_s: float) -> Message:
        """Ask one pod. Raises CallTimeout."""
        return await self._reached.call_pod(pod, request, timeout_s)

    async def services(self) -> list[ServiceView]:
        """Return replicas and partitions of each service, as their entries in the bucket say. Raises BusFault."""
        filters = [f"{STATE_PREFIX}member.>", f"{STATE_PREFIX}owner.>"]
        stored = await read(self._bus, STATE, filters, deliver_policy="last_per_subject")
        return service_views((one.subject.removeprefix(STATE_PREFIX), one.data) for one in stored)

    async def kept(self) -> tuple[int, dict[str, bytes]]:
        """Return the first sequence of the stream, and the retained entry of each job."""
        facts = await self._bus.ask(f"STREAM.INFO.{wire.STREAM}")
        first_seq = int(facts["state"]["first_seq"])
        self.events_kept_s = kept_s_in(facts["config"])
        stored = await read(self._bus, STATE, [f"{KEPT}*"], deliver_policy="last_per_subject")
        return first_seq, {entry.subject.removeprefix(KEPT): entry.data for entry in stored if entry.data}

    async def spent(self, number: int | None = None) -> dict[int, SpentShard]:
        """Return the parts of the spent names by number: all, or the one of ``number``."""
        return await spent_shards(self._bus, number)

    async def spend(self, number: int, packed: bytes, last: int) -> SpentShard | None:
        """Replace a part of the spent names; None if another replica has replaced the part since ``last``. Raises
        BusFault."""
        return await replace_shard(self._bus, number, packed, last)

    async def restorations(self) -> list[Restoration]:
        """Return the restorations from backups that this installation remembers. Raises BusFault."""
        return await restorations(self._bus)

    async def damage(self, stream: str) -> Damage | None:
        """Return the damage of a stream; None: all its messages can be read. Raises BusFault."""
        return await find_damage(self._bus, stream)

    async def fullness(self, stream: str) -> float:
        """Return the used share of the stream's bytes; 0 without a bound. Raises BusFault."""
        return fullness_in(await self._bus.ask(f"STREAM.INFO.{stream}")) or 0.0

    async def drop(self, job: str) -> None:
        """Remove the entry of a job. Raises BusFault if the removal is not stored in time."""
        await self._bus.store(f"{KEPT}{job}", b"", REMOVED)

    async def keep(self, job: str, entry: bytes) -> None:
        """Store the entry of a job in place of the entry before. Raises BusFault if the entry is not stored in time."""
        await (await self._bus.post(f"{KEPT}{job}", entry, {}))

    async def fold(
        self,
        apply: Callable[[Message, int, float, str], None],
        report: Callable[[Message, float], None],
        caught_up: Callable[[], None],
        advanced: Callable[[], Awaitable[None]],
    ) -> None:
        """Read all events from the first on and, once these are read, the reports of pods, for ever. Raises EndLost."""
        await while_whole(self._bus, lambda noted: self._fold(noted, apply, report, caught_up, advanced))

    async def _fold(
        self,
        continuity: Continuity,
        apply: Callable[[Message, int, float, str], None],
        report: Callable[[Message, float], None],
        caught_up: Callable[[], None],
        advanced: Callable[[], Awaitable[None]],
    ) -> None:
        try:
            consumer = continuity.consumer = await OrderedConsumer.open(self._bus, wire.STREAM, ["*.evt.>"])
        except BusFault as fault:
            log.warning("the stream cannot be read yet", fault=str(fault))
            raise
        left, reporting = consumer.backlog, None
        try:
            while True:
                if reporting is None and (left <= 0 or (consumer.pending == 0 and not consumer.ready())):
                    caught_up()
                    reporting = asyncio.create_task(_fold_reports(self._bus, report))
                for stored in await consumer.batch():
                    left -= 1
                    continuity.read(stored)
                    _apply(stored, lambda message, at: apply(message, at.seq, at.time_s, _trace_of(at)))
                await advanced()
        finally:
            if reporting is not None:
                await end(reporting)
            await consumer.close()

    async def kept_of(self, place: LogPlace) -> int | None:
        """Return the last sequence that is left, if the event at a place is lost; None: it is not. Raises BusFault."""
        if not place.seq:
            return None
        async with self._looking:
            return await kept_of(self._bus, place)

    async def follow(self, start_seq: int, selection: Selection, live: bool) -> AsyncIterator[StoredEvent]:
        """Yield events from ``start_seq`` on, in stored order. Without ``live``, end with the last event stored now."""
        source = (follow if live else scan)(self._bus, wire.STREAM, selection.filters, start_seq)
        async with aclosing(source):
            async for stored in source:
                if (event := to_event(stored)) is not None:
                    yield event

    async def stored(
        self, selection: Selection, until: int, *, has_until: bool = False
    ) -> AsyncIterator[tuple[Message, Stored]]:
        """Yield the selected events up to the sequence ``until`` that can be read. Raises BusFault.

        has_until: an event at ``until`` is selected; if the answering server lags, the event is waited for.
        """
        scanned = scan(self._bus, wire.STREAM, selection.filters, until=until if has_until else 0)
        async with aclosing(scanned) as source:
            async for stored in source:
                if stored.seq > until:
                    return
                try:
                    yield wire.parse(stored.subject, stored.data), stored
                except wire.WireError as error:
                    log.warning("skipped an unreadable message", seq=stored.seq, error=str(error))

    async def newest(self, selection: Selection, limit: int, before: int | None, since_s: float | None) -> NewestEvents:
        """Return the newest events, newest first. Raises BusFault."""
        async with self._searching:
            found = await newest(self._bus, wire.STREAM, selection.filters, limit, before, since_s)
        events = [event for stored in found.messages if (event := to_event(stored)) is not None]
        return NewestEvents(events, found.before)


async def _fold_reports(bus: Bus, report: Callable[[Message, float], None]) -> None:
    """Read telemetry at intervals, so that a flood of it costs little. Never returns."""
    consumer: OrderedConsumer | None = None
    while consumer is None:
        try:
            consumer = await OrderedConsumer.open(bus, wire.TELEMETRY, ["*.tel.>"])
        except BusFault as fault:
            log.warning("telemetry cannot be read yet", fault=str(fault))
            await asyncio.sleep(FLOODED_TURN_S)
    try:
        while True:
            batch = await consumer.batch(RANGE_MAX)
            for stored in thinned(batch):
                _apply(stored, lambda message, at: report(message, at.time_s))
            if len(batch) < RANGE_MAX:
                await asyncio.sleep(FLOODED_TURN_S)
    finally:
        await consumer.close()


def service_views(entries: Iterable[tuple[str, bytes]]) -> list[ServiceView]:
    """Return the services by the entries of their members and owners.

    The keys are ``member.<service>.<member>`` and ``owner.<service>.<partition>``, whose value names a member. An empty
    entry was removed.
    """
    members: dict[str, set[str]] = {service: set() for service in SERVICES if service != NAME}
    owners: dict[str, list[str]] = {}
    for key, value in entries:
        kind, service, name = key.split(".", 2)
        if value and kind == "member":
            members.setdefault(service, set()).add(name)
        elif value:
            owners.setdefault(service, []).append(value.decode(errors="replace"))
    counts = {service: sum(owner in members[service] for owner in owners.get(service, ())) for service in members}
    return [
        ServiceView(service=name, replicas=len(who), partitions=counts[name], ready=counts[name] == PARTITIONS)
        for name, who in members.items()
    ]


def to_event(stored: Stored) -> StoredEvent | None:
    """Return an event for clients; None for a subject that is not in the registry, and for what is no JSON: its frame
    would end the stream of every reader, again and again.
    """
    try:
        channel = wire.channel_at(stored.subject)
    except wire.WireError:
        return None
    if not is_json(stored.data):
        return None
    return StoredEvent(
        seq=stored.seq,
        time_s=stored.time_s,
        type=channel.type_name,
        service=channel.service,
        name=channel.name,
        job=stored.subject.rpartition(".")[2],
        trace_id=trace_id_of(stored.headers.get("traceparent", "")),
        data=stored.data.decode(),
    )


@lru_cache(maxsize=SHARED)
def is_json(data: bytes) -> bool:
    """Return whether every reader can read this: JSON in UTF-8, without NaN, and not nested more deeply than messages
    may be.
    """
    try:
        from_json(data, allow_inf_nan=False, cache_strings=False)
    except ValueError:
        return False
    return True


def _trace_of(stored: Stored) -> str:
    return stored.headers.get("traceparent", "")


def _apply(stored: Stored, fold: Callable[[Message, Stored], None]) -> None:
    try:
        message = wire.parse(stored.subject, stored.data)
    except wire.WireError as error:
        log.warning("skipped an unreadable message", seq=stored.seq, subject=stored.subject, error=str(error))
        return
    try:
        fold(message, stored)
    except Exception as error:  # a defect in one view must not hide all others
        log.error("a message could not be folded in", seq=stored.seq, subject=stored.subject, exc_info=error)
