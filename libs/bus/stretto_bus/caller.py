"""Requests to services and pods: one id per request, repeated under it until answered.

Header ``request-id``, unless the body has a ``request_id`` (``<lane>.<n>``: a lane has one request in flight, and the
owner remembers the last reply of each lane), and optionally ``traceparent``. An error reply has the header ``error``
with its code, and the body ``{"error": {"code", "message", "field", "value", "remedy"}}``.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from stretto_messages.base import Message
from stretto_messages.refusals import ERROR_HEADER
from stretto_wire.codec import decode, encode
from stretto_wire.contract.registry import channel_of, subject_of
from stretto_wire.errors import WireError
from stretto_wire.surroundings import new_id

from stretto_bus.bus import Bus
from stretto_bus.faults import BusFault, CallRefused, CallTimeout, NobodyListens
from stretto_bus.refusals import refusal_in

ATTEMPT_S = 1.0
NO_OWNER_DELAY_S = 0.05


class Caller:
    """Calls with one id per call, repeated until answered."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._base = new_id(12)
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
        """Ask one pod directly, once: a pod journals nothing, so repeating is the caller's decision.

        Raises:
            CallRefused: the pod refused, or its answer cannot be read.
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
            raise CallRefused(**asdict(refusal_in(data)))
        reply = channel_of(request).reply
        if reply is None:
            raise WireError("reply", type(request).__name__, "a channel of the registry that has a reply")
        try:
            return decode(reply, data)
        except WireError as error:  # a hostile pod may answer anything: that is a refusal, too
            text = f"{type(request).__name__}: the answer cannot be read: {error}"
            raise CallRefused("malformed", text) from None

    def _new_lane(self) -> int:
        self._lanes += 1
        return self._lanes
