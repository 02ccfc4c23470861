"""The audit log: every requested change becomes an entry with its actor and its outcome, chained to the entry
before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

import structlog
from pydantic import TypeAdapter, ValidationError
from stretto_bus.faults import BusFault, Fault
from stretto_messages.base import JobId
from stretto_messages.gateway import NO_JOB, ChangeAudited
from stretto_wire.contract.audit_log import FIRST, AuditEntry, hash_of, line_of

from .buckets import Buckets

REFUSALS_PER_S, REFUSALS_BURST = 0.2, 20
"""Refusals of one actor that become entries. Further refusals are only counted, in the next entry."""
RACES_MAX = 500
"""Attempts to append before this replica gives up. In a burst, the replica that appended last wins each race, because
it knows the last entry; the others have to read that entry first."""
log = structlog.get_logger("stretto.gateway")
_JOB = TypeAdapter(JobId)


class AuditSink(Protocol):
    """A bus that appends to the audit log."""

    async def last_audited(self) -> tuple[int, bytes]:
        """Return sequence and text of the last entry; 0 and nothing if the log is empty."""
        ...

    async def append_audited(self, line: bytes, last: int) -> int | None:
        """Store an entry; returns its sequence, or None if the last entry is not ``last``."""
        ...


@dataclass(frozen=True, slots=True)
class RequestedChange:
    """A requested change and the status of its answer. An empty ``actor`` is a caller without authentication."""

    job: str
    action: str
    status: int
    problem: str
    actor: str
    role: str
    address: str


class AuditLog:
    """The log, as this replica appends to it: a change is stored before its answer is sent."""

    def __init__(self, sink: AuditSink, clock: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        """Make the log of this replica. ``clock`` is monotonic; ``wall_clock`` says when an entry was made."""
        self._sink = sink
        self._wall_clock = wall_clock
        self._appending = asyncio.Lock()
        self._last: tuple[int, str] | None = None
        """Sequence and hash of the last entry that this replica knows."""
        self._clock = clock
        self._refusals = Buckets(REFUSALS_PER_S, REFUSALS_BURST)
        self._suppressed = 0

    async def note(self, change: RequestedChange) -> None:
        """Store a change. Never raises, because the change is done: without the bus, the change is written to the
        process's log."""
        refused = change.status >= 400
        if refused and self._refusals.take(change.actor, self._clock()) > 0:
            self._suppressed += 1
            return
        suppressed, self._suppressed = self._suppressed, 0
        message = audited(change, suppressed)
        try:
            async with self._appending:
                await self._append(message)
        except Fault as fault:
            self._suppressed += suppressed + refused
            log.error("a change could not be stored in the audit log", fault=str(fault), **asdict(message))

    async def _append(self, message: ChangeAudited) -> None:
        """Store an entry behind the last one. Raises Fault if the entry was not stored, or if that is unknown."""
        for _ in range(RACES_MAX):
            if self._last is None:
                seq, line = await self._sink.last_audited()
                self._last = seq, hash_of(line) if seq else FIRST
            (last, previous), self._last = self._last, None  # the last entry is unknown until this one is stored
            line = line_of(AuditEntry(previous=previous, time_s=self._wall_clock(), change=message))
            stored = await self._sink.append_audited(line, last)
            if stored is not None:
                self._last = stored, hash_of(line)
                return
        raise BusFault(f"other replicas appended first {RACES_MAX} times")


def audited(change: RequestedChange, suppressed: int) -> ChangeAudited:
    """Make the record of a change. Its job is what a client wrote in the address, which may be any text."""
    try:
        job = _JOB.validate_python(change.job)
    except ValidationError:
        job = NO_JOB
    return ChangeAudited(
        job=job,
        actor=change.actor or "anonymous",
        role=change.role,
        action=change.action,
        outcome=outcome_of(change.status),
        status=change.status,
        problem=change.problem,
        address=change.address,
        suppressed_count=suppressed,
    )


def outcome_of(status: int) -> Literal["done", "refused", "failed"]:
    """Return the outcome that an HTTP status means."""
    return "done" if status < 400 else "refused" if status < 500 else "failed"
