"""A stream of a JetStream server in memory: what it takes, refuses, replaces, removes and forgets.

Every behaviour here stands in ``tests/jetstream/contract.py``, which a real nats-server passes, too.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from stretto_bus.received import header_lines
from stretto_wire.contract.registry import PATTERN_OF_STREAM, STORED_AS, partition_of

from stretto_testing.jetstream.subjects import Filter, matches

SECOND_NS = 10**9
UNSYNCED_NS = 5 * SECOND_NS
"""Longest time of writes that a loss of power undoes."""
TRANSFORM = {"src": PATTERN_OF_STREAM, "dest": STORED_AS}
"""The one transform of subjects that is simulated: a job's partition goes in front."""
OVERHEAD_BYTES = 30
"""Bytes that a stored message takes beside its content (about; the server's own figure is no promise)."""
MARKER = "NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: {ttl}s\r\n\r\n"


class ApiRefusal(Exception):
    """A refusal of the JetStream API, with the server's codes."""

    def __init__(self, err_code: int, description: str, code: int = 400) -> None:
        super().__init__(description)
        self.body = {"code": code, "err_code": err_code, "description": description}


class Kept(NamedTuple):
    """A stored message. ``block``: its headers as they are sent."""

    seq: int
    subject: str
    block: bytes
    data: bytes
    time_ns: int

    @property
    def size_bytes(self) -> int:
        """Return the bytes that it counts for."""
        return OVERHEAD_BYTES + len(self.subject) + len(self.block) + len(self.data)


class Offered(NamedTuple):
    """A message that is to be stored, with its headers by name."""

    subject: str
    block: bytes
    headers: Mapping[str, str]
    data: bytes


@dataclass(slots=True)
class Batch:
    """An atomic batch that is not committed."""

    messages: list[Offered] = field(default_factory=list[Offered])


class Follower(Protocol):
    """A reader of a stream. ``filter``: the subjects that a stream tells it of."""

    filter: Filter

    def stored(self, kept: Kept) -> None:
        """Take notice of a new message."""
        ...

    def removed(self, kept: Kept) -> None:
        """Take notice that a message is gone."""
        ...


class Followers:
    """The readers of a stream."""

    def __init__(self) -> None:
        self._all: list[Follower] = []
        self._of: dict[str, list[Follower]] = {}
        """Subject -> who is told of it, since the last change"""

    def add(self, follower: Follower) -> None:
        """Tell a reader of what is stored and removed from now on."""
        self._all.append(follower)
        self._of.clear()

    def remove(self, follower: Follower) -> None:
        """Tell a reader nothing more."""
        self._all.remove(follower)
        self._of.clear()

    def of(self, subject: str) -> list[Follower]:
        """Return the readers of a subject."""
        found = self._of.get(subject)
        if found is None:
            found = self._of[subject] = [each for each in self._all if each.filter.takes(subject)]
        return found


@lru_cache(maxsize=1 << 10)
def _headers(block: bytes) -> Mapping[str, str]:
    """Return headers by name. Each renewal of a lease has the same."""
    return header_lines(block.decode("utf-8", "replace").partition("\r\n")[2])


def offered(subject: str, block: bytes, data: bytes) -> Offered:
    """Return a message with its headers read."""
    return Offered(subject, block, _headers(block) if block else {}, data)


class KeptStream:
    """One stream, with its messages in memory."""

    def __init__(self, config: dict[str, Any], now_ns: Callable[[], int]) -> None:
        self.config = config
        self.name = str(config["name"])
        self.created_ns = now_ns()
        self.messages: dict[int, Kept] = {}
        self.by_subject: dict[str, dict[int, None]] = {}
        """Subject -> the sequences of its messages, ascending"""
        self.last_seq = int(config.get("first_seq", 1)) - 1
        self.bytes = 0
        self.bound_bytes = int(config.get("max_bytes", -1))
        self.on_stored: list[Callable[[Kept], None]] = []
        self.followers = Followers()
        self._now_ns = now_ns
        self._filter = Filter(config["subjects"])
        self._ids: dict[str, tuple[int, int]] = {}
        """Id of a message -> its sequence, and when it was stored"""
        self._expiry: list[tuple[int, int]] = []
        """(when, sequence) of messages with a lifetime"""
        self._markers: set[int] = set()
        self._batches: dict[str, Batch] = {}
        self._writes: deque[tuple[Kept, bool]] = deque()
        """Messages that were stored (True) and removed (False), in order; the first one is the oldest without a sync"""

    def configure(self, config: dict[str, Any]) -> None:
        """Take another configuration of the same subjects."""
        self.config, self.bound_bytes = config, int(config.get("max_bytes", -1))

    def takes(self, subject: str) -> bool:
        """Return whether this stream has this subject among its own."""
        return self._filter.takes(subject)

    @property
    def first_seq(self) -> int:
        """Return the sequence of the oldest message; of an empty stream the next one that it will store."""
        return next(iter(self.messages), self.last_seq + 1)

    def last_of(self, subject: str) -> int:
        """Return the last sequence of a stored subject; 0: it has none."""
        sequences = self.by_subject.get(subject)
        return next(reversed(sequences)) if sequences else 0

    def matching(self, takes: Callable[[str], bool], start: int) -> list[int]:
        """Return the sequences from ``start`` on of all subjects that are taken, ascending."""
        found: list[int] = []
        for subject, sequences in self.by_subject.items():
            if takes(subject) and next(reversed(sequences)) >= start:
                found += [seq for seq in sequences if seq >= start]
        return sorted(found)

    def newest_of_each(self, takes: Callable[[str], bool]) -> list[int]:
        """Return the last sequence of each subject that is taken, ascending."""
        return sorted(next(reversed(seqs)) for subject, seqs in self.by_subject.items() if takes(subject) and seqs)

    # storing ---------------------------------------------------------------------------------------------------

    def publish(self, message: Offered) -> dict[str, Any] | None:
        """Store a message; return the acknowledgement, None for a part of a batch that waits. Raises ApiRefusal."""
        if (batch_id := message.headers.get("Nats-Batch-Id")) is not None:
            return self._batched(batch_id, message)
        self._check_fence(message)
        if (seq := self._duplicate_of(message)) is not None:
            return {"stream": self.name, "seq": seq, "duplicate": True}
        self._check(message)
        return {"stream": self.name, "seq": self._store(message)}

    def _batched(self, batch_id: str, message: Offered) -> dict[str, Any] | None:
        if not self.config.get("allow_atomic"):
            raise ApiRefusal(10174, "batch publish is disabled")
        number = int(message.headers["Nats-Batch-Sequence"])
        batch = self._batches.setdefault(batch_id, Batch())
        if number != len(batch.messages) + 1:
            del self._batches[batch_id]
            raise ApiRefusal(10176, "batch publish is incomplete and was abandoned")
        batch.messages.append(message)
        if message.headers.get("Nats-Batch-Commit") != "1":
            return None
        del self._batches[batch_id]
        for each in batch.messages:
            self._check_fence(each)
            self._check(each)
        seq = 0
        for each in batch.messages:
            seq = self._store(each)
        return {"stream": self.name, "seq": seq, "batch": batch_id, "count": len(batch.messages)}

    def abandon_batches(self) -> None:
        """Forget what is not committed, as a new leader does, which never heard of it."""
        self._batches.clear()

    def _duplicate_of(self, message: Offered) -> int | None:
        name = message.headers.get("Nats-Msg-Id")
        known = self._ids.get(name) if name else None
        window_ns = int(self.config.get("duplicate_window", 120 * SECOND_NS))
        return known[0] if known is not None and self._now_ns() - known[1] < window_ns else None

    def _check_fence(self, message: Offered) -> None:
        headers = message.headers
        expected = headers.get("Nats-Expected-Last-Subject-Sequence")
        if expected is not None:
            of = headers.get("Nats-Expected-Last-Subject-Sequence-Subject") or self._stored_as(message.subject)
            last = self.last_of(of)
            if last != int(expected):
                raise ApiRefusal(10071, f"wrong last sequence: {last}")

    def _check(self, message: Offered) -> None:
        if "Nats-TTL" in message.headers and not self.config.get("allow_msg_ttl"):
            raise ApiRefusal(10166, "per-message TTL is disabled")
        largest = int(self.config.get("max_msg_size", -1))
        if 0 < largest < len(message.data) + len(message.block):
            raise ApiRefusal(10054, "message size exceeds maximum allowed")
        bound = self.bound_bytes
        if bound > 0 and self.config.get("discard") == "new":
            subject = self._stored_as(message.subject)
            added = OVERHEAD_BYTES + len(subject) + len(message.block) + len(message.data)
            if self.bytes + added - self._replaced_bytes(subject) > bound:
                raise ApiRefusal(10077, "maximum bytes exceeded")

    def _replaced_bytes(self, subject: str) -> int:
        kept = int(self.config.get("max_msgs_per_subject", -1))
        sequences = self.by_subject.get(subject, {})
        return self.messages[next(iter(sequences))].size_bytes if 0 < kept <= len(sequences) else 0

    def _stored_as(self, subject: str) -> str:
        if self.config.get("subject_transform") != TRANSFORM or not matches(PATTERN_OF_STREAM, subject):
            return subject
        return f"{partition_of(subject.rpartition('.')[2])}.{subject}"

    def _store(self, message: Offered) -> int:
        now_ns = self._now_ns()
        self.last_seq += 1
        kept = Kept(self.last_seq, self._stored_as(message.subject), message.block, message.data, now_ns)
        self.messages[kept.seq] = kept
        while self._writes and not (self._writes[0][1] and self._writes[0][0].time_ns >= kept.time_ns - UNSYNCED_NS):
            self._writes.popleft()  # synced by now
        self._writes.append((kept, True))
        of_subject = self.by_subject.setdefault(kept.subject, {})
        of_subject[kept.seq] = None
        self.bytes += kept.size_bytes
        if (name := message.headers.get("Nats-Msg-Id")) is not None:
            self._ids[name] = (kept.seq, now_ns)
        self._note_lifetime(kept.seq, message.headers, now_ns)
        most = int(self.config.get("max_msgs_per_subject", -1))
        while 0 < most < len(of_subject):
            self._remove(next(iter(of_subject)))
        bound = self.bound_bytes if self.config.get("discard") != "new" else 0
        while 0 < bound < self.bytes and len(self.messages) > 1:
            self._remove(self.first_seq)
        for each in self.on_stored:
            each(kept)
        for follower in self.followers.of(kept.subject):
            follower.stored(kept)
        return kept.seq

    def _remove(self, seq: int) -> Kept:
        kept = self.messages.pop(seq)
        self._writes.append((kept, False))
        of_subject = self.by_subject[kept.subject]
        del of_subject[seq]
        if not of_subject:
            del self.by_subject[kept.subject]
        self.bytes -= kept.size_bytes
        for follower in self.followers.of(kept.subject):
            follower.removed(kept)
        return kept

    def load(self, last_seq: int, messages: list[Kept]) -> None:
        """Hold what a snapshot has, with sequences, times and lifetimes of then; the ids are forgotten."""
        self.last_seq = last_seq
        for kept in messages:
            self.messages[kept.seq] = kept
            self.by_subject.setdefault(kept.subject, {})[kept.seq] = None
            self.bytes += kept.size_bytes
            self._note_lifetime(kept.seq, _headers(kept.block) if kept.block else {}, kept.time_ns)

    def _note_lifetime(self, seq: int, headers: Mapping[str, str], time_ns: int) -> None:
        if "Nats-Marker-Reason" in headers:
            self._markers.add(seq)
        if (life := headers.get("Nats-TTL")) is not None:
            heapq.heappush(self._expiry, (time_ns + int(life.removesuffix("s")) * SECOND_NS, seq))

    # power -----------------------------------------------------------------------------------------------------

    def lose(self, since_ns: int) -> None:
        """Undo every write since the first message that was stored at ``since_ns`` or later, as a loss of power does to
        what nobody has synced. What was removed meanwhile is there again, without its lifetime.
        """
        lost = (at for at, (kept, is_new) in enumerate(self._writes) if is_new and kept.time_ns >= since_ns)
        first = next(lost, len(self._writes))
        for _ in range(len(self._writes) - first):
            kept, is_new = self._writes.pop()
            if is_new:
                del self.messages[kept.seq]
                self.last_seq = kept.seq - 1
                for follower in self.followers.of(kept.subject):
                    follower.removed(kept)
            else:
                self.messages[kept.seq] = kept
        self.messages = dict(sorted(self.messages.items()))
        self.bytes = sum(kept.size_bytes for kept in self)
        self._ids = {name: known for name, known in self._ids.items() if known[0] <= self.last_seq}
        self.by_subject = {}
        for kept in self:
            self.by_subject.setdefault(kept.subject, {})[kept.seq] = None

    # time ------------------------------------------------------------------------------------------------------

    @property
    def next_expiry_ns(self) -> int | None:
        """Return when the next message with a lifetime ends; None: there is none."""
        while self._expiry and self._expiry[0][1] not in self.messages:
            heapq.heappop(self._expiry)
        return self._expiry[0][0] if self._expiry else None

    def expire(self) -> None:
        """Remove what has outlived its lifetime; of a subject that ends with it, a marker tells."""
        now_ns = self._now_ns()
        while (due_ns := self.next_expiry_ns) is not None and due_ns <= now_ns:
            seq = heapq.heappop(self._expiry)[1]
            was_last = self.last_of(self.messages[seq].subject) == seq
            kept = self._remove(seq)
            is_marker = seq in self._markers
            self._markers.discard(seq)
            life_ns = int(self.config.get("subject_delete_marker_ttl", 0))
            if was_last and life_ns and not is_marker:
                block = MARKER.format(ttl=life_ns // SECOND_NS).encode()
                self._store(offered(kept.subject, block, b""))
        age_ns = int(self.config.get("max_age", 0))
        while age_ns and self.messages and now_ns - self.messages[self.first_seq].time_ns >= age_ns:
            self._remove(self.first_seq)

    def state(self) -> dict[str, Any]:
        """Return the state as ``STREAM.INFO`` tells it, without times."""
        first = self.first_seq if self.messages else (self.last_seq + 1 if self.last_seq else 0)
        found = {
            "messages": len(self.messages),
            "bytes": self.bytes,
            "first_seq": first,
            "last_seq": self.last_seq,
            "num_subjects": len(self.by_subject),
        }
        if self.messages:
            found["num_deleted"] = self.last_seq - first + 1 - len(self.messages)
        return found

    def __iter__(self) -> Iterator[Kept]:
        return iter(self.messages.values())
