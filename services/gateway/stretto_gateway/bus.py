"""The gateway's side of the bus: publish, ask, and read the stream from any sequence."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable

import stretto_wire as w
import structlog
from stretto_bus import BusFault, CallRefused
from stretto_bus.bus import Bus
from stretto_bus.caller import Caller
from stretto_bus.faults import Fenced
from stretto_bus.ordered_consumer import OrderedConsumer, Stored, read
from stretto_messages.base import Message
from stretto_runtime.process.telemetry import Tracing
from stretto_wire.cloudevents import headers_of
from stretto_wire.registry import STATE, STATE_PREFIX

from .problems import Problem
from .sse import StoredEvent, trace_id_of

PUBLISH_S = 5.0
KEPT = f"{STATE_PREFIX}kept.gateway."
log = structlog.get_logger("stretto.gateway")


class StreamBus:
    """One connection to the stream of all events. Before it is ``reached``, everything raises BusFault."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._found: tuple[Bus, Caller] | None = None

    def reached(self, bus: Bus) -> None:
        """From here on, this is it."""
        self._found = bus, Caller(bus)

    @property
    def there(self) -> bool:
        return self._found is not None

    async def close(self) -> None:
        if self._found is not None:
            await self._bus.close()

    @property
    def _bus(self) -> Bus:
        return self._connected()[0]

    @property
    def _caller(self) -> Caller:
        return self._connected()[1]

    def _connected(self) -> tuple[Bus, Caller]:
        if self._found is None:
            raise BusFault("the bus is not reached yet; the gateway's log says why")
        return self._found

    async def publish(self, message: Message, msg_id: str, last: int | None = None, trace: str = "") -> int | None:
        """Store an event; returns its sequence. With ``last``: None unless that is its subject's last one (0: of none).

        The server decides, by the expected last sequence of the stored subject, so that two gateways cannot both
        be next. Raises BusFault when it is not stored in time.
        """
        subject = w.subject_of(message)
        attributes = {"stretto.job": message.job}
        with self._tracing.sending(f"publish {w.channel_of(message).name}", trace, attributes) as sent:
            headers = headers_of(message, msg_id, time.time(), "gateway", sent)
            if last is not None:
                headers["Nats-Expected-Last-Subject-Sequence"] = str(last)
                headers["Nats-Expected-Last-Subject-Sequence-Subject"] = f"{w.partition_of(message.job)}.{subject}"
            try:
                answer = await (await self._bus.post(subject, w.encode(message), headers, PUBLISH_S))
            except Fenced:
                return None
        return None if last is not None and answer.get("duplicate") else int(answer["seq"])

    async def call(self, request: Message, timeout_s: float) -> Message:
        """Ask the owner of a job. Raises CallTimeout, and Problem when it refused."""
        try:
            return await self._caller.call(request, timeout_s)
        except CallRefused as refused:
            raise Problem(
                409,
                refused.code,
                refused.message,
                field=refused.field,
                value=refused.value,
                remedy=refused.remedy,
            ) from refused

    async def call_pod(self, pod: str, request: Message, timeout_s: float) -> Message:
        """Ask one pod. Raises CallTimeout."""
        return await self._caller.call_pod(pod, request, timeout_s)

    async def kept(self) -> tuple[int, dict[str, bytes]]:
        """The first sequence that the stream still has, and job -> what was kept of it."""
        first_seq = int((await self._bus.ask(f"STREAM.INFO.{w.STREAM}"))["state"]["first_seq"])
        stored = await read(self._bus, STATE, [f"{KEPT}*"], deliver_policy="last_per_subject")
        return first_seq, {entry.subject.removeprefix(KEPT): entry.data for entry in stored if entry.data}

    async def keep(self, job: str, entry: bytes) -> None:
        """Keep it until another is said. Raises BusFault when it is not stored in time."""
        await (await self._bus.post(f"{KEPT}{job}", entry, {}, PUBLISH_S))

    async def fold(
        self,
        apply: Callable[[Message, int, float, str], None],
        caught_up: Callable[[], None],
        advanced: Callable[[], Awaitable[None]],
    ) -> None:
        """Everything stored, from the first message on, for ever."""
        tail = await self._open(["*.evt.>", "*.tel.>"], 1)
        left = tail.backlog
        behind = True
        try:
            while True:
                if behind and (left <= 0 or (tail.pending == 0 and not tail.ready())):
                    behind = False
                    caught_up()
                for stored in await tail.batch():
                    left -= 1
                    self._apply(stored, apply)
                await advanced()
        finally:
            await tail.close()

    def _apply(self, stored: Stored, apply: Callable[[Message, int, float, str], None]) -> None:
        try:
            message = w.parse(stored.subject, stored.data)
        except w.WireError as error:
            log.warning("passed over", seq=stored.seq, subject=stored.subject, error=str(error))
            return
        try:
            apply(message, stored.seq, stored.time_s, stored.headers.get("traceparent", ""))
        except Exception as error:  # a defect in one view must not blind all of them
            log.error("not folded in", seq=stored.seq, subject=stored.subject, exc_info=error)

    async def follow(self, start_seq: int, job: str | None, live: bool) -> AsyncIterator[StoredEvent]:
        """Events from ``start_seq`` on, in stored order; ends with the last one stored unless ``live``."""
        tail = await self._open([f"*.evt.v1.*.*.{job or '*'}"], start_seq)
        left = tail.backlog
        try:
            while live or left > 0:
                for stored in await tail.batch():
                    left -= 1
                    if (event := to_event(stored)) is not None:
                        yield event
                if not live and tail.pending == 0 and not tail.ready():
                    return
        finally:
            await tail.close()

    async def _open(self, filters: list[str], start_seq: int) -> OrderedConsumer:
        try:
            return await OrderedConsumer.open(self._bus, w.STREAM, filters, start_seq)
        except BusFault as fault:
            log.warning("the stream cannot be read yet", fault=str(fault))
            raise


def to_event(stored: Stored) -> StoredEvent | None:
    """An event as it is shown; None for what is not of the registry."""
    try:
        channel = w.channel_at(stored.subject)
    except w.WireError:
        return None
    return StoredEvent(
        seq=stored.seq,
        time_s=stored.time_s,
        type=channel.type_name,
        service=channel.service,
        name=channel.name,
        job=stored.subject.rpartition(".")[2],
        trace_id=trace_id_of(stored.headers.get("traceparent", "")),
        data=stored.data.decode(errors="replace"),
    )
