"""What the gateway knows a job by: its events age out of the stream while it lives, and its submission before its end.

One entry of the key-value bucket per job, ``kept.gateway.<job>``: the submission, the last plan that was
decided, and the totals of data that arrived, each as it was stored, with its sequence. Any replica may write it: all
write the same, as far as they have read. A day before the last events of a job that is over age out, all is removed but
that there was one: without those events it would be taken for one that lives, and its name is not given again, because
the services know what they have decided about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import stretto_wire as w
from pydantic import TypeAdapter, ValidationError
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import Message
from stretto_messages.gateway import DataArrived
from stretto_messages.values import DataPartition
from stretto_wire.registry import EVENTS_KEPT_S

from .views import OVER, JobView

ENDED_S = EVENTS_KEPT_S - 24 * 3600


@dataclass(frozen=True, slots=True)
class Kept:
    """A message of the stream."""

    subject: str
    seq: int
    time_s: float
    traceparent: str
    data: str

    @classmethod
    def of(cls, message: Message, seq: int, time_s: float, traceparent: str) -> Kept:
        return cls(w.subject_of(message), seq, time_s, traceparent, w.encode(message).decode())


@dataclass(frozen=True, slots=True)
class Entry:
    """``ended_at_s``: of a job that is over; without messages, its name is all that is known."""

    messages: tuple[Kept, ...]
    ended_at_s: float | None = None

    def outlived(self, now: float) -> bool:
        """Whether the job's last events may be gone from the stream soon."""
        return self.ended_at_s is not None and now - self.ended_at_s > ENDED_S


_ENTRY = TypeAdapter(Entry)


@dataclass(slots=True)
class Keeping:
    """What is to be kept of each job, and what the bucket has."""

    known: dict[str, dict[type[Message], Kept]] = field(default_factory=dict[str, Any])
    stored: dict[str, bytes] = field(default_factory=dict[str, bytes])
    spent: dict[str, Entry] = field(default_factory=dict[str, Entry])
    """jobs that nothing but the name is known of"""

    def note(self, message: Message, seq: int, time_s: float, traceparent: str) -> None:
        """A message was folded in."""
        if isinstance(message, w.JobSubmitted):
            self.known.setdefault(message.job, {}).setdefault(type(message), Kept.of(message, seq, time_s, traceparent))
        elif isinstance(message, PlanDecided) and message.job in self.known:
            self.known[message.job][type(message)] = Kept.of(message, seq, time_s, traceparent)

    def aged_out(self, first_seq: int, now: float) -> list[Kept]:
        """Of all jobs, in order, what a stream that begins with ``first_seq`` has no longer."""
        found: list[Kept] = []
        for job, stored in self.stored.items():
            try:
                entry = _ENTRY.validate_json(stored)
            except ValidationError:  # of another version: its job is known again once it is written anew
                continue
            if entry.outlived(now):
                self.spent[job] = replace(entry, messages=())
            else:
                found += entry.messages
        return sorted((kept for kept in found if kept.seq < first_seq), key=lambda kept: kept.seq)

    def due(self, views: Iterable[JobView], now: float) -> dict[str, bytes]:
        """job -> what the bucket lacks of it."""
        wanted = dict(self.spent)
        for view in views:
            entry = _entry(view, self.known[view.name])
            wanted[view.name] = replace(entry, messages=()) if entry.outlived(now) else entry
        due = {job: _ENTRY.dump_json(entry) for job, entry in wanted.items()}
        return {job: entry for job, entry in due.items() if self.stored.get(job) != entry}


def _entry(view: JobView, known: dict[type[Message], Kept]) -> Entry:
    messages = list(known.values())
    if view.data.last_seq:
        parts = tuple(
            DataPartition(name=name, samples=part.samples, priority=part.priority)
            for name, part in view.data.partitions.items()
        )
        arrived = DataArrived(job=view.name, partitions=parts, closed=not view.data.growing)
        messages.append(Kept.of(arrived, view.data.last_seq, view.submitted_at_s, ""))
    ended_at_s = view.ended_at_s if view.status in OVER else None
    return Entry(tuple(sorted(messages, key=lambda kept: kept.seq)), ended_at_s)
