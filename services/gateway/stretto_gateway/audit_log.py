"""The audit log: every requested change becomes an event with its actor and its outcome."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

import structlog
from pydantic import TypeAdapter, ValidationError
from stretto_bus.faults import Fault
from stretto_messages.base import JobId, Message
from stretto_messages.gateway import NO_JOB, ChangeAudited

from .buckets import Buckets

REFUSALS_PER_S, REFUSALS_BURST = 0.2, 20
"""Refusals of one actor that become events; further ones are only counted, in the next event."""
log = structlog.get_logger("stretto.gateway")
_JOB = TypeAdapter(JobId)


class Bus(Protocol):
    """The part of the bus that the log needs."""

    async def publish(self, message: Message, msg_id: str) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Change:
    """A requested change and the status of its answer. ``actor`` empty: the caller was not authenticated."""

    job: str
    action: str
    status: int
    problem: str
    actor: str
    role: str
    address: str


class AuditLog:
    """Stores each change before its answer is sent."""

    def __init__(self, bus: Bus, clock: Callable[[], float]) -> None:
        """``clock`` is monotonic."""
        self._bus = bus
        self._clock = clock
        self._refusals = Buckets(REFUSALS_PER_S, REFUSALS_BURST)
        self._suppressed = 0

    async def note(self, change: Change) -> None:
        """Store a change. Never raises, because the change is done; without the bus it goes to the process's log."""
        refused = change.status >= 400
        if refused and self._refusals.take(change.actor, self._clock()) > 0:
            self._suppressed += 1
            return
        suppressed, self._suppressed = self._suppressed, 0
        message = audited(change, suppressed)
        try:
            await self._bus.publish(message, f"gateway:audit:{uuid.uuid4().hex}")
        except Fault as fault:
            self._suppressed += suppressed + refused
            log.error("a change could not be stored in the audit log", fault=str(fault), **asdict(message))


def audited(change: Change, suppressed: int) -> ChangeAudited:
    """Make the event. The job is what a client wrote in the address, so it may be any text."""
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
