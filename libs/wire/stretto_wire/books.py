"""Records of the books: what the ledger holds for done, beside what every column of the parameters counted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field, StringConstraints

from .base import Count, Record, Text
from .values import Shard

Fingerprint = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9a-f]{16}$"),
    Field(description="of samples: sum of w(shard) x offset^2 mod 2^64 over shards; equal numbers are not enough"),
]
Columns = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=8192)], ...],
    Field(max_length=8192, description="embedding buckets, then dense slices"),
]


class ColumnBooks(Record):
    """What each of these columns counted, of all time."""

    columns: Columns
    samples: Count
    fingerprint: Fingerprint


class ShardApplied(Record):
    """How many samples of a shard that is not complete each of these columns has.

    Without columns: all those of the same books that the shard's other entries do not name.
    """

    shard: Count
    columns: Columns
    samples: Count


class AppliedBooks(Record):
    """What the parameter servers counted, column by column, of ``columns_total`` that there are."""

    columns_total: Count = 0
    columns: Annotated[tuple[ColumnBooks, ...], Field(max_length=8192)] = ()
    shards: Annotated[
        tuple[ShardApplied, ...], Field(max_length=8192, description="of shards that were given up or are open")
    ] = ()


def gathered(parts: Iterable[ShardApplied], columns: int) -> tuple[ShardApplied, ...]:
    """The same, shorter, for books of so many ``columns``: most shards are alike in all of them."""
    far: dict[int, dict[int, list[int]]] = {}
    for part in parts:
        far.setdefault(part.shard, {}).setdefault(part.samples, []).extend(part.columns)
    told: list[ShardApplied] = []
    for shard, groups in far.items():
        widest = max(groups, key=lambda samples: len(groups[samples]))
        if sum(map(len, groups.values())) == columns:
            groups[widest] = []
        told += [ShardApplied(shard=shard, columns=tuple(which), samples=n) for n, which in groups.items()]
    return tuple(told)


def spread(books: AppliedBooks) -> list[ShardApplied]:
    """What :func:`gathered` left out, put back."""
    every = [column for part in books.columns for column in part.columns]
    named: dict[int, set[int]] = {}
    for part in books.shards:
        named.setdefault(part.shard, set()).update(part.columns)
    found: list[ShardApplied] = []
    for part in books.shards:
        columns = part.columns or tuple(column for column in every if column not in named[part.shard])
        found.append(ShardApplied(shard=part.shard, columns=columns, samples=part.samples))
    return found


class GivenUp(Record):
    """An entry of the dead-letter list: these samples of an epoch were never trained; ``offset`` of its shard were."""

    shard: Count
    offset: Count
    epoch: Count
    start: Count
    length: Count
    reason: Text
    partition: str = ""


class PartialShard(Record):
    """A shard that nobody will complete, of which ``known`` samples count as done; a column may have some more."""

    shard: Count
    known: Count


class CompletedBooks(Record):
    """What the ledger holds for done at the end. ``samples_before``: of other data that the parameters came from."""

    samples_before: Count = 0
    fingerprint: Fingerprint
    given_up: Annotated[tuple[GivenUp, ...], Field(max_length=200)] = ()
    partial: Annotated[
        tuple[PartialShard, ...],
        Field(max_length=800, description="given up beyond the list, or not complete of the other data"),
    ] = ()
    unproven: Annotated[Count, Field(description="samples of such shards beyond both lists: not provable")] = 0


def partly_done(books: CompletedBooks) -> list[tuple[int, int]]:
    """The shards that nobody will complete, and how many samples of each count as done."""
    return [(one.shard, one.offset) for one in books.given_up] + [(one.shard, one.known) for one in books.partial]


class EpochBooks(Record):
    """Where the samples of one epoch are; the four add up to the dataset."""

    epoch: Count
    waiting: Annotated[Count, Field(description="never leased, or come back")]
    in_flight: Count
    given_up: Count
    done: Count


class Lease(Record):
    """A shard that is not complete; ``pod`` holds it, or nobody."""

    pod: Annotated[str, Field(max_length=100)] = ""
    shard: Shard


class PartitionBooks(Record):
    """A partition, and how many of its samples have been given to workers in this epoch."""

    name: str
    samples: Count
    priority: int = 0
    opened: Count


class LedgerBooks(Record):
    """The ledger at one instant: assigned = opened - waiting = done + given up + in flight."""

    samples_total: Annotated[Count, Field(description="of all epochs")]
    epoch_samples: Annotated[Count, Field(description="samples of the dataset")]
    samples_done: Count
    samples_given_up: Count
    samples_waiting: Count
    epochs: Annotated[
        tuple[EpochBooks, ...], Field(max_length=64, description="first to last that is neither whole nor untouched")
    ]
    open: Annotated[tuple[Lease, ...], Field(max_length=500, description="shards that are leased or came back")]
    books: CompletedBooks
    closed: Text = ""
    growing: Annotated[bool, Field(description="more samples may come")] = False
    partitions: Annotated[
        tuple[PartitionBooks, ...], Field(max_length=200, description="those with samples that nobody was given")
    ] = ()
