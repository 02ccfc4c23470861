"""The books of a job's data: which samples are done, and where the others are. Ranges, never lists of shards.

The unleased data of all epochs are some positions (:mod:`~stretto_core.dispatcher.source`), the rest of a block that
was cut short for a slow worker, and the shards that came back. At every moment

    samples_done + samples_abandoned + leased + waiting (requeued, remainder, unopened) = samples known x epochs.

Beside the number of samples the books keep their fingerprint, which every column of the parameters counts for itself
(:func:`fingerprint_of`): equal numbers of other samples do not pass for the same ones.

(DLRover-RM section 5.1, dynamic data sharding; the attempts are ours.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from stretto_core.dispatcher.source import DataSpec, Orders, Range, Source

GIVEN_UP_MAX = 200
PARTIAL_MAX = 800
_MASK_64 = (1 << 64) - 1


def fingerprint_of(shard_id: int, samples: int) -> int:
    """Return the fingerprint of the first ``samples`` samples of a shard: w(shard) x samples^2 mod 2^64, w odd.

    A batch [start, stop) thus adds w x (stop^2 - start^2), whoever pushed it and in whatever order, and the batches
    of a shard add up to the shard. Another shard, or the same batch twice instead of another one, adds something else
    but for a chance of about 2^-40. The parameter servers compute the same (``stretto_parameters.records``).
    """
    weight = shard_id * 0x9E3779B97F4A7C15 & _MASK_64
    weight = (weight ^ weight >> 32) * 0xD6E8FEB86659FD93 & _MASK_64
    weight = (weight ^ weight >> 32) | 1
    return weight * samples * samples & _MASK_64


@dataclass(slots=True)
class Shard:
    """Consecutive samples with an identity that the progress records of the parameter servers use.

    Id and range never change; ``attempt`` counts its leases; ``offset`` samples are known to be applied, as a lower
    bound; ``failures`` counts the attempts that its own data ended. ``held_out``: evaluated, and in no book.
    ``recomputed`` counts how often it was complete and handed out again for restored columns.
    """

    id: int
    attempt: int
    epoch: int
    start: int
    length: int
    offset: int = 0
    failures: int = 0
    partition: str = ""
    held_out: bool = False
    recomputed: int = 0

    def copy(self) -> Shard:
        """Return a copy of this moment."""
        return Shard(
            self.id,
            self.attempt,
            self.epoch,
            self.start,
            self.length,
            self.offset,
            self.failures,
            self.partition,
            self.held_out,
            self.recomputed,
        )


@dataclass(frozen=True, slots=True)
class GivenUp:
    """An entry of the dead-letter list: samples [start, start + length) of an epoch that were never trained, and why.

    They are the last ones of ``shard``, in the dataset's own order; its first ``offset`` samples are done.
    """

    shard: int
    offset: int
    epoch: int
    start: int
    length: int
    reason: str
    partition: str = ""


class Partial(NamedTuple):
    """A shard that nobody will complete, of which ``known`` samples count as done: a column may have some more."""

    shard: int
    known: int


@dataclass(slots=True)
class Book:
    """Where every sample of a job is, except for the leases; with them folded in, the document of a checkpoint."""

    source: Source
    next_id: int = 0
    attempt_max: int = 0
    remainder: Range | None = None
    """Rest of a block that was cut short for a slow worker."""
    requeued: list[Shard] = field(default_factory=list[Shard])
    samples_done: int = 0
    samples_abandoned: int = 0
    shards_done: int = 0
    samples_before: int = 0
    """Samples of other data that the parameters were trained on when they were restored."""
    fingerprint: int = 0
    """Fingerprint of all samples done, those of ``samples_before`` included."""
    given_up: list[GivenUp] = field(default_factory=list[GivenUp])
    """The dead-letter list, at most ``GIVEN_UP_MAX`` entries; ``samples_abandoned`` counts them all"""
    partial: list[Partial] = field(default_factory=list[Partial])
    """Given-up shards beyond the list, and incomplete ones of the other data: at most ``PARTIAL_MAX``."""
    unproven: int = 0
    """Samples of such shards beyond both lists: a column may have so many more than the books say."""

    @property
    def data(self) -> DataSpec:
        """One epoch, and how it is cut."""
        return self.source.spec

    @property
    def epochs(self) -> int:
        """Number of times that every sample is trained."""
        return self.source.epochs

    @property
    def epoch(self) -> int:
        """Epoch whose blocks are being opened."""
        return self.source.epoch

    @property
    def samples_total(self) -> int:
        """Samples of all epochs, as far as is known."""
        return self.source.samples_total

    @property
    def samples_waiting(self) -> int:
        """Samples that nobody has leased: in blocks not yet opened, the remainder and the returned shards."""
        remainder = self.remainder.length if self.remainder else 0
        return self.samples_total - self.source.opened + remainder + sum(s.length for s in self.requeued)

    @property
    def samples_placed(self) -> int:
        """Opened samples that nobody has leased: done, abandoned, in the remainder or in returned shards."""
        remainder = self.remainder.length if self.remainder else 0
        return self.samples_done + self.samples_abandoned + remainder + sum(s.length for s in self.requeued)

    def has_waiting(self, samples: int) -> bool:
        """Return True if more samples than these wait. It counts no more returned shards than it needs."""
        left = self.samples_total - self.source.opened + (self.remainder.length if self.remainder else 0)
        for shard in self.requeued:
            if left > samples:
                break
            left += shard.length
        return left > samples

    @property
    def settled(self) -> bool:
        """True if every sample is done or abandoned, and no more can come."""
        return self.source.complete and self.samples_done + self.samples_abandoned >= self.source.samples_total

    def batches_for(self, slowdown: float) -> int:
        """Batches of a worker's next shard: a slow one gets what takes it as long as a whole one takes its peers."""
        return max(1, int(self.data.batches_per_shard / slowdown))

    def take(self, batches: int, orders: Orders, spared: bool = False) -> Shard | None:
        """The next shard, of at most ``batches`` batches unless it is one that came back. None: nothing is free.

        What came back goes first. A slow worker is spared a returned shard above its size while there is fresh
        data, since a returned shard keeps its range: the progress records of the parameter servers name it.
        ``spared``: also when there is none; somebody faster comes for it before the slow one would be through.
        """
        samples = batches * self.data.batch_size
        for index, shard in enumerate(self.requeued):
            if shard.length - shard.offset <= samples:
                return self._lease(self.requeued.pop(index))
        fresh = self._carve(samples, orders)
        if fresh is None:
            return self._lease(self.requeued.pop(0)) if self.requeued and not spared else None
        shard = Shard(self.next_id, 0, fresh.epoch, fresh.start, fresh.length, partition=fresh.partition)
        self.next_id += 1
        return self._lease(shard)

    def _lease(self, shard: Shard) -> Shard:
        shard.attempt += 1
        if shard.attempt > self.attempt_max:
            self.attempt_max = shard.attempt
        return shard

    def put_back_unbegun(self, shard: Shard) -> None:
        """Put back a shard of which nothing was trained under its attempt: the next holder gets the same one."""
        shard.attempt -= 1
        self.requeued.append(shard)

    def _carve(self, samples: int, orders: Orders) -> Range | None:
        """Cut at most ``samples`` from the open remainder or the next block."""
        piece, self.remainder = self.remainder, None
        if piece is None:
            piece = self.source.open_block(orders)
        if piece is not None and piece.length > samples:
            self.remainder = Range(piece.epoch, piece.start + samples, piece.length - samples, piece.partition)
            piece.length = samples
        return piece

    def complete(self, shard: Shard) -> None:
        """All samples of a leased shard are applied."""
        self.samples_done += shard.length
        self.shards_done += 1
        self.fingerprint = self.fingerprint + fingerprint_of(shard.id, shard.length) & _MASK_64

    def abandon(self, shard: Shard, reason: str) -> None:
        """Give a leased shard up: what was applied of it counts as done, the rest as abandoned."""
        rest = shard.length - shard.offset
        self.samples_done += shard.offset
        self.samples_abandoned += rest
        self.shards_done += rest == 0
        self.fingerprint = self.fingerprint + fingerprint_of(shard.id, shard.offset) & _MASK_64
        if rest and len(self.given_up) < GIVEN_UP_MAX:
            start = shard.start + shard.offset
            entry = GivenUp(shard.id, shard.offset, shard.epoch, start, rest, reason[:300], shard.partition)
            self.given_up.append(entry)
        elif rest:
            self._leave(Partial(shard.id, shard.offset), rest)

    def _leave(self, shard: Partial, rest: int) -> None:
        if len(self.partial) < PARTIAL_MAX:
            self.partial.append(shard)
        else:
            self.unproven += rest

    def without(self, over: Sequence[Shard]) -> None:
        """Undo the ends of these shards, whose ``offset`` is how far each was."""
        for shard in over:
            self.samples_done -= shard.offset
            self.samples_abandoned -= shard.length - shard.offset
            self.shards_done -= shard.offset == shard.length
            self.fingerprint = self.fingerprint - fingerprint_of(shard.id, shard.offset) & _MASK_64
        listed = {entry.shard for entry in (*self.given_up, *self.partial)}
        self.unproven -= sum(shard.length - shard.offset for shard in over if shard.id not in listed)
        gone = {shard.id for shard in over}
        self.given_up = [entry for entry in self.given_up if entry.shard not in gone]
        self.partial = [entry for entry in self.partial if entry.shard not in gone]

    def void(self, given_up: Sequence[Shard]) -> None:
        """Count nothing of these given-up shards as done, of which ``offset`` samples did."""
        listed = {entry.shard for entry in (*self.given_up, *self.partial)}
        for shard in given_up:
            self.samples_done -= shard.offset
            self.samples_abandoned += shard.offset
            self.fingerprint = self.fingerprint - fingerprint_of(shard.id, shard.offset) & _MASK_64
            self.unproven += shard.offset if shard.id not in listed else 0
        starts = {shard.id: (shard.start, shard.length) for shard in given_up}
        self.given_up = [
            replace(entry, offset=0, start=starts[entry.shard][0], length=starts[entry.shard][1])
            if entry.shard in starts
            else entry
            for entry in self.given_up
        ]
        self.partial = [Partial(one.shard, 0) if one.shard in starts else one for one in self.partial]

    def with_leases(self, leased: Iterable[Shard], sure: bool = True) -> Book:
        """A copy in which these shards have come back: the document of a checkpoint.

        Without ``sure`` their offsets are dropped: the images may be older than the last report.
        """
        back = [shard.copy() for shard in (*leased, *self.requeued)]
        if not sure:
            for shard in back:
                shard.offset = 0
        remainder = replace(self.remainder) if self.remainder else None
        return replace(
            self,
            source=self.source.copy(),
            remainder=remainder,
            requeued=back,
            given_up=list(self.given_up),
            partial=list(self.partial),
        )

    def compared_with(self, mark: Book) -> tuple[int, int]:
        """Return the samples done in ``mark`` alone, and those done here alone. Both have the same data and no leases.

        One of them continued from the other, so below the lower ``next_id`` an id is the same shard in both. The book
        that is ahead lists what it has not done of those; the rest follows from the totals.
        """
        ahead, behind = (self, mark) if self.next_id > mark.next_id else (mark, self)
        waiting = {shard.id for shard in behind.requeued}
        left = {entry.shard: entry.offset for entry in behind.given_up} | dict(behind.partial)
        done = (shard for shard in ahead.requeued if shard.id < behind.next_id and shard.id not in waiting)
        in_behind = sum(left.get(shard.id, shard.length) for shard in done)
        in_ahead = max(0, ahead.samples_done - behind.samples_done + in_behind)
        return (in_behind, in_ahead) if ahead is self else (in_ahead, in_behind)

    def restored_from(self, mark: Book) -> Book:
        """The books after going back to ``mark``.

        Ids and attempts never repeat: a late report from the time that was undone must not match a lease of now.
        When the mark is of other data (a job that starts from another job's checkpoint), only the ids carry over,
        because the restored progress records use them, and the names of what was not complete: the parameters may
        have a part of it.
        """
        if self.source.same_data(mark.source):
            back = mark.with_leases([])
            back.source = self.source.resumed(mark.source)
        else:
            back = self.with_leases([])
            back.samples_before, back.fingerprint = mark.samples_before + mark.samples_done, mark.fingerprint
            back.partial, back.unproven = list(mark.partial), mark.unproven
            for shard in mark.requeued:
                back._leave(Partial(shard.id, 0), shard.length)
            for entry in mark.given_up:
                back._leave(Partial(entry.shard, entry.offset), entry.length)
        back.next_id = max(self.next_id, mark.next_id)
        back.attempt_max = max(self.attempt_max, mark.attempt_max)
        for shard in back.requeued:
            shard.attempt = back.attempt_max
        return back
