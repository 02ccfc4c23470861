"""Jobs as they were: a view, folded again from the stored events up to a sequence.

The fold is pure, so the view at a decision equals what everybody saw then. The past leaves out leases of shards, which
are too many to read again, and telemetry, which is kept for hours only.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection
from contextlib import aclosing
from typing import Protocol

from stretto_bus.reading.ordered_consumer import Stored
from stretto_messages.base import Message
from stretto_wire.contract.registry import CHANNELS
from stretto_wire.rest.parts import PARTS, Part
from stretto_wire.rest.views import JobView

from ..access.turns import Turns
from ..problems import Problem
from ..streams.stored_events import Selection
from .projection import Projection
from .summaries import as_of

LEASED = "shard-leased"
"""Name of the event of a lease. Only the first lease of a job is read again: from then on the job trains."""
OMITTED = frozenset({LEASED, "shard-completed"})
NAMES = tuple(channel.name for channel in CHANNELS if channel.kind == "evt" and channel.name not in OMITTED)
"""Names of the events that are read again. The omitted events of shards are nine in ten of a job's events."""
PAST_PARTS: frozenset[Part] = frozenset(PARTS) - {"shards"}
"""Parts of a view that the past has."""
KEPT = 8
"""Number of past views in memory, so that the parts of a moment are folded once (taste: some pages of a few people)."""
FOLDS = 2
"""Number of jobs that are read again at once."""


class EventReader(Protocol):
    """A bus that reads stored events."""

    def stored(
        self, selection: Selection, until: int, *, has_until: bool = False
    ) -> AsyncIterator[tuple[Message, Stored]]:
        """Yield the selected events up to the sequence ``until`` that can be read. Raises BusFault.

        has_until: an event at ``until`` is selected; if the answering server lags, the event is waited for.
        """
        ...


class Past:
    """Views of jobs at moments of the past."""

    def __init__(self, reader: EventReader) -> None:
        self._reader = reader
        self._views: OrderedDict[tuple[str, int], asyncio.Task[tuple[JobView, float]]] = OrderedDict()
        """Folds by job and sequence; each gives the view and the time of its last event."""
        self._turns, self._folding = Turns(), asyncio.Semaphore(FOLDS)

    async def view(self, job: str, at: int, caller: str = "", *, has_at: bool = False) -> JobView:
        """Return the view of a job after the event ``at``. Raises Problem 404 before its submission, and BusFault.

        has_at: the job has an event at sequence ``at``; a view without that event is an error. One caller's reads run
        one after another.
        """
        if (folding := self._views.get((job, at))) is None:
            folding = self._views[job, at] = asyncio.create_task(self._in_turn(job, at, caller, has_at))
            folding.add_done_callback(lambda done: self._forget_failed((job, at), done))
            while len(self._views) > KEPT:
                self._views.popitem(last=False)
        self._views.move_to_end((job, at))
        view, time_s = await asyncio.shield(folding)  # a caller that goes away does not cancel the fold of others
        return as_of(view, time_s)

    def _forget_failed(self, key: tuple[str, int], folding: asyncio.Task[tuple[JobView, float]]) -> None:
        if (folding.cancelled() or folding.exception()) and self._views.get(key) is folding:
            del self._views[key]

    async def _in_turn(self, job: str, at: int, caller: str, has_at: bool) -> tuple[JobView, float]:
        async with self._turns.turn(caller), self._folding:
            return await self._folded(job, at, has_at)

    async def _folded(self, job: str, at: int, has_at: bool) -> tuple[JobView, float]:
        projection, time_s = Projection(), 0.0
        first = await self._first_lease(job, at)

        def apply(message: Message, stored: Stored) -> None:
            nonlocal time_s
            time_s = stored.time_s
            projection.apply(message, stored.seq, stored.time_s)

        async with aclosing(self._reader.stored(Selection(job, NAMES), at, has_until=has_at)) as events:  # type: ignore[type-var]
            async for message, stored in events:
                if first is not None and first[1].seq < stored.seq:
                    apply(*first)
                    first = None
                apply(message, stored)
        if first is not None:
            apply(*first)
        if (view := projection.jobs.get(job)) is None:
            text = f"{job} is not in the stored events up to {at}"
            remedy = "name a sequence of one of its decisions; events are kept for 30 days"
            raise Problem(404, "not-found", text, field="at", value=str(at), remedy=remedy)
        return view, time_s

    async def _first_lease(self, job: str, at: int) -> tuple[Message, Stored] | None:
        async with aclosing(self._reader.stored(Selection(job, (LEASED,)), at)) as leases:  # type: ignore[type-var]
            return await anext(aiter(leases), None)


def check_past(parts: Collection[Part]) -> None:
    """Check that the past has all of these parts. Raises Problem 400."""
    if missing := set(parts) - PAST_PARTS:
        remedy = f"name other parts: {', '.join(sorted(PAST_PARTS))}"
        text = "counts of shards are known of the present only"
        raise Problem(400, "bad-request", text, field="part", value=min(missing), remedy=remedy)
