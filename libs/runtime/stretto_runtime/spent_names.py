"""Names of past jobs, which are never given again: an exact set that takes few bytes a name.

The set has ``SHARDS`` parts, chosen by a checksum of the name. Each part is an entry ``kept.gateway.spent.<shard>`` of
the key-value bucket: its names in order, compressed, because similar names share most of their bytes. The parts stay
compressed in memory, too. A replica replaces a part only if no other replica has replaced it meanwhile, so that none
loses the names of another.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from stretto_bus.bus import Bus
from stretto_bus.faults import Fenced
from stretto_bus.reading.ordered_consumer import read
from stretto_bus.writer import Fence
from stretto_wire.contract.registry import STATE, STATE_PREFIX

KEPT = f"{STATE_PREFIX}kept.gateway."
"""Prefix of the entries of jobs that outlive their events."""
SPENT = f"{KEPT}spent."
SHARDS = 256
LEVEL = 9


class DamagedNames(Exception):
    """The error for a part of the names that cannot be read, so that nobody knows if a name is spent."""


class SpentShard(NamedTuple):
    """A part of the names, compressed, and its sequence in the bucket; 0: the part has never been stored."""

    packed: bytes = b""
    seq: int = 0

    @property
    def names(self) -> list[str]:
        """Return the names in order. Raises DamagedNames."""
        try:
            return zlib.decompress(self.packed).decode().split("\n") if self.packed else []
        except (zlib.error, UnicodeDecodeError) as error:
            raise DamagedNames(f"the spent names of sequence {self.seq} cannot be read: {error}") from error

    def joined_by(self, names: Iterable[str]) -> bytes:
        """Return the part with further ``names``, as it is to be stored. Raises DamagedNames."""
        return zlib.compress("\n".join(sorted({*self.names, *names})).encode(), LEVEL)


def shard_of(name: str) -> int:
    """Return the number of the part that holds ``name`` if it is spent."""
    return zlib.crc32(name.encode()) % SHARDS


@dataclass(slots=True)
class SpentNames:
    """Parts of the names by number, as they were last read or stored."""

    shards: dict[int, SpentShard] = field(default_factory=dict[int, SpentShard])

    def __contains__(self, name: str) -> bool:
        """Return whether a past job had this name. Raises DamagedNames."""
        return name in self.shard(shard_of(name)).names

    def shard(self, number: int) -> SpentShard:
        return self.shards.get(number, SpentShard())


def by_shard(names: Iterable[str]) -> dict[int, list[str]]:
    """Return the names by the number of their part."""
    found: dict[int, list[str]] = {}
    for name in names:
        found.setdefault(shard_of(name), []).append(name)
    return found


async def spent_shards(bus: Bus, number: int | None = None) -> dict[int, SpentShard]:
    """Return the stored parts by number: all, or the one of ``number``. Raises BusFault."""
    which = "*" if number is None else str(number)
    stored = await read(bus, STATE, [f"{SPENT}{which}"], deliver_policy="last_per_subject")
    return {int(part.subject.removeprefix(SPENT)): SpentShard(part.data, part.seq) for part in stored}


async def replace_shard(bus: Bus, number: int, packed: bytes, last: int) -> SpentShard | None:
    """Replace a part; None if somebody else has replaced the part since ``last``. Raises BusFault."""
    subject = f"{SPENT}{number}"
    try:
        return SpentShard(packed, await bus.store(subject, packed, Fence(subject, last).headers()))
    except Fenced:
        return None


async def spend(bus: Bus, names: Iterable[str]) -> None:
    """Store names that are never to be given again. Raises BusFault, DamagedNames."""
    for number, part in by_shard(names).items():
        done = None
        while done is None:
            shard = (await spent_shards(bus, number)).get(number, SpentShard())
            done = await replace_shard(bus, number, shard.joined_by(part), shard.seq)
