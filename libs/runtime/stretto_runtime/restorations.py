"""Records of past restorations, in the bucket: of which moment the log goes on, and from which sequence."""

from __future__ import annotations

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError
from stretto_bus.bus import Bus
from stretto_bus.reading.ordered_consumer import read
from stretto_wire.contract.registry import STATE, STATE_PREFIX

PREFIX = f"{STATE_PREFIX}restoration."

log = structlog.get_logger("stretto.backup")


class Restoration(BaseModel):
    """A restoration of the backup that was taken at ``taken_at_s``. ``log_seq`` is the last message of that moment."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    log_seq: int
    taken_at_s: float
    restored_at_s: float


async def record(bus: Bus, restoration: Restoration) -> None:
    """Store the record; a later backup contains it. Raises BusFault."""
    await bus.store(f"{PREFIX}{restoration.log_seq}", restoration.model_dump_json().encode())


async def restorations(bus: Bus) -> list[Restoration]:
    """Return all that this installation remembers, in the order of the log. Raises BusFault."""
    found: list[Restoration] = []
    for stored in await read(bus, STATE, [f"{PREFIX}*"], deliver_policy="last_per_subject"):
        try:
            found.append(Restoration.model_validate_json(stored.data))
        except ValidationError as error:
            log.error("the record of a restoration is passed over", subject=stored.subject, error=str(error))
    return sorted(found, key=lambda restoration: restoration.log_seq)
