"""The books: samples that the ledger counts as done, and samples that each column counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Lt, MaxLen

from stretto_messages.base import Count, Doc, Pattern, Record, Text
from stretto_messages.values import Shard

Fingerprint = Annotated[
    str,
    Pattern(r"^[0-9a-f]{16}$"),
    Doc("fingerprint of a set of samples: sum of w(shard) x offset^2 mod 2^64 over shards"),
]


Columns = Annotated[
    tuple[Annotated[int, Ge(0), Lt(8192)], ...], MaxLen(8192), Doc("embedding buckets, then dense slices")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnBooks(Record):
    """Samples that each of these columns has counted so far."""

    columns: Columns
    samples: Count
    fingerprint: Fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardApplied(Record):
    """Samples that each of these columns has of an incomplete shard.

    No columns: all columns of the books that the shard's other entries do not name.
    """

    shard: Count
    columns: Columns
    samples: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBooks(Record):
    """Counters of a job's `rows`: gradients left out of embedding tables, and rows dropped from them."""

    gradients_left_out: Count = 0
    """Gradients of keys that were not admitted, one for each key of a step: no row has them."""
    keys_without_row: Count = 0
    """Keys without a row now, although steps had them: not admitted yet, or expired. An estimate."""
    rows_expired: Count = 0
    """Rows that were dropped after `expire_samples` without a change."""


ALL_ROWS = RowBooks()
"""The counters of a job that keeps all rows."""


def total_rows(parts: Iterable[RowBooks]) -> RowBooks:
    """Add the books of several parameter servers."""
    every = list(parts)
    return RowBooks(
        gradients_left_out=sum(part.gradients_left_out for part in every),
        keys_without_row=sum(part.keys_without_row for part in every),
        rows_expired=sum(part.rows_expired for part in every),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedBooks(Record):
    """Counts of the parameter servers, by column; the job has ``columns_total`` columns."""

    columns_total: Count = 0
    columns: Annotated[tuple[ColumnBooks, ...], MaxLen(8192)] = ()
    shards: Annotated[tuple[ShardApplied, ...], MaxLen(8192)] = ()
    """Counts of shards that were given up or are open."""
    rows: RowBooks = ALL_ROWS


def gathered(parts: Iterable[ShardApplied], columns: int) -> tuple[ShardApplied, ...]:
    """Shorten the entries of books with ``columns`` columns: most shards have the same count in all of them."""
    far: dict[int, dict[int, list[int]]] = {}
    for part in parts:
        far.setdefault(part.shard, {}).setdefault(part.samples, []).extend(part.columns)
    shortened: list[ShardApplied] = []
    for shard, groups in far.items():
        widest = max(groups, key=lambda samples: len(groups[samples]))
        if sum(map(len, groups.values())) == columns:
            groups[widest] = []
        shortened += [ShardApplied(shard=shard, columns=tuple(which), samples=n) for n, which in groups.items()]
    return tuple(shortened)


def spread(books: AppliedBooks) -> list[ShardApplied]:
    """Expand the entries that :func:`gathered` shortened."""
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
class Shortfall(Record):
    """Why a finished job is not just finished. ``words`` follow its state, ``detail`` is reason, place and remedy."""

    kind: Literal[
        "given-up", "not-stored", "not-evaluated", "no-data-workers", "trained-again", "no-export", "stopped-early"
    ]
    words: Annotated[str, MaxLen(100)]
    detail: Text
    lacking: bool
    """The job's result lacks something. False: it has all, and only took longer to get."""


def small_share(share: float) -> str:
    """Format a share of 1 in per cent so that a small one does not look like none."""
    return "<0.1%" if 0 < share < 0.001 else f"{share:.1%}" if share < 0.01 else f"{share:.0%}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialShard(Record):
    """A shard that nobody will complete. ``known`` of its samples count as done; a column may have more."""

    shard: Count
    known: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedBooks(Record):
    """The ledger's account at the end. ``samples_before``: samples of other data in the parameters."""

    samples_before: Count = 0
    fingerprint: Fingerprint
    given_up: Annotated[tuple[GivenUp, ...], MaxLen(200)] = ()
    partial: Annotated[tuple[PartialShard, ...], MaxLen(800)] = ()
    """Shards given up beyond the list, and incomplete shards of the other data."""
    unproven: Count = 0
    """Samples of such shards beyond both lists, which cannot be proven."""
    samples_recomputed: Count = 0
    """Samples handed out again: for columns that came back from a checkpoint, and then each counts once, as any other;
    or, where workers run a program, of shards in which a worker was lost: at most so many reached the program twice."""


def partly_done(books: CompletedBooks) -> list[tuple[int, int]]:
    """Return the shards that nobody will complete, with the number of samples that count as done."""
    return [(one.shard, one.offset) for one in books.given_up] + [(one.shard, one.known) for one in books.partial]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBooks(Record):
    """Place of the samples of one epoch; the four counts add up to the dataset."""

    epoch: Count
    waiting: Count
    """Never leased, or returned."""
    in_flight: Count
    given_up: Count
    done: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease(Record):
    """An incomplete shard. ``pod`` holds it; empty: nobody."""

    pod: Annotated[str, MaxLen(100)] = ""
    shard: Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBooks(Record):
    """A data partition. ``opened``: samples given to workers in this epoch."""

    name: str
    samples: Count
    priority: int = 0
    opened: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerBooks(Record):
    """The ledger at one instant: assigned = opened - waiting = done + given up + in flight."""

    samples_total: Count
    """Samples of all epochs."""
    epoch_samples: Count
    """Samples of the dataset."""
    samples_done: Count
    samples_given_up: Count
    samples_waiting: Count
    epochs: Annotated[tuple[EpochBooks, ...], MaxLen(64)]
    """Epochs that have begun and are not finished."""
    open: Annotated[tuple[Lease, ...], MaxLen(500)]
    """Shards that are leased or came back."""
    books: CompletedBooks
    closed: Text = ""
    growing: bool = False
    """More samples may arrive."""
    partitions: Annotated[tuple[PartitionBooks, ...], MaxLen(200)] = ()
    """Data partitions with samples that no worker was given yet."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Columns that do not agree with the ledger, in the same way. ``lost`` and ``repeated`` samples are lower bounds
    when both are set: a fingerprint tells that samples were exchanged, not how many. ``servers``: how many own it.
    ``unproven``: samples more than expected that may well be of shards which the books no longer name."""

    columns: tuple[int, ...]
    lost: int
    repeated: int
    servers: int = 1
    unproven: int = 0
