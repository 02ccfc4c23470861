"""Messages that a stream should have and that nobody can read: bits were flipped, or a file was cut or lost.

The server skips such a message without a word. Its index still counts it, so the subjects whose count is not reached
are damaged. What the server finds lost when it starts it leaves out of the index; it tells of that, or the stream ends
before its last sequence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from stretto_wire.contract.registry import STATE_PREFIX

from stretto_bus.bus import Bus
from stretto_bus.ordered_consumer import scan

HOLES_MOST = 300_000
"""Messages that left a stream in its middle of which the server still makes a list that it can send."""
SUBJECTS_MOST = 50
"""Damaged subjects that are looked at one by one."""
SPANS_NAMED = 5
EXPIRES_LATER_S = 24 * 3600.0
"""The shortest life of a message in the streams of facts; younger ones have not expired."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Damage of a stream, as far as it is known: spans of sequences, and the number of messages by subject."""

    stream: str
    spans: Sequence[tuple[int, int]] = ()
    subjects: Mapping[str, int] = field(default_factory=dict[str, int])
    lost_bytes: int = 0

    @property
    def messages(self) -> int:
        """Return the number of messages that are surely lost."""
        return max(1, sum(last - first + 1 for first, last in self.spans), sum(self.subjects.values()))

    def __str__(self) -> str:
        return "; ".join(part for part in (self.place, _some("subject", self._subjects)) if part)

    @property
    def _subjects(self) -> list[str]:
        return [f"{subject}{_job(subject)}" for subject in self.subjects]

    @property
    def place(self) -> str:
        """Return a sentence that names no job: how many messages, and their sequences."""
        spans = [f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in self.spans]
        count = f"{self.messages:,} message{'s' if self.messages > 1 else ''}" if spans or self.subjects else "messages"
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
    for pattern in patterns:
        suspects = await _missing(bus, stream, pattern)
        for subject in [*suspects][:SUBJECTS_MOST]:
            if number := (await _missing(bus, stream, subject)).get(subject):
                subjects[subject] = number
    state = await _detailed(bus, stream)  # after the reading, in which the server finds losses too
    lost = state.get("lost") or {}
    spans = [*_spans(lost.get("msgs") or ()), *_cut_end(state, bus.server_now() or 0.0)]
    if subjects:
        spans = [*spans, *await _holes(bus, stream)]
    if not (spans or subjects or lost.get("bytes")):
        return None
    return Damage(stream, tuple(sorted({*spans})), subjects, int(lost.get("bytes") or 0))


async def subject_counts(bus: Bus, stream: str, pattern: str) -> dict[str, int]:
    """Return the number of messages of each subject that ``pattern`` matches, by the index. Raises BusFault."""
    return (await _counted(bus, stream, pattern))[0]


async def _counted(bus: Bus, stream: str, pattern: str) -> tuple[dict[str, int], float]:
    """Return the counts, and the last sequence that they include."""
    counts: dict[str, int] = {}
    last = math.inf
    while True:  # the server answers with up to 100,000 at once
        asked = {"subjects_filter": pattern, "offset": len(counts)}
        answer = await bus.ask(f"STREAM.INFO.{stream}", asked, timeout_s=30)
        found = answer["state"].get("subjects") or {}
        if int(answer["config"].get("max_msgs_per_subject", -1)) <= 0:  # else later ones replace those that are counted
            last = min(last, int(answer["state"]["last_seq"]))
        counts |= found
        if not found or len(counts) >= int(answer.get("total", 0)):
            return counts, last


async def _missing(bus: Bus, stream: str, pattern: str) -> dict[str, int]:
    """Return the subjects of which fewer messages come than are counted, and how many fewer."""
    counts, last = await _counted(bus, stream, pattern)
    seen: Counter[str] = Counter()
    if counts:
        async for stored in scan(bus, stream, [pattern], headers_only=True):
            seen[stored.subject] += stored.seq <= last
    return {subject: count - seen[subject] for subject, count in counts.items() if count > seen[subject]}


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
    missing: set[int] = set()
    expected, last = max(1, int(state["first_seq"])), int(state["last_seq"])
    async for stored in scan(bus, stream, [">"], headers_only=True):
        missing.update(range(expected, stored.seq))
        expected = stored.seq + 1
    missing.update(range(expected, last + 1))
    state = await _detailed(bus, stream)
    missing.difference_update(state.get("deleted") or ())
    return _spans(sorted(seq for seq in missing if int(state["first_seq"]) <= seq <= last))


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
    """Return the words for the job that a stored subject names, if it does."""
    tokens = subject.removeprefix(STATE_PREFIX).split(".")
    if tokens[1:2] in (["evt"], ["tel"]):
        return f" (job {tokens[-1]})"
    return f" (job {tokens[3]})" if tokens[0] == "snap" and len(tokens) > 3 and tokens[3] != "_" else ""


def _some(what: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - SPANS_NAMED:,} more" if len(names) > SPANS_NAMED else ""
    return f"{what}{'s' if len(names) > 1 else ''} {', '.join(names[:SPANS_NAMED])}{more}" if names else ""
