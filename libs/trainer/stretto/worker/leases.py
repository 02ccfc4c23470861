"""The lease of a worker: one shard at a time, kept by heartbeats to the dispatcher, and the shard that follows it."""

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

from ..errors import BusError, CallRefused
from ..pod.bus import PodBus

log = logging.getLogger("stretto.worker")

HEARTBEAT_S = 1.0
_LONGEST_WAIT_S = 5.0
_AGAIN_S = 0.2


@dataclass(slots=True)
class _Held:
    shard: Shard
    generation: int
    offset: int
    since_s: float
    first_offset: int


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A shard that the dispatcher reserved, and the generation of the servers when it was asked to."""

    shard: Shard
    generation: int


class Leases:
    """The current lease. Thread-safe: the training thread requests and reports, a timer sends heartbeats."""

    def __init__(self, bus: PodBus, leaving: threading.Event) -> None:
        self._bus = bus
        self._leaving = leaving
        self._lock = threading.Lock()
        self._held: _Held | None = None
        self._ahead: _Ahead | None = None
        self._stale = False
        self._done: ShardReport | None = None
        self._request: NextShard | None = None

    def next(self, generation: int) -> NextShardReply | None:
        """Report the finished shard, if any, and ask for another. None means no answer: call again.

        The same request, with its id, is repeated until it is answered, even across calls. ``generation``: of the
        parameter servers, read before the request was first sent.
        """
        if self._request is None:
            self._request = NextShard(
                job=self._bus.job,
                pod=self._bus.pod,
                request_id=self._bus.request_id(NextShard),
                complete=self._done,
                ahead=not self._leaving.is_set(),
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
            since = self._generation_of(shard, generation)
            self._held = _Held(shard, since, shard.offset, time.monotonic(), shard.offset) if shard else None
            since = self._generation_of(reply.ahead, generation)
            self._ahead = _Ahead(reply.ahead, since) if reply.ahead else None
        return reply

    def _generation_of(self, shard: Shard | None, generation: int) -> int:
        """Return the generation under which the shard was reserved, or ``generation`` if it was not."""
        promised = self._ahead
        is_promised = promised is not None and shard is not None and is_same(promised.shard, shard)
        return promised.generation if promised is not None and is_promised else generation

    @property
    def asking(self) -> bool:
        """True while a request for a shard is unanswered."""
        return self._request is not None

    @property
    def has_report(self) -> bool:
        """True while a finished shard is not reported yet."""
        return self._done is not None

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
    def ahead(self) -> Shard | None:
        """The shard that follows the leased one, if the dispatcher reserved one. Another may come in its place."""
        with self._lock:
            return self._ahead.shard if self._ahead else None

    @property
    def generation(self) -> int:
        """The generation of the parameter servers when the leased shard was asked for, or reserved."""
        with self._lock:
            return self._held.generation if self._held else 0

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
            self._held = self._ahead = None

    def release(self, offset: int, failure: str | None = None, repeated: int = 0, patience_s: float = 0.0) -> None:
        """Return the shard to the queue; ``failure`` is the error message if its data failed.

        ``repeated``: samples behind the offset that may have been trained. ``patience_s``: as long as nobody answers.
        """
        with self._lock:
            held = self._held
            self._held = self._ahead = None  # the dispatcher takes both back
        if held is None:
            return
        request = ReleaseShard(
            job=self._bus.job,
            pod=self._bus.pod,
            shard=held.shard.id,
            attempt=held.shard.attempt,
            offset=offset,
            failure=failure[:2000] if failure else None,
            repeated=repeated,
        )
        until_s = time.monotonic() + patience_s
        while True:
            try:
                self._bus.call(request, ReleaseShardReply, timeout_s=3.0)
                return
            except (BusError, CallRefused) as error:
                if isinstance(error, CallRefused) or time.monotonic() >= until_s:
                    log.warning("release: %s; the dispatcher will notice when the pod ends", error)
                    return
            time.sleep(_AGAIN_S)

    def beat(self) -> str:
        """Send the dispatcher a heartbeat with the offset that is reached; return its answer, or "" for none."""
        with self._lock:
            held = self._held
            if held is None or self._stale:
                return "stale" if self._stale else ""
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
            return ""
        if reply.answer == "stale":
            with self._lock:
                if self._held is not None and is_same(self._held.shard, shard):
                    self._stale = True
        return reply.answer


def is_same(one: Shard, other: Shard) -> bool:
    """Return True if both are the same attempt of the same shard."""
    return (one.id, one.attempt) == (other.id, other.attempt)
