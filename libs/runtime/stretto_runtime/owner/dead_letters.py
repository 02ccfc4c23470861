"""Dead letters: inputs that a service refuses or breaks on, and bytes that are damaged, set aside with the reason.

The stream of letters drops the oldest when it is full, and a pod may send reports that are refused without end. So each
job has a budget of stored bytes: no job pushes out what was set aside of another one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

import structlog
from stretto_bus.faults import Unreadable
from stretto_bus.reading.ordered_consumer import last_of, scan
from stretto_bus.writer import Writer
from stretto_wire.contract.registry import DEAD_LETTERS, STATE_PREFIX
from stretto_wire.surroundings import monotonic_s

from stretto_runtime.inputs import CLUSTER, Arrival
from stretto_runtime.owner.budget import Budget
from stretto_runtime.owner.context import Context
from stretto_runtime.owner.state.seals import Damage

ERROR_CHARACTERS_MAX = 2000
FIELD_CHARACTERS_MAX = 500
SUBJECT_BYTES_MAX = 1000
"""Bound of a letter's subject: the server hangs up on a line of more than 4096 bytes."""
HEADERS_BYTES_MAX = 64 << 10
"""Room for the headers within the server's bound of a message."""
BURST_BYTES, BYTES_PER_S = 4 << 20, 64.0
"""Bytes of one job's letters that are stored at once, and in the long run: taste.

A month of the rate is a sixth of the stream. A takeover gives the burst again.
"""
TOLD_EVERY_S = 1.0
"""Least time between two lines of the log about one kind of what pods can cause without end."""
DAMAGED = "damaged"
"""Reason of a letter, and code of a refused request, where stored bytes could not be read"""

log = structlog.get_logger("stretto.handling")


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter. ``more`` are further headers, of which empty ones are left out."""

    id: str
    subject: str
    """Subject of the message that is set aside."""
    seq: int
    reason: str
    error: str
    data: bytes
    more: dict[str, str]
    job: str = ""
    trace: str = ""


class DeadLetters:
    """Writes the dead letters of one partition, each once: a replay leaves out those that a predecessor wrote."""

    def __init__(self, context: Context, writer: Writer) -> None:
        self._context = context
        self._writer = writer
        self._service = context.service.name
        self._written: dict[str, set[str]] = {}
        """Subject -> ids of the letters of predecessors, read at the first letter of a replay"""
        self._budget = Budget(BURST_BYTES, BYTES_PER_S)
        self._told_s = 0.0

    def go_live(self) -> None:
        """Forget the letters of predecessors: no further input was theirs."""
        self._written.clear()

    async def add(self, arrival: Arrival, reason: str, text: str, more: dict[str, str], live: bool) -> None:
        """Set an input aside.

        Raises:
            BusFault: the letters of predecessors could not be read.
        """
        letter_id = f"dlq:{self._service}:{arrival.source}"
        subject = arrival.subject or f"tick.{self._service}"
        seq, key, trace = arrival.meta.report_seq or arrival.meta.seq, arrival.key, arrival.trace
        await self._write(Letter(letter_id, subject, seq, reason, text, arrival.data, more, key, trace), live)

    async def set_aside(self, damages: Iterable[Damage]) -> None:
        """Store the letters of damaged messages of the bucket; ``seq`` is then the sequence in the bucket's stream.

        Raises:
            BusFault: the letters of predecessors could not be read, or one was not stored.
        """
        for damage in damages:
            place = f"state.{damage.subject.removeprefix(STATE_PREFIX)}"
            letter_id = f"dlq:{self._service}:state.{damage.seq}"
            letter = Letter(letter_id, place, damage.seq, DAMAGED, damage.reason, damage.data, {})
            await self._write(letter, live=False)
            await self._writer.drain()

    async def _write(self, letter: Letter, live: bool) -> None:
        subject = f"dlq.{letter.subject}"
        if len(subject.encode()) > SUBJECT_BYTES_MAX:
            subject = f"dlq.long.{self._service}"
        if not live and letter.id in await self._ids(subject):
            return
        room = self._context.bus.connection.max_payload - HEADERS_BYTES_MAX
        more = {"subject": letter.subject, **letter.more} if letter.reason == DAMAGED else dict(letter.more)
        if len(letter.data) > room:
            more["cut-from"] = f"{len(letter.data)} bytes"
        headers = {
            "Nats-Msg-Id": letter.id,
            "reason": letter.reason,
            "error": letter.error[:ERROR_CHARACTERS_MAX],
            "service": self._service,
            "seq": str(letter.seq),
            **{name: value[:FIELD_CHARACTERS_MAX] for name, value in more.items() if value},
        }
        if letter.trace:
            headers["traceparent"] = letter.trace[:FIELD_CHARACTERS_MAX]
        stored = self._affords(letter, min(room, len(letter.data)) + sum(map(len, headers.values())))
        self._context.metrics.dead_letters.labels(self._service, letter.reason).inc()
        if not stored:
            return self._tell_dropped(letter)
        log.warning(
            "dead letter",
            subject=letter.subject[:FIELD_CHARACTERS_MAX],
            reason=letter.reason,
            error=letter.error[:FIELD_CHARACTERS_MAX],
            seq=letter.seq,
            job=letter.job,
            trace_id=letter.trace[3:35],
        )
        self._writer.send_plain(subject, letter.data[:room], headers)

    def _tell_dropped(self, letter: Letter) -> None:
        """Log a letter that is not stored, one a second at most: a hostile job may send thousands."""
        now_s = monotonic_s()
        if now_s - self._told_s >= TOLD_EVERY_S:
            self._told_s = now_s
            error = letter.error[:FIELD_CHARACTERS_MAX]
            log.warning("dropped a dead letter: its job has spent its budget", job=letter.job, error=error)

    def _affords(self, letter: Letter, size_bytes: int) -> bool:
        """Spend the budget of the letter's job. Damage, and the inputs of the machine of all jobs, have none."""
        if letter.reason == DAMAGED or letter.job in ("", CLUSTER):
            return True
        return self._budget.take(letter.job, size_bytes, monotonic_s())

    async def _ids(self, subject: str) -> set[str]:
        """Return the ids that predecessors used: the server forgets ids sooner than an outage may last."""
        if subject not in self._written:
            bus, found = self._context.bus, set[str]()
            last = await last_of(bus, subject)  # a server that has it has all letters of our predecessors
            with contextlib.suppress(Unreadable):  # a letter is damaged: the partition is worth more than a repetition
                async for stored in scan(bus, DEAD_LETTERS, [subject], until=last, headers_only=True):
                    found.add(stored.headers.get("Nats-Msg-Id", ""))
            self._written[subject] = found
        return self._written[subject]
