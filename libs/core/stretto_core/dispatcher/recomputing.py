"""Shards that restored columns lack: those that ended since the newest complete checkpoint, and how they come again.

When a parameter server is lost, its columns alone go back to the newest complete checkpoint. Let m be the first mark of
that checkpoint. The images were copied after m, so a restored column has every shard that was done at m. It may lack
those that ended later: they are leased again under the same id and range, with a higher attempt, before all others.
A column that has a batch of them skips it by its record, a restored one applies it; so each column still counts every
sample exactly once.

This needs the records of those shards in the surviving columns: none of them is named in a ``forget`` list before a
later checkpoint is complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from stretto_core.dispatcher.book import Shard

ENDED_MAX = 20_000
"""Shards that are remembered since a mark; with one ended beyond, checkpoints of earlier marks serve no columns."""
MARKS_MAX = 16


class Ended(NamedTuple):
    """A shard that ended at ``at_s``; ``offset`` samples of it count as done, fewer than ``length`` if it was given up.

    A tuple, since a document of the state may hold many.
    """

    id: int
    attempt: int
    epoch: int
    start: int
    length: int
    offset: int
    at_s: float
    partition: str = ""
    recomputed: int = 0

    @classmethod
    def of(cls, shard: Shard, at_s: float) -> Ended:
        """Return the shard as it ended at ``at_s``."""
        return cls(
            shard.id,
            shard.attempt,
            shard.epoch,
            shard.start,
            shard.length,
            shard.offset,
            at_s,
            shard.partition,
            shard.recomputed,
        )

    @property
    def complete(self) -> bool:
        """True if all of its samples are done."""
        return self.offset == self.length

    @property
    def forgettable(self) -> bool:
        """True if each earlier holder completed it; one that did not may still push, and must fail by the record."""
        return self.complete and self.attempt == 1 + self.recomputed

    def shard(self) -> Shard:
        """Return the shard with the ``offset`` at its end."""
        return Shard(
            self.id,
            self.attempt,
            self.epoch,
            self.start,
            self.length,
            self.offset,
            partition=self.partition,
            recomputed=self.recomputed,
        )


@dataclass(slots=True)
class EndedSince:
    """The shards that ended since the earliest mark that may still matter, in the order of their ends.

    A position counts all shards that ended before it, since the job began.
    """

    checkpoint: str = ""
    """Name of the newest complete checkpoint, whose first mark lies at ``first``; empty: it has none."""
    first: int = 0
    """Position of the first entry."""
    shards: list[Ended] = field(default_factory=list[Ended])
    marks: dict[str, int] = field(default_factory=dict[str, int])
    """Positions of the first marks of checkpoints that are not complete yet, earliest first."""

    @property
    def needed(self) -> bool:
        """True while a checkpoint, complete or on its way, may need the shards that end."""
        return bool(self.checkpoint or self.marks)

    def mark(self, checkpoint: str) -> None:
        """Note the first mark of a checkpoint."""
        self.marks.pop(checkpoint, None)
        self.marks[checkpoint] = self.first + len(self.shards)
        while len(self.marks) > MARKS_MAX:
            del self.marks[next(iter(self.marks))]

    def add(self, ended: Ended) -> list[Ended]:
        """Add a shard; return those that need not be remembered any longer."""
        self.shards.append(ended)
        if not self.needed:
            return self._drop(len(self.shards))
        if len(self.shards) <= ENDED_MAX:
            return []
        over = self._drop(len(self.shards) - ENDED_MAX)
        self.checkpoint = ""
        self.marks = {name: at for name, at in self.marks.items() if at >= self.first}
        return over

    def complete(self, checkpoint: str) -> list[Ended]:
        """Take this checkpoint for the newest complete one; return the shards that every column of it has."""
        at = self.marks.get(checkpoint)
        if at is None:
            return []
        self.checkpoint = checkpoint
        self.marks = {name: other for name, other in self.marks.items() if other >= at and name != checkpoint}
        return self._drop(at - self.first)

    def returned_to(self, checkpoint: str) -> list[Ended]:
        """Start anew: the books are now those of the checkpoint's first mark; return the shards ended since then."""
        over = self._drop(len(self.shards))
        self.checkpoint = checkpoint
        self.marks = {}
        return over

    def _drop(self, count: int) -> list[Ended]:
        over = self.shards[:count]
        del self.shards[:count]
        self.first += count
        return over
