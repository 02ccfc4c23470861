"""Records of the books: what the ledger holds for done, beside what every column of the parameters counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt, MaxLen

from stretto_messages.base import Count, Doc, Pattern, Record, Text
from stretto_messages.values import Shard

Fingerprint = Annotated[
    str,
    Pattern(r"^[0-9a-f]{16}$"),
    Doc("of samples: sum of w(shard) x offset^2 mod 2^64 over shards; equal numbers are not enough"),
]


Columns = Annotated[
    tuple[Annotated[int, Ge(0), Lt(8192)], ...], MaxLen(8192), Doc("embedding buckets, then dense slices")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnBooks(Record):
    """What each of these columns counted, of all time."""

    columns: Columns
    samples: Count
    fingerprint: Fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardApplied(Record):
    """How many samples of a shard that is not complete each of these columns has.

    Without columns: all those of the same books that the shard's other entries do not name.
    """

    shard: Count
    columns: Columns
    samples: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedBooks(Record):
    """What the parameter servers counted, column by column, of ``columns_total`` that there are."""

    columns_total: Count = 0
    columns: Annotated[tuple[ColumnBooks, ...], MaxLen(8192)] = ()
    shards: Annotated[tuple[ShardApplied, ...], MaxLen(8192)] = ()
    """Of shards that were given up or are open."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp(Record):
    """An entry of the dead-letter list: these samples of an epoch were never trained; ``offset`` of its shard were."""

    shard: Count
    offset: Count
    epoch: Count
    start: Count
    length: Count
    reason: Text
    partition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialShard(Record):
    """A shard that nobody will complete, of which ``known`` samples count as done; a column may have some more."""

    shard: Count
    known: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedBooks(Record):
    """What the ledger holds for done at the end. ``samples_before``: of other data that the parameters came from."""

    samples_before: Count = 0
    fingerprint: Fingerprint
    given_up: Annotated[tuple[GivenUp, ...], MaxLen(200)] = ()
    partial: Annotated[tuple[PartialShard, ...], MaxLen(800)] = ()
    """Given up beyond the list, or not complete of the other data."""
    unproven: Count = 0
    """Samples of such shards beyond both lists: not provable."""


def partly_done(books: CompletedBooks) -> list[tuple[int, int]]:
    """The shards that nobody will complete, and how many samples of each count as done."""
    return [(one.shard, one.offset) for one in books.given_up] + [(one.shard, one.known) for one in books.partial]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBooks(Record):
    """Where the samples of one epoch are; the four add up to the dataset."""

    epoch: Count
    waiting: Count
    """Never leased, or come back."""
    in_flight: Count
    given_up: Count
    done: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease(Record):
    """A shard that is not complete; ``pod`` holds it, or nobody."""

    pod: Annotated[str, MaxLen(100)] = ""
    shard: Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBooks(Record):
    """A partition, and how many of its samples have been given to workers in this epoch."""

    name: str
    samples: Count
    priority: int = 0
    opened: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerBooks(Record):
    """The ledger at one instant: assigned = opened - waiting = done + given up + in flight."""

    samples_total: Count
    """Of all epochs."""
    epoch_samples: Count
    """Samples of the dataset."""
    samples_done: Count
    samples_given_up: Count
    samples_waiting: Count
    epochs: Annotated[tuple[EpochBooks, ...], MaxLen(64)]
    """First to last that is neither whole nor untouched."""
    open: Annotated[tuple[Lease, ...], MaxLen(500)]
    """Shards that are leased or came back."""
    books: CompletedBooks
    closed: Text = ""
    growing: bool = False
    """More samples may come."""
    partitions: Annotated[tuple[PartitionBooks, ...], MaxLen(200)] = ()
    """Those with samples that nobody was given."""
