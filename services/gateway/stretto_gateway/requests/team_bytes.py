"""Bytes of events that users cause, counted for each team, so that no team fills the stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import stretto_wire as wire
from stretto_messages.base import Message
from stretto_messages.gateway import DataArrived, DataWorkersRequested, PlanRequested
from stretto_runtime.settings import DAY_S
from stretto_wire.rest.views import JobView

from ..access.buckets import Buckets
from . import checks

CHANGES = (PlanRequested, DataWorkersRequested, DataArrived)
"""Events that users may cause any number of times."""


class TeamBytes:
    """Bytes of events that each team may still cause: at most ``per_day`` at once, and as many in a day."""

    def __init__(self, per_day: int, jobs: Mapping[str, JobView], clock: Callable[[], float]) -> None:
        self._jobs, self._clock, self._per_day = jobs, clock, per_day
        self.clear()

    def clear(self) -> None:
        """Forget what was counted, before the stream is read again from its first event on."""
        self._bytes = Buckets(self._per_day / DAY_S, self._per_day)

    def check(self, size_bytes: int, team: str) -> None:
        """Check that the team may cause an event of this size now. Raises Problem 409."""
        wait_s = self._bytes.wait_s(team, self._clock(), size_bytes)
        if wait_s > 0:
            raise checks.bytes_used(team, wait_s)

    def charge(self, message: Message, time_s: float) -> None:
        """Count the bytes of a submission or a change against its team; every replica counts the same stream."""
        if isinstance(message, wire.JobSubmitted):
            self._bytes.charge(message.team, time_s, len(wire.encode(message)))
        elif isinstance(message, CHANGES) and (view := self._jobs.get(message.job)) is not None:
            self._bytes.charge(view.team, time_s, len(wire.encode(message)))
