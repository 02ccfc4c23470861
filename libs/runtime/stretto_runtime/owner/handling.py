"""One stored message after another: parse, translate, decide, publish what is missing, answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from stretto_bus.faults import BusFault
from stretto_bus.reading.ordered_consumer import Stored
from stretto_bus.refusals import refusal
from stretto_core.machine import Action, CoreError, Reply
from stretto_messages.base import InvalidValue, Message
from stretto_messages.refusals import ERROR_HEADER
from stretto_wire.codec import encode
from stretto_wire.contract.cloudevents import event_lines
from stretto_wire.contract.registry import channel_of, subject_of
from stretto_wire.errors import WireError
from stretto_wire.surroundings import monotonic_s, wall_ns

from stretto_runtime.inputs import CLUSTER, REPORTS, Arrival
from stretto_runtime.owner.context import Tools
from stretto_runtime.owner.dead_letters import DAMAGED
from stretto_runtime.owner.machines import Machines
from stretto_runtime.owner.reports import Ranges
from stretto_runtime.process.faults import RuntimeFault
from stretto_runtime.spans.tracing import decision_attributes

REPLIES_MAX = 8
"""Inboxes that one request is answered at."""

TURN_S = 0.005
"""Time after which all others of this process have their turn: leases are renewed, other partitions handled.

A turn of all sixteen partitions is then 80 ms. Between two of them the connection reads 128 KiB, in which the answers
to what was written stand behind all inputs that the server has sent before.
"""

log = structlog.get_logger("stretto.handling")


@dataclass(slots=True)
class Output:
    """One message to publish."""

    id: str
    fact: object
    message: Message
    data: bytes


@dataclass(slots=True)
class Made:
    """The outputs of one arrival and the reply to a request, encoded: the bounds of every field hold."""

    outputs: list[Output]
    reply: bytes | None = None


def damaged_reply(service: str, job: str) -> bytes:
    """The body of a refused request about a job whose saved state is damaged."""
    text = f"the saved state of {job!r} is damaged, so {service} cannot continue it"
    remedy = "submit the job under another name; the dead letters below dlq.state hold what was saved"
    return refusal(DAMAGED, text, "job", job, remedy)


@dataclass(slots=True)
class Request:
    """A request from its arrival to its answer: parsed once, with the inboxes of its callers."""

    subject: str
    data: bytes
    message: Message
    replies: list[str]

    def repeated(self, reply: str) -> None:
        """Answer one more inbox. Callers repeat into a new one, and none waits in more than the last few."""
        self.replies = [*self.replies, reply][-REPLIES_MAX:]


@dataclass(frozen=True, slots=True)
class Takeover:
    """One takeover of partition ``number``: what predecessors may have done of the inputs before the fence."""

    number: int
    fence_seq: int = 0
    attempt: int = 0
    """Number of owners that may have handled these inputs before."""
    published: frozenset[str] = frozenset()
    """Ids that predecessors have published since the snapshot"""


class Outputs(Protocol):
    """Where outputs go: the writer of an owner, or the list of a replay."""

    @property
    def full(self) -> bool:
        """True if too many are on their way."""
        ...

    async def room(self) -> None:
        """Wait until fewer are."""
        ...

    def send(self, output_id: str, subject: str, data: bytes, lines: str = "") -> None:
        """Send one output. Raises BusFault."""
        ...


class Letters(Protocol):
    """Where inputs go that are set aside."""

    async def add(self, arrival: Arrival, reason: str, text: str, more: dict[str, str], live: bool) -> None:
        """Set an input aside. Raises BusFault."""
        ...

    def go_live(self) -> None:
        """Forget what predecessors have set aside."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """The ways in and out of a handling beside the stored inputs: those of an owner lead to the bus.

    A replay has reports as they are stored, and drops letters and answers: they were sent then.
    """

    outputs: Outputs
    letters: Letters
    reports: Ranges
    answer: Callable[[str, bytes, dict[str, str] | None], Awaitable[None]]


class Handling:
    """Handles the inputs of one partition, in order, in the same way in a replay and live."""

    def __init__(self, context: Tools, takeover: Takeover, machines: Machines, ports: Ports) -> None:
        self.machines = machines
        self.reports_handled = 0
        self.waiting: dict[tuple[str, str], Request] = {}
        """(key, request id) -> the request"""
        self.changed: set[str] = set()
        self.news: set[str] = set()
        """Keys about which something was published, answered or set aside since they were saved"""
        self.on_broken: Callable[[str], None] | None = None
        """Called with the job of each request that a machine broke on."""
        self.live = False
        self._context = context
        self._metrics = context.metrics
        self._service = context.service
        self._number = takeover.number
        self._outputs, self._letters, self._reports = ports.outputs, ports.letters, ports.reports
        self._send_answer = ports.answer
        self._published = takeover.published
        self._fence_seq = takeover.fence_seq
        self._attempt = takeover.attempt
        self._turn_began_s = 0.0

    def expect(self, request_id: str, request: Request) -> None:
        """Answer ``request`` once its journal entry is handled."""
        self.waiting[request.message.job, request_id] = request

    def go_live(self) -> None:
        """End the replay: all inputs that a predecessor could have handled are done."""
        self.live = True
        self._published = frozenset()
        self._letters.go_live()

    async def handle(self, stored: Stored) -> None:
        """Advance every machine that ``stored`` concerns.

        Raises:
            BusFault: an output could not be sent; the session ends.
        """
        if self.live:
            self._metrics.handling(stored.time_s)
        else:
            self._metrics.replayed.count += 1
        for arrival in self._context.routes.arrivals(stored, self._number):
            if arrival.kind == "tick":
                for key in self.machines.ticking():
                    await self._one(arrival._replace(key=key, source=f"{stored.seq}.{key}"))
            elif arrival.kind == REPORTS:
                await self._range(arrival)
            else:
                await self._one(arrival)

    async def _range(self, arrival: Arrival) -> None:
        """Handle the reports of a journalled range as inputs of its frame."""
        try:
            missing = self._reports.missing
            reports = await self._reports.of(arrival, self._context.routes, self._number)
            self._metrics.missing_reports.inc(self._reports.missing - missing)
        except ValueError as error:
            await self._letters.add(arrival, DAMAGED, str(error), {}, self.live)
            self.news.add(arrival.key)
            return
        for report in reports:
            if self.live:
                self._metrics.handling(report.meta.time_s)
            await self._one(report)
        self.reports_handled += len(reports)

    async def _one(self, arrival: Arrival) -> None:
        if self._outputs.full or monotonic_s() - self._turn_began_s > TURN_S:
            await self._let_others()
        key, meta, request = arrival.key, arrival.meta, arrival.kind == "request"
        if arrival.kind == "damaged":
            await self._letters.add(arrival, DAMAGED, arrival.fault, {}, self.live)
            self.news.add(key)
            return
        if key in self.machines.lost:
            if request:
                await self._reply(arrival, DAMAGED, damaged_reply(self._service.name, key))
            return
        if self.machines.contains(key, meta.seq):
            return
        if request and (known := self._known(arrival)) is not None:
            await self._reply(arrival, known[1], known[2].encode())
            return
        started_ns = wall_ns()
        try:
            made = self._decide(arrival)
        except (WireError, CoreError, InvalidValue) as error:
            self.changed.add(key)  # the machine may be another object now: side effects must not keep the old one
            self.news.add(key)
            await self._refused(arrival, error)
            return
        except Exception as error:
            self.changed.add(key)
            self.news.add(key)
            await self._broken(arrival, error)
            return
        if made is not None:
            await self._tell(arrival, made, started_ns)

    async def _tell(self, arrival: Arrival, made: Made, started_ns: int) -> None:
        """Publish the outputs of a handled arrival, and answer its request."""
        self.changed.add(arrival.key)
        self._metrics.inputs[arrival.kind].count += 1
        trace = self._trace(arrival, made.outputs, started_ns)
        for output in made.outputs:
            self._publish(output, arrival.meta.time_s, trace)
        if made.reply is not None:
            await self._answer(arrival, "", made.reply)
        if made.outputs or arrival.kind == "request":
            self.news.add(arrival.key)

    async def _let_others(self) -> None:
        """Let others have their turn, and wait while too much is on its way."""
        await asyncio.sleep(0)  # a frame of many requests may take longer than a lease
        self._turn_began_s = monotonic_s()
        if self._outputs.full:
            await self._outputs.room()

    # decisions -------------------------------------------------------------------------------------------------

    def _decide(self, arrival: Arrival) -> Made | None:
        """Let the machine handle the event; returns None if the service ignores the message."""
        if arrival.kind == "tick":
            event = self._service.tick_event(int(arrival.data or 0))
        else:
            event = self._service.to_event(self._message(arrival), arrival.meta)
        if event is None:
            if arrival.kind == "request":
                raise RuntimeFault(f"{self._service.name} ignores the request {arrival.subject}")
            return None

        def commit(actions: list[Action]) -> Made:
            """Turn the actions into messages while the machine can still be restored."""
            try:
                return self._translate(arrival, actions)
            except WireError as error:  # a bug of the service, not of the input
                raise RuntimeFault(f"{self._service.name} made a message that the wire refuses: {error}") from error

        return self.machines.handle(arrival.key, event, arrival.meta.time_s, arrival.meta.seq, commit)

    def _message(self, arrival: Arrival) -> Message:
        """Parse the message, unless it is a request that was parsed on its way to the journal. Raises WireError."""
        asked = self.waiting.get(arrival.asked) if arrival.kind == "request" else None
        if asked is not None and (asked.subject, asked.data) == (arrival.subject, arrival.data):
            return asked.message
        return self._context.routes.message(arrival)

    def _translate(self, arrival: Arrival, actions: list[Action]) -> Made:
        outputs: list[Output] = []
        reply: bytes | None = None
        for index, action in enumerate(actions):
            fact = action.body if isinstance(action, Reply) else action.fact
            message = self._service.to_message(arrival.key, fact)
            if isinstance(action, Reply):
                if arrival.kind != "request" or message is None:
                    raise RuntimeFault(f"{self._service.name} replied {fact!r} to {arrival.subject}")
                reply = encode(message)
            elif message is not None:
                _check_output(self._service.name, arrival.key, message)
                output_id = f"{self._service.name}:{arrival.source}:{index}"
                outputs.append(Output(output_id, fact, message, encode(message)))
        if arrival.kind == "request" and reply is None:
            raise RuntimeFault(f"{self._service.name} gave no Reply to {arrival.subject}")
        return Made(outputs, reply)

    # outputs ---------------------------------------------------------------------------------------------------

    def _publish(self, output: Output, now: float, trace: str) -> None:
        if output.id in self._published:
            self._metrics.suppressed.inc()
            return
        lines = event_lines(output.message, output.id, now, self._service.name, trace)
        self._outputs.send(output.id, subject_of(output.message), output.data, lines)
        self._metrics.outputs.count += 1

    def _trace(self, arrival: Arrival, outputs: list[Output], started_ns: int) -> str:
        """Record a span for a traced or productive arrival; returns the ``traceparent`` of its outputs."""
        slot, parent = self.machines.find(arrival.key, arrival.meta.time_s), arrival.trace
        if slot is not None and arrival.key != CLUSTER:
            slot.trace = slot.trace or parent
            parent = parent or slot.trace
        if not (outputs or arrival.trace or arrival.kind == "request"):
            return parent
        if not self._context.tracing.afford():
            return parent
        what = arrival.subject.split(".")[3] if arrival.kind in ("message", "request") else arrival.kind

        def attributes() -> dict[str, Any]:
            replayed = arrival.meta.seq <= self._fence_seq
            return _attributes(arrival, outputs, delivery=1 + (self._attempt if replayed else 0))

        span = self._context.tracing.span(f"{self._service.name} {what}", parent, started_ns, attributes=attributes)
        if span is None:
            return parent
        span.end()
        return span.place.traceparent

    # replies ---------------------------------------------------------------------------------------------------

    def _known(self, arrival: Arrival) -> list[Any] | None:
        slot = self.machines.find(arrival.key, arrival.meta.time_s)
        return slot.remembered(arrival.meta.request_id) if slot is not None else None

    async def _answer(self, arrival: Arrival, code: str, body: bytes) -> None:
        # of an unknown job nothing is kept: a repeated request gets the same answer
        self.machines.remember(arrival.key, arrival.meta.time_s, arrival.meta.request_id, code, body.decode())
        await self._reply(arrival, code, body)

    async def _reply(self, arrival: Arrival, code: str, body: bytes) -> None:
        asked = self.waiting.pop(arrival.asked, None)
        for reply in asked.replies if asked is not None else ():
            with contextlib.suppress(BusFault):  # the caller asks again and gets the remembered reply
                await self._send_answer(reply, body, {ERROR_HEADER: code} if code else None)

    # refusals and faults ---------------------------------------------------------------------------------------

    async def _refused(self, arrival: Arrival, error: Exception) -> None:
        field, value, remedy = (str(getattr(error, name, "")) for name in ("field", "value", "remedy"))
        if arrival.kind == "request":
            await self._answer(arrival, "refused", refusal("refused", str(error), field, value, remedy))
            return
        await self._letters.add(arrival, "refused", str(error), {"field": field, "remedy": remedy}, self.live)

    async def _broken(self, arrival: Arrival, error: Exception) -> None:
        self._metrics.faults.inc()
        log.exception(
            "a machine broke on a message; it is as before, the message is set aside",
            job=arrival.key,
            trace_id=arrival.trace[3:35],
            subject=arrival.subject,
            seq=arrival.meta.seq,
            error=str(error),
        )
        job = {"stretto.job": _job_of(arrival)}
        span = self._context.tracing.span(f"{self._service.name} fault", arrival.trace, attributes=lambda: job)
        if span is not None:
            span.fail(f"{type(error).__name__}: {error}")
            span.end()
        if arrival.kind == "request":
            if self.on_broken is not None:
                self.on_broken(arrival.key)
            body = refusal("internal", f"{type(error).__name__}: {error}", remedy="see the service's log")
            await self._answer(arrival, "internal", body)
        await self._letters.add(arrival, "fault", f"{type(error).__name__}: {error}", {}, self.live)


def _check_output(service: str, key: str, message: Message) -> None:
    """Raise RuntimeFault for an output that a service, or its machine of this key, may not publish."""
    channel = channel_of(message)
    if channel.kind != "evt" or channel.service != service:
        raise RuntimeFault(f"{service} may not publish {type(message).__name__}")
    if key not in (CLUSTER, message.job):
        raise RuntimeFault(f"the machine of {key!r} published about {message.job!r}; only '_' may")


def _attributes(arrival: Arrival, outputs: list[Output], delivery: int) -> dict[str, Any]:
    """Return the attributes of the span of an arrival."""
    found: dict[str, Any] = {
        "messaging.system": "nats",
        "messaging.destination.name": arrival.subject,
        "stretto.job": _job_of(arrival),
        "stretto.source": arrival.source,
        "stretto.delivery": delivery,
        "stretto.published": [channel_of(output.message).name for output in outputs],
    }
    for output in outputs:
        found |= decision_attributes(output.fact)
    return found


def _job_of(arrival: Arrival) -> str:
    """Return the job that an input is about, also one of a machine of the whole cluster; of a tick, its key."""
    is_named = arrival.key == CLUSTER and arrival.kind in ("message", "request")
    return arrival.subject.rpartition(".")[2] if is_named else arrival.key
