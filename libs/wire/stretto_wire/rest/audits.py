"""The audit of a job: the ledger's books against the counts of every column of the parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from stretto_messages.base import Described
from stretto_messages.books import ALL_ROWS, EpochBooks, Fault, GivenUp, RowBooks
from stretto_messages.values import Shard

from ..codec import COMPLETE
from .views import Status


@dataclass(frozen=True, slots=True)
class OpenShard(Described):
    """An incomplete shard, and its samples in the least and the most advanced column."""

    pod: str
    """Its holder; empty: nobody."""
    shard: Shard
    applied_least: int
    applied_most: int


@dataclass(frozen=True, slots=True)
class Return:
    """A return of the job to a checkpoint.

    ``backup_at_s``: it followed a restoration from a backup of that moment; None: parameters were lost, or the
    ranks of a program began anew.
    ``samples_before`` were done in the ledger until then. ``samples_gained`` are done in the checkpoint alone, and are
    not trained again; ``samples_undone`` were done in the ledger alone, and are trained again. After a restoration the
    samples trained since the checkpoint are in neither: nobody knows how many, and they are trained again.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = COMPLETE

    at_s: float
    checkpoint: str
    samples_before: int
    samples_gained: int
    samples_undone: int
    backup_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class JobAudit(Described):
    """Result of an audit.

    ``exact``: every column counted exactly the samples that the ledger counts as done. ``quiet``: no sample is in
    flight. ``samples_recomputed`` were handed out again for columns that came back from a checkpoint, and count once as
    any other. ``samples_total`` = waiting + in flight + given up + done. ``samples_lost`` and ``samples_repeated`` are
    each of the worst column; one never cancels the other. ``rows``: what the job's policy of rows left out and dropped.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = COMPLETE

    job: str
    status: Status
    exact: bool
    quiet: bool
    findings: tuple[str, ...]
    samples_total: int
    samples_assigned: int
    samples_done: int
    samples_given_up: int
    samples_in_flight: int
    samples_waiting: int
    samples_before: int
    samples_recomputed: int
    samples_lost: int
    samples_repeated: int
    fingerprint: str
    columns: int
    columns_exact: int
    faults: tuple[Fault, ...] = ()
    epochs: tuple[EpochBooks, ...] = ()
    open: tuple[OpenShard, ...] = ()
    given_up: tuple[GivenUp, ...] = ()
    returns: tuple[Return, ...] = ()
    rows: RowBooks = ALL_ROWS
