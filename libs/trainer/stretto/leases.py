"""The lease of a worker: one shard at a time, kept by heartbeats to the dispatcher."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from stretto_messages.dispatcher import (
    NextShard,
    NextShardReply,
    ReleaseShard,
    ReleaseShardReply,
    ShardHeartbeat,
    ShardHeartbeatReply,
    ShardReport,
)
from stretto_messages.values import PartialEvaluation, Shard

from .bus import Bus
from .errors import BusError, CallRefused

log = logging.getLogger("stretto.leases")

_LONGEST_WAIT_S = 5.0


@dataclass(slots=True)
class _Held:
    shard: Shard
    offset: int
    since_s: float
    first_offset: int


class Leases:
    """The current lease. Thread-safe: the training thread requests and reports, a timer sends heartbeats."""

    def __init__(self, bus: Bus, leaving: threading.Event) -> None:
        self._bus = bus
        self._leaving = leaving
        self._lock = threading.Lock()
        self._held: _Held | None = None
        self._stale = False
        self._done: ShardReport | None = None
        self._request: NextShard | None = None

    def next(self) -> NextShardReply | None:
        """Report the finished shard, if any, and ask for another. None means no answer: call again.

        The same request, with its id, is repeated until it is answered, even across calls.
        """
        if self._request is None:
            self._request = NextShard(
                job=self._bus.job, pod=self._bus.pod, request_id=self._bus.request_id(NextShard), complete=self._done
            )
        try:
            reply = self._bus.call(self._request, NextShardReply, timeout_s=3.0)
        except BusError as error:
            log.warning("%s", error)
            return None
        self._request = self._done = None
        if reply.stale:
            log.info("the completion came late: the shard had been leased to another worker")
        with self._lock:
            self._stale = False
            shard = reply.shard if reply.answer == "shard" else None
            offset = shard.offset if shard else 0
            self._held = _Held(shard, offset, time.monotonic(), offset) if shard else None
        return reply

    @property
    def asking(self) -> bool:
        """True while a request for a shard is unanswered."""
        return self._request is not None

    def wait(self, reply: NextShardReply) -> None:
        """Wait for the time that the dispatcher asked for, or until the pod leaves."""
        self._leaving.wait(min(max(reply.wait_s, 0.05), _LONGEST_WAIT_S))

    def passed(self, offset: int) -> None:
        """Record that the first ``offset`` samples of the shard are applied."""
        with self._lock:
            if self._held is not None:
                self._held.offset = offset

    @property
    def shard(self) -> Shard | None:
        """The leased shard, or None."""
        with self._lock:
            return self._held.shard if self._held else None

    @property
    def offset(self) -> int:
        """The samples of the leased shard that are applied."""
        with self._lock:
            return self._held.offset if self._held else 0

    @property
    def current(self) -> bool:
        """False once a heartbeat was answered that another worker has the lease."""
        with self._lock:
            return not self._stale

    def completed(self, evaluation: PartialEvaluation | None = None) -> None:
        """Record that the whole shard is applied, or evaluated; the next request reports it."""
        with self._lock:
            if self._held is not None and not self._stale:
                shard = self._held.shard
                self._done = ShardReport(id=shard.id, attempt=shard.attempt, evaluation=evaluation)
            self._held = None

    def drop(self) -> None:
        """Forget the lease: another worker has it."""
        with self._lock:
            self._held = None

    def release(self, offset: int, failure: str | None = None) -> None:
        """Return the shard to the queue; ``failure`` is the error message if its data failed."""
        with self._lock:
            held = self._held
            self._held = None
        if held is None:
            return
        request = ReleaseShard(
            job=self._bus.job,
            pod=self._bus.pod,
            shard=held.shard.id,
            attempt=held.shard.attempt,
            offset=offset,
            failure=failure[:2000] if failure else None,
        )
        try:
            self._bus.call(request, ReleaseShardReply, timeout_s=3.0)
        except (BusError, CallRefused) as error:
            log.warning("release: %s; the dispatcher will notice when the pod ends", error)

    def beat(self) -> None:
        """Send the dispatcher a heartbeat with the offset that is reached."""
        with self._lock:
            held = self._held
            if held is None or self._stale:
                return
            shard = held.shard
            offset = held.offset
            rate = (offset - held.first_offset) / max(1e-3, time.monotonic() - held.since_s)
        beat = ShardHeartbeat(
            job=self._bus.job,
            pod=self._bus.pod,
            shard=shard.id,
            attempt=shard.attempt,
            offset=offset,
            samples_per_s=max(0.0, rate),
        )
        try:
            reply = self._bus.call(beat, ShardHeartbeatReply, timeout_s=3.0)
        except BusError as error:
            log.warning("heartbeat: %s", error)
            return
        if reply.answer == "stale":
            with self._lock:
                same = self._held is not None and self._held.shard.id == shard.id
                if same and self._held is not None and self._held.shard.attempt == shard.attempt:
                    self._stale = True
