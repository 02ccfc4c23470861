"""A durable consumer: the server keeps its cursor and delivers one message at a time.

Any number of processes may share it. Whoever pulls first gets the next message, in stored order. A message that is
neither acknowledged nor reported as in progress for ``ack_wait_s`` is delivered again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from nats.aio.msg import Msg

from stretto_bus.bus import Bus, Subscription
from stretto_bus.faults import BusFault
from stretto_bus.reading.ordered_consumer import EXPIRED, NO_HEADERS, Stored, delivered_as

PULL_EXPIRES_S = 30.0
INACTIVE_S = 30 * 24 * 3600
"""Time without a pull after which the server removes the consumer: by then its place in the stream has expired."""
NOT_FOUND = 10014
UNCHANGEABLE = ("deliver_policy", "opt_start_seq", "opt_start_time")


class Delivery:
    """A message that is ours until we acknowledge it, give it back, or are silent for ``ack_wait_s``."""

    def __init__(self, bus: Bus, stored: Stored, reply: str, pending: int, ack_wait_s: float) -> None:
        self.stored = stored
        self._ack_wait_s = ack_wait_s
        self.pending = pending
        """Number of the consumer's messages after this one."""
        self._bus = bus
        self._reply = reply

    async def ack(self) -> None:
        """Acknowledge it. Raises BusFault: unknown whether it will be delivered again."""
        await self._bus.request(self._reply, b"+ACK")

    async def nak(self) -> None:
        """Give it back at once."""
        with contextlib.suppress(BusFault):  # it is delivered again after ack_wait_s anyway
            await self._bus.send(self._reply, b"-NAK")

    @asynccontextmanager
    async def in_progress(self) -> AsyncGenerator[None]:
        """Report it as in progress for as long as the block runs."""

        async def report() -> None:
            while True:
                await asyncio.sleep(self._ack_wait_s / 3)
                with contextlib.suppress(BusFault):
                    await self._bus.send(self._reply, b"+WPI")

        reporting = asyncio.create_task(report())
        try:
            yield
        finally:
            reporting.cancel()


class Durable:
    """A durable consumer by its name; the server keeps the texts in ``metadata`` with it."""

    def __init__(self, bus: Bus, stream: str, name: str, config: dict[str, Any]) -> None:
        self.name = name
        self._bus = bus
        self._stream = stream
        self._config = config
        self._ack_wait_s = config["ack_wait"] / 1e9
        self._inbox = f"{bus.inbox}.durable.{name}"
        self._arrived: deque[Msg] = deque()
        self._wake = asyncio.Event()
        self._pulled = False
        self._subscription: Subscription | None = None

    @classmethod
    async def open(
        cls,
        bus: Bus,
        stream: str,
        name: str,
        pattern: str,
        start: Mapping[str, Any],
        metadata: Mapping[str, str],
        ack_wait_s: float,
    ) -> Durable:
        """Create it, or go on where it stands.

        ``start`` (``deliver_policy`` …) holds for a new one only. ``pattern``, one subject with wildcards,
        ``metadata`` and ``ack_wait_s`` replace the former ones.

        Raises:
            BusFault: the server refused, or there is no such stream yet.
        """
        config = {
            "durable_name": name,
            "name": name,
            "ack_policy": "explicit",
            "ack_wait": int(ack_wait_s * 1e9),
            "max_ack_pending": 1,
            "max_deliver": -1,
            "inactive_threshold": int(INACTIVE_S * 1e9),
            "filter_subject": pattern,
            "metadata": dict(metadata),
        }
        known = await cls.known(bus, stream, name)
        begun = start if known is None else known["config"]
        cursor = cls(bus, stream, name, config | {key: begun[key] for key in UNCHANGEABLE if key in begun})
        await cursor._create()
        cursor._subscription = await bus.subscribe(cursor._inbox, cursor._take)
        bus.on_reconnect.append(cursor._pull_again)
        return cursor

    @staticmethod
    async def known(bus: Bus, stream: str, name: str) -> dict[str, Any] | None:
        """The server's information about a consumer; None: there is none. Raises BusFault."""
        try:
            return await bus.ask(f"CONSUMER.INFO.{stream}.{name}")
        except BusFault as fault:
            if fault.code != NOT_FOUND:
                raise
            return None

    async def note(self, metadata: Mapping[str, str]) -> None:
        """Replace its metadata. Raises BusFault."""
        self._config["metadata"] = dict(metadata)
        await self._create()

    async def next(self) -> Delivery:
        """The next message, as soon as there is one and the one before is settled.

        Raises:
            BusFault: the server does not answer, or the consumer is gone.
        """
        while True:
            while not self._arrived:
                await self._pull()
                try:
                    async with asyncio.timeout(PULL_EXPIRES_S + self._ack_wait_s):
                        await self._wake.wait()
                except TimeoutError:
                    self._pulled = False
            msg = self._arrived.popleft()
            self._pulled = False
            headers = msg.headers or NO_HEADERS
            facts = delivered_as(msg.reply)
            if facts is None:
                status = headers.get("Status", "")
                if status != EXPIRED:
                    raise BusFault(f"the durable consumer {self.name}: {headers.get('Description', '')} ({status})")
                continue
            seq, _, time_s, pending = facts
            stored = Stored(seq, time_s, msg.subject, headers, msg.data)
            return Delivery(self._bus, stored, msg.reply, pending, self._ack_wait_s)

    async def close(self) -> None:
        """Stop reading; the cursor stays where it stands."""
        self._bus.on_reconnect.remove(self._pull_again)
        if self._subscription is not None:
            with contextlib.suppress(Exception):  # the connection may be gone
                await self._subscription.unsubscribe()

    async def _create(self) -> None:
        # the pattern in the subject is what the server compares with our permissions
        subject = f"CONSUMER.CREATE.{self._stream}.{self.name}.{self._config['filter_subject']}"
        await self._bus.ask(subject, {"stream_name": self._stream, "config": self._config})

    async def _pull(self) -> None:
        self._wake.clear()
        if not self._pulled:
            self._pulled = True
            body = json.dumps({"batch": 1, "expires": int(PULL_EXPIRES_S * 1e9)}).encode()
            await self._bus.send(f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self.name}", body, reply=self._inbox)

    def _take(self, msg: Msg) -> None:
        self._arrived.append(msg)
        self._wake.set()

    def _pull_again(self) -> None:
        """Pull again: the server forgets a request with the connection that brought it."""
        self._pulled = False
        self._wake.set()
