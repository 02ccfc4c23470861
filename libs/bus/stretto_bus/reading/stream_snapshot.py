"""A stream as the bytes of the server's own snapshot, and back: sequences, times, headers and lifetimes are kept.

The server sends chunks under flow control: it waits for the acknowledgement of each, at most ``WINDOW_BYTES`` ahead.
Since 2.15 a snapshot is that of the moment of its request; what is replaced or removed while it is sent is missing. So
it is exact for a stream that only loses its oldest messages, and not for a bucket. An older server copies its files,
and may add what was stored meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import Any

from stretto_wire.surroundings import new_id

from stretto_bus.bus import Bus, Msg
from stretto_bus.faults import BusFault

CHUNK_BYTES = 512 << 10
WINDOW_BYTES = 8 << 20
SILENCE_S = 30.0
"""Time without a chunk or an answer after which the server counts as stopped."""
WELL = ("", "204")


@dataclass(frozen=True, slots=True)
class StreamState:
    """Extent of a stream at the moment of its snapshot."""

    messages: int
    size_bytes: int
    first_seq: int
    last_seq: int

    @classmethod
    def of(cls, answer: dict[str, Any]) -> StreamState:
        """Parse the server's ``state``."""
        numbers = (int(answer[name]) for name in ("messages", "bytes", "first_seq", "last_seq"))
        return cls(*numbers)


class StreamSnapshot:
    """One snapshot on its way: ``state`` is known at once, ``chunks`` yields its bytes."""

    def __init__(self, bus: Bus, stream: str) -> None:
        self.state = StreamState(0, 0, 0, 0)
        self._bus = bus
        self._stream = stream
        self._arrived: asyncio.Queue[Msg] = asyncio.Queue()

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Request the snapshot, then yield its bytes in order. ``state`` holds before the first of them.

        Raises:
            BusFault: the server refused, stopped in the middle, or could not read what it has stored.
        """
        inbox = f"{self._bus.inbox}.snapshot.{new_id(12)}"
        subscription = await self._bus.subscribe(inbox, self._arrived.put_nowait)
        try:
            body = {
                "deliver_subject": inbox,
                "no_consumers": True,
                "chunk_size": CHUNK_BYTES,
                "window_size": WINDOW_BYTES,
            }
            answer = await self._bus.ask(f"STREAM.SNAPSHOT.{self._stream}", body, timeout_s=SILENCE_S)
            self.state = StreamState.of(answer["state"])
            while (msg := await self._next()).data:
                yield msg.data
                if msg.reply:
                    await self._bus.send(msg.reply, b"")
            status = (msg.headers or {}).get("Status", "")
            if status not in WELL:
                why = (msg.headers or {}).get("Description", "")
                raise BusFault(f"the server gave up the snapshot of {self._stream}: {status} {why}")
        finally:
            await subscription.unsubscribe()

    async def _next(self) -> Msg:
        try:
            async with asyncio.timeout(SILENCE_S):
                return await self._arrived.get()
        except TimeoutError:
            raise BusFault(f"the server stopped in the middle of the snapshot of {self._stream}") from None


async def restore_stream(bus: Bus, config: dict[str, Any], chunks: Iterable[bytes]) -> StreamState:
    """Make the stream of ``config``, which must not exist, with the content of a snapshot; returns its extent.

    Raises:
        BusFault: the server refused it; there is no stream then, or one that lacks its end.
    """
    name = config["name"]
    body = {"config": config, "state": {}}
    answer = await bus.ask(f"STREAM.RESTORE.{name}", body, timeout_s=SILENCE_S)
    subject = answer["deliver_subject"]
    for chunk in chunks:
        reply = await bus.request(subject, chunk, timeout_s=SILENCE_S)
        if reply.data:  # an acknowledgement is empty
            raise BusFault(f"the server refused the snapshot of {name}: {reply.data.decode(errors='replace')[:300]}")
    done = await (await bus.post(subject, b"", timeout_s=10 * SILENCE_S))
    return StreamState.of(done["state"])
