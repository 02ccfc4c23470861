"""What the gateway knows a job by, kept as long as the job lives: its events age out of the stream, the job does not.

One entry of the key-value bucket per job, ``kept.gateway.<job>``: the submission, the last plan that was
decided, and the totals of data that arrived, each as it was stored, with its sequence. Any replica may write it: all
write the same, as far as they have read. Removed when the job is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import stretto_wire as w
from pydantic import TypeAdapter, ValidationError

from .views import OVER, JobView


@dataclass(frozen=True, slots=True)
class Kept:
    """A message of the stream."""

    subject: str
    seq: int
    time_s: float
    traceparent: str
    data: str

    @classmethod
    def of(cls, message: w.Message, seq: int, time_s: float, traceparent: str) -> Kept:
        return cls(w.subject_of(message), seq, time_s, traceparent, w.encode(message).decode())


_ENTRY = TypeAdapter(tuple[Kept, ...])


@dataclass(slots=True)
class Keeping:
    """What is to be kept of each job, and what the bucket has."""

    known: dict[str, dict[type[w.Message], Kept]] = field(default_factory=dict[str, Any])
    stored: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def note(self, message: w.Message, seq: int, time_s: float, traceparent: str) -> None:
        """A message was folded in."""
        if isinstance(message, w.JobSubmitted):
            self.known.setdefault(message.job, {}).setdefault(type(message), Kept.of(message, seq, time_s, traceparent))
        elif isinstance(message, w.PlanDecided) and message.job in self.known:
            self.known[message.job][type(message)] = Kept.of(message, seq, time_s, traceparent)

    def aged_out(self, first_seq: int) -> list[Kept]:
        """Of all jobs, in order, what a stream that begins with ``first_seq`` has no longer."""
        found: list[Kept] = []
        for entry in self.stored.values():
            try:
                found += _ENTRY.validate_json(entry)
            except ValidationError:  # of another version: its job is known again once it is written anew
                continue
        return sorted((kept for kept in found if kept.seq < first_seq), key=lambda kept: kept.seq)

    def due(self, views: Iterable[JobView]) -> dict[str, bytes]:
        """job -> what the bucket lacks of it; nothing: the entry is to be removed."""
        found: dict[str, bytes] = {}
        for view in views:
            entry = b"" if view.status in OVER else _entry(view, self.known[view.name])
            if self.stored.get(view.name, b"") != entry:
                found[view.name] = entry
        return found


def _entry(view: JobView, known: dict[type[w.Message], Kept]) -> bytes:
    messages = list(known.values())
    if view.data.last_seq:
        parts = tuple(
            w.DataPartition(name=name, samples=part.samples, priority=part.priority)
            for name, part in view.data.partitions.items()
        )
        arrived = w.DataArrived(job=view.name, partitions=parts, closed=not view.data.growing)
        messages.append(Kept.of(arrived, view.data.last_seq, view.submitted_at_s, ""))
    return _ENTRY.dump_json(tuple(sorted(messages, key=lambda kept: kept.seq)))
