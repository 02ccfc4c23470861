"""The bus for everybody who is no service: the command, the gateway, tests."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from stretto_messages.base import Message
from stretto_wire.cloudevents import headers_of
from stretto_wire.codec import encode
from stretto_wire.errors import WireError
from stretto_wire.registry import DEAD_LETTERS, STREAM, channel_of, parse, subject_of

from stretto_bus.bus import Bus
from stretto_bus.caller import Caller
from stretto_bus.login import Login
from stretto_bus.ordered_consumer import OrderedConsumer, read


class Event(NamedTuple):
    """A stored message. ``message`` is None if it does not parse (it is in the dead letters then)."""

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
        """Run a span around what is sent; yields the ``traceparent`` of its headers."""
        ...

    def close(self) -> None:
        """Write what is left."""
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

    async def publish(self, message: Message, message_id: str | None = None, trace: str = "") -> int:
        """Store a fact or telemetry surely; returns its sequence. Repeating with the same id is harmless (2 minutes).

        Raises:
            BusFault: not stored within 30 s.
        """
        channel = channel_of(message)
        message_id = message_id or f"{self._name}:{uuid.uuid4().hex}"
        subject = subject_of(message)
        if channel.kind == "tel":
            headers = {"Nats-Msg-Id": message_id, "Nats-TTL": f"{channel.kept_s}s"}
            return await self.bus.store_surely(subject, encode(message), headers, 30)
        if self._tracing is None:
            headers = headers_of(message, message_id, time.time(), self._name, trace)
            return await self.bus.store_surely(subject, encode(message), headers, 30)
        attributes = {"stretto.job": message.job, "messaging.destination.name": subject}
        with self._tracing.sending(f"{self._name} {channel.name}", trace, attributes) as sent:
            headers = headers_of(message, message_id, time.time(), self._name, sent)
            return await self.bus.store_surely(subject, encode(message), headers, 30)

    async def call(self, request: Message, timeout_s: float = 15.0, trace: str = "") -> Any:
        """Ask the owner of the request's job. Raises CallRefused, CallTimeout."""
        return await self._caller.call(request, timeout_s, trace)

    async def call_pod(self, pod: str, request: Message, timeout_s: float = 5.0, trace: str = "") -> Any:
        """Ask one pod, once. Raises CallRefused, CallTimeout."""
        return await self._caller.call_pod(pod, request, timeout_s, trace)

    async def events(
        self, from_seq: int = 1, patterns: Sequence[str] = ("evt.v1.*.*.*",), follow: bool = True
    ) -> AsyncIterator[Event]:
        """Stored events from ``from_seq`` on, in order, none missing. ``patterns`` are subjects with wildcards, such
        as ``evt.v1.*.*.<job>``; they may not overlap. Without ``follow`` it ends at what is stored now.
        """
        tail = await OrderedConsumer.open(self.bus, STREAM, [f"*.{pattern}" for pattern in patterns], from_seq)
        left = tail.backlog
        try:
            while follow or left > 0:
                for stored in await tail.batch():
                    left -= 1
                    yield _event(
                        stored.seq, stored.subject.partition(".")[2], stored.headers, stored.data, stored.time_s
                    )
                if not follow and tail.pending == 0 and not tail.ready():
                    return
        finally:
            await tail.close()

    async def dead_letters(self, from_seq: int = 1) -> list[Event]:
        """What could not be handled; the headers ``reason``, ``error``, ``service`` say why."""
        return [
            Event(stored.seq, stored.subject, stored.headers, None, stored.time_s, stored.data)
            for stored in await read(self.bus, DEAD_LETTERS, ["dlq.>"], from_seq)
        ]

    async def last_seq(self) -> int:
        """Sequence of the newest stored message."""
        return int((await self.bus.ask(f"STREAM.INFO.{STREAM}"))["state"]["last_seq"])


def _event(seq: int, subject: str, headers: Mapping[str, str], data: bytes, time_s: float) -> Event:
    try:
        message = parse(subject, data)
    except WireError:
        message = None
    return Event(seq, subject, headers, message, time_s, data)
