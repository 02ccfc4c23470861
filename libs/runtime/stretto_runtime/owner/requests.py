"""Requests at the owner of a partition: journal them, or answer at once where nothing has to be decided."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import structlog
from stretto_bus.bus import Msg, Subscription
from stretto_bus.faults import BusFault
from stretto_bus.refusals import refusal
from stretto_messages.base import Message
from stretto_messages.refusals import ERROR_HEADER
from stretto_wire.codec import encode
from stretto_wire.contract.inboxes import is_inbox_of_caller
from stretto_wire.contract.registry import parse
from stretto_wire.errors import WireError
from stretto_wire.surroundings import monotonic_s

from stretto_runtime.inputs import ENTRY_BYTES, HEADER_CHARACTERS_MAX, request_entry
from stretto_runtime.owner.budget import BROKEN_BYTES, Budget, journalled_bytes, share_at
from stretto_runtime.owner.context import Context
from stretto_runtime.owner.dead_letters import DAMAGED, TOLD_EVERY_S
from stretto_runtime.owner.handling import Handling, Request, damaged_reply
from stretto_runtime.owner.journal import Journal

LOGGED = 100
"""Characters of a refused reply subject that the log shows"""
SLOW_MAX = 32
"""Queries of one partition that wait for I/O together."""

log = structlog.get_logger("stretto.requests")


class Requests:
    """The requests to one live partition."""

    def __init__(self, context: Context, number: int, handling: Handling, journal: Journal) -> None:
        self._bus = context.bus
        self._metrics = context.metrics
        self._fullness = context.fullness
        self._service = context.service
        self._number = number
        self._handling = handling
        self._journal = journal
        self._subscription: Subscription | None = None
        self._told_s = 0.0
        self._slow: set[asyncio.Task[Message]] = set()
        settings = context.service.settings
        self._budget = Budget(settings.requests_burst_bytes, settings.requests_bytes_per_s)
        handling.on_broken = self._broken

    async def open(self) -> None:
        """Take requests; returns once the server knows it. Raises BusFault."""
        if self._service.rpcs or self._service.queries:
            subject = f"rpc.v1.{self._service.name}.*.{self._number}.*"
            self._subscription = await self._bus.subscribe(subject, self._arrived)
            await self._bus.flush()  # callers that see us ready must find us

    async def drain(self) -> None:
        """Take no more requests, after those that the server has sent already."""
        if self._subscription is not None:
            subscription, self._subscription = self._subscription, None
            await self._bus.connection.leave(subscription)

    async def close(self) -> None:
        """Take no more requests; never raises."""
        for task in self._slow:
            task.cancel()
        if self._subscription is not None:
            with contextlib.suppress(Exception):
                await self._subscription.unsubscribe()

    def _arrived(self, msg: Msg) -> None:
        tokens = msg.subject.split(".")  # rpc.v1.<service>.<verb>.<partition>.<job>
        if not is_inbox_of_caller(msg.reply):
            self._metrics.unanswerable.inc()
            self._tell_dropped(msg)
            return
        subject = ".".join((*tokens[:4], tokens[5]))
        try:
            message = parse(subject, msg.data)
        except WireError as error:
            self._answer(msg.reply, "invalid", refusal("invalid", str(error), error.field, error.value, error.remedy))
            return
        if message.job in self._handling.machines.lost:
            self._answer(msg.reply, DAMAGED, damaged_reply(self._service.name, message.job))
            return
        if type(message) in self._service.queries:
            self._inform(msg.reply, message)
            return
        headers = msg.headers or {}
        request_id = headers.get("request-id") or getattr(message, "request_id", "") or msg.reply
        if len(request_id) > HEADER_CHARACTERS_MAX:
            text, remedy = f"a request-id of {len(request_id)} characters", f"at most {HEADER_CHARACTERS_MAX}"
            body = refusal("invalid", text, "request-id", request_id[:LOGGED], remedy)
            self._answer(msg.reply, "invalid", body)
            return
        slot = self._handling.machines.find(message.job)
        known = slot.remembered(request_id) if slot else None
        waiting = self._handling.waiting.get((message.job, request_id))
        if known is not None:
            self._answer(msg.reply, known[1], known[2].encode())
        elif waiting is not None:
            waiting.repeated(msg.reply)
        else:
            self._add(msg, subject, message, request_id)

    def _add(self, msg: Msg, subject: str, message: Message, request_id: str) -> None:
        """Journal a request, or refuse it as long as its job has spent its budget or too many wait."""
        trace = (msg.headers or {}).get("traceparent", "")
        trace = trace if len(trace) <= HEADER_CHARACTERS_MAX else ""
        entry = request_entry(message.job, request_id, subject, msg.data, trace)
        size_bytes = ENTRY_BYTES + journalled_bytes(msg.data) + len(request_id) + len(trace)
        if not self._budget.take(message.job, size_bytes, monotonic_s(), share_at(self._fullness())):
            self._metrics.over_budget.inc()
            text = f"the requests of {message.job!r} have spent their budget of the journal"
            remedy = (
                "ask again later, or let the operator raise STRETTO_REQUESTS_BURST_BYTES or STRETTO_STREAMS_MAX_BYTES"
            )
            self._answer(msg.reply, "busy", refusal("busy", text, "job", message.job, remedy))
        elif self._journal.add(entry):
            self._handling.expect(request_id, Request(subject, msg.data, message, [msg.reply]))
        else:
            self._answer(msg.reply, "busy", refusal("busy", "too many requests wait", remedy="ask again later"))

    def _broken(self, job: str) -> None:
        self._budget.charge(job, BROKEN_BYTES, monotonic_s(), share_at(self._fullness()))

    def _tell_dropped(self, msg: Msg) -> None:
        """Log a dropped request, one a second at most: a hostile pod may send thousands."""
        now_s = monotonic_s()
        if now_s - self._told_s >= TOLD_EVERY_S:
            self._told_s = now_s
            log.warning("dropped a request that cannot be answered", subject=msg.subject, reply=msg.reply[:LOGGED])

    def _inform(self, reply: str, query: Message) -> None:
        """Answer a query: at once, or once a slow one has its answer."""
        slot = self._handling.machines.find(query.job)
        found = self._service.answer_slowly(query)
        if found is None:
            self._tell(reply, query, lambda: self._service.answer(query, slot.machine if slot is not None else None))
        elif len(self._slow) >= SLOW_MAX:
            found.close()
            self._answer(reply, "busy", refusal("busy", "too many slow queries wait", remedy="ask again later"))
        else:
            task = asyncio.create_task(found, name=f"answer {query.job}")
            self._slow.add(task)
            task.add_done_callback(lambda done: self._answered_slowly(reply, query, done))

    def _answered_slowly(self, reply: str, query: Message, done: asyncio.Task[Message]) -> None:
        self._slow.discard(done)
        if not done.cancelled():
            self._tell(reply, query, done.result)

    def _tell(self, reply: str, query: Message, answer: Callable[[], Message]) -> None:
        try:
            code, body = "", encode(answer())
        except WireError as error:
            code, body = "refused", refusal("refused", str(error), error.field, error.value, error.remedy)
        except Exception as error:
            log.exception("a query was not answered", job=query.job, query=type(query).__name__)
            code, body = "internal", refusal("internal", type(error).__name__, remedy="see the service's log")
        self._answer(reply, code, body)

    def _answer(self, reply: str, code: str, body: bytes) -> None:
        with contextlib.suppress(BusFault):  # the caller asks again
            self._bus.offer(reply, body, {ERROR_HEADER: code} if code else None)
