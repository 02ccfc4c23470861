"""The face of the bus for everybody who is no service: command, gateway, tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Any, NamedTuple, Protocol

from stretto_messages.base import Message
from stretto_wire.codec import encode
from stretto_wire.contract.cloudevents import headers_of
from stretto_wire.contract.registry import DEAD_LETTERS, STREAM, TELEMETRY, channel_of, parse, partition_of, subject_of
from stretto_wire.errors import WireError
from stretto_wire.surroundings import new_id, wall_s

from stretto_bus.bus import Bus
from stretto_bus.caller import Caller
from stretto_bus.faults import Fenced
from stretto_bus.login import Login
from stretto_bus.reading.ordered_consumer import Stored, read, scan
from stretto_bus.reading.ordered_consumer import follow as follow_from
from stretto_bus.writer import Fence


class Event(NamedTuple):
    """A stored message. ``message`` is None if it does not parse; then it is among the dead letters."""

    seq: int
    subject: str
    headers: Mapping[str, str]
    message: Message | None
    time_s: float
    data: bytes


class Tracing(Protocol):
    """Spans of one process, as far as a client needs them."""

    def sending(
        self, name: str, parent: str = "", attributes: Mapping[str, Any] | None = None
    ) -> AbstractContextManager[str]:
        """Run a span around a sending; yields the ``traceparent`` of its headers."""
        ...

    def close(self) -> None:
        """Write the last spans."""
        ...


class Client:
    """Publishes, asks and follows under one user."""

    def __init__(self, bus: Bus, name: str, tracing: Tracing | None = None) -> None:
        self.bus = bus
        self._name = name
        self._tracing = tracing
        self._caller = Caller(bus)

    @classmethod
    async def connect(
        cls, url: str, login: Login | None = None, name: str = "", tracing: Tracing | None = None
    ) -> Client:
        """Connect as the user of ``login``. With ``tracing``, each published message and request becomes a span.

        Raises:
            BusFault: server and client do not believe each other.
            IdentityFault: a file of ``login`` cannot be used.
        """
        name = name or (login and login.name()) or "operator"
        return cls(await Bus.connect(url, login, name), name, tracing)

    async def close(self) -> None:
        await self.bus.close()
        if self._tracing is not None:
            self._tracing.close()

    async def publish(
        self, message: Message, message_id: str | None = None, trace: str = "", tries_s: float = 30.0
    ) -> int:
        """Store an event or telemetry; returns its sequence. Repeating an event with the same id is harmless for 2
        minutes.

        Raises:
            BusFault: not stored; tried again for ``tries_s`` seconds.
        """
        message_id = message_id or f"{self._name}:{new_id()}"
        subject = subject_of(message)
        with self._sending(message, subject, trace) as sent:
            headers = headers_of(message, message_id, wall_s(), self._name, sent)
            return await self.bus.store_surely(subject, encode(message), headers, tries_s)

    async def publish_after(self, last: int, message: Message, message_id: str, trace: str = "") -> int | None:
        """Store an event if sequence ``last`` is still the last one of its subject (0: it has none).

        Returns its sequence; None: another one is the last. The server decides, so two writers cannot both be next.

        Raises:
            BusFault: not stored in time.
        """
        subject = subject_of(message)
        fence = Fence(f"{partition_of(message.job)}.{subject}", last)
        with self._sending(message, subject, trace) as sent:
            headers = headers_of(message, message_id, wall_s(), self._name, sent) | fence.headers()
            try:
                answer = await (await self.bus.post(subject, encode(message), headers))
            except Fenced:
                return None
        return None if answer.get("duplicate") else int(answer["seq"])

    def _sending(self, message: Message, subject: str, trace: str) -> AbstractContextManager[str]:
        if self._tracing is None or channel_of(message).kind == "tel":
            return nullcontext(trace)
        attributes = {"stretto.job": message.job, "messaging.destination.name": subject}
        return self._tracing.sending(f"publish {channel_of(message).name}", trace, attributes)

    async def call(self, request: Message, timeout_s: float = 15.0, trace: str = "") -> Any:
        """Ask the owner of the request's job. Raises CallRefused, CallTimeout."""
        return await self._caller.call(request, timeout_s, trace)

    async def call_pod(self, pod: str, request: Message, timeout_s: float = 5.0, trace: str = "") -> Any:
        """Ask one pod, once. Raises CallRefused, CallTimeout."""
        return await self._caller.call_pod(pod, request, timeout_s, trace)

    async def events(
        self, from_seq: int = 1, patterns: Sequence[str] = ("evt.v1.*.*.*",), follow: bool = True
    ) -> AsyncIterator[Event]:
        """Yield stored events from ``from_seq`` on, in order, none missing.

        ``patterns`` are subjects with wildcards, such as ``evt.v1.*.*.<job>``; they may not overlap. Without ``follow``
        it ends with the last event that is stored now.
        """
        async with aclosing(self._stored(STREAM, patterns, from_seq, follow)) as source:
            async for stored in source:
                yield _event(stored)

    async def reports(
        self, from_seq: int = 1, patterns: Sequence[str] = ("tel.v1.*.*.*",), follow: bool = True
    ) -> AsyncIterator[Event]:
        """Yield what pods have reported, as far as it is kept; see ``events``. It has sequences of its own."""
        async with aclosing(self._stored(TELEMETRY, patterns, from_seq, follow)) as source:
            async for stored in source:
                yield _event(stored)

    def _stored(self, stream: str, patterns: Sequence[str], from_seq: int, follow: bool) -> AsyncGenerator[Stored]:
        filters = [f"*.{pattern}" for pattern in patterns]
        return follow_from(self.bus, stream, filters, from_seq) if follow else scan(self.bus, stream, filters, from_seq)

    async def dead_letters(self, from_seq: int = 1) -> list[Event]:
        """Messages that could not be handled; the headers ``reason``, ``error``, ``service`` say why."""
        return [
            Event(stored.seq, stored.subject, stored.headers, None, stored.time_s, stored.data)
            for stored in await read(self.bus, DEAD_LETTERS, ["dlq.>"], from_seq)
        ]

    async def last_seq(self) -> int:
        """Sequence of the newest stored message."""
        return int((await self.bus.ask(f"STREAM.INFO.{STREAM}"))["state"]["last_seq"])


def _event(stored: Stored) -> Event:
    subject = stored.subject.partition(".")[2]
    try:
        message = parse(subject, stored.data)
    except WireError:
        message = None
    return Event(stored.seq, subject, stored.headers, message, stored.time_s, stored.data)
