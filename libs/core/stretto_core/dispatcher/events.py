"""What a shard ledger hears. ``now`` travels beside each event; the job is the machine's key."""

from __future__ import annotations

from dataclasses import dataclass

from stretto_core.dispatcher.book import Book
from stretto_core.dispatcher.evaluating import Found, HeldOut
from stretto_core.dispatcher.source import Arrival, DataSpec


@dataclass(frozen=True, slots=True)
class JobOpened:
    """The job exists: its data, epochs, and how often a shard may fail by itself.

    ``partitions``: what the data consist of at first; none, unless they grow: one without a name. ``held_out``: what
    is evaluated while it trains.
    """

    data: DataSpec
    epochs: int
    shard_failures_max: int = 3
    partitions: tuple[Arrival, ...] = ()
    held_out: HeldOut | None = None


@dataclass(frozen=True, slots=True)
class DataArrived:
    """Partitions of growing data have these totals now; ``closed``: nothing more comes."""

    arrivals: tuple[Arrival, ...]
    closed: bool = False


@dataclass(frozen=True, slots=True)
class NextRequested:
    """A worker completes a shard (``completed_id`` under ``completed_attempt``, or None) and wants another.

    ``found``: what it found, when that shard was to be evaluated.
    """

    worker: str
    request_id: str
    completed_id: int | None = None
    completed_attempt: int = 0
    found: Found | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    """A worker lives; ``offset`` samples of its shard are applied."""

    worker: str
    shard_id: int
    attempt: int
    offset: int


@dataclass(frozen=True, slots=True)
class ShardReturned:
    """A worker gives its shard back: it leaves (``failure`` None), or the data themselves failed."""

    worker: str
    shard_id: int
    attempt: int
    offset: int
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class MarkRequested:
    """A checkpoint wants the books. ``after``: the id of the mark that was taken before its first image.

    A single mark (``after`` None) belongs to images of its own instant, with pushes frozen. Images that are copied
    while training goes on are exact only between two marks: the second one lists as outstanding whatever was not
    complete at the first or was leased since, under its id, so that the records in the images can filter it.
    """

    mark_id: str
    after: str | None = None


@dataclass(frozen=True, slots=True)
class AuditRequested:
    """Somebody wants to see the books. Changes nothing."""


@dataclass(frozen=True, slots=True)
class LedgerRestored:
    """Parameters went back to a checkpoint; the books go back with them."""

    book: Book


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A pod is gone for good; its name never returns."""

    worker: str


@dataclass(frozen=True, slots=True)
class StragglerNamed:
    """A worker is ``slowdown`` times slower than its peers' median; 1.0 when it keeps pace again."""

    worker: str
    slowdown: float


@dataclass(frozen=True, slots=True)
class JobClosed:
    """The job was cancelled, or cannot go on."""

    reason: str
