"""The follower keeps the projection up to date with the stream, and retains what has to outlive the stream.

Every replica of the gateway follows the whole stream, and a restart reads the stream again. Only the messages that
define a living job are retained, because they age out of the stream while the job lives
(:mod:`stretto_gateway.streams.retention`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import stretto_wire as wire
import structlog
from stretto_bus.faults import Fault
from stretto_messages.base import Message
from stretto_messages.planner import HistoryRecorded
from stretto_runtime.spent_names import DamagedNames, SpentShard, by_shard

from ..streams.continuity import EndLost
from ..streams.retention import Retention
from ..streams.stored_events import StoredEvent, trace_id_of
from .projection import Projection

NAMING = (wire.JobSubmitted, HistoryRecorded)
"""Events by which the projection learns of a job."""
READ_BACK_S = 5.0
"""Longest wait of a request until the projection shows its change."""
KEEP_EVERY_S = 60.0
"""Interval at which the entries of changed jobs are stored, and jobs are forgotten whose events age out."""
log = structlog.get_logger("stretto.gateway")


class FollowedStream(Protocol):
    """The stream of events, and the entries of the bucket that outlive it (:mod:`stretto_gateway.streams.bus`)."""

    events_kept_s: float

    @property
    def there(self) -> bool:
        """Return whether the bus was reached. Before that, every call raises BusFault."""
        ...

    async def kept(self) -> tuple[int, dict[str, bytes]]:
        """Return the first sequence of the stream, and the retained entry of each job."""
        ...

    async def keep(self, job: str, entry: bytes) -> None:
        """Store the entry of a job in place of the entry before."""
        ...

    async def drop(self, job: str) -> None:
        """Remove the entry of a job."""
        ...

    async def spent(self, number: int | None = None) -> dict[int, SpentShard]:
        """Return the parts of the spent names by number: all, or the one of ``number``."""
        ...

    async def spend(self, number: int, packed: bytes, last: int) -> SpentShard | None:
        """Replace a part of the spent names; None if another replica has replaced the part since ``last``."""
        ...

    async def fold(
        self,
        apply: Callable[[Message, int, float, str], None],
        report: Callable[[Message, float], None],
        caught_up: Callable[[], None],
        advanced: Callable[[], Awaitable[None]],
    ) -> None:
        """Read everything stored from the start on, for ever; call ``advanced`` after each batch, ``caught_up`` once.

        Raises EndLost: events that were read are not there any more.

        ``apply`` gets an event, its sequence, its time and its ``traceparent``; ``report`` gets telemetry and its time.
        """
        ...


class Follower:
    """The projection, kept up to date, and the entries of the bucket that retain what defines its jobs."""

    def __init__(self, stream: FollowedStream, ended_bytes: int, clock: Callable[[], float]) -> None:
        self.projection = Projection()
        self.retention = Retention(ended_bytes)
        self.ready = False
        """True once the projection has read the stream up to its end."""
        self._stream, self._clock = stream, clock
        self._traceparents: dict[str, str] = {}
        self._advance = asyncio.Condition()
        self._keep_next_s = 0.0

    @property
    def lacks(self) -> str:
        """Return the reason why the projection does not know all jobs yet, or an empty text."""
        if self.ready:
            return ""
        return "still reading the stream" if self.has_bus else "the bus is not reached yet; the log says why"

    @property
    def has_bus(self) -> bool:
        """Return whether the bus was reached."""
        return self._stream.there

    def traceparent(self, job: str) -> str:
        """Return the ``traceparent`` of a job's submission, whose trace later requests about the job continue."""
        return self._traceparents.get(job, "")

    async def follow(self, observe: Callable[[Message, float], None]) -> None:
        """Keep the projection up to date; never returns. ``observe`` gets each event and its time before the fold.

        Raises EndLost: the projection is empty then. Raises BusFault: the stream cannot be read.
        """

        def apply(message: Message, seq: int, time_s: float, traceparent: str) -> None:
            if isinstance(message, NAMING) and self._is_forgotten(message.job):
                self.projection.skip(seq)
                return
            if isinstance(message, wire.JobSubmitted):
                self._traceparents.setdefault(message.job, traceparent)
            observe(message, time_s)
            if self.projection.apply(message, seq, time_s, trace_id_of(traceparent)) is not None:
                self.retention.note(message, seq, time_s, traceparent)

        def caught_up() -> None:
            self.ready = True
            log.info("caught up", seq=self.projection.last_seq, jobs=len(self.projection.jobs))

        async def advanced() -> None:
            async with self._advance:
                self._advance.notify_all()
            if self.ready and self._clock() >= self._keep_next_s:
                self._keep_next_s = self._clock() + KEEP_EVERY_S
                await self._keep()

        first_seq, self.retention.stored = await self._stream.kept()
        self.retention.events_kept_s = self._stream.events_kept_s
        # read after the entries: a name is spent before its entry is removed, so that no name is missing from both
        self.retention.read_spent(await self._stream.spent())
        for kept in self.retention.aged_out(first_seq, self._clock()):
            try:
                apply(wire.parse(kept.subject, kept.data.encode()), kept.seq, kept.time_s, kept.traceparent)
            except Exception as error:  # as in the stream: one unreadable job must not hide all others
                log.error("a retained message is skipped", subject=kept.subject, seq=kept.seq, error=str(error))
        try:
            await self._stream.fold(apply, self.projection.report, caught_up, advanced)
        except EndLost:
            self._begin_again()
            raise

    def _begin_again(self) -> None:
        """Forget what was read: a part of it never happened to anybody who reads the stream now."""
        self.ready = False
        self.projection.clear()
        self.retention.clear()
        self._traceparents.clear()

    async def until_shown(self, reached: Callable[[], bool]) -> None:
        """Wait until the projection shows a change, so that a client reads its own writes; at most READ_BACK_S."""
        async with self._advance:
            try:
                async with asyncio.timeout(READ_BACK_S):
                    await self._advance.wait_for(reached)
            except TimeoutError:
                log.warning("the read model lags behind", last_seq=self.projection.last_seq)

    async def until_known(self, event: StoredEvent) -> None:
        """Wait until the projection has the job of an event, or has read past the event."""

        def is_known() -> bool:
            return event.job in self.projection.jobs or self.projection.last_seq >= event.seq

        async with self._advance:
            await self._advance.wait_for(lambda: self.ready or is_known())
        if not is_known():
            await self.until_shown(is_known)

    def _is_forgotten(self, job: str) -> bool:
        """Return whether the job has left the projection although its events are still there."""
        return job not in self.projection.jobs and self.retention.is_spent(job)

    async def _keep(self) -> None:
        """Store the entries of changed jobs, then forget jobs of long ago, which makes room if the bucket is full."""
        all_seen = False
        while not all_seen:
            all_seen = not await self._keep_entries()
            await asyncio.sleep(0)  # others are served meanwhile
        try:
            for number, names in by_shard(self.retention.outlived).items():
                await self._spend(number, names)
        except (Fault, DamagedNames) as fault:  # the names stay taken meanwhile
            log.warning("names of past jobs are not stored yet", fault=str(fault))

    async def _keep_entries(self) -> bool:
        """Store the entries of some changed jobs; returns whether to go on with others."""
        due = self.retention.due(self.projection.jobs, self._clock())
        while due:
            job, entry = due.popitem()
            try:
                await self._stream.keep(job, entry)
            except Fault as fault:  # a later attempt will do: events age out after days
                log.warning("not retained yet", job=job, fault=str(fault))
                self.retention.put_back([job, *due])
                return False
            self.retention.stored[job] = entry
        return self.retention.has_more

    async def _spend(self, number: int, names: list[str]) -> None:
        """Forget jobs of long ago: store their names with the spent names, then remove their entries.

        Raises:
            Fault: not stored in time.
            DamagedNames: the names there cannot be read.
        """
        stored = None
        while stored is None:
            shard = self.retention.spent_shard(number)
            stored = await self._stream.spend(number, shard.joined_by(names), shard.seq)
            if stored is None:
                self.retention.read_spent(await self._stream.spent(number))
        self.retention.read_spent({number: stored})
        for job in names:
            await self._stream.drop(job)
            self.retention.forget(job)
            self.projection.forget(job)
            self._traceparents.pop(job, None)
