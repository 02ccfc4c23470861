"""Which code and which settings decide: every owner says so in its fence, before its first decision.

An era lasts from one owner to the next: from the end of what a predecessor that left in peace had handled, or else
from our fence on, because the inputs before it may have been decided. Whoever handles an input in the end does so
under the settings of its era: an heir that finishes what a dead owner began, and a replay at any later time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from stretto_bus.bus import Bus
from stretto_bus.ordered_consumer import Stored, read
from stretto_wire.registry import STREAM

from stretto_runtime.service import Service


def fence_subject(service: str, partition: int) -> str:
    """Where the owners of a partition fence."""
    return f"fence.{service}.{partition}"


@dataclass(frozen=True, slots=True)
class Term:
    """Decides every input after ``seq``, until the next era. None: not recorded."""

    seq: int = 0
    version: int | None = None
    settings: dict[str, Any] | None = None
    fence: int = 0
    """sequence of the fence that says so"""

    @classmethod
    def of(cls, service: Service, seq: int = 0) -> Term:
        """What decides in this process."""
        return cls(seq, service.version, service.deciding())

    def body(self, owner: str, epoch: int, after: int | None) -> bytes:
        """Of a fence. ``after``: the last input that was handled before, if the owner before left in peace."""
        record = {"owner": owner, "epoch": epoch, "version": self.version, "settings": self.settings}
        if after is not None:
            record["after"] = after
        return json.dumps(record, separators=(",", ":")).encode()

    def decides_as(self, other: Term) -> bool:
        """Whether the same inputs give the same outputs."""
        return (self.version, self.settings) == (other.version, other.settings)

    @classmethod
    def read(cls, fence: Stored) -> Term:
        """What a fence says."""
        record: dict[str, Any] = json.loads(fence.data)
        return cls(record.get("after", fence.seq), record.get("version"), record.get("settings"), fence.seq)

    def service(self, own: Service) -> Service | None:
        """``own`` under the settings of this era; None if they were not recorded, or this code cannot read them."""
        if self.settings is None:
            return None
        if self.settings == own.deciding():
            return own
        try:
            return type(own)(type(own.settings)(**{**dict(own.settings), **self.settings}))
        except (ValidationError, TypeError):
            return None


async def terms(bus: Bus, service: str, partition: int, until: int = 0) -> list[Term]:
    """Every era, in order; ``until``: a fence that must be among them (``scan``)."""
    return [Term.read(stored) for stored in await read(bus, STREAM, [fence_subject(service, partition)], until=until)]


def term_at(known: Sequence[Term], seq: int) -> Term:
    """The era that input ``seq`` belongs to; what came before every owner is the first one's."""
    earlier = [era for era in known if era.seq < seq] or known[:1] or [Term()]
    return earlier[-1]
