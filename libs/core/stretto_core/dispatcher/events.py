"""Events and replies of the ledger that no message carries: they hold books, or come from a job's specification."""

from __future__ import annotations

from dataclasses import dataclass

from stretto_messages.values import DataPartition

from stretto_core.dispatcher.book import Book
from stretto_core.dispatcher.evaluating import Best, HeldOut
from stretto_core.dispatcher.source import DataSpec


@dataclass(frozen=True, slots=True)
class JobOpened:
    """A job exists: its data, its epochs, and how often a shard may fail by itself."""

    job: str
    data: DataSpec
    epochs: int
    shard_failures_max: int = 3
    partitions: tuple[DataPartition, ...] = ()
    """Partitions at first; none, unless the data grow: one without a name."""
    held_out: HeldOut | None = None
    """Samples that are evaluated while the job trains."""
    window_samples: int = 0
    """Samples of each window that are evaluated before it is trained; 0: the data have no windows."""
    best: Best | None = None
    """How the best evaluation is found; it is not found yet."""
    runs_program: bool = False
    """No parameter server recognises a sample that is trained twice: what lost workers may have trained is counted."""
    returns: bool = False
    """The job's program keeps checkpoints, to which workers may return the books."""


@dataclass(frozen=True, slots=True)
class LedgerRestored:
    """Parameters went back to a checkpoint; the books go back with them."""

    book: Book
    checkpoint: str = ""
    """Id of the checkpoint; empty: the return is not published."""
    lineage: int = 0
    """Number of the return, which the parameters have as well."""


@dataclass(frozen=True, slots=True)
class ReturnAsked:
    """A worker asks for the books of a checkpoint that its program has loaded."""

    job: str
    pod: str
    restored: LedgerRestored


@dataclass(frozen=True, slots=True)
class LedgerMark:
    """Reply to MarkLedger: the books to restore from. The service writes them as the document of a checkpoint."""

    job: str
    book: Book
    samples_done: int
