"""The audit trail: every change that was asked for is an event, with who asked and what came of it."""

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

TOLD_PER_S, TOLD_BURST = 0.2, 20
"""refusals of one actor that become events; the others are counted in the next one"""
log = structlog.get_logger("stretto.gateway")
_JOB = TypeAdapter(JobId)


class Bus(Protocol):
    """What the trail needs of the bus."""

    async def publish(self, message: Message, msg_id: str) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Change:
    """A change that was asked for, and how it was answered. ``actor`` empty: nobody was let in."""

    job: str
    action: str
    status: int
    problem: str
    actor: str
    role: str
    address: str


class Trail:
    """Stores what it is told before the answer leaves."""

    def __init__(self, bus: Bus, clock: Callable[[], float]) -> None:
        """``clock`` is monotonic."""
        self._bus = bus
        self._clock = clock
        self._told = Buckets(TOLD_PER_S, TOLD_BURST)
        self._untold = 0

    async def note(self, change: Change) -> None:
        """Never raises: what is done is done, and an answer is owed; what cannot be stored stands in the log."""
        refused = change.status >= 400
        if refused and self._told.take(change.actor, self._clock()) > 0:
            self._untold += 1
            return
        untold, self._untold = self._untold, 0
        message = audited(change, untold)
        try:
            await self._bus.publish(message, f"gateway:audit:{uuid.uuid4().hex}")
        except Fault as fault:
            self._untold += untold + refused
            log.error("a change is not in the audit trail", fault=str(fault), **asdict(message))


def audited(change: Change, untold: int) -> ChangeAudited:
    """The event. What a client wrote where a job's name belongs may be anything."""
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
        untold=untold,
    )


def outcome_of(status: int) -> Literal["done", "refused", "failed"]:
    """Of an HTTP status."""
    return "done" if status < 400 else "refused" if status < 500 else "failed"
