"""The inputs of a service, and how one stored message becomes the events of its machines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple, cast

from pydantic_core import from_json
from stretto_bus.reading.ordered_consumer import Stored
from stretto_messages.base import CLUSTER as CLUSTER
from stretto_messages.base import JOB_PATTERN, MAX_MESSAGE_BYTES, Message
from stretto_wire.codec import decode
from stretto_wire.contract.registry import CHANNELS, Channel, Scope, channel_of, parse, parse_on, partition_of
from stretto_wire.contract.registry import Input as Input

Kind = Literal["message", "request", "observation", "tick", "reports", "damaged"]
REPORTS: Kind = "reports"
"""Kind of the journal entry that stands for a range of telemetry"""
CLUSTER_PARTITION = partition_of(CLUSTER)
JOB = re.compile(JOB_PATTERN)
OUTPUT_ID = re.compile(r"[a-z]+:(([0-9]{1,19})(?:\.[^:]*)?):[0-9]{1,9}", re.ASCII)
TICKING = re.compile(r"[0-9]{0,9}", re.ASCII)
"""Body of a tick: the number of its machines, or nothing, as before they were counted."""
ENTRY_BYTES = 200
"""Bytes of an entry of the journal beside the request and its headers."""
HEADER_CHARACTERS_MAX = 128
"""Longest id of a request, and longest ``traceparent``."""
LARGEST_BYTES = 2 * MAX_MESSAGE_BYTES + ENTRY_BYTES + 2 * HEADER_CHARACTERS_MAX
"""Bytes of the largest request as the journal holds it: no budget is smaller, or its job could never send one."""
DAMAGED_LISTED = 50
"""Places of damaged journal entries that a dead letter names"""
SUBJECTS_KEPT = 1 << 13
"""Subjects of stored messages whose parts are remembered, of some hundred bytes each."""


class Meta(NamedTuple):
    """Facts about the message being translated.

    ``time_s`` is when the server stored it, seconds since the epoch: the machine's ``now``. ``key`` names its machine.
    ``observed``: it was journalled by ``Service.observe``. ``request_id``: it is a request. ``report_seq``: it is a
    report, and this its sequence in the stream of telemetry; ``seq`` then is that of its range's journal frame.
    """

    seq: int
    time_s: float
    subject: str
    headers: Mapping[str, str]
    key: str
    observed: bool = False
    request_id: str = ""
    report_seq: int = 0

    @property
    def scope(self) -> Scope:
        return "cluster" if self.key == CLUSTER else "job"


class Arrival(NamedTuple):
    """One message for one key. ``source`` makes output ids: ``<service>:<source>:<i>``.

    A range of reports has no key, and stands for the reports in it.

    A damaged message has no key; its ``fault`` says what is wrong with it, and it is set aside.
    """

    kind: Kind
    key: str
    source: str
    subject: str
    data: bytes
    meta: Meta
    trace: str
    channel: Channel | None = None
    """Channel of a stored message."""
    fault: str = ""

    @property
    def asked(self) -> tuple[str, str]:
        """Job and id of a request: callers choose ids, which may repeat from job to job."""
        return self.key, self.meta.request_id


class _Addressed(NamedTuple):
    """Parts of the subject of a stored message. ``partition``: the number before it; None: there is no number."""

    partition: int | None
    subject: str
    job: str
    channel: Channel
    scopes: list[Scope]


class Routes:
    """The subjects of one service and partition, and the keys of their messages."""

    def __init__(self, service: str, inputs: tuple[Input, ...], observations: tuple[type[Message], ...] = ()) -> None:
        self._service = service
        self._scopes: dict[type[Message], set[Scope]] = {}
        for entry in inputs:
            self._scopes.setdefault(entry.message, set()).add(entry.scope)
        patterns = {channel_of(message): scopes for message, scopes in self._scopes.items()}
        self._patterns = {channel.pattern: scopes for channel, scopes in patterns.items() if channel.kind != "tel"}
        self._reported = [channel.pattern for channel in patterns if channel.kind == "tel"]
        self._routes: dict[str, tuple[Channel, list[Scope]]] = {
            channel_of(message).pattern.rstrip(".*"): (channel_of(message), sorted(scopes, reverse=True))
            for message, scopes in self._scopes.items()
        }
        self._observed = {message.__name__: message for message in (*(c.message for c in CHANNELS), *observations)}
        self._addressed = lru_cache(maxsize=SUBJECTS_KEPT)(self._address)  # jobs send on few subjects again and again
        self._requested = {c.pattern.rstrip(".*") for c in CHANNELS if c.kind == "rpc" and c.service == service}

    def telemetry(self, partition: int) -> list[str]:
        """Subjects to read in the stream of telemetry."""
        return [f"{partition}.{pattern}" for pattern in self._reported]

    def filters(self, partition: int) -> list[str]:
        """Subjects to read in the stream of facts.

        Filters of one consumer may not overlap: a cluster input's wide one covers the narrow.
        """
        subjects = [f"journal.{self._service}.{partition}"]
        for pattern, scopes in self._patterns.items():
            if "cluster" in scopes and partition == CLUSTER_PARTITION:
                subjects.append(f"*.{pattern}")
            elif "job" in scopes:
                subjects.append(f"{partition}.{pattern}")
        return subjects

    def arrivals(self, stored: Stored, partition: int) -> list[Arrival]:
        """The messages in ``stored``, in order. Raises nothing: each is parsed later, by itself."""
        if stored.subject.startswith("journal."):
            return self._entries(stored, partition)
        addressed = self._addressed(stored.subject)
        if addressed is None:
            return []
        of_job, subject, job, channel, scopes = addressed
        if of_job is None:
            return [_damaged(stored, f"{stored.subject.partition('.')[0]!r} is no number of a partition")]
        found: list[Arrival] = []
        trace = stored.headers.get("traceparent", "")
        for scope in scopes:
            # a message of both scopes reaches two partitions; each takes only its own
            if partition != (CLUSTER_PARTITION if scope == "cluster" else of_job):
                continue
            key = CLUSTER if scope == "cluster" else job
            source = f"{stored.seq}.{CLUSTER}" if scope == "cluster" else str(stored.seq)
            meta = Meta(stored.seq, stored.time_s, subject, stored.headers, key)
            found.append(Arrival("message", key, source, subject, stored.data, meta, trace, channel))
        return found

    def _address(self, stored: str) -> _Addressed | None:
        """Read the subject of a stored message; None: no input of this service has it."""
        token, _, subject = stored.partition(".")
        before, _, job = subject.rpartition(".")
        route = self._routes.get(before) or self._routes.get(before.rpartition(".")[0])  # telemetry names the pod, too
        if route is None:
            return None
        return _Addressed(int(token) if token.isascii() and token.isdecimal() else None, subject, job, *route)

    def message(self, arrival: Arrival) -> Message:
        """Parse. Raises WireError."""
        if arrival.kind == "observation":
            return decode(self._observed[arrival.subject.rpartition(".")[2]], arrival.data)
        if arrival.channel is not None:
            return parse_on(arrival.channel, arrival.subject, arrival.data)
        return parse(arrival.subject, arrival.data)

    def _entries(self, stored: Stored, partition: int) -> list[Arrival]:
        """The entries of a journal frame; one arrival more, the last, stands for all that are damaged."""
        try:
            entries: Any = from_json(stored.data)
        except ValueError as error:
            return [_damaged(stored, f"not JSON: {error}")]
        if not isinstance(entries, list):
            return [_damaged(stored, f"no list of entries, but of the type {type(entries).__name__}")]
        found: list[Arrival] = []
        damaged: list[int] = []
        for index, entry in enumerate(cast("list[Any]", entries)):
            arrival = self._entry(stored, index, entry, partition)
            if arrival is not None:
                found.append(arrival)
            else:
                damaged.append(index)
        if damaged:
            listed = ", ".join(map(str, damaged[:DAMAGED_LISTED]))
            more = ", …" if len(damaged) > DAMAGED_LISTED else ""
            found.append(_damaged(stored, f"{len(damaged)} of {len(entries)} are no entries: {listed}{more}"))
        return found

    def _entry(self, stored: Stored, index: int, entry: Any, partition: int) -> Arrival | None:
        """The arrival of an entry of a frame; None if no owner of this partition can have written it."""
        if not isinstance(entry, dict):
            return None
        get = cast("dict[str, Any]", entry).get
        kind = cast("Kind", get("kind"))
        key, subject, request_id, body, trace = (get(name, "") for name in ("key", "s", "id", "d", "tp"))
        if not (type(key) is type(subject) is type(request_id) is type(body) is type(trace) is str):
            return None
        if kind == "request":
            before, _, job = subject.rpartition(".")
            sound = before in self._requested and job == key and _partition_of_job(job) == partition
        elif kind == "observation":
            head, _, name = subject.rpartition(".")
            there = CLUSTER_PARTITION if key == CLUSTER else _partition_of_job(key)
            sound = head == "observed" and name in self._observed and there == partition
        else:
            sound = kind == REPORTS or (kind == "tick" and TICKING.fullmatch(body) is not None)
        if not sound:
            return None
        observed = kind == "observation"
        meta = Meta(stored.seq, stored.time_s, subject, {}, key, observed=observed, request_id=request_id)
        source = f"{stored.seq}.{index}.{CLUSTER}" if key == CLUSTER else f"{stored.seq}.{index}"
        return Arrival(kind, key, source, subject, body.encode(), meta, trace)


def _damaged(stored: Stored, fault: str) -> Arrival:
    """Stand for what cannot be read of a stored message."""
    meta = Meta(stored.seq, stored.time_s, stored.subject, stored.headers, "")
    return Arrival("damaged", "", str(stored.seq), stored.subject, stored.data, meta, "", fault=fault)


@lru_cache(maxsize=1 << 16)
def _partition_of_job(job: str) -> int | None:
    """Return the partition of a job, or None if no job can have this name."""
    return partition_of(job) if JOB.fullmatch(job) else None


def input_seq(output_id: str) -> tuple[str, int] | None:
    """Return source and input sequence of ``<service>:<source>:<i>``, or None for an id that no service made."""
    found = OUTPUT_ID.fullmatch(output_id)
    return (found[1], int(found[2])) if found else None


def of_cluster(source: str) -> bool:
    """Return whether the cluster's machine handled the input with this ``source``."""
    return source.rpartition(".")[2] == CLUSTER


def request_entry(key: str, request_id: str, subject: str, data: bytes, trace: str) -> dict[str, Any]:
    """A request as an entry of a journal frame."""
    entry = {"kind": "request", "key": key, "id": request_id, "s": subject, "d": data.decode()}
    return {**entry, "tp": trace} if trace else entry


def observation_entry(key: str, message: Message, data: bytes, trace: str) -> dict[str, Any]:
    """An observation as an entry of a journal frame."""
    entry = {"kind": "observation", "key": key, "s": f"observed.{type(message).__name__}", "d": data.decode()}
    return {**entry, "tp": trace} if trace else entry


def tick_entry(machines: int) -> dict[str, Any]:
    """A tick as an entry of a journal frame. machines: number of those that get it."""
    return {"kind": "tick", "key": "", "d": str(machines)}
