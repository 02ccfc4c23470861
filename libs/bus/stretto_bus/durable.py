"""A cursor that the server keeps: it hands out one message at a time, and the next one once that is settled.

Any number of processes may share a cursor. Whoever asks first is handed the next message, in stored order; when its
holder is silent for ``SILENT_S``, for whatever reason, it is handed out again.
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

from stretto_bus.bus import Bus
from stretto_bus.faults import BusFault
from stretto_bus.ordered_consumer import EXPIRED, NO_HEADERS, Stored

SILENT_S = 15.0
ASKED_S = 30.0
FORGOTTEN_S = 30 * 24 * 3600
"""a cursor that nobody asked for so long is removed: by then the stream keeps nothing of what it stood at"""
NOT_FOUND = 10014
UNCHANGEABLE = ("deliver_policy", "opt_start_seq", "opt_start_time")


class Held:
    """A message that is ours until it is settled, or until we are silent."""

    def __init__(self, bus: Bus, stored: Stored, reply: str, pending: int) -> None:
        self.stored = stored
        self.pending = pending
        """how many of the cursor's messages come after this one"""
        self._bus = bus
        self._reply = reply

    async def done(self) -> None:
        """It is never handed out again. Raises BusFault: nobody knows, and it may be."""
        await self._bus.request(self._reply, b"+ACK")

    async def release(self) -> None:
        """Whoever asks may have it at once."""
        with contextlib.suppress(BusFault):  # else when we have been silent
            await self._bus.send(self._reply, b"-NAK")

    @asynccontextmanager
    async def kept(self) -> AsyncGenerator[None]:
        """Not silent meanwhile."""

        async def tell() -> None:
            while True:
                await asyncio.sleep(SILENT_S / 3)
                with contextlib.suppress(BusFault):
                    await self._bus.send(self._reply, b"+WPI")

        telling = asyncio.create_task(tell())
        try:
            yield
        finally:
            telling.cancel()


class Durable:
    """A cursor by its name; ``metadata`` are texts that the server keeps with it."""

    def __init__(self, bus: Bus, stream: str, name: str, config: dict[str, Any]) -> None:
        self.name = name
        self._bus = bus
        self._stream = stream
        self._config = config
        self._inbox = f"{bus.inbox}.durable.{name}"
        self._arrived: deque[Msg] = deque()
        self._wake = asyncio.Event()
        self._asked = False
        self._subscription: Any = None

    @classmethod
    async def open(
        cls, bus: Bus, stream: str, name: str, pattern: str, start: Mapping[str, Any], metadata: Mapping[str, str]
    ) -> Durable:
        """Create it, or go on where it stands. ``start`` (``deliver_policy`` …) holds for a new one only; ``pattern``,
        one subject with wildcards, and ``metadata`` replace what it had.

        Raises:
            BusFault: the server refused, or there is no such stream yet.
        """
        config = {
            "durable_name": name,
            "name": name,
            "ack_policy": "explicit",
            "ack_wait": int(SILENT_S * 1e9),
            "max_ack_pending": 1,
            "max_deliver": -1,
            "inactive_threshold": int(FORGOTTEN_S * 1e9),
            "filter_subject": pattern,
            "metadata": dict(metadata),
        }
        known = await cls.known(bus, stream, name)
        begun = start if known is None else known["config"]
        cursor = cls(bus, stream, name, config | {key: begun[key] for key in UNCHANGEABLE if key in begun})
        await cursor._create()
        cursor._subscription = await bus.subscribe(cursor._inbox, cursor._take)
        bus.on_reconnect.append(cursor._ask_again)
        return cursor

    @staticmethod
    async def known(bus: Bus, stream: str, name: str) -> dict[str, Any] | None:
        """What the server tells of a cursor; None: there is none. Raises BusFault."""
        try:
            return await bus.ask(f"CONSUMER.INFO.{stream}.{name}")
        except BusFault as fault:
            if fault.code != NOT_FOUND:
                raise
            return None

    async def note(self, metadata: Mapping[str, str]) -> None:
        """Keep these texts with it instead of those before. Raises BusFault."""
        self._config["metadata"] = dict(metadata)
        await self._create()

    async def next(self) -> Held:
        """The next message, as soon as there is one and nobody holds the one before.

        Raises:
            BusFault: the server does not answer, or the cursor is gone.
        """
        while True:
            while not self._arrived:
                await self._ask()
                try:
                    async with asyncio.timeout(ASKED_S + SILENT_S):
                        await self._wake.wait()
                except TimeoutError:
                    self._asked = False
            msg = self._arrived.popleft()
            self._asked = False
            headers = msg.headers or NO_HEADERS
            tokens = msg.reply.split(".")
            if tokens[:2] != ["$JS", "ACK"]:
                status = headers.get("Status", "")
                if status != EXPIRED:
                    raise BusFault(f"the cursor {self.name}: {headers.get('Description', '')} ({status})")
                continue
            if len(tokens) > 9:  # with domain and account
                tokens = tokens[2:]
            stored = Stored(int(tokens[5]), int(tokens[7]) / 1e9, msg.subject, headers, msg.data)
            return Held(self._bus, stored, msg.reply, int(tokens[8]))

    async def close(self) -> None:
        """It stays where it stands."""
        self._bus.on_reconnect.remove(self._ask_again)
        with contextlib.suppress(Exception):  # the connection may be gone
            await self._subscription.unsubscribe()

    async def _create(self) -> None:
        # the pattern in the subject is what the server compares with our permissions
        subject = f"CONSUMER.CREATE.{self._stream}.{self.name}.{self._config['filter_subject']}"
        await self._bus.ask(subject, {"stream_name": self._stream, "config": self._config})

    async def _ask(self) -> None:
        self._wake.clear()
        if not self._asked:
            self._asked = True
            body = json.dumps({"batch": 1, "expires": int(ASKED_S * 1e9)}).encode()
            await self._bus.send(f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self.name}", body, reply=self._inbox)

    def _take(self, msg: Msg) -> None:
        self._arrived.append(msg)
        self._wake.set()

    def _ask_again(self) -> None:
        """What was asked of the server before the connection broke is forgotten."""
        self._asked = False
        self._wake.set()
