"""Which code and which settings decide: every owner says so in its fence, before its first decision.

An era lasts from one owner's fence to the next. An input belongs to the era of the last fence before it, whoever
handles it in the end: an heir that finishes what its predecessor left does so under the predecessor's settings, and
a replay years of sequences later knows what to decide under.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from stretto_runtime.bus import EVENTS, Bus
from stretto_runtime.log import read

if TYPE_CHECKING:
    from stretto_runtime.service import Service


def fence_subject(service: str, partition: int) -> str:
    """Where the owners of a partition fence."""
    return f"fence.{service}.{partition}"


@dataclass(frozen=True, slots=True)
class Era:
    """Decides every input after ``seq``, until the next era. None: not recorded."""

    seq: int = 0
    version: int | None = None
    settings: dict[str, Any] | None = None

    @classmethod
    def of(cls, service: Service, seq: int = 0) -> Era:
        """What decides in this process."""
        return cls(seq, service.version, service.deciding())

    def body(self, owner: str, epoch: int) -> bytes:
        """Of a fence."""
        record = {"owner": owner, "epoch": epoch, "version": self.version, "settings": self.settings}
        return json.dumps(record, separators=(",", ":")).encode()

    def decides_as(self, other: Era) -> bool:
        """Whether the same inputs give the same outputs."""
        return (self.version, self.settings) == (other.version, other.settings)

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


async def eras(bus: Bus, service: str, partition: int, start: int = 1) -> list[Era]:
    """Every era from the fence at ``start`` on, in order."""
    found: list[Era] = []
    for stored in await read(bus, EVENTS, [fence_subject(service, partition)], start):
        record: dict[str, Any] = json.loads(stored.data)
        found.append(Era(stored.seq, record.get("version"), record.get("settings")))
    return found


def era_at(known: Sequence[Era], seq: int) -> Era:
    """The era that input ``seq`` belongs to; what came before every owner is the first one's."""
    earlier = [era for era in known if era.seq < seq] or known[:1] or [Era()]
    return earlier[-1]
