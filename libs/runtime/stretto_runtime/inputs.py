"""The inputs of a service, and how one stored message becomes the events of its machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic_core import from_json
from stretto_bus.ordered_consumer import Stored
from stretto_messages.base import Message
from stretto_wire.codec import decode
from stretto_wire.registry import CHANNELS, Channel, Scope, channel_of, parse, parse_on, partition_of
from stretto_wire.registry import Input as Input

Kind = Literal["message", "request", "observation", "tick"]
CLUSTER = "_"
"""The key of the one machine that sees the messages of every job."""
CLUSTER_PARTITION = partition_of(CLUSTER)


class Meta(NamedTuple):
    """Facts about the message being translated.

    ``time_s`` is when the server stored it, seconds since the epoch: the machine's ``now``. ``key`` names its machine.
    ``observed``: it was journalled by ``Service.observe``. ``request_id``: it is a request.
    """

    seq: int
    time_s: float
    subject: str
    headers: Mapping[str, str]
    key: str
    observed: bool = False
    request_id: str = ""

    @property
    def scope(self) -> Scope:
        return "cluster" if self.key == CLUSTER else "job"


class Arrival(NamedTuple):
    """One message for one key. ``source`` makes output ids: ``<service>:<source>:<i>``. A tick has no data."""

    kind: Kind
    key: str
    source: str
    subject: str
    data: bytes
    meta: Meta
    trace: str
    channel: Channel | None = None
    """of a stored message"""

    @property
    def asked(self) -> tuple[str, str]:
        """Job and id of a request: callers choose ids, which may repeat from job to job."""
        return self.key, self.meta.request_id


class Routes:
    """The subjects of one service and partition, and the keys of their messages."""

    def __init__(self, service: str, inputs: tuple[Input, ...], observations: tuple[type[Message], ...] = ()) -> None:
        self._service = service
        self._scopes: dict[type[Message], set[Scope]] = {}
        for entry in inputs:
            self._scopes.setdefault(entry.message, set()).add(entry.scope)
        self._patterns = {channel_of(message).pattern: scopes for message, scopes in self._scopes.items()}
        self._routes: dict[str, tuple[Channel, list[Scope]]] = {
            channel_of(message).pattern.rstrip(".*"): (channel_of(message), sorted(scopes, reverse=True))
            for message, scopes in self._scopes.items()
        }
        self._observed = {message.__name__: message for message in (*(c.message for c in CHANNELS), *observations)}

    def filters(self, partition: int) -> list[str]:
        """Subjects to read. Filters of one consumer may not overlap: a cluster input's wide one covers the narrow."""
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
            return [self._entry(stored, index, entry) for index, entry in enumerate(from_json(stored.data))]
        token, _, subject = stored.subject.partition(".")
        before, _, job = subject.rpartition(".")
        route = self._routes.get(before) or self._routes.get(before.rpartition(".")[0])  # telemetry names the pod, too
        if route is None:
            return []
        found: list[Arrival] = []
        channel, scopes = route
        trace = stored.headers.get("traceparent", "")
        for scope in scopes:
            # a message of both scopes reaches two partitions; each takes only its own
            if partition != (CLUSTER_PARTITION if scope == "cluster" else int(token)):
                continue
            key = CLUSTER if scope == "cluster" else job
            source = f"{stored.seq}.{CLUSTER}" if scope == "cluster" else str(stored.seq)
            meta = Meta(stored.seq, stored.time_s, subject, stored.headers, key)
            found.append(Arrival("message", key, source, subject, stored.data, meta, trace, channel))
        return found

    def message(self, arrival: Arrival) -> Message:
        """Parse. Raises WireError."""
        if arrival.kind == "observation":
            return decode(self._observed[arrival.subject.rpartition(".")[2]], arrival.data)
        if arrival.channel is not None:
            return parse_on(arrival.channel, arrival.subject, arrival.data)
        return parse(arrival.subject, arrival.data)

    def _entry(self, stored: Stored, index: int, entry: dict[str, Any]) -> Arrival:
        key, subject = entry["key"], entry.get("s", "")
        meta = Meta(
            stored.seq,
            stored.time_s,
            subject,
            {},
            key,
            observed=entry["kind"] == "observation",
            request_id=entry.get("id", ""),
        )
        source = f"{stored.seq}.{index}.{CLUSTER}" if key == CLUSTER else f"{stored.seq}.{index}"
        return Arrival(entry["kind"], key, source, subject, entry.get("d", "").encode(), meta, entry.get("tp", ""))


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


TICK_ENTRY: dict[str, Any] = {"kind": "tick", "key": ""}
