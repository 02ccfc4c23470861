"""Messages that a stream should have and that nobody can read: bits were flipped, or a file was cut or lost.

The server skips such a message without a word. Its index still counts it, so the subjects whose count is not reached
are damaged. What the server finds lost when it starts it leaves out of the index; it tells of that, or the stream ends
before its last sequence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from stretto_messages.base import counted
from stretto_wire.contract.registry import STATE_PREFIX

from stretto_bus.bus import Bus
from stretto_bus.reading.ordered_consumer import scan

HOLES_MOST = 300_000
"""Messages that left a stream in its middle of which the server still makes a list that it can send."""
SUBJECTS_MOST = 50
"""Damaged subjects that are named; the others are counted."""
LOOKS_MOST = 3
"""Looks at one subject whose messages expire just while it is looked at."""
SPANS_NAMED = 5
UNREAD = "whether all stored messages can be read is not known yet; `stretto status` will tell those that cannot"
"""Sentence in the gateway's answer about its health until it has looked through all streams, for which `up` waits."""
EXPIRES_LATER_S = 24 * 3600.0
"""The shortest life of a message in the streams of facts; younger ones have not expired."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Damage of a stream, as far as it is known: spans of sequences, and the number of messages by subject.

    ``others``: number of further subjects, and of their messages.
    """

    stream: str
    spans: Sequence[tuple[int, int]] = ()
    subjects: Mapping[str, int] = field(default_factory=dict[str, int])
    lost_bytes: int = 0
    others: tuple[int, int] = (0, 0)

    @property
    def messages(self) -> int:
        """Return the number of messages that are surely lost."""
        of_subjects = sum(self.subjects.values()) + self.others[1]
        return max(1, sum(last - first + 1 for first, last in self.spans), of_subjects)

    def __str__(self) -> str:
        return "; ".join(part for part in (self.place, _some("subject", self._subjects, self.others[0])) if part)

    @property
    def _subjects(self) -> list[str]:
        return [subject + (f" (job {job})" if (job := _job(subject)) else "") for subject in self.subjects]

    def of_job(self, job: str) -> int:
        """Return the number of messages of a job that are known to be lost."""
        return sum(number for subject, number in self.subjects.items() if _job(subject) == job)

    @property
    def place(self) -> str:
        """Return a sentence that names no job: how many messages, and their sequences."""
        spans = [f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in self.spans]
        count = counted(self.messages, "message") if spans or self.subjects else "messages"
        parts = [
            f"{count} of the stream {self.stream} cannot be read",
            _some("sequence", spans),
            f"{self.lost_bytes:,} bytes were lost when the server opened it" if self.lost_bytes else "",
        ]
        return "; ".join(part for part in parts if part)


async def find_damage(bus: Bus, stream: str, patterns: Sequence[str] = (">",)) -> Damage | None:
    """Read the headers of all messages of ``patterns``, and look what the server found lost; None: nothing is damaged.

    Raises BusFault.
    """
    subjects: dict[str, int] = {}
    others = (0, 0)
    for pattern in patterns:
        async for subject, number in _damaged(bus, stream, pattern):
            if len(subjects) < SUBJECTS_MOST:
                subjects[subject] = number
            else:
                others = (others[0] + 1, others[1] + number)
    state = await _detailed(bus, stream)  # after the reading, in which the server finds losses too
    lost = state.get("lost") or {}
    spans = [*_spans(lost.get("msgs") or ()), *_cut_end(state, bus.server_now() or 0.0)]
    if subjects:
        spans = [*spans, *await _holes(bus, stream)]
    if not (spans or subjects or lost.get("bytes")):
        return None
    return Damage(stream, tuple(sorted({*spans})), subjects, int(lost.get("bytes") or 0), others)


async def subject_counts(bus: Bus, stream: str, pattern: str) -> dict[str, int]:
    """Return the number of messages of each subject that ``pattern`` matches, by the index. Raises BusFault."""
    return (await _counted(bus, stream, pattern))[0]


async def _counted(bus: Bus, stream: str, pattern: str) -> tuple[dict[str, int], float]:
    """Return the counts, and the last sequence that they include."""
    counts: dict[str, int] = {}
    last = 0.0
    while True:  # the server answers with up to 100,000 at once
        asked = {"subjects_filter": pattern, "offset": len(counts)}
        answer = await bus.ask(f"STREAM.INFO.{stream}", asked, timeout_s=30)
        found = answer["state"].get("subjects") or {}
        replaced = (
            int(answer["config"].get("max_msgs_per_subject", -1)) > 0
        )  # later ones replace those that are counted
        last = math.inf if replaced else int(answer["state"]["last_seq"])
        counts |= found
        if not found or len(counts) >= int(answer.get("total", 0)):
            return counts, last


class Count(NamedTuple):
    """The messages of one subject: in the index ``before`` and ``after`` a reading, and those that came.

    ``came``: up to the second count; ``late``: of them, those that were stored after the first.
    """

    before: int
    after: int
    came: int
    late: int

    @property
    def missing(self) -> int:
        """Return how many are surely missing: what the second count has was there to be read."""
        return max(0, self.after - self.came)

    @property
    def missing_at_most(self) -> int:
        """Return how many may be missing: of those that left the index meanwhile, nobody knows which ones had come."""
        return max(0, self.after - self.came + max(0, self.before + self.late - self.after))


NONE = Count(0, 0, 0, 0)


async def _damaged(bus: Bus, stream: str, pattern: str) -> AsyncGenerator[tuple[str, int]]:
    """Yield the subjects of which messages are surely missing, and how many."""
    counts = await _look(bus, stream, pattern)
    for subject in counts:
        count = counts[subject]
        for _ in range(LOOKS_MOST):
            if count.missing == count.missing_at_most:
                break
            count = (await _look(bus, stream, subject)).get(subject, NONE)  # hardly any expires in so short a time
        if count.missing:
            yield subject, count.missing


async def _look(bus: Bus, stream: str, pattern: str) -> dict[str, Count]:
    """Read all messages of ``pattern``, and return the counts of each subject."""
    before, first = await _counted(bus, stream, pattern)
    came, late, reached = Counter[str](), Counter[str](), 0
    async for stored in scan(bus, stream, [pattern], headers_only=True):
        came[stored.subject] += 1
        late[stored.subject] += stored.seq > first
        reached = stored.seq
    after, last = await _counted(bus, stream, pattern)
    async for stored in scan(bus, stream, [pattern], reached + 1, headers_only=True):
        came[stored.subject] += stored.seq <= last
        late[stored.subject] += first < stored.seq <= last
    return {
        subject: Count(before.get(subject, 0), after.get(subject, 0), came[subject], late[subject])
        for subject in before | after
    }


async def _detailed(bus: Bus, stream: str) -> dict[str, Any]:
    """Return the state of a stream, with losses and the sequences that have left its middle if these are not too
    many."""
    state: dict[str, Any] = (await bus.ask(f"STREAM.INFO.{stream}"))["state"]
    if int(state.get("num_deleted", 0)) > HOLES_MOST:
        return state
    return (await bus.ask(f"STREAM.INFO.{stream}", {"deleted_details": True}, timeout_s=30))["state"]


async def _holes(bus: Bus, stream: str) -> list[tuple[int, int]]:
    """Return the sequences that do not come and that no expiry, replacement or loss has taken from the index."""
    state = await _detailed(bus, stream)
    if "deleted" not in state and state.get("num_deleted"):
        return []
    gaps: list[tuple[int, int]] = []
    expected, last = max(1, int(state["first_seq"])), int(state["last_seq"])
    async for stored in scan(bus, stream, [">"], headers_only=True):
        if stored.seq > expected:
            gaps.append((expected, stored.seq - 1))
        expected = stored.seq + 1
        if len(gaps) > 2 * HOLES_MOST:
            return []
    gaps += [(expected, last)] if expected <= last else []
    state = await _detailed(bus, stream)
    return without(gaps, [(0, int(state["first_seq"]) - 1), *_spans(state.get("deleted") or ())])


def without(spans: Iterable[tuple[int, int]], others: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return what is left of ascending spans without the others, which ascend, too."""
    left: list[tuple[int, int]] = []
    at = 0
    for first, last in spans:
        while at < len(others) and others[at][1] < first:
            at += 1
        for other in islice(others, at, None):
            if other[0] > last:
                break
            if first < other[0]:
                left.append((first, other[0] - 1))
            first = other[1] + 1
        if first <= last:
            left.append((first, last))
    return left


def _cut_end(state: Mapping[str, Any], now_s: float) -> list[tuple[int, int]]:
    """Return the sequences that have left the end of a stream, if they are too young to have expired."""
    last, deleted = int(state["last_seq"]), _spans(state.get("deleted") or ())
    if not deleted or deleted[-1][1] != last:
        return []
    is_young = now_s - datetime.fromisoformat(state["last_ts"]).timestamp() < EXPIRES_LATER_S
    return [deleted[-1]] if is_young else []


def _spans(sequences: Iterable[int]) -> list[tuple[int, int]]:
    """Return ascending sequences as spans."""
    spans: list[tuple[int, int]] = []
    for seq in sequences:
        if spans and spans[-1][1] == seq - 1:
            spans[-1] = (spans[-1][0], seq)
        else:
            spans.append((seq, seq))
    return spans


def _job(subject: str) -> str:
    """Return the job that a stored subject names; empty: it names none."""
    tokens = subject.removeprefix(STATE_PREFIX).split(".")
    if tokens[1:2] in (["evt"], ["tel"]):
        return tokens[-1]
    return tokens[3] if tokens[0] == "snap" and len(tokens) > 3 and tokens[3] != "_" else ""


def _some(what: str, names: Sequence[str], others: int = 0) -> str:
    unnamed = max(0, len(names) - SPANS_NAMED) + others
    more = f" and {unnamed:,} more" if unnamed else ""
    return f"{what}{'s' if len(names) > 1 else ''} {', '.join(names[:SPANS_NAMED])}{more}" if names else ""
