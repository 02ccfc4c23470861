"""Requests: at the owner journalled in frames before they are handled, at the caller repeated under one id.

Owner: one frame is in flight on ``journal.<service>.<partition>``; what arrives meanwhile shares the next one (group
commit). Only when a frame comes back by the owner's own tail are its requests handled, because replay will see them in
just that order.

Caller: header ``request-id``, unless the body has a ``request_id`` (``<lane>.<n>``; a lane has one request in flight;
the owner remembers the last reply of each lane), and optionally ``traceparent``. An error reply has the header
``error`` with its code, and the body ``{"error": {"code", "message", "field", "value", "remedy"}}``.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from dataclasses import asdict
from typing import Any

from pydantic_core import to_json
from stretto_messages.base import Message
from stretto_messages.refusals import ERROR_HEADER, Refusal, Refused
from stretto_wire.codec import decode, encode
from stretto_wire.errors import WireError
from stretto_wire.registry import channel_of, subject_of

from stretto_runtime.bus import Bus
from stretto_runtime.connection import lines_of
from stretto_runtime.faults import BusFault, CallRefused, CallTimeout, NobodyListens, PartitionLost
from stretto_runtime.writer import Writer

FRAME_ENTRIES = 256
FRAME_BYTES = 512 * 1024
QUEUE_ENTRIES = 8192
GATHERING_TURNS = 4
"""Turns of the loop between two frames: requests that have arrived meanwhile share the next. A turn with nothing to do
takes microseconds; ``tests.bench.dispatcher`` tells the CPU time of a pair, which is what this saves."""

ATTEMPT_S = 1.0
NO_OWNER_DELAY_S = 0.05


class Frame:
    """One that was sent; hears whether it is stored, and tells who waits for that."""

    def __init__(self, journal: Journal, waiting: list[asyncio.Future[None]]) -> None:
        self._journal = journal
        self._waiting = waiting
        self._fault: BaseException | None = None

    def done(self) -> bool:
        return False

    def set_result(self, result: dict[str, Any]) -> None:
        for each in self._waiting:
            if not each.done():
                each.set_result(None)
        self._journal.stored(self, int(result["seq"]))

    def set_exception(self, exception: BaseException) -> None:
        self._fault = exception
        self._journal.failed(exception)

    def exception(self) -> BaseException | None:
        return self._fault

    def give_up(self, fault: BaseException) -> None:
        for each in self._waiting:
            if not each.done():
                each.set_exception(fault)
                each.exception()  # whoever waited may be gone


class Journal:
    """The frames of one owner. ``fault`` is set, and ``wake`` with it, when a frame could not be stored.

    A frame leaves when the last one has come back: what was asked meanwhile shares it, and it shares a write with the
    replies to the last one.
    """

    def __init__(self, writer: Writer, subject: str, ttl_s: int, wake: asyncio.Event) -> None:
        self.subject = subject
        self.fault: BaseException | None = None
        self.stored_seq = 0
        """highest sequence of a stored frame"""
        self._writer = writer
        self._headers = lines_of({"Nats-TTL": f"{ttl_s}s"})
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[dict[str, Any], asyncio.Future[None] | None]] = deque()
        self._away = False
        """a frame is about to leave, or has left and is not back"""
        self._unsure: set[Frame] = set()
        """sent and not acknowledged"""

    def add(self, entry: dict[str, Any], stored: asyncio.Future[None] | None = None) -> bool:
        """Queue an entry for the next frame; False when too many wait already."""
        if self.fault is not None or len(self._queue) >= QUEUE_ENTRIES:
            return False
        self._queue.append((entry, stored))
        if not self._away:
            self._gather()
        return True

    async def add_surely(self, entry: dict[str, Any]) -> None:
        """Queue an entry and wait until its frame is stored.

        Raises:
            PartitionLost: it was not stored; the new owner decides what to do.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        if not self.add(entry, future):
            raise PartitionLost(f"{self.subject}: not the owner any more, or overloaded; observe again later")
        await future

    def came_back(self) -> None:
        """The last frame is about to be handled."""
        self._away = False
        if self._queue and self.fault is None:
            self._gather()

    @property
    def idle(self) -> bool:
        """Whether all that was asked is stored."""
        return not self._queue and not self._unsure

    def close(self) -> None:
        """Send nothing more. Who waits hears that it was not stored, though it may have been."""
        self._end(PartitionLost("ownership ended"))

    def stored(self, frame: Frame, seq: int) -> None:
        self._unsure.discard(frame)
        self.stored_seq = max(self.stored_seq, seq)
        if self.idle:
            self._wake.set()

    def failed(self, fault: BaseException) -> None:
        self._end(fault)
        self._wake.set()

    def _end(self, fault: BaseException) -> None:
        self.fault = self.fault or fault
        queued = Frame(self, [future for _, future in self._queue if future is not None])
        lost = PartitionLost(f"{self.subject}: {fault}")
        for frame in (queued, *self._unsure):
            frame.give_up(lost)
        self._queue.clear()
        self._unsure.clear()

    def _gather(self, turns: int = GATHERING_TURNS) -> None:
        self._away = True
        if turns:
            self._loop.call_soon(self._gather, turns - 1)
        elif self.fault is None:
            self._send()

    def _send(self) -> None:
        entries: list[dict[str, Any]] = []
        waiting: list[asyncio.Future[None]] = []
        size = 0
        while self._queue and len(entries) < FRAME_ENTRIES and size < FRAME_BYTES:
            entry, future = self._queue.popleft()
            size += len(entry.get("d", "")) + 200
            entries.append(entry)
            if future is not None:
                waiting.append(future)
        frame = Frame(self, waiting)
        self._unsure.add(frame)
        try:
            self._writer.store(self.subject, to_json(entries), self._headers, frame)
        except BusFault as fault:
            self.failed(fault)


def refusal(code: str, message: str, field: str = "", value: object = "", remedy: str = "") -> bytes:
    """The body of an error reply."""
    parts = {"message": message[:2000], "field": field[:500], "value": str(value)[:500], "remedy": remedy[:2000]}
    return encode(Refused(error=Refusal(code=code, **parts)))


def _refusal_in(data: bytes) -> Refusal:
    try:
        return decode(Refused, data).error
    except WireError:
        return Refusal(code="malformed", message=f"an error reply that does not say what: {data[:200]!r}")


class Caller:
    """Calls with one id per call, repeated until answered."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._base = uuid.uuid4().hex[:12]
        self._free: list[int] = []
        self._lanes = 0
        self._serial = 0

    async def call(self, request: Message, timeout_s: float = 15.0, trace: str = "") -> Any:
        """Ask the owner of the request's job; repeats under the same id until ``timeout_s`` is over.

        Raises:
            CallRefused: the owner refused, with code, field, value and remedy.
            CallTimeout: no answer; unknown whether it was handled.
        """
        headers = {"traceparent": trace} if trace else {}
        if getattr(request, "request_id", None):
            return await self._ask(request, timeout_s, headers)
        lane = self._free.pop() if self._free else self._new_lane()
        self._serial += 1
        headers["request-id"] = f"{self._base}-{lane}.{self._serial}"
        try:
            return await self._ask(request, timeout_s, headers)
        finally:
            self._free.append(lane)

    async def call_pod(self, pod: str, request: Message, timeout_s: float = 5.0, trace: str = "") -> Any:
        """Ask one pod directly, once: what a pod does is not journalled, so repeating is the caller's decision.

        Raises:
            CallRefused: the pod refused.
            CallTimeout: the pod is not there, or did not answer in time.
        """
        subject = subject_of(request, pod=pod)
        headers = {"traceparent": trace} if trace else None
        try:
            msg = await self._bus.request(subject, encode(request), headers, timeout_s)
        except NobodyListens:
            raise CallTimeout(f"{subject}: the pod is not connected; it starts, has exited, or never was") from None
        except BusFault as fault:
            raise CallTimeout(f"{subject}: no answer within {timeout_s} s ({fault})") from None
        return self._answer(request, msg.headers, msg.data)

    async def _ask(self, request: Message, timeout_s: float, headers: dict[str, str]) -> Any:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        subject, data = subject_of(request), encode(request)
        reason = "no owner"
        while (left := deadline - loop.time()) > 0:
            try:
                msg = await self._bus.request(subject, data, headers, min(ATTEMPT_S, left))
                if (msg.headers or {}).get(ERROR_HEADER) != "busy":
                    return self._answer(request, msg.headers, msg.data)
                reason = "the owner has too many requests waiting"
            except NobodyListens:
                reason = "nobody owns this job at the moment"
            except BusFault as fault:
                reason = f"no answer ({fault})"
            await asyncio.sleep(NO_OWNER_DELAY_S)
        raise CallTimeout(f"{subject}: {reason} for {timeout_s} s; is the service running? see its /readyz")

    def _answer(self, request: Message, headers: dict[str, str] | None, data: bytes) -> Any:
        if headers and ERROR_HEADER in headers:
            raise CallRefused(**asdict(_refusal_in(data)))
        reply = channel_of(request).reply
        if reply is None:
            raise WireError("reply", type(request).__name__, "a channel of the registry that has a reply")
        return decode(reply, data)

    def _new_lane(self) -> int:
        self._lanes += 1
        return self._lanes
