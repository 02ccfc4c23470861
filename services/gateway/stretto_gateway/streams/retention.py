"""Messages about a job that the gateway retains, because they age out of the stream while the job lives.

The key-value bucket has one entry per job, ``kept.gateway.<job>``: the submission, the last decided plan and the totals
of arrived data, each as it was stored, with its sequence. Any replica may write the entry, since all replicas write the
same, as far as they have read. A day before the last events of an ended job age out, the job is forgotten: without
those events the job would seem alive. Where ended jobs have too many bytes, the oldest are forgotten earlier. The name
of a forgotten job moves to the spent names (``spent_names``), and then its entry is removed.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import stretto_wire as wire
from pydantic import TypeAdapter, ValidationError
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import Message
from stretto_messages.gateway import DataArrived
from stretto_messages.values import DataPartition
from stretto_runtime.spent_names import DamagedNames, SpentNames, SpentShard
from stretto_wire.codec import adapter_of
from stretto_wire.contract.registry import EVENTS_KEPT_S
from stretto_wire.rest.views import OVER, JobView

BEFORE_S = 24 * 3600
"""Time before the end of an ended job's last events at which the job is forgotten."""
DUE_MOST = 200
"""Number of jobs whose entries are made at once, while nobody else is served."""


@dataclass(frozen=True, slots=True)
class Retained:
    """A retained message of the stream."""

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
    """Entry of a job. ``ended_at_s``: the end of the job; None while it lives."""

    messages: tuple[Retained, ...]
    ended_at_s: float | None = None

    def outlived(self, now: float, events_kept_s: float) -> bool:
        """Return whether the job's last events will soon be gone from the stream."""
        return self.ended_at_s is not None and now - self.ended_at_s > events_kept_s - BEFORE_S


_ENTRY = TypeAdapter(Entry)


class EndedJobs:
    """Bytes of ended jobs by team, the jobs of each team in the order of their ends.

    The team with the most bytes loses its oldest job first: many jobs of a team never push out the few jobs of another.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._sizes: dict[str, dict[str, int]] = {}
        self._ends: dict[str, list[tuple[float, str]]] = {}
        """Ended jobs of each team, a heap by the time of their ends."""
        self._bytes: Counter[str] = Counter()

    def add(self, job: str, team: str, ended_at_s: float, size: int) -> None:
        """Note an ended job, or the new size of one."""
        sizes = self._sizes.setdefault(team, {})
        if job not in sizes:
            heapq.heappush(self._ends.setdefault(team, []), (ended_at_s, job))
        self._bytes[team] += size - sizes.get(job, 0)
        sizes[job] = size

    def clear(self) -> None:
        """Forget all jobs."""
        for known in (self._sizes, self._ends, self._bytes):
            known.clear()

    def superfluous(self) -> list[str]:
        """Forget the jobs beyond the bound; returns their names. The last job of a team stays, whatever its size."""
        found: list[str] = []
        while self._bytes.total() > self._bytes_max:
            team = max(self._bytes, key=self._bytes.__getitem__)
            if len(self._ends[team]) < 2:
                break
            found.append(self._drop_oldest(team))
        return found

    def before(self, ended_s: float) -> list[str]:
        """Forget the jobs that ended before this time; returns their names."""
        found: list[str] = []
        for team in [*self._ends]:
            while team in self._ends and self._ends[team][0][0] < ended_s:
                found.append(self._drop_oldest(team))
        return found

    def _drop_oldest(self, team: str) -> str:
        _, job = heapq.heappop(self._ends[team])
        self._bytes[team] -= self._sizes[team].pop(job)
        if not self._ends[team]:
            for known in (self._ends, self._sizes, self._bytes):
                del known[team]
        return job


class Retention:
    """The messages to retain of each job, the entries that the bucket has, and the names of forgotten jobs."""

    def __init__(
        self,
        ended_bytes: int,
        stored: dict[str, bytes] | None = None,
        spent: SpentNames | None = None,
        events_kept_s: float = EVENTS_KEPT_S,
    ) -> None:
        self.stored = stored or {}
        self.events_kept_s = events_kept_s
        self.outlived: set[str] = set()
        """Jobs that are about to be forgotten, and whose names are about to be spent."""
        self._spent = spent or SpentNames()
        self._known: dict[str, dict[type[Message], Retained]] = {}
        self._changed: set[str] = set()
        """Jobs whose view has changed since ``due`` has seen them."""
        self._ended = EndedJobs(ended_bytes)

    def note(self, message: Message, seq: int, time_s: float, traceparent: str) -> None:
        """Note a message that the projection has folded in."""
        self._changed.add(message.job)
        if isinstance(message, wire.JobSubmitted):
            self._known.setdefault(message.job, {}).setdefault(
                type(message), Retained.of(message, seq, time_s, traceparent)
            )
        elif isinstance(message, PlanDecided) and message.job in self._known:
            self._known[message.job][type(message)] = Retained.of(message, seq, time_s, traceparent)

    def aged_out(self, first_seq: int, now: float) -> list[Retained]:
        """Return the retained messages that are older than ``first_seq``, the first of the stream, in stored order."""
        found: list[Retained] = []
        for job, stored in self.stored.items():
            try:
                entry = _ENTRY.validate_json(stored)
            except ValidationError:  # another version wrote the entry, which is rewritten later
                continue
            if entry.outlived(now, self.events_kept_s) or self.is_spent(job):
                self.outlived.add(job)
            else:
                found += entry.messages
        return sorted((retained for retained in found if retained.seq < first_seq), key=lambda retained: retained.seq)

    def due(self, views: Mapping[str, JobView], now: float, most: int = DUE_MOST) -> dict[str, bytes]:
        """Return the entries that the bucket lacks, after looking at up to ``most`` of the changed jobs.

        Jobs that nobody needs, or that have no room, become ``outlived``.
        """
        due: dict[str, bytes] = {}
        for job in [*itertools.islice(self._changed, most)]:
            self._changed.discard(job)
            if (view := views.get(job)) is None or job not in self._known or job in self.outlived:
                continue
            entry = _entry(view, self._known[job])
            dumped = _ENTRY.dump_json(entry)
            if entry.ended_at_s is not None:
                self._ended.add(
                    job, view.team, entry.ended_at_s, len(dumped) + len(adapter_of(JobView).dump_json(view))
                )
            if self.stored.get(job) != dumped:
                due[job] = dumped
        self.outlived.update(self._ended.before(now - self.events_kept_s + BEFORE_S))
        if not self._changed:  # as long as some are unseen, an older job may be among them
            self.outlived.update(self._ended.superfluous())
        return {job: entry for job, entry in due.items() if job not in self.outlived}

    @property
    def has_more(self) -> bool:
        """Return whether jobs have changed since ``due`` has seen them."""
        return bool(self._changed)

    def put_back(self, jobs: Iterable[str]) -> None:
        """Let ``due`` see jobs again whose entries could not be stored."""
        self._changed.update(jobs)

    def is_taken(self, name: str) -> bool:
        """Return whether a forgotten job had this name. Raises DamagedNames."""
        return name in self.outlived or name in self._spent

    def is_spent(self, name: str) -> bool:
        """Return whether the name is known to be spent. A name that cannot be read counts as not spent."""
        try:
            return name in self._spent
        except DamagedNames:
            return False

    def read_spent(self, shards: dict[int, SpentShard]) -> None:
        """Take parts of the spent names as they are in the bucket."""
        self._spent.shards |= shards

    def spent_shard(self, number: int) -> SpentShard:
        """Return a part of the spent names as far as this replica knows it."""
        return self._spent.shard(number)

    def clear(self) -> None:
        """Forget the messages that were folded in, before the stream is read again from its first event on."""
        self._ended.clear()
        for known in (self._known, self._changed, self.outlived):
            known.clear()

    def forget(self, job: str) -> None:
        """Drop a job whose name is spent and whose entry is gone."""
        self.outlived.discard(job)
        self._changed.discard(job)
        self.stored.pop(job, None)
        self._known.pop(job, None)


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
