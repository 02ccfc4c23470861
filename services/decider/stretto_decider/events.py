"""Events on objects, which tell their owners why: made again until the API server has taken each."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

import structlog
from stretto_core.decider.objects import asks, event_about
from stretto_core.decider.targets import Target
from stretto_kube import Api, Kind, KubeFault, Object

EVENTS = Kind("", "v1", "events", "Event")
FOR_GOOD = (400, 403, 404, 409, 422)
"""Answers that a repetition would not change. 409: a replica before this one has made the Event."""
WAITING_MAX = 1000

log = structlog.get_logger("stretto.decider")


@dataclass(frozen=True, slots=True)
class Found:
    """An object as it was last seen, and what its kind tells."""

    target: Target
    one: Object

    @property
    def asks(self) -> bool:
        return asks(self.one)

    @property
    def ended(self) -> bool:
        return self.target.ending(self.one)[0] != ""


class ObjectEvents:
    """Events that are to be made, the oldest first."""

    def __init__(self) -> None:
        self._waiting: dict[str, Object] = {}

    def tell(self, found: Found, name: str, reason: str, message: str, warns: bool = False, *, now: datetime) -> None:
        """Have an Event made. Its name has a digest of its text: the same one twice is one, another text is another."""
        name = f"{name}.{hashlib.sha256(message.encode()).hexdigest()[:8]}"
        told = event_about(found.target, found.one, name, reason, message, warns, now.strftime("%Y-%m-%dT%H:%M:%SZ"))
        self._waiting[told["metadata"]["name"]] = told
        if len(self._waiting) > WAITING_MAX:
            del self._waiting[next(iter(self._waiting))]

    async def make(self, api: Api) -> None:
        """Make the Events that wait; those that the server does not take now wait on."""
        for name, told in [*self._waiting.items()]:
            try:
                await api.create(EVENTS, told)
            except KubeFault as fault:
                if fault.status not in FOR_GOOD:
                    log.warning("an Event is made later", name=name, fault=str(fault))
                    return
                if fault.status != 409:
                    log.warning("an Event is not made", name=name, fault=str(fault))
            del self._waiting[name]
