"""One stored message after another: parse, translate, decide, publish what is missing, answer."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import structlog
from opentelemetry.trace import Status, StatusCode
from pydantic import ValidationError
from stretto_core.machine import Action, CoreError, Reply
from stretto_wire.base import Message
from stretto_wire.errors import WireError
from stretto_wire.refusals import ERROR_HEADER
from stretto_wire.registry import channel_of, encode, subject_of

from stretto_runtime.bus import DEAD_LETTERS
from stretto_runtime.connection import lines_of
from stretto_runtime.faults import BusFault, RuntimeFault
from stretto_runtime.inputs import Arrival
from stretto_runtime.log import Stored, read
from stretto_runtime.machines import CLUSTER, Machines
from stretto_runtime.rpc import refusal
from stretto_runtime.telemetry import decision_attributes, traceparent_of
from stretto_runtime.writer import Writer

if TYPE_CHECKING:
    from stretto_runtime.shell import Shell

log = structlog.get_logger("stretto.handling")


@dataclass(slots=True)
class Work:
    """One arrival for one machine, and what comes of it. ``source`` makes ids: ``<service>:<source>:<index>``."""

    arrival: Arrival
    key: str
    source: str
    time_s: float
    started_ns: int
    outputs: list[tuple[str, Any, Message]] = field(default_factory=list[tuple[str, Any, Message]])
    """(id, core fact, wire message)"""
    reply: Message | None = None

    @property
    def is_request(self) -> bool:
        return self.arrival.kind == "request"

    @property
    def asked(self) -> tuple[str, str]:
        """Which request this is: ids are the callers' choice, and may repeat from job to job."""
        return self.key, self.arrival.meta.request_id


@dataclass(slots=True)
class Asked:
    """A request from its arrival to its answer: parsed once, and where the answer goes."""

    subject: str
    data: bytes
    message: Message
    replies: list[str]


class Handling:
    """The inputs of one partition, in order; the same whether they are replayed or live."""

    def __init__(
        self,
        shell: Shell,
        number: int,
        machines: Machines,
        writer: Writer,
        published: set[str],
        fence_seq: int,
        attempt: int,
    ) -> None:
        self.machines = machines
        self.writer = writer
        self.waiting: dict[tuple[str, str], Asked] = {}
        """(key, request id) -> what was asked"""
        self.changed: set[str] = set()
        self.live = False
        self._shell = shell
        self._service = shell.service
        self._number = number
        self._published = published
        self._letters: dict[str, set[str]] = {}
        """subject -> ids, of those that a replay has met"""
        self._fence_seq = fence_seq
        self._attempt = attempt

    def go_live(self) -> None:
        """Everything that a predecessor can have handled is behind us."""
        self.live = True
        self._published.clear()
        self._letters.clear()

    async def handle(self, stored: Stored) -> bool:
        """Advance every machine that ``stored`` concerns; whether anything was published or answered.

        Raises:
            BusFault: an output could not be sent; the session ends.
        """
        if self.live:
            self._shell.metrics.handling(stored.time_s)
        else:
            self._shell.metrics.replayed.count += 1
        news = False
        for arrival in self._shell.routes.arrivals(stored, self._number):
            if arrival.kind == "tick":
                for key in self.machines.ticking():
                    news |= await self._one(Work(arrival, key, f"{stored.seq}.{key}", stored.time_s, time.time_ns()))
            else:
                work = Work(arrival, arrival.key, arrival.source, stored.time_s, time.time_ns())
                news |= await self._one(work)
        return news

    async def _one(self, work: Work) -> bool:
        if self.writer.full:
            await self.writer.room()
        if self.machines.contains(work.key, work.arrival.meta.seq):
            return False
        if work.is_request and (known := self._known(work)) is not None:
            await self._tell(work, known[1], known[2].encode())
            return False
        try:
            handled = self._decide(work)
        except (WireError, ValidationError, CoreError) as error:
            self.changed.add(work.key)  # the machine may be another object now: edges must not keep the old one
            await self._refused(work, error)
            return True
        except Exception as error:
            self.changed.add(work.key)
            await self._broken(work, error)
            return True
        if not handled:
            return False
        self.changed.add(work.key)
        self._shell.metrics.inputs[work.arrival.kind].count += 1
        trace = self._trace(work)
        for output_id, _, message in work.outputs:
            self._publish(output_id, message, work.time_s, trace)
        if work.reply is not None:
            await self._answer(work, "", encode(work.reply))
        return bool(work.outputs or work.is_request)

    # decisions -------------------------------------------------------------------------------------------------

    def _decide(self, work: Work) -> bool:
        """Let the machine handle the event; False if the service ignores the message."""
        arrival = work.arrival
        if arrival.kind == "tick":
            event = self._service.tick_event()
        else:
            event = self._service.to_event(self._message(work), arrival.meta)
        if event is None:
            if work.is_request:
                raise RuntimeFault(f"{self._service.name} ignores the request {arrival.subject}")
            return False

        def commit(actions: list[Action]) -> None:
            """Make messages of the actions while the machine can still be put back."""
            try:
                self._translate(work, actions)
            except (WireError, ValidationError) as error:  # ours, not the input's: nobody else is to blame
                raise RuntimeFault(f"{self._service.name} made a message that the wire refuses: {error}") from error

        self.machines.handle(work.key, event, work.time_s, arrival.meta.seq, commit)
        return True

    def _message(self, work: Work) -> Message:
        """Parse, unless it is a request that was parsed on its way into the journal. Raises WireError."""
        arrival = work.arrival
        asked = self.waiting.get(work.asked) if work.is_request else None
        if asked is not None and (asked.subject, asked.data) == (arrival.subject, arrival.data):
            return asked.message
        return self._shell.routes.message(arrival)

    def _translate(self, work: Work, actions: list[Action]) -> None:
        for index, action in enumerate(actions):
            fact = action.body if isinstance(action, Reply) else action.fact
            message = self._service.to_message(work.key, fact)
            if isinstance(action, Reply):
                if not work.is_request or message is None:
                    raise RuntimeFault(f"{self._service.name} replied {fact!r} to {work.arrival.subject}")
                work.reply = message
            elif message is not None:
                self._check_output(work.key, message)
                work.outputs.append((f"{self._service.name}:{work.source}:{index}", fact, message))
        if work.is_request and work.reply is None:
            raise RuntimeFault(f"{self._service.name} gave no Reply to {work.arrival.subject}")

    def _check_output(self, key: str, message: Message) -> None:
        channel = channel_of(message)
        if channel.kind != "evt" or channel.service != self._service.name:
            raise RuntimeFault(f"{self._service.name} may not publish {type(message).__name__}")
        if key not in (CLUSTER, message.job):
            raise RuntimeFault(f"the machine of {key!r} published about {message.job!r}; only '_' may")

    # outputs ---------------------------------------------------------------------------------------------------

    def _publish(self, output_id: str, message: Message, now: float, trace: str) -> None:
        if output_id in self._published:
            self._shell.metrics.suppressed.inc()
            return
        lines = event_lines(message, output_id, now, self._service.name, trace)
        self.writer.send(output_id, subject_of(message), encode(message), lines)
        self._shell.metrics.outputs.count += 1

    def _trace(self, work: Work) -> str:
        """A span for what was handled, if anybody could want it; the ``traceparent`` of its outputs."""
        arrival, slot = work.arrival, self.machines.slots.get(work.key)
        parent = arrival.trace
        if slot is not None and work.key != CLUSTER:
            slot.trace = slot.trace or parent
            parent = parent or slot.trace
        if not (work.outputs or arrival.trace or work.is_request):
            return parent
        if not self._shell.tracing.afford():
            return parent
        what = arrival.subject.split(".")[3] if arrival.kind in ("message", "request") else arrival.kind

        def attributes() -> dict[str, Any]:
            replayed = arrival.meta.seq <= self._fence_seq
            found: dict[str, Any] = {
                "messaging.system": "nats",
                "messaging.destination.name": arrival.subject,
                "stretto.job": work.key,
                "stretto.source": work.source,
                "stretto.delivery": 1 + (self._attempt if replayed else 0),
                "stretto.published": [channel_of(message).name for _, _, message in work.outputs],
            }
            for _, fact, _ in work.outputs:
                found |= decision_attributes(fact)
            return found

        span = self._shell.tracing.span(f"{self._service.name} {what}", parent, work.started_ns, attributes=attributes)
        if span is None:
            return parent
        span.end()
        return traceparent_of(span.get_span_context())

    # replies ---------------------------------------------------------------------------------------------------

    def _known(self, work: Work) -> list[Any] | None:
        slot = self.machines.slots.get(work.key)
        return slot.remembered(work.arrival.meta.request_id) if slot is not None else None

    async def _answer(self, work: Work, code: str, body: bytes) -> None:
        slot = self.machines.slots.get(work.key)
        if slot is not None:  # nothing is kept of a request about an unknown job: asked again it gets the same answer
            slot.remember(work.arrival.meta.request_id, code, body.decode())
            self.machines.dirty.add(work.key)
        await self._tell(work, code, body)

    async def _tell(self, work: Work, code: str, body: bytes) -> None:
        asked = self.waiting.pop(work.asked, None)
        for reply in asked.replies if asked is not None else ():
            with contextlib.suppress(BusFault):  # the caller asks again and gets the remembered reply
                await self._shell.bus.send(reply, body, {ERROR_HEADER: code} if code else None)

    # what cannot be handled ------------------------------------------------------------------------------------

    async def _refused(self, work: Work, error: Exception) -> None:
        arrival = work.arrival
        field, value, remedy = (str(getattr(error, name, "")) for name in ("field", "value", "remedy"))
        if work.is_request:
            await self._answer(work, "refused", refusal("refused", str(error), field, value, remedy))
            return
        await self._dead_letter(arrival, work.source, "refused", str(error), {"field": field, "remedy": remedy})

    async def _broken(self, work: Work, error: Exception) -> None:
        arrival, key = work.arrival, work.key
        self._shell.metrics.faults.inc()
        log.exception(
            "a machine broke on a message; it is as before, the message is set aside",
            job=key,
            trace_id=arrival.trace[3:35],
            subject=arrival.subject,
            seq=arrival.meta.seq,
            error=str(error),
        )
        span = self._shell.tracing.span(f"{self._service.name} fault", arrival.trace)
        if span is not None:
            span.set_attribute("stretto.job", key)
            span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
            span.end()
        if work.is_request:
            body = refusal("internal", f"{type(error).__name__}: {error}", remedy="see the service's log")
            await self._answer(work, "internal", body)
        await self._dead_letter(arrival, work.source, "fault", f"{type(error).__name__}: {error}", {})

    async def _dead_letter(self, arrival: Arrival, source: str, reason: str, text: str, more: dict[str, str]) -> None:
        subject = f"dlq.{arrival.subject or f'tick.{self._service.name}'}"
        letter_id = f"dlq:{self._service.name}:{source}"
        if not self.live and letter_id in await self._set_aside(subject):
            return
        headers = {
            "Nats-Msg-Id": letter_id,
            "reason": reason,
            "error": text[:2000],
            "service": self._service.name,
            "seq": str(arrival.meta.seq),
            **{name: value[:500] for name, value in more.items() if value},
        }
        if arrival.trace:
            headers["traceparent"] = arrival.trace
        self._shell.metrics.dead_letters.labels(self._service.name, reason).inc()
        log.warning(
            "dead letter",
            subject=subject.removeprefix("dlq."),
            reason=reason,
            error=text[:500],
            seq=arrival.meta.seq,
            job=arrival.key,
            trace_id=arrival.trace[3:35],
        )
        self.writer.send_plain(subject, arrival.data, headers)

    async def _set_aside(self, subject: str) -> set[str]:
        """The ids that predecessors set aside: the server itself forgets ids sooner than an outage may last."""
        if subject not in self._letters:
            found = await read(self._shell.bus, DEAD_LETTERS, [subject], headers_only=True)
            self._letters[subject] = {stored.headers.get("Nats-Msg-Id", "") for stored in found}
        return self._letters[subject]


def event_headers(message: Message, message_id: str, now: float, source: str, trace: str) -> dict[str, str]:
    """CloudEvents 1.0, binary mode; ``now`` in seconds since the epoch."""
    headers = {"Nats-Msg-Id": message_id, **_shared(type(message), source)}
    headers |= {"ce-id": message_id, "ce-subject": message.job, "ce-time": _rfc3339(now)}
    return {**headers, "traceparent": trace} if trace else headers


def event_lines(message: Message, message_id: str, now: float, source: str, trace: str) -> str:
    """``lines_of(event_headers(…))`` without ``Nats-Msg-Id``, for a fifth of its price."""
    lines = _shared_lines(type(message), source)
    lines = f"{lines}ce-id: {message_id}\r\nce-subject: {message.job}\r\nce-time: {_rfc3339(now)}\r\n"
    return lines + lines_of({"traceparent": trace}) if trace else lines


@cache
def _shared(message: type[Message], source: str) -> dict[str, str]:
    """The headers that all of a type have in common."""
    channel = channel_of(message)
    return {
        "ce-specversion": "1.0",
        "ce-type": channel.type_name,
        "ce-source": f"/stretto/{source}",
        "content-type": "application/json",
        **({"Nats-TTL": f"{channel.kept_s}s"} if channel.kept_s is not None else {}),
    }


@cache
def _shared_lines(message: type[Message], source: str) -> str:
    return lines_of(_shared(message, source))


def _rfc3339(now: float) -> str:
    """UTC with microseconds; the text of a second is made once."""
    seconds, micros = divmod(round(now * 1e6), 1_000_000)
    return f"{_second(seconds)}.{micros:06d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
