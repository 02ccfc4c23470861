"""Messages about a job that the gateway retains, because they age out of the stream while the job lives.

The key-value bucket has one entry per job, ``kept.gateway.<job>``: the submission, the last decided plan and the totals
of arrived data, each as it was stored, with its sequence. Any replica may write the entry, since all write the same as
far as they have read. A day before the last events of an ended job age out, the job is forgotten: without those events
it would seem alive. Its name moves to the spent names (``spent_names``), and then its entry is removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import stretto_wire as wire
from pydantic import TypeAdapter, ValidationError
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import Message
from stretto_messages.gateway import DataArrived
from stretto_messages.values import DataPartition
from stretto_wire.registry import EVENTS_KEPT_S

from .spent_names import SpentNames
from .views import OVER, JobView

ENDED_S = EVENTS_KEPT_S - 24 * 3600


@dataclass(frozen=True, slots=True)
class Retained:
    """A message of the stream."""

    subject: str
    seq: int
    time_s: float
    traceparent: str
    data: str

    @classmethod
    def of(cls, message: Message, seq: int, time_s: float, traceparent: str) -> Retained:
        return cls(wire.subject_of(message), seq, time_s, traceparent, wire.encode(message).decode())


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry of one job. ``ended_at_s``: end of the job."""

    messages: tuple[Retained, ...]
    ended_at_s: float | None = None

    def outlived(self, now: float) -> bool:
        """Return whether the job's last events will soon be gone from the stream."""
        return self.ended_at_s is not None and now - self.ended_at_s > ENDED_S


_ENTRY = TypeAdapter(Entry)


@dataclass(slots=True)
class Retention:
    """The messages to retain of each job, the entries that the bucket has, and the names of forgotten jobs."""

    known: dict[str, dict[type[Message], Retained]] = field(default_factory=dict[str, Any])
    stored: dict[str, bytes] = field(default_factory=dict[str, bytes])
    spent: SpentNames = field(default_factory=SpentNames)
    outlived: set[str] = field(default_factory=set[str])
    """Jobs whose names are to be spent."""

    def note(self, message: Message, seq: int, time_s: float, traceparent: str) -> None:
        """Note a message that was folded in."""
        if isinstance(message, wire.JobSubmitted):
            self.known.setdefault(message.job, {}).setdefault(
                type(message), Retained.of(message, seq, time_s, traceparent)
            )
        elif isinstance(message, PlanDecided) and message.job in self.known:
            self.known[message.job][type(message)] = Retained.of(message, seq, time_s, traceparent)

    def aged_out(self, first_seq: int, now: float) -> list[Retained]:
        """Return in order the retained messages that are older than ``first_seq``, the first of the stream."""
        found: list[Retained] = []
        for job, stored in self.stored.items():
            try:
                entry = _ENTRY.validate_json(stored)
            except ValidationError:  # written by another version: the entry is rewritten later
                continue
            if entry.outlived(now):
                self.outlived.add(job)
            else:
                found += entry.messages
        return sorted((retained for retained in found if retained.seq < first_seq), key=lambda retained: retained.seq)

    def due(self, views: Iterable[JobView], now: float) -> dict[str, bytes]:
        """Return the entries that the bucket lacks, by job; jobs that nobody needs any more become ``outlived``."""
        due: dict[str, bytes] = {}
        for view in views:
            entry = _entry(view, self.known[view.name])
            if entry.outlived(now):
                self.outlived.add(view.name)
            elif self.stored.get(view.name) != (dumped := _ENTRY.dump_json(entry)):
                due[view.name] = dumped
        return due

    def is_taken(self, name: str) -> bool:
        """Return whether a forgotten job had this name. Raises DamagedNames."""
        return name in self.outlived or name in self.spent

    def forget(self, job: str) -> None:
        """Drop a job whose name is spent and whose entry is gone."""
        self.outlived.discard(job)
        self.stored.pop(job, None)
        self.known.pop(job, None)


def _entry(view: JobView, known: dict[type[Message], Retained]) -> Entry:
    messages = list(known.values())
    if view.data.last_seq:
        parts = tuple(
            DataPartition(name=name, samples=part.samples, priority=part.priority)
            for name, part in view.data.partitions.items()
        )
        arrived = DataArrived(job=view.name, partitions=parts, closed=not view.data.growing)
        messages.append(Retained.of(arrived, view.data.last_seq, view.submitted_at_s, ""))
    ended_at_s = view.ended_at_s if view.status in OVER else None
    return Entry(tuple(sorted(messages, key=lambda retained: retained.seq)), ended_at_s)
