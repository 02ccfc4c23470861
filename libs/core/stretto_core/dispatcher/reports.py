"""Messages of the ledger's books: shards, the books of a completed job, and the audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import islice

from stretto_messages import values
from stretto_messages.base import bounded
from stretto_messages.books import CompletedBooks, GivenUp, Lease, LedgerBooks, PartialShard, PartitionBooks

from stretto_core.dispatcher.audit import epochs_of
from stretto_core.dispatcher.book import Book, Shard
from stretto_core.dispatcher.source import Source

EPOCHS_MAX, OPEN_MAX, PARTITIONS_LISTED_MAX = 64, 500, 200
"""Bounds of the audit's message."""


def shard_message(shard: Shard) -> values.Shard:
    """Return a shard as it is now; a shard that waits and was only held ahead has its first attempt."""
    return values.Shard(
        id=shard.id,
        attempt=max(1, shard.attempt),
        epoch=shard.epoch,
        start=shard.start,
        length=shard.length,
        offset=shard.offset,
        partition=shard.partition,
        kind="evaluate" if shard.held_out else "train",
    )


def completed_books(book: Book, samples_recomputed: int) -> CompletedBooks:
    """Return what the ledger holds for done, and the shards that nobody will complete."""
    return CompletedBooks(
        samples_before=book.samples_before,
        fingerprint=f"{book.fingerprint:016x}",
        given_up=tuple(GivenUp(**asdict(entry)) for entry in book.given_up),
        partial=tuple(PartialShard(shard=shard, known=known) for shard, known in book.partial),
        unproven=book.unproven,
        samples_recomputed=samples_recomputed,
    )


def ledger_books(book: Book, leased: Sequence[tuple[str, Shard]], closed: str, samples_recomputed: int) -> LedgerBooks:
    """Return the ledger at this instant. ``leased``: the shards that workers train or hold ahead, by the workers."""
    leases = [Lease(pod=pod, shard=shard_message(shard)) for pod, shard in leased]
    returned = [Lease(shard=shard_message(shard)) for shard in book.requeued]
    opened = (*leases, *returned)
    books = completed_books(book, samples_recomputed)
    unlisted = sum(lease.shard.length for lease in opened[OPEN_MAX:])  # columns may have any part of them
    return LedgerBooks(
        samples_total=book.samples_total,
        epoch_samples=book.source.samples,
        samples_done=book.samples_done,
        samples_given_up=book.samples_abandoned,
        samples_waiting=book.samples_waiting,
        epochs=tuple(epochs_of(book, [shard for _, shard in leased])[:EPOCHS_MAX]),
        open=opened[:OPEN_MAX],
        books=replace(books, unproven=books.unproven + unlisted),
        closed=bounded(closed),
        growing=not book.source.complete,
        partitions=_partitions(book.source),
    )


def _partitions(source: Source) -> tuple[PartitionBooks, ...]:
    left = ((name, part) for name, part in source.partitions.items() if name and part.opened < part.samples)
    return tuple(
        PartitionBooks(name=name, samples=part.samples, priority=part.priority, opened=part.opened)
        for name, part in islice(left, PARTITIONS_LISTED_MAX)
    )
