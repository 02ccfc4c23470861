"""The proof that every sample was applied exactly once: the ledger's books against what the parameters counted.

Two sides that never see each other's figures. The ledger knows which shards were reported complete, and how far those
were that it gave up. Every column of the parameters counts what lands on it: a number of samples and their fingerprint
(:func:`~stretto_core.dispatcher.book.fingerprint_of`). Columns are compared one by one, and nothing is netted: a batch
lost here and another repeated there leave two columns that do not agree, and within one column a fingerprint that does
not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stretto_messages.books import EpochBooks, Fault

from stretto_core.dispatcher.book import Book, Shard, fingerprint_of

_MASK_64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Counted:
    """Count of every one of these columns: all samples ever applied, and their fingerprint."""

    columns: tuple[int, ...]
    samples: int
    fingerprint: int


@dataclass(frozen=True, slots=True)
class Applied:
    """How far these columns are with a shard that is not complete, of which the books count ``known`` as done."""

    shard: int
    columns: tuple[int, ...]
    samples: int
    known: int = 0


@dataclass(frozen=True, slots=True)
class Proof:
    """Result of an audit, exact if ``faults`` is empty. ``samples``: number that the ledger expects in every column."""

    columns: int
    samples: int
    faults: tuple[Fault, ...]

    @property
    def lost(self) -> int:
        """Samples that the worst column lacks."""
        return max((fault.lost for fault in self.faults), default=0)

    @property
    def repeated(self) -> int:
        """Samples that the worst column has twice."""
        return max((fault.repeated for fault in self.faults), default=0)


def prove(
    samples: int,
    fingerprint: int | None,
    columns: int,
    counted: Sequence[Counted],
    applied: Iterable[Applied] = (),
    unproven: int = 0,
) -> Proof:
    """Compare what the ledger holds for done with what all columns counted; ``columns``: how many there should be.

    Without a fingerprint only the numbers are compared.

    ``applied``: how far they are with shards that are not complete, given-up ones included; that much more is expected
    of them. ``unproven``: samples of shards that were given up and are not among them.
    """
    more: dict[int, tuple[int, int]] = {}
    for part in applied:
        for column in part.columns:
            has, prints = more.get(column, (0, 0))
            least = max(part.samples, part.known)  # fewer than the books hold for done are lost, not to be expected
            extra = fingerprint_of(part.shard, least) - fingerprint_of(part.shard, part.known)
            more[column] = has + least - part.known, prints + extra
    owners: dict[int, int] = {}
    found: dict[tuple[int, int, int, int], list[int]] = {}
    for part in counted:
        for column in part.columns:
            owners[column] = owners.get(column, 0) + 1
            has, prints = more.get(column, (0, 0))
            surplus = part.samples - samples - has
            others = fingerprint is not None and (part.fingerprint - fingerprint - prints) & _MASK_64
            if surplus or others:
                # as many lost as repeated: the numbers agree, the samples do not
                lost, repeated = (max(-surplus, 0), max(surplus, 0)) if surplus else (1, 1)
                excess = min(surplus, unproven) if surplus > 0 else 0
                found.setdefault((lost, repeated - excess, 1, excess), []).append(column)
    for column in range(columns):
        if owners.get(column, 0) != 1:
            lost = 0 if column in owners else samples
            found.setdefault((lost, 0, owners.get(column, 0), 0), []).append(column)
    faults = tuple(Fault(tuple(sorted(set(which))), *figures) for figures, which in sorted(found.items()))
    return Proof(columns, samples, faults)


def epochs_of(book: Book, leased: Iterable[Shard]) -> list[EpochBooks]:
    """Return the epochs from the first that is not whole to the last that was begun.

    Those before are done, those after wait. The samples given up are those of the dead-letter list.
    """
    waiting: dict[int, int] = {}
    flying: dict[int, int] = {}
    for shard in book.requeued:
        waiting[shard.epoch] = waiting.get(shard.epoch, 0) + shard.length
    if book.remainder is not None:
        waiting[book.remainder.epoch] = waiting.get(book.remainder.epoch, 0) + book.remainder.length
    for shard in leased:
        flying[shard.epoch] = flying.get(shard.epoch, 0) + shard.length
    source = book.source
    unopened = source.samples * (source.epoch + 1) - source.opened
    if 0 < unopened < source.samples:
        waiting[source.epoch] = waiting.get(source.epoch, 0) + unopened
    lost: dict[int, int] = {}
    for entry in book.given_up:
        lost[entry.epoch] = lost.get(entry.epoch, 0) + entry.length
    first = min((*waiting, *flying, *lost), default=book.epoch)
    last = max((*waiting, *flying, *lost), default=book.epoch - 1)
    return [
        EpochBooks(
            epoch=epoch,
            waiting=waiting.get(epoch, 0),
            in_flight=flying.get(epoch, 0),
            given_up=lost.get(epoch, 0),
            done=source.samples - waiting.get(epoch, 0) - flying.get(epoch, 0) - lost.get(epoch, 0),
        )
        for epoch in range(first, last + 1)
    ]
